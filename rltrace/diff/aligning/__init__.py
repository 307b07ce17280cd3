"""Which row of A is which row of B, and what is extra, moved, renamed or edited.

Owns identity between two runs. Decides nothing about causes.
"""
