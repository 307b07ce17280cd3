"""The streams of a process, their threads, and the background thread that commits their rows."""
