"""The injections from a trace into another run, each placed by the identity of its op.

Owns that identity across runs: stream, step, call site, operator, and occurrence within the step. A step is identified
by the attempt before it, which is known while the step runs. No torch.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.errors import HoleError, UsageError
from rltrace.rerun.op_kinds import OpKinds, read_json, read_labels
from rltrace.selectors import Key, Selector, parse_selectors
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import BOUNDARY_ONLY, LIMIT, Column, Origin, RowFlag, Step, has_iterations
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace

# --- filter -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InjectionFilter:
    """A restriction of the rows that a selector matches; None: no restriction."""

    kinds: frozenset[str] | None = None
    """Labels of kinds of op."""
    rows: Mapping[str, frozenset[int]] | None = None
    """By stream: rows of A."""

    def includes(self, stream: str, row: int) -> bool:
        """Whether ``rows`` includes a row."""
        return self.rows is None or row in self.rows.get(stream, ())


ALL = InjectionFilter()


def read_filter(kinds: str | Path | None, rows: str | Path | None) -> InjectionFilter:
    """Read two files: a JSON list of labels of kinds, a JSON object of lists of rows. Raises UsageError."""
    return InjectionFilter(read_labels(kinds) if kinds else None, _read_rows(rows) if rows else None)


def _read_rows(path: str | Path) -> Mapping[str, frozenset[int]]:
    found = read_json(path)
    if not isinstance(found, dict) or not all(
        isinstance(rows, list) and all(isinstance(row, int) for row in rows) for rows in found.values()
    ):
        raise UsageError(f'{path} is no JSON object of rows by stream, such as {{"rank0/main": [12, 40]}}')
    return {str(stream): frozenset(rows) for stream, rows in found.items()}


# --- plan -------------------------------------------------------------------------------------------------------------


Attempt = tuple[int, int] | None
"""(ordinal of the optimizer, its count of attempts) of the attempt before a step; None: the first step."""

Place = tuple[str, int, int]
"""(operator, portable key of the call site, occurrence) within a step of a stream."""

Number = bool | int | float | complex | None


@dataclass(frozen=True, slots=True)
class Injection:
    """One row of A, and its values to inject."""

    stream: str
    row: int
    step: int
    place: Place
    outputs: tuple[int, ...]
    """Digests of its results, in order; 0: not injected, as a library's workspace or not selected."""
    state: int | None
    """Digest of the RNG state before it; None: it draws nothing."""
    number: Number
    """The Python number it returned; None: it returned none."""
    inputs: tuple[tuple[int, int], ...]
    """(index among its tensors, digest) of outside data with a recorded value."""
    devices: tuple[str, ...]
    """Device types of its tensors."""
    site: int
    kernel: int
    """Ids in A's tables "sites" and "kernels"."""
    names: tuple[str, ...] = ()
    """Of its results, where they have names: those of a JAX loop."""
    produced_inputs: tuple[tuple[int, int], ...] = ()
    """(index among its tensors, digest) of inputs that recorded ops of A wrote, where A digested them."""


@dataclass(frozen=True)
class InjectionPlan:
    """All injections of one process."""

    process: str
    streams: Mapping[str, Mapping[Attempt, Mapping[Place, Injection]]]

    def __iter__(self) -> Iterator[Injection]:
        """All injections, stream by stream, in the order of A's rows."""
        for steps in self.streams.values():
            for places in steps.values():
                yield from places.values()

    def __len__(self) -> int:
        return sum(len(places) for steps in self.streams.values() for places in steps.values())


def make_plans(
    trace: Trace, selector: Selector, only: InjectionFilter = ALL, *, lockstep: bool = False
) -> dict[str, InjectionPlan]:
    """The injections of the rows that the selector matches and ``only`` includes, by process.

    ``lockstep``: values without plain bytes (a sparse tensor) are skipped, not refused. Raises UsageError where no row
    can be injected, or the trace lacks values; HoleError for damage.
    """
    plans = {process.name: _plan(process, selector, only) for process in trace.processes}
    found = sum(map(len, plans.values()))
    if not found:
        why = _whole_functions(trace) or "ops that only make a view or allocate have none"
        raise UsageError(f"the selector finds no op in {trace.path} with values to inject ({why})")
    for process in trace.processes:
        if lockstep:
            plans[process.name] = _without_unstorable(process, plans[process.name])
        _check_values(trace, process, plans[process.name])
    return {name: plan for name, plan in plans.items() if len(plan)}


def plans_of(trace: Trace, inject: Sequence[str], kinds: str, only: str, *, lockstep: bool) -> dict[str, InjectionPlan]:
    """The injections of a replay by its options; ``trace``: A. Raises as ``make_plans`` and ``read_filter`` do."""
    return make_plans(trace, parse_selectors(inject), read_filter(kinds, only), lockstep=lockstep)


def _whole_functions(trace: Trace) -> str:
    """Functions of a JAX trace whose loop was not driven, so that there are no iterations; "" where there are none."""
    facts = [process.facts.get(BOUNDARY_ONLY) for process in trace.processes if has_iterations(process.engine)]
    found = "; ".join(str(fact) for fact in facts if fact)
    return f"without iterations are {found}; op=jit.NAME selects what such a function returns" if found else ""


def preceding_attempts(process: ProcessTrace) -> dict[int, Attempt]:
    """The attempt before each step, by the number of the step."""
    payloads: list[Any] = process.tables["optimizers"].payloads
    found: dict[int, Attempt] = {0: None}
    for step, optimizer, count in process.steps[:, [Step.STEP, Step.OPTIMIZER, Step.COUNT]].tolist():
        payload = payloads[optimizer] if optimizer < len(payloads) else None
        if payload is not None:
            found[step + 1] = payload["ordinal"], count
    return found


def window_of(trace: Trace) -> tuple[str, tuple[int, int | None]]:
    """Level and steps of A's recording, which a replay uses, too. Raises UsageError where A has no ops."""
    if not trace.has_rows:
        raise UsageError(f"{trace.path} was recorded at level {trace.level}: it has no ops with values to inject")
    windows = [window for process in trace.processes for window in process.windows] or [(0, None)]
    ends = [end for _, end in windows]
    end = None if None in ends else max(end for end in ends if end is not None)
    return trace.level, (min(first for first, _ in windows), end)


def compile_of(trace: Trace) -> str | None:
    """A's option for compiled functions, which a replay uses, too."""
    found = trace.options.get("compile")
    return found if isinstance(found, str) else None


def loops_of(trace: Trace) -> tuple[str, ...]:
    """A's option for training loops of JAX, which a replay uses, too."""
    found = trace.options.get("loops")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _plan(process: ProcessTrace, selector: Selector, only: InjectionFilter) -> InjectionPlan:
    steps = preceding_attempts(process)
    begins = sorted(steps)
    streams = {}
    kinds = OpKinds(process.words)
    for stream in process.streams:
        placed: dict[Attempt, dict[Place, Injection]] = {}
        for injection in _injections(process, stream, selector):
            if not only.includes(injection.stream, injection.row):
                continue
            if only.kinds is not None and _kind(kinds, injection) not in only.kinds:
                continue
            begin = injection.step
            if has_iterations(process.engine):  # of a long loop not every iteration is seen
                begin = begins[bisect_right(begins, begin) - 1]
            if begin not in steps:
                raise HoleError(f"the attempt that step {injection.step} of {stream.name} follows cannot be read")
            placed.setdefault(steps[begin], {})[injection.place] = injection
        if placed:
            streams[stream.name] = placed
    return InjectionPlan(process.name, streams)


def _injections(process: ProcessTrace, stream: StreamTrace, selector: Selector) -> Iterator[Injection]:
    words, keys = process.words, process.tables["sites"].keys
    clauses = [Selector((clause,)) for clause in selector.simplify({Key.STREAM: stream.name}).clauses]
    masks = [RowMask(clause, stream.name, words) for clause in clauses]
    of_arrays = [clause.project(Key.ARRAY) for clause in clauses]
    may = RowMask(selector.project(Key.OP, Key.STEP), stream.name, words)
    seen: dict[tuple[int, int], int] = {}
    now = -1
    for segment in stream.segments:
        rows = stream.read_segment(segment)
        found = np.array([mask.compute(rows) for mask in masks], bool).reshape(len(masks), len(rows))
        for i in may.op_indices(rows).tolist():  # all that may be found: occurrences are counted
            step, site, op = rows.columns[i, [Column.STEP, Column.SITE, Column.OP]].tolist()
            if step != now:
                now = step
                seen.clear()
            key = int(keys[site])
            nth = seen.get((op, key), 0)
            seen[op, key] = nth + 1
            if found[:, i].any() and not rows.flags(i) & (RowFlag.VIEW | RowFlag.ALLOCATION):
                arrays = Selector(tuple(of_arrays[c].clauses[0] for c in np.flatnonzero(found[:, i])))
                yield _injection(process, stream, rows, i, (words.op(op), key, nth), arrays)


def _injection(
    process: ProcessTrace, stream: StreamTrace, rows: Rows, i: int, place: Place, arrays: Selector
) -> Injection:
    """``arrays``: which of its results, by their names."""
    names = tuple(process.words.written(int(rows.columns[i, Column.SCALARS])))
    outputs = tuple(rows.outputs(i))
    if not arrays.matches_all:
        chosen = arrays.chosen(names)
        outputs = tuple(digest if own else 0 for digest, own in zip(outputs, chosen, strict=True))
    inputs = tuple(
        (at, link.digest)
        for at, link in enumerate(rows.inputs(i))
        if link.distance == Origin.OUTSIDE
        and link.digest is not None
        and link.digest in process.values
        and arrays.matches_all
    )
    produced_inputs = tuple(
        (at, link.digest)
        for at, link in enumerate(rows.inputs(i))
        if link.distance != Origin.OUTSIDE and link.digest is not None and not rows.has(i, RowFlag.MARKED)
    )
    layouts = process.words.tensors(int(rows.columns[i, Column.STRUCTURE]))
    devices = tuple(str(layout[3]).partition(":")[0] for layout in layouts)
    step = int(rows.columns[i, Column.STEP])
    return Injection(
        stream=stream.name,
        row=rows.first + i,
        step=step,
        place=place,
        outputs=outputs,
        state=rows.rng(i),
        number=rows.value(i),
        inputs=inputs,
        devices=devices,
        site=int(rows.columns[i, Column.SITE]),
        kernel=int(rows.columns[i, Column.KERNEL]),
        produced_inputs=produced_inputs,
        names=names,
    )


def _without_unstorable(process: ProcessTrace, plan: InjectionPlan) -> InjectionPlan:
    """The plan without ops whose values could not be recorded for another reason than the limit."""
    numbers = {stream.name: stream.index for stream in process.streams}

    def is_injectable(injection: Injection) -> bool:
        if all(digest in process.values for digest in _needed(injection)):
            return True
        return process.values.why_missing(numbers[injection.stream], injection.row) in (None, LIMIT)

    return InjectionPlan(
        plan.process,
        {
            name: {step: {p: i for p, i in places.items() if is_injectable(i)} for step, places in steps.items()}
            for name, steps in plan.streams.items()
        },
    )


def _kind(kinds: OpKinds, injection: Injection) -> str:
    return kinds.of(injection.place[0], injection.site, injection.kernel).label


def _check_values(trace: Trace, process: ProcessTrace, plan: InjectionPlan) -> None:
    """Raise UsageError for a plan with missing values."""
    incomplete = [injection for injection in plan if any(d not in process.values for d in _needed(injection))]
    if not incomplete:
        return
    first = incomplete[0]
    stream = next(stream for stream in process.streams if stream.name == first.stream)
    why = process.values.why_missing(stream.index, first.row)
    raise UsageError(
        f"{trace.path} lacks the values of {len(incomplete)} of the {len(plan)} selected ops; the first is op "
        f"{first.row} of {first.stream}, {first.place[0]}"
        + (f": {why}" if why else "")
        + "; record it again with --values and the same selector"
    )


def _needed(injection: Injection) -> Sequence[int]:
    state = () if not injection.state else (injection.state,)
    return [digest for digest in (*injection.outputs, *state) if digest]
