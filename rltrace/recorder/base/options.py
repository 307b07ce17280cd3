"""Options of a recording, and how the launcher passes them to every process of the program.

Owns the environment variables: one with the options, two by which a process is named. Imports neither torch nor zarr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Final, NamedTuple

from rltrace.errors import UsageError
from rltrace.masking import home_as_tilde

VARIABLE = "RLTRACE_RECORD"
"""Variable with the options, set by the launcher and inherited by children; absent: nothing is recorded."""

DEPTH = "RLTRACE_DEPTH"
"""Variable with the number of recorded processes above a program that one of them starts."""

PARENT_RANK = "RLTRACE_PARENT_RANK"
"""Variable with the rank of the one directly above; a worker that a launcher of ranks starts has another."""

COMMIT_SECONDS: Final = 5.0
"""After which rows that are there are committed, at the latest."""

STEPS_DEFAULT, PROCESSES_DEFAULT, LOOPS_DEFAULT = "RLTRACE_STEPS", "RLTRACE_PROCESSES", "RLTRACE_LOOPS"
"""Variables that set ``--steps`` and ``--processes`` of ``rltrace record`` where the command line does not."""


def check_axes(axes: Iterable[int]) -> tuple[int, ...]:
    """Axes along which activation rows are counted, ascending. Raises UsageError."""
    ascending = sorted(set(axes))
    if not ascending or ascending[0] < 0:
        raise UsageError("rows are counted along axes numbered from 0, as in 0,1; without any, along all but the last")
    return tuple(ascending)


ENGINES = "auto", "native", "mode"
"""What records ops: the native engine where its library is there, only the native engine, a dispatch mode in Python."""


def steps_text(steps: tuple[int, int | None]) -> str:
    """``A:B``, as on the command line."""
    first, end = steps
    return f"{first}:{'' if end is None else end}"


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
    """Digest every input of every op, also where its writer is known."""
    check_links: bool = False
    """Compare memory between its uses, to find writes that no recorded op made."""
    engine: str = "auto"
    """One of ``ENGINES``."""

    read_within: tuple[str, ...] = ()
    """Of programs of JAX the values within to which what is read is limited, as in the fact READS_WITHIN; empty: not
    limited."""

    loops: tuple[str, ...] = ()
    """Patterns (fnmatch) of the names of functions of JAX whose outermost scan is a training loop, whatever it
    computes."""

    values: tuple[str, ...] = ()
    """Selectors of the ops whose values are recorded; empty: none."""
    values_inputs: bool = False
    """Record their inputs, too."""
    rerunnable: tuple[str, ...] = ()
    """Selectors of the ops that are to be run again later: what they read and did not make is recorded; empty: none."""
    checkpoint: str = ""
    """Absolute path of a checkpoint: what it holds is not recorded again for these ops; empty: none."""
    values_limit: int = 1 << 30
    """Bytes of values that each process records at most."""
    state: tuple[int, int | None] | None = None
    """First step at which parameters, gradients and optimizer state are recorded, and first step after (None: to the
    end); None: at none."""

    rows: tuple[str, ...] = ()
    """Selectors of the module calls and ops whose activation rows are recorded; empty: none."""
    row_axes: tuple[int, ...] | None = None
    """Axes along which rows are counted; None: all axes but the last."""
    rows_limit: int = 1 << 30
    """Bytes of row digests that each process records at most."""

    kernels: tuple[int, int | None] | None = None
    """First step in which the profiler records launches on a device, and first step after (None: to the end);
    None: it does not run."""

    compile: str | None = None
    """"eager": compiled functions run op by op; None: as in the program."""

    asleep: bool = False
    """Record nothing until ``rltrace arm`` requests steps."""

    nodes: int = 1
    """Machines that record one run, each with its own launcher."""

    processes: tuple[str, ...] = ()
    """Patterns (fnmatch) of the names of the processes that are recorded; empty: all."""

    replay: str = ""
    """Absolute path of the trace whose values are injected; empty: no replay."""
    inject: tuple[str, ...] = ()
    """Selectors of the ops of that trace whose values are injected."""
    kinds: str = ""
    """Absolute path of a list of kinds of op, to which the selectors are limited; empty: not limited."""
    only: str = ""
    """Absolute path of a list of rows of that trace, to which the selectors are limited; empty: not limited."""
    origins: bool = False
    """Inject values only where the op's inputs equal those in that trace."""
    lockstep: bool = False
    """Skip ops whose values no trace can hold; else selecting one is an error."""
    by_rows: bool = False
    """Inject activation rows, matched by what each is of, not whole values."""
    weights: bool = False
    """With a routing decision that is injected by rows, inject its weights as well."""
    names: str = ""
    """Absolute path of a file that maps modules of that trace to modules of this run; empty: matched by name."""

    against: str = ""
    """Where the trace is, without credentials, that the launcher compares the run with as it goes; empty: none."""
    stop: bool = False
    """End the program, as Ctrl-C would, once the launcher has found a difference, with the step that it is in then."""

    rerun: str = ""
    """Absolute path of the trace whose steps the program runs again, with the memory that it holds; empty: none."""
    process: str = ""
    """The process of that trace that this one is."""
    warm_up: int = 0
    """Steps that the program makes before those."""
    pause: str = ""
    """``rank1/main:12``: the row of that process before which the debugger begins; empty: none."""

    @property
    def windowed(self) -> bool:
        return self.first_step > 0 or self.end_step is not None

    @property
    def in_python(self) -> str:
        """The option for which Python handles every op, whatever the engine; empty: none is set."""
        given = {
            "--verify-inputs": self.verify_inputs,
            "--check-links": self.check_links,
            "--values": self.values,
            "--rerunnable": self.rerunnable,
            "--rows": self.rows,
            "replay": self.replay,
            "rerun": self.rerun,
        }
        return next((name for name, value in given.items() if value), "")

    def extras(self) -> dict[str, object]:
        """Options that a trace names only where they are set."""
        extras: dict[str, object] = {}
        if self.engine != "auto":
            extras |= {"engine": self.engine}
        if self.check_links:
            extras |= {"check_links": True}
        if self.read_within:
            extras |= {"read_within": list(self.read_within)}
        if self.loops:
            extras |= {"loops": list(self.loops)}
        if self.values:
            extras |= {"values": list(self.values), "values_inputs": self.values_inputs}
            extras |= {"values_limit": self.values_limit}
        if self.rerunnable:
            extras |= {"rerunnable": list(self.rerunnable), "values_limit": self.values_limit}
        if self.checkpoint:
            extras |= {"checkpoint": home_as_tilde(self.checkpoint)}
        if self.state is not None:
            extras |= {"state": steps_text(self.state), "values_limit": self.values_limit}
        if self.rows:
            axes = None if self.row_axes is None else list(self.row_axes)
            extras |= {"rows": list(self.rows), "row_axes": axes, "rows_limit": self.rows_limit}
        if self.kernels is not None:
            extras |= {"kernels": steps_text(self.kernels)}
        if self.compile is not None:
            extras |= {"compile": self.compile}
        if self.asleep:
            extras |= {"asleep": True}
        if self.nodes > 1:
            extras |= {"nodes": self.nodes}
        if self.processes:
            extras |= {"processes": ",".join(self.processes)}
        if self.replay:
            extras |= {"replay": home_as_tilde(self.replay), "inject": list(self.inject)}
        if self.by_rows:
            extras |= {"by_rows": True, "weights": self.weights}
        if self.against:
            extras |= {"against": home_as_tilde(self.against), "stop": self.stop}
        if self.rerun:
            extras |= {"rerun": home_as_tilde(self.rerun), "process": self.process, "warm_up": self.warm_up}
        return extras

    def to_environment(self, environment: MutableMapping[str, str]) -> None:
        environment[VARIABLE] = json.dumps(self._asdict())

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> RecordOptions | None:
        text = environment.get(VARIABLE)
        if not text:
            return None
        fields = json.loads(text)
        several = "read_within", "loops", "values", "rerunnable", "rows", "processes", "inject"
        lists = {name: tuple(fields.get(name, ())) for name in several}
        for name in ("row_axes", "kernels", "state"):
            if fields.get(name) is not None:
                lists[name] = tuple(fields[name])
        options = RecordOptions(**{**fields, **lists})
        return options if Path(options.trace).is_dir() else None
