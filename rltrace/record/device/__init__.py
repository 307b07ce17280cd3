"""The digests of whole pages where they lie, on any device torch has. What is read back, and when, is decided elsewhere
(``rltrace.record.device_reading``).
"""

from rltrace.record.device.by_operations import page_digests, signed

__all__ = ["page_digests", "signed"]
