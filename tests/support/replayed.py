"""Two runs of one program in this process, and a replay of the second with values of the first."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rltrace
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.session import recording
from rltrace.rerun.account import Account, add_up
from rltrace.rerun.plan import ALL, InjectionFilter, compile_of, make_plans, window_of
from rltrace.rerun.values import MakeProvider, attach_by, values_of
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import Trace, open_trace


@dataclass
class Replay:
    """A replay in this process; ``account`` is there at the end of its block."""

    account: Any = None


@contextmanager
def injected(
    options: RecordOptions, make: MakeProvider, account: Callable[[Trace], Any], *, force: bool
) -> Iterator[Replay]:
    """Record the block's ops, and give them what a provider has."""
    replay = Replay()
    with recording(options, force=force, attach=attach_by([make])):
        yield replay
    replay.account = account(open_trace(options.trace))


def replay_block(
    a: str | Path,
    inject: str | tuple[str, ...],
    path: str | Path,
    *,
    only: InjectionFilter = ALL,
    lockstep: bool = False,
    origins: bool = False,
    force: bool = False,
) -> AbstractContextManager[Replay]:
    """Record the block's ops into a new trace at ``path``, with values of ``a`` at the ops that ``inject`` finds."""
    trace = open_trace(a)
    selectors = (inject,) if isinstance(inject, str) else tuple(inject)
    plans = make_plans(trace, parse_selectors(selectors), only, lockstep=lockstep)
    level, steps = window_of(trace)
    options = RecordOptions(
        str(Path(path).absolute()),
        level=level,
        steps=steps,
        compile=compile_of(trace),
        replay=str(Path(a).absolute()),
        inject=selectors,
    )
    return injected(
        options,
        lambda name: values_of(trace, plans, name, origins=origins),
        lambda replay: add_up(plans, replay),
        force=force,
    )


Program = Callable[[bool], Any]
"""Called with whether it is the second run, B."""


@dataclass
class Runs:
    """A, B, and B with A's values."""

    a: Any
    """What the program returned."""
    b: Any
    replayed: Any
    account: Account
    folder: Path

    @property
    def path_a(self) -> Path:
        return self.folder / "a.zarr"

    @property
    def path_c(self) -> Path:
        return self.folder / "c.zarr"


Replayed = Callable[..., Runs]
"""``replayed(program, inject, values=inject, inputs=True)``."""


def run(context: AbstractContextManager[Any], program: Program, is_b: bool) -> tuple[Any, Any]:
    """Every run comes through here: a call site is what its lines say."""
    torch.manual_seed(0)
    with context as entered:
        returned = program(is_b)
    return returned, entered


def replay(folder: Path, program: Program, inject: Any, *, values: Any = None, inputs: bool = True) -> Runs:
    a, b, c = folder / "a.zarr", folder / "b.zarr", folder / "c.zarr"
    returned = []
    for make, is_b in (
        (lambda: rltrace.record(a, values=inject if values is None else values, values_inputs=inputs), False),
        (lambda: rltrace.record(b), True),
        (lambda: replay_block(a, inject, c), True),
    ):
        returned.append(run(make(), program, is_b))
    account = returned[2][1].account
    assert open_trace(c).holes == ()
    return Runs(returned[0][0], returned[1][0], returned[2][0], account, folder)
