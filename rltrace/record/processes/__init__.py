"""Processes of the program: what each is called, those that it starts, and the ways in which they end.

Owns what is the same in every run though no process id is. Never starts, delays or ends a process of the program.
"""
