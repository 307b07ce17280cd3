"""Two runs of one program in this process, and a replay of the second with values of the first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rltrace
from rltrace.rerun.report import Account
from rltrace.rerun.start import replay_block
from rltrace.trace.read.reader import open_trace

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
