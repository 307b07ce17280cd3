"""rltrace: a record-replay trace debugger for reinforcement-learning training in PyTorch.

The library's public surface; importing it imports neither torch nor zarr:

    with rltrace.record("a.zarr"):      record what happens inside, without the launcher
        ...
    rltrace.step()                      end a step, in a program without a torch optimizer
    with rltrace.phase("rollout"):      set the phase of the ops inside
    rltrace.watch("return", total)      add a number to a series (docs/guide/comparing.md)
    rltrace.environment()               variables that make a process started elsewhere part of this recording

``step``, ``phase`` and ``watch`` do nothing outside a recording, so they may stay in a program.
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
    check_links: bool = False,
    engine: str = "auto",
    values: str | Iterable[str] = (),
    values_inputs: bool = False,
    rerunnable: str | Iterable[str] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    values_limit: int = 1 << 30,
    rows: str | Iterable[str] = (),
    row_axes: Iterable[int] | None = None,
    rows_limit: int = 1 << 30,
    kernels: tuple[int, int | None] | None = None,
    compile: str | None = None,
    force: bool = False,
) -> AbstractContextManager[None]:
    """Record what happens inside the ``with`` block into a new trace at ``path``.

    ``steps`` is half open and counts from the start of the block. ``verify_inputs``: every op of the window digests
    every input, even one that a recorded op wrote. ``check_links``: memory is compared between its uses, and a write
    that no recorded op made is recorded. ``engine``: "native", "mode" (in Python) or "auto" (native where it is there).
    ``values``: selectors of the ops whose results are stored (``values_inputs``: their inputs, too), up to
    ``values_limit`` bytes. ``rerunnable``: selectors of the ops that ``rltrace rerun`` is to run again; what they read
    and did not make counts for that limit, too, except what the file or folder ``checkpoint`` holds. ``rows``:
    selectors of the module calls and ops whose activation rows are digested; rows are counted along ``row_axes`` (None:
    all axes but the last), up to ``rows_limit`` bytes. ``kernels``: the steps, half open, in which torch's profiler
    records the kernels that ops launch. ``compile="eager"`` runs compiled functions op by op. Threads that are already
    running are not recorded.
    Raises UsageError where ``path`` exists, or a recording is already running.
    """
    from rltrace.recorder.session.api import record_block

    return record_block(
        path,
        level=level,
        steps=steps,
        verify_inputs=verify_inputs,
        check_links=check_links,
        engine=engine,
        values=values,
        values_inputs=values_inputs,
        rerunnable=rerunnable,
        checkpoint=checkpoint,
        values_limit=values_limit,
        rows=rows,
        row_axes=row_axes,
        rows_limit=rows_limit,
        kernels=kernels,
        compile=compile,
        force=force,
    )


def step() -> None:
    """End a step, in a program without a ``torch.optim`` optimizer."""
    session = recorder.current_session()
    if session is not None:
        session.steps.count_manual()


def phase(name: str) -> AbstractContextManager[None]:
    """Set the phase of the ops inside: init, rollout, evaluation, forward or other.

    Backward passes and optimizer attempts inside keep theirs. Raises ValueError for another name.
    """
    number = recorder.user_phase(name)
    session = recorder.current_session()
    return nullcontext() if session is None else session.events.in_phase(number)


def watch(name: str, value: object) -> None:
    """Add a number to the series ``name``, at this step.

    ``value`` is a number, or a tensor or array with one element. Reading it runs no op and does not wait for a device.
    It never decides whether two runs diverge. Raises TypeError where it is not a single number.
    """
    recorder.check_watched(name, value)
    session = recorder.current_session()
    if session is not None:
        session.watch(name, value)


def environment() -> dict[str, str]:
    """Variables that make a process started elsewhere part of this recording; empty outside ``rltrace record``.

    Child processes inherit them. Workers of a running Ray cluster do not; pass them on:
    ``ray.init(runtime_env={"env_vars": rltrace.environment()})``.
    """
    from rltrace.launch.command import recording_variables

    return recording_variables()
