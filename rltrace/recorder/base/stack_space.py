"""Whether a thread's stack has space left for the recorder's calls.

At the end of the stack (``sys.getrecursionlimit``) any call may raise RecursionError, the recorder's too, and code in C
turns it into other errors (ctypes: ArgumentError). None of these is a failure of the recorder.
"""

from typing import Final

FRAMES: Final = 40
"""More frames than the recorder needs above an op that it has seen before."""


def check_stack_space(error: BaseException | None = None, frames: int = FRAMES) -> None:
    """Raise RecursionError where the stack has no space for so many frames, or where ``error`` is one."""
    if isinstance(error, RecursionError):
        raise error
    if frames:
        check_stack_space(None, frames - 1)
