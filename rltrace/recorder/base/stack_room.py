"""Whether the stack of a thread of the program's has room left for what the recorder does above it.

At the end of the stack (``sys.getrecursionlimit``) any call may raise RecursionError, the recorder's own too, and code
in C turns it into errors of other kinds (ctypes: ArgumentError). None of these is a failure of the recorder's.
"""

from __future__ import annotations

from typing import Final

FRAMES: Final = 40
"""More than the recorder has above an op that it has seen before."""


def need_room(error: BaseException | None = None, frames: int = FRAMES) -> None:
    """Raise RecursionError where there is no room for so many frames, or where ``error`` is one."""
    if isinstance(error, RecursionError):
        raise error
    if frames:
        need_room(None, frames - 1)
