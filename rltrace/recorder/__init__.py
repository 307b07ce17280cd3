"""Recording: from a dispatched op to a row.

An *engine* intercepts ops (``base/dispatch_mode.py``), an *op recorder* turns each into a row
(``core/op_recorder.py``), the *committer* writes rows to disk in the background (``streams/committer.py``), and the
*session* composes all of it for one process (``session/session.py``), as parts of a *recording*, which begin and end
together (``processes/recording.py``). Nothing here may change what the recorded program computes, prints or returns: no
random number is drawn, no tensor kept alive, no version counter touched.
"""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltrace.recorder.session.session import Session
    from rltrace.trace.format.schema import Phase

USER_PHASES = ("init", "rollout", "evaluation", "forward", "other")


def current_session() -> Session | None:
    """The recording of this process; None without one. Imports nothing."""
    module: Any = sys.modules.get("rltrace.recorder.session.session")
    return None if module is None else module.current.session


def user_phase(name: str) -> Phase:
    """The phase of that name. Raises ValueError where a program cannot set it."""
    if name not in USER_PHASES:
        raise ValueError(f"{name!r} is not a phase that a program can set; those are {', '.join(USER_PHASES)}")
    from rltrace.trace.format.schema import Phase

    return Phase[name.upper()]


def check_watched(name: object, value: object) -> None:
    """Raise TypeError for arguments that ``rltrace.watch`` does not take, whether or not anything is recorded."""
    if not isinstance(name, str):
        raise TypeError(f"a series is named by text, not by {name!r}")
    if isinstance(value, (int, float)):
        return
    if not hasattr(type(value), "__float__") or _elements(value) != 1:
        raise TypeError(f"watch({name!r}, …) takes one number at a time, not a {type(value).__name__}")


def _elements(value: Any) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return prod(getattr(value, "shape", ()))
    with torch._C.DisableTorchFunction():  # calls no mode or subclass of the program
        return int(value.numel())
