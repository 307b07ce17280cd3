"""What a recording was asked to do, and how that travels from the launcher to every process of the program.

Owns the variables for it: the one that carries it, two by which a process is named. Imports neither torch nor zarr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from rltrace.errors import UsageError
from rltrace.masking import home_as_tilde

VARIABLE = "RLTRACE_RECORD"
"""Set by the launcher for the program and inherited by its children; absent: nothing is recorded."""

DEPTH = "RLTRACE_DEPTH"
"""Variable with how many recorded processes there are above a program that one of them starts."""

PARENT_RANK = "RLTRACE_PARENT_RANK"
"""Variable with the rank of the one directly above; a worker that a launcher of ranks starts has another."""


def check_axes(axes: Iterable[int]) -> tuple[int, ...]:
    """Axes along which rows are counted, ascending. Raises UsageError."""
    found = sorted(set(axes))
    if not found or found[0] < 0:
        raise UsageError("rows are counted along axes numbered from 0, as in 0,1; without any, along all but the last")
    return tuple(found)


class RecordOptions(NamedTuple):
    """Options of one recording."""

    trace: str
    """Absolute path of the trace; the launcher has created it."""
    level: str = "op"
    """"step" or "op"."""
    first_step: int = 0
    """First step whose ops are rows."""
    end_step: int | None = None
    """First step after the window; None: to the end."""
    until: int | None = None
    """End the program, as Ctrl-C would, once this step is done."""
    verify_inputs: bool = False
    """Digest every input of every op, whoever is known to have written it."""

    values: tuple[str, ...] = ()
    """Selectors of the ops whose values are kept; empty: none are."""
    values_inputs: bool = False
    """Keep what they read, too."""
    values_limit: int = 1 << 30
    """Bytes of values that each process keeps at most."""

    rows: tuple[str, ...] = ()
    """Selectors of the calls of modules and the ops whose tensors' rows are kept; empty: none are."""
    row_axes: tuple[int, ...] | None = None
    """Along which rows are counted; None: along all axes but the last."""
    rows_limit: int = 1 << 30
    """Bytes of rows' digests that each process keeps at most."""

    kernels: tuple[int, int | None] | None = None
    """First step in which the profiler looks at what is launched on a device, and first step after (None: to the end);
    None: it does not."""

    compile: str | None = None
    """"eager": what the program compiles runs op by op; None: as the program has it."""

    replay: str = ""
    """Absolute path of the trace whose values are put in; empty: this is no replay."""
    inject: tuple[str, ...] = ()
    """Selectors of the ops of that trace whose values are."""
    kinds: str = ""
    """Absolute path of a list of kinds of op, to which the selectors are limited; empty: they are not."""
    only: str = ""
    """The same of a list of rows of that trace."""
    origins: bool = False
    """Values are put in only where what the op was given is what it was given in that trace."""
    lockstep: bool = False
    """Ops whose values no trace can hold are passed over; else they may not be asked for."""
    by_rows: bool = False
    """Rows of that trace are put in, by what each is of, not whole values."""
    weights: bool = False
    """With a choice that is put in by rows, what went with it is as well."""
    names: str = ""
    """Absolute path of a file that says which modules of that trace are which here; empty: their names do."""

    against: str = ""
    """Absolute path of the trace that the run is held against as it goes; empty: of none."""
    stop: bool = False
    """End the program, as Ctrl-C would, at the first op that differs from it."""

    @property
    def windowed(self) -> bool:
        return self.first_step > 0 or self.end_step is not None

    def extras(self) -> dict[str, object]:
        """What a trace tells among its options of values kept and values put in; nothing where there are none."""
        told: dict[str, object] = {}
        if self.values:
            told |= {"values": list(self.values), "values_inputs": self.values_inputs}
            told |= {"values_limit": self.values_limit}
        if self.rows:
            axes = None if self.row_axes is None else list(self.row_axes)
            told |= {"rows": list(self.rows), "row_axes": axes, "rows_limit": self.rows_limit}
        if self.kernels is not None:
            first, end = self.kernels
            told |= {"kernels": f"{first}:{'' if end is None else end}"}
        if self.compile is not None:
            told |= {"compile": self.compile}
        if self.replay:
            told |= {"replay": home_as_tilde(self.replay), "inject": list(self.inject)}
        if self.by_rows:
            told |= {"by_rows": True, "weights": self.weights}
        if self.against:
            told |= {"against": home_as_tilde(self.against), "stop": self.stop}
        return told

    def to_environment(self, environment: MutableMapping[str, str]) -> None:
        environment[VARIABLE] = json.dumps(self._asdict())

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> RecordOptions | None:
        text = environment.get(VARIABLE)
        if not text:
            return None
        found = json.loads(text)
        lists = {name: tuple(found.get(name, ())) for name in ("values", "rows", "inject")}
        for name in ("row_axes", "kernels"):
            if found.get(name) is not None:
                lists[name] = tuple(found[name])
        options = RecordOptions(**{**found, **lists})
        return options if Path(options.trace).is_dir() else None
