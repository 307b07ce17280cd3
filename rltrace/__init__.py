"""rltrace: a record-replay trace debugger for reinforcement-learning training in PyTorch.

The library's public surface; importing it imports no torch:

    with rltrace.record("a.zarr"):      record what happens inside, without the launcher
        ...
    rltrace.step()                      end a step, in a program without a torch optimizer
    with rltrace.phase("rollout"):      set the phase of the ops inside
    rltrace.watch("return", total)      add a number to a series (docs/guide/comparing.md)
    rltrace.environment()               variables that make a process started elsewhere part of this recording

``step``, ``phase`` and ``watch`` do nothing outside a recording, so they may stay in a program.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypedDict, Unpack

from rltrace import recorder

__all__ = ["environment", "phase", "record", "step", "watch"]


class RecordArguments(TypedDict, total=False):
    """What ``record`` takes; each as the option of ``rltrace record`` of that name."""

    level: str
    """"op", or "step": one digest a step."""
    steps: tuple[int, int | None]
    """Half open, counted from the start of the block."""
    engine: str
    """"native", "mode" (in Python) or "auto" (native where it is there)."""
    compile: str | None
    """"eager" runs compiled functions op by op."""
    verify_inputs: bool
    """Every op of the window digests every input, even one that a recorded op wrote."""
    check_links: bool
    """Memory is compared between its uses, and a write that no recorded op made is recorded."""
    repeat: int
    """How many times more each op is called on the inputs that it had, to see whether it repeats itself."""
    sources: bool
    """The text of the program's files is recorded, not only the digest of each line."""
    kernels: tuple[int, int | None] | None
    """Steps, half open, in which torch's profiler records the kernels that ops launch."""
    values: str | Iterable[str]
    """Selectors of the ops whose results are stored."""
    values_inputs: bool
    """Their inputs, too."""
    values_limit: int
    """Bytes that are stored at most."""
    rerunnable: str | Iterable[str]
    """Selectors of the ops that ``rltrace rerun`` is to run again; what they read and did not make counts for that
    limit, too."""
    rows: str | Iterable[str]
    """Selectors of the module calls and ops whose activation rows are digested."""
    row_axes: Iterable[int] | None
    """Axes along which rows are counted; None: all but the last."""
    rows_limit: int
    """Bytes of digests that are recorded at most."""
    parity: bool
    """Record rows of all calls of modules, and values of logits and log-probabilities."""


def record(
    path: str | os.PathLike[str], *, force: bool = False, **options: Unpack[RecordArguments]
) -> AbstractContextManager[None]:
    """Record what happens inside the ``with`` block into a new trace at ``path``; ``force`` replaces an existing one.

    Threads that are already running are not recorded.
    Raises UsageError where ``path`` exists, a recording is already running, or options do not go together; TypeError
    for an option that is none.
    """
    from rltrace.recorder.session.session import record_block

    unknown = sorted(options.keys() - RecordArguments.__annotations__.keys())
    if unknown:
        raise TypeError(f"rltrace.record has no option {unknown[0]!r}")
    return record_block(path, options, force=force)


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
