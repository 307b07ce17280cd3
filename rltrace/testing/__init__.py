"""Small traces, built row by row through the real writer, for tests of anything that reads traces.

Owns a vocabulary for rows that needs no torch. Only the numbers in these traces are made up.
"""

from rltrace.testing.builder import LAYOUT, SITE, Frame, In, ProcessBuilder, StreamBuilder, Tensor, TraceBuilder, digest
from rltrace.testing.random import plain_entries, random_rows

__all__ = [
    "LAYOUT",
    "SITE",
    "Frame",
    "In",
    "ProcessBuilder",
    "StreamBuilder",
    "Tensor",
    "TraceBuilder",
    "digest",
    "plain_entries",
    "random_rows",
]
