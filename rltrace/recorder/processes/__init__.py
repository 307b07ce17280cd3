"""Forked children, and the ways in which a process ends."""
