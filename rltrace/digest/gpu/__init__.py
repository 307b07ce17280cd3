"""The digest on a GPU: its kernels (``kernels``) and their compilation (``compiler``). Imports no torch."""

from typing import Final

WARPS: Final = 1
"""Warps of a program, which digests a page."""

CHUNK_BYTES: Final = 1_024
"""Bytes of a last partial page that one program copies."""

LANES_AT: Final = 24
"""Index of the lanes' start values among a kernel's constants: after the words of the secret."""
