"""Launching: the recorder gets into a command and all its descendants, and the launcher stays out of their way.

The *bootstrap* (``bootstrap/sitecustomize.py``) runs inside every Python process of the program; ``run`` starts the
command, waits, and says what became of it. Neither outlives, blocks or kills the program.
"""
