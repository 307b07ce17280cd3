"""What ``record --repeat`` found: the ops that did not repeat themselves, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.command_lines import line
from rltrace.commands.console import narrate
from rltrace.diff.causes.nondeterminism import CPU, CUDA, known_of, remedy_text
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.errors import HoleError
from rltrace.query.ops import OpLine, op_line
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.wording import counted, joined

SHOWN = 10
"""Ops that are named as a recording ends, at most."""


@dataclass(frozen=True)
class UnequalOp:
    """Calls of one operator at one line of the program that gave something else when they were made again."""

    op: str
    site: Site | None
    """Innermost user frame."""
    module: str
    kernel: str
    stream: str
    row: int
    """Of the first of these calls."""
    step: int
    layouts: tuple[str, ...]
    """Of that row's inputs."""
    calls: int
    """That were repeated."""
    differing: int
    """Of them, those that gave something else at least once."""
    results: tuple[int, ...]
    """Which of the results differed, from 0."""
    of: int
    """The number of results."""
    dtype: str
    """Of the result that differed most; "": it could not be measured."""
    elements: int
    """Of that result."""
    unequal: int
    """Of them, those that differed in one call, at most."""
    ulp: int | None
    """The largest distance; None: none has one."""
    absolute: float | None
    """The largest finite difference."""


@dataclass(frozen=True)
class UnrepeatedCalls:
    """Calls of one operator that were not made again."""

    op: str
    why: str
    calls: int


@dataclass(frozen=True)
class RepeatedOps:
    """The ops of one process that were called again."""

    times: int
    """How many times more each was called."""
    calls: int
    """How many calls were made again."""
    at_once: tuple[str, ...]
    """Ops of which large calls were made two at once; all others were made one after the other."""
    unequal: tuple[UnequalOp, ...]
    not_repeated: tuple[UnrepeatedCalls, ...]

    def described(self) -> tuple[str, str, Sequence[str]]:
        """A label, a summary, and a sentence for each op that did not repeat itself."""
        kinds = {0: "every op repeated itself", 1: "1 op did not repeat itself"}.get(len(self.unequal))
        kinds = kinds or f"{len(self.unequal):,} ops did not repeat themselves"
        how = _how(bool(self.at_once))
        summary = f"{counted(self.calls, 'op')} called {self.times} more, {how}: {kinds}"
        left_out = sum(one.calls for one in self.not_repeated)
        if left_out:
            reasons = "; ".join(dict.fromkeys(f"{one.op}: {one.why}" for one in self.not_repeated[:3]))
            summary += f"; {left_out:,} not repeated ({reasons})"
        return "repeated", summary, tuple(map(sentence, self.unequal))


def found_in(process: ProcessTrace) -> RepeatedOps | None:
    """What was repeated in a process; None: nothing was to be, or its record has a form that is not known."""
    records = [record for record in process.journal.records if record["type"] == "repeats"]
    if not records:
        return None
    last = records[-1]
    try:
        not_repeated = sorted((UnrepeatedCalls(*entry) for entry in last["left_out"]), key=lambda one: -one.calls)
        unequal = filter(None, (_unequal_op(process, kind) for kind in last["kinds"]))
        at_once = tuple(last.get("at_once", ()))
        return RepeatedOps(last["times"], last["calls"], at_once, tuple(unequal), tuple(not_repeated))
    except (KeyError, TypeError, ValueError):
        return None


def _unequal_op(process: ProcessTrace, kind: dict[str, Any]) -> UnequalOp | None:
    """None: its row was not recorded."""
    found = _row(process, kind["stream"], kind["row"])
    if found is None:
        return None
    names = ("calls", "differing", "of", "dtype", "elements", "unequal", "ulp", "absolute")
    return UnequalOp(
        op=found.op,
        site=found.site,
        module=found.module,
        kernel=found.kernel,
        stream=found.stream,
        row=found.row,
        step=found.step,
        layouts=tuple(one.layout for one in found.inputs),
        results=tuple(kind["results"]),
        **{name: kind[name] for name in names},
    )


def _row(process: ProcessTrace, number: int, row: int) -> OpLine | None:
    stream = next((stream for stream in process.streams if stream.index == number), None)
    if stream is None or row >= stream.rows:
        return None
    try:
        return op_line(stream.read(row, row + 1), 0, stream.name, process.words)
    except HoleError:
        return None


# --- words ------------------------------------------------------------------------------------------------------------


def sentence(op: UnequalOp) -> str:
    """What an op did, where, and what makes it repeat itself."""
    where = f" at {op.site.file}:{op.site.line} ({op.site.function})" if op.site else ""
    kernel = f", {op.kernel}" if op.kernel else ""
    text = f"{op.op}{where}{kernel}: did not repeat itself in {_share(op)}, first in row {op.row:,} of step {op.step:,}"
    text += f"; {_extent(op)}"
    device = CUDA if any("@cuda" in layout for layout in op.layouts) else CPU
    known = known_of(op.op, device)
    return f"{text}; {known.why}: {remedy_text(known, device)}" if known else text


def _share(op: UnequalOp) -> str:
    return f"{op.differing:,} of {counted(op.calls, 'call')}"


def _extent(op: UnequalOp) -> str:
    """``17 of 4,096 float32, by up to 3 ULP``."""
    which = f"result {', '.join(map(str, op.results))} of {op.of}: " if op.of > 1 else ""
    if not op.dtype:
        return f"{which}other bytes"
    far = f"{op.ulp:,} ULP" if op.ulp is not None and op.ulp <= MOST_ULP else ""
    far = far or (f"{op.absolute:.3g}" if op.absolute is not None else "")
    return f"{which}{op.unequal:,} of {op.elements:,} {op.dtype}{f', by up to {far}' if far else ''}"


Side = tuple[str, ProcessTrace, Sequence[Site]]
"""The name of a side, its process, and the innermost user frame of the op there."""


def repeats_text(op: str, sides: Sequence[Side]) -> str:
    """Whether an op repeated itself on the sides on which it was called again; "": on none."""
    clauses = [(side, clause) for side, process, frame in sides if (clause := _clause(op, process, frame))]
    return "; ".join(
        f"within {joined(side for side, other in clauses if other == clause)} it {clause}"
        for clause in dict.fromkeys(clause for _, clause in clauses)
    )


def _clause(op: str, process: ProcessTrace, frame: Sequence[Site]) -> str:
    found = found_in(process)
    if found is None:
        return ""
    for one in found.unequal:
        if one.op == op and (one.site is None or one.site in frame):
            return f"did not repeat itself in {_share(one)}: {_extent(one)}"
    if any(one.op == op for one in found.not_repeated):
        return ""
    how = _how(op in found.at_once)
    return f"repeated itself when it was called again ({counted(found.times, 'time')}), {how}"


def _how(at_once: bool) -> str:
    return "large ones two at once" if at_once else "one after the other"


# --- after a recording ------------------------------------------------------------------------------------------------


def differs(trace: Path) -> bool:
    """Whether any op did not repeat itself."""
    return any(found.unequal for found in map(found_in, open_trace(trace).processes) if found is not None)


def report_recorded(trace: Path, options: RecordOptions, quiet: bool) -> bool:
    """Name the ops that did not repeat themselves, and say of each process how many were called again."""
    if not options.repeat or quiet:
        return True
    found = [(p.name, one) for p in open_trace(trace).processes if (one := found_in(p)) is not None]
    unequal = [(name, op) for name, one in found for op in one.unequal]
    texts = [(name, sentence(op)) for name, op in unequal[:SHOWN]] + [(name, one.described()[1]) for name, one in found]
    for name, text in texts:
        narrate(f"{name}: {text}" if len(found) > 1 else text)
    if len(unequal) > SHOWN:
        narrate(f"{len(unequal) - SHOWN:,} more did not repeat themselves", hint=f"{line('info', trace)} lists them")
    return True
