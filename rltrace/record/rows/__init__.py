"""Rows of tensors that are to be kept: what calls of modules and ops read and gave, a digest for each row.

Used only where rows were asked for; a recording without them runs none of it.
"""
