"""The native engine's library: its sources, how it is built, found, checked and loaded. Knows nothing of recording."""
