"""Boundaries: where a program of reinforcement learning meets what is no tensor op, recorded without an edit.

One small file per library. Each says what it stands in for while a process is recorded; a library that the program
never imports is never imported here, and all of it is undone when recording ends. What is told goes into event rows
(``rltrace.record.events``): what came in at a boundary, and as evidence how the generators around it stood.
"""
