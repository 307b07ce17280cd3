"""Digests of what lies on a device, read back later: a row is written while its device still computes.

Knows tensors, streams and buffers; of rows only that a digest belongs to one. Where a digest goes is the committer's
(``rltrace.record.commit``), what a page's digest is ``rltrace.record.device``'s.
"""

from rltrace.record.readback.graphs import Graphs
from rltrace.record.readback.readback import ReadBack
from rltrace.record.readback.staging import Pending

__all__ = ["Graphs", "Pending", "ReadBack"]
