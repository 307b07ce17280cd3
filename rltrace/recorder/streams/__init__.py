"""The streams of a process, their threads, and the thread that commits their rows."""
