"""What the digest of a tensor is finished from, made where the tensor lies, on any device torch has. What is read back,
and when, is decided elsewhere (``rltrace.record.device_reading``).
"""

from rltrace.record.device.by_operations import page_digests, signed
from rltrace.record.device.condensing import condense, condensed_words, finished

__all__ = ["condense", "condensed_words", "finished", "page_digests", "signed"]
