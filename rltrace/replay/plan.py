"""What of a trace is to be put into another run, and where: each op by its identity.

Owns the identity of an op across runs: stream, step, call site, operator, how-manieth under that site in that step. A
step is known by the attempt it follows, which is known while it still runs. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.errors import HoleError, UsageError
from rltrace.replay.op_kinds import OpKinds, read_json, read_labels
from rltrace.selectors import Key, Range, Selector
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import LIMIT, Column, Origin, RowFlag, Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace

# --- only -------------------------------------------------------------------------------------------------------------
#
# Which of a selector's rows are meant, by lists that stand in files: kinds of op, rows of A. No torch.


@dataclass(frozen=True)
class InjectionFilter:
    """What of a selector's rows is meant; None: that does not matter."""

    kinds: frozenset[str] | None = None
    """Labels of kinds of op."""
    rows: Mapping[str, frozenset[int]] | None = None
    """By stream: rows of A."""

    def leaves(self, stream: str, row: int) -> bool:
        """Whether a row is among those that are meant."""
        return self.rows is None or row in self.rows.get(stream, ())


ALL = InjectionFilter()


def read_only(kinds: str | Path | None, rows: str | Path | None) -> InjectionFilter:
    """What two files say: a JSON list of labels of kinds, a JSON object of lists of rows. Raises UsageError."""
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
"""(ordinal of the optimizer, its own count) of the attempt that a step follows; None: of the first step."""

Place = tuple[str, int, int]
"""(operator, portable key of the call site, how-manieth) within a step of a stream."""

Number = bool | int | float | complex | None


@dataclass(frozen=True, slots=True)
class Injection:
    """One row of A, and what of it is put in."""

    stream: str
    row: int
    step: int
    place: Place
    outputs: tuple[int, ...]
    """Digests of what it returned and wrote, in order; 0: a library's workspace, left alone."""
    state: int | None
    """Digest of the generator's state before it; None: it draws nothing."""
    number: Number
    """The Python number it returned; None: it returned none."""
    inputs: tuple[tuple[int, int], ...]
    """(place among its tensors, digest) of what came from outside, as far as the trace has it."""
    devices: tuple[str, ...]
    """Kinds of device of its tensors."""
    site: int
    kernel: int
    """Ids in A's tables "sites" and "kernels"."""
    given: tuple[tuple[int, int], ...] = ()
    """(place among its tensors, digest) of what A's recorded ops gave it, as far as A read that."""


@dataclass(frozen=True)
class InjectionPlan:
    """All injections of one process."""

    process: str
    streams: Mapping[str, Mapping[Attempt, Mapping[Place, Injection]]]

    def __iter__(self) -> Iterator[Injection]:
        """All of them, stream by stream, in the order of A's rows."""
        for steps in self.streams.values():
            for places in steps.values():
                yield from places.values()

    def __len__(self) -> int:
        return sum(len(places) for steps in self.streams.values() for places in steps.values())


def make_plans(
    trace: Trace, selector: Selector, only: InjectionFilter = ALL, *, lockstep: bool = False
) -> dict[str, InjectionPlan]:
    """What the selector finds in each process of ``trace``, and ``only`` leaves.

    ``lockstep``: what has no plain bytes to put in (a sparse tensor) is passed over, not refused.

    Raises UsageError where it finds nothing that can be put in, or rows of which the trace lacks values; HoleError
    where damage is in the way.
    """
    carried = None if trace.slice is None else Range(trace.slice["first_step"], trace.slice["end_step"])
    plans = {process.name: _plan(process, selector, carried, only) for process in trace.processes}
    found = sum(map(len, plans.values()))
    if not found:
        raise UsageError(
            f"the selector finds no op in {trace.path} with values to inject (ops that only make a view or allocate "
            "have none)"
        )
    for process in trace.processes:
        if lockstep:
            plans[process.name] = _without_unkeepable(process, plans[process.name])
        _check_values(trace, process, plans[process.name])
    return {name: plan for name, plan in plans.items() if len(plan)}


def all_inputs_read(trace: Trace) -> bool:
    """Whether the ops of a trace tell the digests of all that they were given (``record --verify-inputs``)."""
    options = trace.launch.get("options")
    return isinstance(options, dict) and bool(options.get("verify_inputs"))


def following(process: ProcessTrace) -> dict[int, Attempt]:
    """For each step that has begun, by its number: the attempt that it follows."""
    payloads: list[Any] = process.tables["optimizers"].payloads
    found: dict[int, Attempt] = {0: None}
    for step, optimizer, count in process.steps[:, [Step.STEP, Step.OPTIMIZER, Step.COUNT]].tolist():
        payload = payloads[optimizer] if optimizer < len(payloads) else None
        if payload is not None:
            found[step + 1] = payload["ordinal"], count
    return found


def window_of(trace: Trace) -> tuple[str, int, int | None]:
    """Level, first step and end of the recording of A: a replay records the same, so that the two can be compared.

    Raises UsageError where A has no ops.
    """
    if trace.level != "op":
        raise UsageError(f"{trace.path} was recorded at level {trace.level}: it has no ops with values to inject")
    windows = [window for process in trace.processes for window in process.windows] or [(0, None)]
    ends = [end for _, end in windows]
    return (
        "op",
        min(first for first, _ in windows),
        None if None in ends else max(end for end in ends if end is not None),
    )


def compile_of(trace: Trace) -> str | None:
    """What A made of compiled functions, as an option of a recording: a replay treats them alike."""
    options: Any = (trace.launch or {}).get("options")
    found = options.get("compile") if isinstance(options, Mapping) else None
    return found if isinstance(found, str) else None


def _plan(process: ProcessTrace, selector: Selector, carried: Range | None, only: InjectionFilter) -> InjectionPlan:
    """``carried``: the steps that a slice has."""
    steps = following(process)
    streams = {}
    kinds = OpKinds(process.words)
    for stream in process.streams:
        placed: dict[Attempt, dict[Place, Injection]] = {}
        for injection in _injections(process, stream, selector, carried):
            if not only.leaves(injection.stream, injection.row):
                continue
            if only.kinds is not None and _kind(kinds, injection) not in only.kinds:
                continue
            if injection.step not in steps:
                raise HoleError(f"the attempt that step {injection.step} of {stream.name} follows cannot be read")
            placed.setdefault(steps[injection.step], {})[injection.place] = injection
        if placed:
            streams[stream.name] = placed
    return InjectionPlan(process.name, streams)


def _injections(
    process: ProcessTrace, stream: StreamTrace, selector: Selector, carried: Range | None
) -> Iterator[Injection]:
    mask, words, keys = RowMask(selector, stream.name, process.words), process.words, process.tables["sites"].keys
    may = RowMask(selector.project(Key.OP, Key.STEP), stream.name, words)
    seen: dict[tuple[int, int], int] = {}
    now = -1
    for segment in stream.segments:
        if not segment.files and carried is not None and selector.steps.is_within(carried):
            continue
        rows = stream.read_segment(segment)
        found = mask.compute(rows)
        for i in may.op_indices(rows).tolist():  # all that may be found: occurrences are counted
            step, site, op = rows.columns[i, [Column.STEP, Column.SITE, Column.OP]].tolist()
            if step != now:
                now = step
                seen.clear()
            key = int(keys[site])
            nth = seen.get((op, key), 0)
            seen[op, key] = nth + 1
            if found[i] and not rows.flags(i) & (RowFlag.VIEW | RowFlag.ALLOCATION):
                yield _injection(process, stream, rows, i, (words.op(op), key, nth))


def _injection(process: ProcessTrace, stream: StreamTrace, rows: Rows, i: int, place: Place) -> Injection:
    inputs = tuple(
        (at, link.digest)
        for at, link in enumerate(rows.inputs(i))
        if link.distance == Origin.OUTSIDE and link.digest is not None and link.digest in process.values
    )
    given = tuple(
        (at, link.digest)
        for at, link in enumerate(rows.inputs(i))
        if link.distance != Origin.OUTSIDE and link.digest is not None and not rows.has(i, RowFlag.MARKED)
    )
    layouts = process.words.tensors(int(rows.columns[i, Column.STRUCTURE]))
    devices = tuple(str(layout[3]).partition(":")[0] for layout in layouts)
    step, outputs = int(rows.columns[i, Column.STEP]), tuple(rows.outputs(i))
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
        given=given,
    )


def _without_unkeepable(process: ProcessTrace, plan: InjectionPlan) -> InjectionPlan:
    """The plan without ops whose values could not be kept, for another reason than the limit."""
    numbers = {stream.name: stream.index for stream in process.streams}

    def can_be(injection: Injection) -> bool:
        if all(digest in process.values for digest in _needed(injection)):
            return True
        return process.values.why_missing(numbers[injection.stream], injection.row) in (None, LIMIT)

    return InjectionPlan(
        plan.process,
        {
            name: {step: {p: i for p, i in places.items() if can_be(i)} for step, places in steps.items()}
            for name, steps in plan.streams.items()
        },
    )


def _kind(kinds: OpKinds, injection: Injection) -> str:
    return kinds.of(injection.place[0], injection.site, injection.kernel).label


def _check_values(trace: Trace, process: ProcessTrace, plan: InjectionPlan) -> None:
    """Refuse a plan of which values are missing. Raises UsageError."""
    lacking = [injection for injection in plan if any(d not in process.values for d in _needed(injection))]
    if not lacking:
        return
    first = lacking[0]
    stream = next(stream for stream in process.streams if stream.name == first.stream)
    why = process.values.why_missing(stream.index, first.row)
    raise UsageError(
        f"{trace.path} lacks the values of {len(lacking)} of the {len(plan)} selected ops; the first is op "
        f"{first.row} of {first.stream}, {first.place[0]}"
        + (f": {why}" if why else "")
        + "; record it again with --values and the same selector"
    )


def _needed(injection: Injection) -> Sequence[int]:
    state = () if not injection.state else (injection.state,)
    return [digest for digest in (*injection.outputs, *state) if digest]
