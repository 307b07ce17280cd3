"""What a run of recorded ops gave: where differences begin, and in which kinds of op. Imports no torch."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, RowFlag
from rltrace.trace.read.process import ProcessTrace


@dataclass(frozen=True)
class OpOutcome:
    """What one op gave."""

    stream: str
    rows: Rows
    """Its row."""
    recorded: tuple[str, ...]
    """Digests of its results, or a number."""
    here: tuple[str, ...]
    inputs_equal: bool
    """Whether all that it read has the recorded bytes."""
    distance: float | None = None
    """Largest distance of its results from the recorded ones, which replaced them; None: the trace lacks these."""


@dataclass(frozen=True)
class DifferingOp:
    """An op that gave other bits than were recorded."""

    stream: str
    row: int
    step: int
    op: str
    module: str
    site: str
    """``train.py:30 in forward``."""
    recorded: tuple[str, ...]
    """Digests of its results."""
    here: tuple[str, ...]


@dataclass(frozen=True)
class DifferingKind:
    """The ops of one name that read recorded bytes and gave others."""

    op: str
    count: int
    of: int
    """Ops of that name that read recorded bytes."""
    first: DifferingOp
    distance: float | None
    """Largest distance of a result from the recorded one; None: the trace does not hold all of them."""


@dataclass(frozen=True)
class RerunResult:
    """What a run of recorded ops gave."""

    process: str
    bitwise: bool
    """Whether every op gave the recorded bits, but for those that are unsettled."""
    ops: int
    differing: int
    unsettled: int
    """Ops that gave other bits, as they read memory that nothing had written or that was being written then (a
    collective in flight), or what such an op gave."""
    first: DifferingOp | None
    kinds: tuple[DifferingKind, ...]
    """Where differences begin: ops that read recorded bytes."""
    from_record: tuple[tuple[str, int], ...]
    """Ops between them that were not run, with their number: what they wrote is as it was recorded."""


def rerun_result(process: ProcessTrace, outcomes: Iterable[OpOutcome], from_record: Counter[str]) -> RerunResult:
    """Summarize the outcomes, which are read once."""
    ops = differing = unsettled = 0
    first: DifferingOp | None = None
    on_recorded: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    firsts: dict[str, DifferingOp] = {}
    distances: dict[str, float | None] = {}
    for outcome in outcomes:
        ops += 1
        name = process.words.op(int(outcome.rows.columns[0, Column.OP]))
        on_recorded[name] += outcome.inputs_equal
        if outcome.here == outcome.recorded:
            continue
        is_marked = bool(int(outcome.rows.columns[0, Column.FLAGS]) & RowFlag.MARKED)
        if is_marked if outcome.inputs_equal else first is None:
            unsettled += 1
            continue
        differing += 1
        if first is None or (outcome.inputs_equal and name not in firsts):
            found = _differing(process, outcome)
            first = first or found
            firsts.setdefault(name, found)
        if outcome.inputs_equal:
            begun[name] += 1
            known, here = distances.get(name, 0.0), outcome.distance
            distances[name] = None if known is None or here is None else max(known, here)
    kinds = tuple(
        DifferingKind(name, begun[name], on_recorded[name], firsts[name], distances[name]) for name in distances
    )
    not_run = tuple(from_record.most_common())
    return RerunResult(process.name, not differing, ops, differing, unsettled, first, kinds, not_run)


def _differing(process: ProcessTrace, outcome: OpOutcome) -> DifferingOp:
    cells, words = outcome.rows.columns[0].tolist(), process.words
    stack = words.stack(cells[Column.SITE])
    return DifferingOp(
        outcome.stream,
        outcome.rows.first,
        cells[Column.STEP],
        words.op(cells[Column.OP]),
        words.module(cells[Column.MODULE]),
        f"{stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else "",
        outcome.recorded,
        outcome.here,
    )
