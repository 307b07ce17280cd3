"""Rows of a generator's tensors put into a trainer whose batches have other shapes, by what each row is of.

Owns the table of A's rows (``table``, ``source``), following the program's forward passes while they run (``passes``),
the putting in (``put``, ``stream``) and the account of it (``tally``).
"""
