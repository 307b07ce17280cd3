"""Tensors condensed where they lie, on any device torch has, to what their digests are finished from on the host.

What that is stands in ``condensed``, how it is made in ``by_operations`` and ``by_kernel``, which of the two makes it
in ``choice``. What is condensed and read back, and when, is decided elsewhere.
"""

from rltrace.record.device.choice import condense, facts
from rltrace.record.device.condensed import condensed_words, finished

__all__ = ["condense", "condensed_words", "facts", "finished"]
