"""Recording: from a dispatched op to a row. Everything of rltrace that imports torch lives in this room.

An *engine* intercepts ops (``engine.py``: the Protocol, ``dispatch.py``: the Python mode); a *stream recorder* turns
each into a row (``stream.py``); the *committer* carries rows to disk behind the program's back (``commit.py``); the
*session* owns all of it for one process (``session.py``). Nothing here may change what the recorded program computes,
prints or returns: no random number is drawn, no tensor kept alive, no version counter touched.

The module can be called: ``with rltrace.record("a.zarr"):`` (``library.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rltrace.trace.schema import Phase

if TYPE_CHECKING:
    from rltrace.record.session import Session

USER_PHASES = ("init", "rollout", "evaluation", "forward", "other")


def current_session() -> Session | None:
    """The recording that this process is in, if it is in one. Imports nothing."""
    module: Any = sys.modules.get("rltrace.record.session")
    return None if module is None else module.current.session


def user_phase(name: str) -> Phase:
    """The phase of that name. Raises ValueError for one that a program cannot set."""
    if name not in USER_PHASES:
        raise ValueError(f"{name!r} is no phase a program can set; there are {', '.join(USER_PHASES)}")
    return Phase[name.upper()]


def check_watched(name: object, value: object) -> None:
    """Raise TypeError for what ``rltrace.watch`` takes no sample of, whether or not anything is recorded."""
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
    with torch._C.DisableTorchFunction():  # a mode or a subclass of the program's is not asked
        return int(value.numel())


class _Record(ModuleType):
    """This module, callable: the package's name and the library's verb are the same word."""

    def __call__(
        self,
        path: str | os.PathLike[str],
        *,
        level: str = "op",
        steps: tuple[int, int | None] | None = None,
        verify_inputs: bool = False,
        values: str | Iterable[str] = (),
        values_inputs: bool = False,
        values_limit: int = 1 << 30,
        rows: str | Iterable[str] = (),
        row_axes: Iterable[int] | None = None,
        rows_limit: int = 1 << 30,
        kernels: tuple[int, int | None] | None = None,
        compile: str | None = None,
        force: bool = False,
    ) -> AbstractContextManager[None]:
        """Record what happens inside the ``with`` block into a new trace at ``path``.

        ``steps`` is half open and counts from the block's beginning. ``verify_inputs``: every op of the window digests
        every input, whoever is known to have written it. ``values``: selectors of the ops whose results are kept in
        the trace (``values_inputs``: what they read, too), at most ``values_limit`` bytes of them. ``rows``: selectors
        of the calls of modules and the ops of whose tensors a digest is kept for each row, counted along ``row_axes``
        (all axes but the last), at most ``rows_limit`` bytes of them. ``kernels``: the steps, half open, in which
        torch's profiler looks at what ops launch on a device. With ``compile="eager"`` compiled functions run op by op.
        Threads that run already are not recorded. Raises UsageError where something is in the way at ``path``, or a
        recording is under way.
        """
        from rltrace.record.library import record_block

        return record_block(
            path,
            level=level,
            steps=steps,
            verify_inputs=verify_inputs,
            values=values,
            values_inputs=values_inputs,
            values_limit=values_limit,
            rows=rows,
            row_axes=row_axes,
            rows_limit=rows_limit,
            kernels=kernels,
            compile=compile,
            force=force,
        )


sys.modules[__name__].__class__ = _Record
