"""Numbers: how far two tensors lie apart, and the series of a run, alone and beside another's.

Nothing here takes part in a verdict.
"""
