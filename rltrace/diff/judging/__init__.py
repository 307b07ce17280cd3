"""What a difference between two rows means: its cause, how the inputs are known to match, and whether it is harmless.

Owns the judgement of rows that are known to be the same op, or to be on one side alone.
"""
