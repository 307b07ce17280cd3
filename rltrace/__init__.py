"""rltrace: a record-replay trace debugger for reinforcement-learning training in PyTorch.

The library's public surface; importing it imports neither torch nor zarr:

    with rltrace.record("a.zarr"):      record what happens inside, without the launcher
        ...
    rltrace.step()                      a step that no torch optimizer marks has ended
    with rltrace.phase("rollout"):      what the ops inside are shown as
    rltrace.watch("return", total)      one more number of a series, to be drawn and compared (docs/guide/series.md)
    rltrace.environment()               variables for processes that would not inherit what records this one

``step``, ``phase`` and ``watch`` do nothing where nothing is being recorded, so they may stay in a program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from rltrace import recorder

__all__ = ["environment", "phase", "record", "step", "watch"]


def record(
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
    from rltrace.recorder.session.api import record_block

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


def step() -> None:
    """Say that a step has ended, in a program whose steps no ``torch.optim`` optimizer makes."""
    session = recorder.current_session()
    if session is not None:
        session.steps.count_manual()


def phase(name: str) -> AbstractContextManager[None]:
    """Ops inside are shown as this phase: init, rollout, evaluation, forward or other.

    Backward passes and optimizer attempts inside keep their own. Raises ValueError for another name.
    """
    number = recorder.user_phase(name)
    session = recorder.current_session()
    return nullcontext() if session is None else session.events.in_phase(number)


def watch(name: str, value: object) -> None:
    """Say what a number is now: one more of the series ``name``, at this step.

    ``value`` is a number, or a tensor or array of one element. It is read without an op, and one on a device is not
    waited for. Watching is logging: whatever is watched, two runs that compute the same stay the same. Raises TypeError
    for what is no single number.
    """
    recorder.check_watched(name, value)
    session = recorder.current_session()
    if session is not None:
        session.watch(name, value)


def environment() -> dict[str, str]:
    """The variables by which a process that this one has started elsewhere is recorded with it; empty outside of a
    recording by ``rltrace record``.

    Children inherit them. Workers of a Ray cluster that runs already do not, and are given them:
    ``ray.init(runtime_env={"env_vars": rltrace.environment()})``.
    """
    from rltrace.launch.command import recording_variables

    return recording_variables()
