"""The trace on disk. No torch."""
