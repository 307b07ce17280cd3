"""Launching: starts a command so that it and all of its descendants are recorded, without getting in their way.

The *bootstrap* (``bootstrap/sitecustomize.py``) runs inside every Python process of the program; ``run`` starts the
command, waits, and returns how it ended. Neither outlives, blocks or kills the program.
"""
