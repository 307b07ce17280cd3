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

from contextlib import AbstractContextManager, nullcontext

from rltrace import record

__all__ = ["environment", "phase", "record", "step", "watch"]


def step() -> None:
    """Say that a step has ended, in a program whose steps no ``torch.optim`` optimizer makes."""
    session = record.current_session()
    if session is not None:
        session.count_step()


def phase(name: str) -> AbstractContextManager[None]:
    """Ops inside are shown as this phase: init, rollout, evaluation, forward or other.

    Backward passes and optimizer attempts inside keep their own. Raises ValueError for another name.
    """
    number = record.user_phase(name)
    session = record.current_session()
    return nullcontext() if session is None else session.in_phase(number)


def watch(name: str, value: object) -> None:
    """Say what a number is now: one more of the series ``name``, at this step.

    ``value`` is a number, or a tensor or array of one element. It is read without an op, and one on a device is not
    waited for. Watching is logging: whatever is watched, two runs that compute the same stay the same. Raises TypeError
    for what is no single number.
    """
    record.check_watched(name, value)
    session = record.current_session()
    if session is not None:
        session.watch(name, value)


def environment() -> dict[str, str]:
    """The variables by which a process that this one has started elsewhere is recorded with it; empty outside of a
    recording by ``rltrace record``.

    Children inherit them. Workers of a Ray cluster that runs already do not, and are given them:
    ``ray.init(runtime_env={"env_vars": rltrace.environment()})``.
    """
    from rltrace.launch.environment import handed_down

    return handed_down()
