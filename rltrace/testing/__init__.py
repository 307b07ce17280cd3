"""Small true traces, built row by row through the real writer: for tests of anything that reads traces.

Owns a vocabulary for rows that needs no torch. Everything it makes is a trace like any other; it fakes nothing but the
numbers.
"""

from rltrace.testing.inputs import In, digest
from rltrace.testing.interning import Frame
from rltrace.testing.keeping import Tensor
from rltrace.testing.random import plain_entries, random_rows
from rltrace.testing.streams import LAYOUT, SITE, StreamBuilder
from rltrace.testing.traces import ProcessBuilder, TraceBuilder

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
