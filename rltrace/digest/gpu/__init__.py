"""The digest on a GPU: its kernels (``kernels``), and how they become code for one (``compiling``). No torch here."""

from __future__ import annotations

from typing import Final

WARPS: Final = 1
"""Of a program: a page is one warp's work."""

CHUNK_BYTES: Final = 1_024
"""So much of what is left over one program copies."""

LANES_AT: Final = 24
"""Where the lanes' start values stand among a kernel's constants: behind the words of the secret."""
