"""Comparison of two traces: every pair of streams, processes step by step, one verdict.

Raises only where the traces cannot be compared at all; missing, damaged or unfinished
parts become part of the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rltrace.command_lines import difference, line, program, record_both, runnable
from rltrace.diff import suggested_commands
from rltrace.diff.align.blocks import first_unequal_step, match_steps
from rltrace.diff.alike_workers import alike_note
from rltrace.diff.base.bisect import OnProbe
from rltrace.diff.base.coverage import (
    coverage_notes,
    is_finished,
    merge_events,
    merge_marked,
    merge_structures,
    recorded_throughout,
    side_of,
    slept_through,
)
from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import (
    OF_COMPUTING,
    Cause,
    Comparison,
    Drift,
    Finding,
    Hole,
    InputsMatch,
    NamedDifference,
    Pair,
    Search,
    Shift,
    StreamGroup,
    Verdict,
)
from rltrace.diff.base.view import ALL, Shortcuts, StreamView
from rltrace.diff.causes.events import outside_digests, trace_to_sent_event
from rltrace.diff.causes.extra_ops import without_effect
from rltrace.diff.causes.rng import generators_note
from rltrace.diff.causes.untracked import NO_RECORDED_OP
from rltrace.diff.edits import source_edits
from rltrace.diff.finding_order import Order, OrderedFinding
from rltrace.diff.metrics.curves import TOLERANCE, attempt_tables, compare_series, drift_of, ordered
from rltrace.diff.metrics.series import ITEM, Series, chosen_segments, item_series, recorded_series
from rltrace.diff.notes import (
    equal_in,
    equal_steps_note,
    exchanged_note,
    last_parameters,
    other_kernels,
    permuted_note,
    same_bits_note,
)
from rltrace.diff.processes import (
    PoolResult,
    compare_pools,
    compare_processes,
    is_pool,
    pooled,
    process_pairs,
    under_names_of,
)
from rltrace.diff.shift import begin, choose_shift, from_text, lost_state_notes, shifted, start_option, with_both_steps
from rltrace.diff.stream.compare import StreamResult, compare_streams
from rltrace.diff.stream.steps import StepResult, compare_steps
from rltrace.diff.stream.walk import Progress
from rltrace.diff.system_facts import environment_differences, fact_text, selects_kernels
from rltrace.diff.trained_state import saved_text, trained_alike
from rltrace.diff.unpaired_streams import (
    downgrade_for_torchscript,
    find_one_sided_streams,
    find_worker_groups,
    missing_process,
    within_note,
)
from rltrace.diff.verdict import Evidence, assume_complete, decide, different_programs
from rltrace.errors import HoleError, UsageError
from rltrace.trace.format.location import Location
from rltrace.trace.format.schema import Kind, RowFlag, Step, StepFlag, event_name, is_within
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_both
from rltrace.trace.read.stream import AHEAD, StreamTrace
from rltrace.wording import counted, joined

# --- curves -----------------------------------------------------------------------------------------------------------
#
# Curves that diverge. Recorded series are read in full; the rows of logged scalars are sampled from the first
# difference on, so that the comparison reads a bounded number of rows.


MAX_SEGMENTS = 8
"""Segments of a stream that are sampled, besides those right after its first difference."""

MAX_NAMED = 3

LOOK_AHEAD = 1 << 17
"""Rows from the first difference on in which all logged scalars are read; later ones are sampled."""

MAX_CURVES = 50
"""Curves that are reported."""


def drifts(
    pairs: Sequence[tuple[ProcessTrace, ProcessTrace]], results: Iterable[StreamResult], tolerance: float
) -> tuple[Drift, ...]:
    """The curves that differ, in the order in which they visibly diverge."""
    found: list[Drift] = []
    for a, b in pairs:
        found += compare_series(recorded_series(a), recorded_series(b), [(a, b)], tolerance)[0]
    for result in results:
        if result.value is not None:
            found += _logged_drifts(result, tolerance)
    return ordered(drift for drift in found if drift.first is not None)[:MAX_CURVES]


def _logged_drifts(result: StreamResult, tolerance: float) -> Iterable[Drift]:
    """Drifts of the logged scalars of a stream. Those before its first difference in values are equal and not read."""
    value = result.value
    if value is None or value.a_index is None or value.b_index is None:
        return
    for view, start in ((result.a, value.a_index), (result.b, value.b_index)):  # before either is read
        view.stream.read_ahead([view.stream.segments[number] for number in _sampled(view, start)][:AHEAD])
    own = _items(result.a, value.a_index)
    others = _items(result.b, value.b_index)
    attempts = attempt_tables(result.a.process, result.b.process)
    for key, series in own.items():
        if key in others and series.kind == ITEM:
            yield drift_of(series, others[key], attempts, tolerance)


def _sampled(view: StreamView, start: int) -> list[int]:
    """Numbers of the segments in which logged scalars are looked for."""
    stream = view.stream
    near = [n for n, s in enumerate(stream.segments) if s.stop > start and s.first < start + LOOK_AHEAD]
    return sorted({*near, *chosen_segments(stream, MAX_SEGMENTS, start)})


def _items(view: StreamView, start: int) -> dict[object, Series]:
    stream, chosen = view.stream, _sampled(view, start)
    all_segments = [n for n, segment in enumerate(stream.segments) if segment.stop > start]
    found = item_series(view, chosen, start=start, whole=chosen == all_segments)
    return {series.key: series for series in found}


def diverging_text(found: Iterable[Drift]) -> str:
    """A clause on the curves that diverge, though the runs trained the same; "": none does."""
    steps = [drift.exceeds.step for drift in found if drift.exceeds is not None]
    curves = counted(len(steps), "logged curve diverges", "logged curves diverge")
    return f"; {curves} all the same, from step {min(steps):,} on" if steps else ""


def logged_scalar_notes(found: Iterable[Drift]) -> list[str]:
    """A note where recorded series differ though no op does."""
    names = [f"{drift.name} from step {drift.first.step:,}" for drift in found if drift.first is not None]
    if not names:
        return []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return [
        f"numbers that were logged beside the ops differ ({', '.join(names[:MAX_NAMED])}{more}), but no op does: "
        "they come from outside the ops, and do not decide the verdict"
    ]


# --- compare ----------------------------------------------------------------------------------------------------------


DIGEST_FACT = "digest"
"""Fact that names the digest algorithm; digests of two algorithms are never compared."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What counts as a difference of two traces."""

    strict: bool = False
    """Added, removed or reordered ops count, too."""
    tolerance: float = TOLERANCE
    """The share of its range at which a curve visibly diverges."""
    within: bool = True
    """What is within calls of JAX is compared, too."""


DEFAULTS = CompareOptions()


def compare(
    a: Trace | Location | str,
    b: Trace | Location | str,
    options: CompareOptions = DEFAULTS,
    *,
    starts: Pair[int] | None = None,
    progress: Progress | None = None,
    watch: OnProbe | None = None,
    shortcuts: Shortcuts = ALL,
) -> Comparison:
    """Compare two traces.

    ``starts``: B's step that A's first one is, or A's step that B's first one is; 0 on a side compares both from their
    beginnings; None: a run that begins with the parameters of a step of the other is compared with it from there on.
    ``progress`` is called with a stream's name, the rows done and the rows in all, ``watch`` with each probe of the
    search. ``shortcuts`` change how much is read, and no result. Raises UsageError where the two cannot be compared,
    and what ``open_trace`` does.
    """
    trace_a, trace_b = open_both(a, b)
    _check(trace_a, trace_b)
    chosen = choose_shift(trace_a, trace_b, starts)
    notes = [] if chosen.note is None else [chosen.note]
    shifted_a, shifted_b = shifted(trace_a, trace_b, chosen.shift)
    comparer = _Comparer(shifted_a, shifted_b, options, progress, watch, shortcuts, chosen.shift, notes)
    return with_both_steps(comparer.run())


def _check(a: Trace, b: Trace) -> None:
    if a.path.resolve() == b.path.resolve():
        raise UsageError(f"{a.path} and {b.path} are the same trace; give two recordings")
    algorithms = [{text for p in t.processes if (text := fact_text(p.facts, DIGEST_FACT))} for t in (a, b)]
    if algorithms[0] and algorithms[1] and algorithms[0] != algorithms[1]:
        names = [", ".join(sorted(found)) for found in algorithms]
        raise UsageError(
            f"{a.path} holds digests of {names[0]} and {b.path} of {names[1]}: they cannot be compared; record one "
            "of the two again with the other's version of rltrace"
        )


@dataclass
class _Comparer:
    a: Trace
    b: Trace
    options: CompareOptions
    progress: Progress | None
    watch: OnProbe | None
    shortcuts: Shortcuts
    shift: Shift | None
    notes: list[str]
    streams: list[tuple[ProcessTrace, StreamResult]] = field(default_factory=list)
    steps: list[tuple[ProcessTrace, StepResult]] = field(default_factory=list)
    pools: list[PoolResult] = field(default_factory=list)
    task_threads: frozenset[str] = frozenset()
    """Names of threads that take tasks from a queue of the program; they are in ``pools``."""
    pairs: list[tuple[ProcessTrace, ProcessTrace]] = field(default_factory=list)
    sent_events: list[OrderedFinding] = field(default_factory=list)
    """At events of one process that differ before another computed with what they returned."""
    hidden: tuple[int, int] | None = None
    """Numbers, in A and B, of the first step that differs, where its ops cannot be read."""

    def __post_init__(self) -> None:
        self.pairs = process_pairs(self.a, self.b)
        self.order = Order(self.a, under_names_of(self.a, self.b, self.pairs))

    def run(self) -> Comparison:
        if self.shift is not None:
            self._leave_out_unplaced()
        system = environment_differences(self.pairs)
        level = self._level()
        for a, b in self.pairs:
            if level == "op":
                self._compare_ops(a, b)
            else:
                self.steps.append((a, compare_steps(a, b)))
        if self.shift is None:
            self._compare_pools()
        one_sided_streams = find_one_sided_streams(self.a, self.b) if level == "op" and self.shift is None else []
        one_sided_streams = [each for each in one_sided_streams if each[1].stream not in self.task_threads]
        if level == "op" and self.steps and not any(any(r.looked_at) or r.first for _, r in self.streams):
            level = "step"
            self.notes.append("no step was recorded op by op on both sides")
        self.notes += dict.fromkeys(note for _, result in self.steps for note in result.notes)
        if max(len(self.a.processes), len(self.b.processes)) > 1:
            self.streams = [(process, self._with_senders(result)) for process, result in self.streams]
            self.sent_events = self._find_sent_events()
        return self._assemble(level, system, one_sided_streams)

    def _leave_out_unplaced(self) -> None:
        """Leave out what has no step, so that it is unknown where in it the other run begins."""
        placed = [(a, b) for a, b in self.pairs if len(a.steps) and len(b.steps)]
        left = [a.name for a, b in self.pairs if (a, b) not in placed]
        left += [name for name in pooled(self.a) if name in pooled(self.b)]
        pools = [s.name for a, b in placed for side in (a, b) for s in side.streams if is_pool(s.name) and s.rows]
        self.pairs = placed
        if left or pools:
            self.notes.append(
                f"not compared: {', '.join(dict.fromkeys([*left, *pools]))}; without optimizer steps, it is unknown"
                " where the resumed run begins there"
            )

    def _level(self) -> str:
        a, b = self.a, self.b
        if a.has_rows and b.has_rows:
            if a.engine == b.engine:
                return "op"
            self.notes.append(
                f"the ops were intercepted by two engines ({a.engine} and {b.engine}), so they are not compared row by"
                " row, but step by step"
            )
        elif a.level != b.level:
            self.notes.append(f"A was recorded at level {a.level}, B at level {b.level}: compared step by step")
        return "step"

    def _compare_ops(self, a: ProcessTrace, b: ProcessTrace) -> None:
        settings = tuple(d for d in environment_differences([(a, b)]) if selects_kernels(d.name))
        others = {stream.name.removeprefix(b.name): stream for stream in b.streams}
        asleep = slept_through(self.a, a) or slept_through(self.b, b)
        compared = []
        for stream in () if asleep else a.streams:
            other = others.get(stream.name.removeprefix(a.name))
            if other is not None and not is_pool(stream.name) and (self.options.within or not is_within(stream.name)):
                view_a, view_b = StreamView(a, stream, self.shortcuts), StreamView(b, other, self.shortcuts)
                begin(view_a, view_b)
                found = downgrade_for_torchscript(compare_streams(view_a, view_b, settings, self.progress, self.watch))
                compared.append(found)
        self.notes += filter(None, [within_note(a, b) if self.options.within else None])
        groups = find_worker_groups(a, b, compared) if self.shift is None else []
        self.task_threads = self.task_threads.union(*(group.streams for group in groups))
        self.streams += [(a, result) for result in compared if result.a.name not in self.task_threads]
        own = compare_pools(a, b) if self.shift is None and not asleep else None
        for pool in filter(None, [own, *(group.result for group in groups)]):
            self._take_pool(pool)
        if asleep or not (recorded_throughout(a) and recorded_throughout(b)):
            self.steps.append((a, compare_steps(a, b, exclude=_recorded_on_both(a, b))))

    def _with_senders(self, result: StreamResult) -> StreamResult:
        """A result whose findings name the row of another process that wrote what was received."""
        findings = result.first, result.value, result.harmful
        found = {id(each): self.order.with_sender(each) for each in findings if each}
        first, value, harmful = (found.get(id(each)) for each in findings)
        way = "" if value is None else self.order.sent_to_one_side(value)
        if value is not None and way:
            value = replace(value, explanation=value.explanation + way)
            if harmful is not None:
                harmful = replace(harmful, explanation=harmful.explanation + way)
        return replace(result, first=first, value=value, harmful=harmful)

    def _find_sent_events(self) -> list[OrderedFinding]:
        """The events of other processes that findings of outside data go back to, the first of each process."""
        found: dict[str, OrderedFinding] = {}
        for process, result in self.streams:
            finding = result.decisive
            if finding is None or finding.cause is not Cause.OUTSIDE or finding.event or finding.received:
                continue
            if finding.a_index is None or finding.b_index is None:
                continue
            try:
                read = outside_digests(row_at(result.a, finding.a_index), row_at(result.b, finding.b_index))
            except HoleError:
                continue
            for other, events in self.streams:
                before = self.order.rows_before(events.a.name, finding) if other is not process else None
                if before is None or not events.events.differing or events.context is None:
                    continue
                at_event = trace_to_sent_event(events.context, finding, read, before)
                if at_event is not None:
                    found.setdefault(other.name, OrderedFinding(other.name, at_event))
        return list(found.values())

    def _compare_pools(self) -> None:
        """Compare the processes of each pool that both sides have."""
        pools_a, pools_b = pooled(self.a), pooled(self.b)
        for name in [name for name in pools_a if name in pools_b]:
            sides = (self.a, pools_a[name]), (self.b, pools_b[name])
            if any(slept_through(trace, process) for trace, pool in sides for process in pool):
                continue
            self._take_pool(compare_processes(name, pools_a[name], pools_b[name]))

    def _take_pool(self, pool: PoolResult) -> None:
        self.pools.append(pool)
        self.notes += [pool.note, pool.undecided] if pool.undecided else [pool.note]

    # --- the whole ----------------------------------------------------------------------------------------------------

    def _assemble(
        self, level: str, system: tuple[NamedDifference, ...], one_sided_streams: list[tuple[str, Finding, bool]]
    ) -> Comparison:
        self._name_hidden_steps()
        self._name_other_writers()
        firsts = self._firsts(one_sided_streams)
        first, unordered = self._earliest(firsts)
        values = [OrderedFinding(p.name, r.value) for p, r in self.streams if r.value]
        first_value, _ = self._earliest(
            values + [each for each in self.sent_events if each.finding.cause is Cause.OUTSIDE]
        )
        counting = self._counting(one_sided_streams)
        decisive = min(self.order.earliest(counting), key=_shown_first, default=None)
        decisive = self._one_sided_seeding(counting, decisive) or decisive or self._last_parameters()
        if first is None and not unordered:
            first = decisive
        evidence = Evidence(
            level=level,
            streams=tuple(result for _, result in self.streams),
            steps=tuple(result for _, result in self.steps),
            pools=tuple(self.pools),
            one_sided_streams=tuple(finding for _, finding, _ in one_sided_streams),
            decisive=decisive,
            unfinished=self._unfinished(level),
            trained_alike=self._trained_alike(level, decisive),
        )
        verdict, why = decide(evidence)
        if self.shift is not None:
            why = f"{from_text(self.shift)}, {why}"
            self.notes += lost_state_notes(self.pairs, decisive)
        so_far, _ = decide(assume_complete(evidence))
        if level == "op" and verdict is Verdict.DIVERGED:
            self.notes += filter(None, [equal_steps_note(self.pairs), alike_note(self.a, self.b)])
        of_streams = [note(result) for note in (permuted_note, exchanged_note) for _, result in self.streams]
        self.notes += dict.fromkeys(filter(None, of_streams))
        drift = drifts(self.pairs, [r for _, r in self.streams], self.options.tolerance)
        if verdict is Verdict.SAME_VALUES and evidence.trained_alike is not None:
            why += diverging_text(drift)
        if verdict in (Verdict.IDENTICAL, Verdict.SAME_VALUES) and decisive is None:
            self.notes += filter(None, (generators_note(a, b) for a, b in self.pairs if level == "op"))
            why += "".join(f"; {text}" for text in filter(None, (saved_text(a, b) for a, b in self.pairs)))
            self.notes += logged_scalar_notes(drift)
        self.notes += dict.fromkeys([*coverage_notes(self.a), *coverage_notes(self.b)])
        others = tuple(other_kernels(self.pairs, equal_in([r for _, r in self.streams])))
        self.notes += filter(None, [same_bits_note(others, str(self.a.path), str(self.b.path))])
        holes = self._holes()  # holes of series as well, which decide nothing
        comparison = Comparison(
            verdict=verdict,
            why=why,
            level=level,
            a=side_of(self.a),
            b=side_of(self.b),
            commands=difference(program(self.a), program(self.b)),
            system=system,
            edits=source_edits(self.pairs, decisive or first_value or first),
            first=first,
            first_value=first_value,
            unordered=tuple(unordered),
            structure=merge_structures([result.structure for _, result in self.streams]),
            search=self._search(),
            holes=holes,
            marked=merge_marked([result.marked for _, result in self.streams]),
            events=merge_events([result.events for _, result in self.streams]),
            compared={r.a.name: r.matched + (r.value is not None) for _, r in self.streams}
            | {pool.name: pool.matched for pool in self.pools},
            unfinished=tuple(side for side, _ in evidence.unfinished),
            advice=runnable(self._advice(verdict, decisive, holes)),
            decisive=decisive if verdict is Verdict.DIVERGED else None,
            notes=tuple(self.notes),
            drift=drift,
            later=self.order.later(firsts),
            strict=self.options.strict,
            so_far=so_far,
            other_kernels=others,
            unlike=verdict is Verdict.UNKNOWN and different_programs(evidence),
            shift=self.shift,
            groups=self._groups(counting, decisive),
        )
        return comparison if evidence.trained_alike is None else _without_effect(comparison)

    def _trained_alike(self, level: str, decisive: Finding | None) -> int | None:
        """The attempts of both runs where these trained the same, though an op differs; None otherwise."""
        is_whole = level == "op" and self.shift is None and not self.steps and not self._holes()
        return trained_alike(self.a, self.b, self.pairs) if is_whole and decisive is not None else None

    def _name_hidden_steps(self) -> None:
        """Find the first step that differs by its digests, where a hole hides the first difference."""
        for _, result in self.streams:
            steps = first_unequal_step(result.a, result.b) if result.hole is not None else None
            if steps is not None and self.hidden is None:
                self.hidden = steps
                self.notes.append(
                    f"step {steps[0]:,} of A (step {steps[1]:,} of B) is the first in which the ops of "
                    f"{result.a.name} differ in any way, by its digests"
                )

    def _name_other_writers(self) -> None:
        """Say of an untracked write that another process may have made it, and which: those where an event differs."""
        events = [(p, r.decisive.stream) for p, r in self.streams if r.decisive is not None and r.decisive.event]
        for process, result in self.streams:
            decisive = result.decisive
            if decisive is None or decisive.cause is not Cause.UNTRACKED_WRITE or len(self.pairs) < 2:
                continue
            others = [stream for other, stream in events if other is not process]
            who = f"; {joined(others)}, where an event differs, may have written it as shared memory" if others else ""
            why = decisive.explanation.replace(NO_RECORDED_OP, f"{NO_RECORDED_OP} of this process")
            result.replace(decisive, replace(decisive, explanation=why + who))

    def _firsts(self, one_sided_streams: list[tuple[str, Finding, bool]]) -> list[OrderedFinding]:
        """The earliest finding of each pair of streams, or of earlier steps."""
        found = [*self.sent_events, *(OrderedFinding(process, finding) for process, finding, _ in one_sided_streams)]
        for process, result in self.streams:
            early = self._step_finding(process, result.first)
            if early is None and result.first is not None:
                found.append(OrderedFinding(process.name, result.first))
        found += [OrderedFinding(p.name, f) for p, _ in self.steps if (f := self._earliest_step_finding(p)) is not None]
        return found

    def _counting(self, one_sided_streams: list[tuple[str, Finding, bool]]) -> list[OrderedFinding]:
        """The earliest finding of each stream that is a difference of what was computed."""
        found = [OrderedFinding(process, finding) for process, finding, harmful in one_sided_streams if harmful]
        found += self.sent_events
        for process, result in self.streams:
            decisive = result.decisive
            if decisive is not None and self._step_finding(process, decisive) is None:
                found.append(OrderedFinding(process.name, decisive))
        found += [OrderedFinding(p.name, f) for p, _ in self.steps if (f := self._earliest_step_finding(p)) is not None]
        return found

    def _one_sided_seeding(self, counting: list[OrderedFinding], decisive: Finding | None) -> Finding | None:
        """The finding at a space that one side alone seeds, in another process, where data from outside decides of
        which no origin is known, and none of the two is known to come before the other."""
        if decisive is None or decisive.cause is not Cause.OUTSIDE or decisive.event or decisive.sender:
            return None
        most_events = sorted(self.streams, key=lambda stream: -stream[1].events.differing)
        firsts = [OrderedFinding(p.name, r.first) for p, r in most_events if r.first]
        seeded = [f for f in firsts if f.finding.op == SEED and None in (f.finding.a_index, f.finding.b_index)]
        first = self.order.earliest([*counting, *seeded]) if seeded else []
        return next((f.finding for f in seeded if f.finding in first), None)

    def _groups(self, counting: list[OrderedFinding], decisive: Finding | None) -> tuple[StreamGroup, ...]:
        """The streams by their first difference; that of ``decisive`` is the first group."""
        names = {result.a.name: result.undecided or result.open or "" for _, result in self.streams}
        names |= {p.name: result.open or "" for p, result in self.steps if not any(q is p for q, _ in self.streams)}
        names |= {pool.name: pool.undecided or "" for pool in self.pools}
        findings: dict[str, Finding] = {}
        for finding in (*(each.finding for each in counting), *filter(None, [decisive])):
            findings.setdefault(finding.stream, finding)
        names |= dict.fromkeys(findings, "")
        if len(names) < 2:
            return ()
        groups: dict[object, list[str]] = {}
        for name, why in names.items():
            first = findings.get(name)
            place = why if first is None else (first.step, first.op, first.site, first.cause)  # of any stream
            groups.setdefault(place, []).append(name)
        found = [
            StreamGroup(tuple(streams), findings.get(streams[0]), "" if streams[0] in findings else names[streams[0]])
            for streams in groups.values()
        ]
        return tuple(sorted(found, key=lambda group: _rank_of(group, decisive)))

    def _earliest(self, found: list[OrderedFinding]) -> tuple[Finding | None, list[Finding]]:
        """(the earliest finding, []), or (None, all findings that cannot be ordered)."""
        candidates = self.order.earliest(found)
        if len(candidates) == 1:
            return candidates[0], []
        return None, candidates

    def _last_parameters(self) -> Finding | None:
        """The finding where only the final parameters differ, written after their last use. None past a hole."""
        if self._holes() or any(r.undecided for _, r in self.streams):
            return None
        if not self.streams:
            cause, why = Cause.UNKNOWN, "to find the op that wrote them, record ops"
        elif any(r.structure.only_a or r.structure.only_b for _, r in self.streams):
            cause, why = Cause.UNKNOWN, "ops on one side only wrote them after their last use, or no op did"
        elif any(r.permuted for _, r in self.streams):
            cause, why = Cause.UNKNOWN, "calls with their tensors in another order wrote them, or no op did"
        else:
            cause, why = Cause.UNTRACKED_WRITE, "no recorded op explains the difference"
        found = (last_parameters(a, b, cause, why) for a, b in self.pairs)
        return next(filter(None, found), None)

    def _earliest_step_finding(self, process: ProcessTrace) -> Finding | None:
        """The finding of the step digests of a process, unless there is one at an op of that step or before."""
        result = next((r for p, r in self.steps if p is process), None)
        finding = (result.finding or result.ended) if result else None
        if finding is None or finding.step is None:
            return None
        own = [r.decisive for p, r in self.streams if p is process and r.decisive is not None]
        return None if any(f.step is not None and f.step <= finding.step for f in own) else finding

    def _step_finding(self, process: ProcessTrace, finding: Finding | None) -> Finding | None:
        """The finding of the step digests, if it is earlier than ``finding`` of the same process."""
        early = self._earliest_step_finding(process)
        if early is None or finding is None or finding.step is None or early.step is None:
            return None
        return early if early.step < finding.step else None

    def _unfinished(self, level: str) -> tuple[tuple[str, str], ...]:
        found = []
        for side, trace, other in (("a", self.a, self.b), ("b", self.b, self.a)):
            bad = [p for p in trace.processes if not is_finished(p, level)]
            if bad:
                found.append((side, f"{bad[0].name} is {bad[0].state} after op {bad[0].after_op:,}"))
            elif trace.lost or not trace.processes:
                found.append((side, next(iter(trace.lost), "nothing was recorded")))
            elif (missing := missing_process(trace, other)) is not None:
                found.append((side, f"{missing} is missing, and a process of it was left out or recorded nothing"))
        return tuple(found)

    def _holes(self) -> tuple[Hole, ...]:
        found = [
            Hole(side, hole.process, hole.stream, hole.first, hole.rows, hole.why)
            for side, trace in (("a", self.a), ("b", self.b))
            for hole in trace.holes
        ]
        for process, result in self.streams:
            hidden = result.hole
            known = {(h.side, h.stream, h.first) for h in found}
            if hidden is not None and (hidden.side, result.a.name, hidden.first) not in known:
                found.append(Hole(hidden.side, process.name, result.a.name, hidden.first, hidden.rows, hidden.why))
        return tuple(found)

    def _search(self) -> Search:
        probes = tuple(probe for _, result in self.streams for probe in result.probes)
        processes = [p for t in (self.a, self.b) for p in t.processes]
        read: list[ProcessTrace | StreamTrace] = [*processes, *(s for p in processes for s in p.streams)]
        return Search(probes, sum(x.counter.chunks for x in read), sum(x.counter.bytes for x in read))

    def _advice(self, verdict: Verdict, decisive: Finding | None, holes: tuple[Hole, ...]) -> tuple[str, ...]:
        if verdict is Verdict.DIVERGED and decisive is not None:
            numbers = next((r.numbers for _, r in self.steps if r.finding is decisive and r.numbers), None)
            if numbers is not None and self.shift is not None:
                *records, diff = record_both(self.a, self.b, *numbers, "window")
                return (*records, f"{diff} {start_option(self.shift)}")
            if numbers is not None:
                # what makes a step differ may have run in the one before: an extra draw from a generator of the program
                return record_both(self.a, self.b, *numbers, "window", earlier=1)
            if not decisive.op:
                return ()
            if self.shift is not None:
                return suggested_commands.look_closer(self.a, self.b, decisive)
            suggestions = (
                suggested_commands.run_eagerly,
                suggested_commands.compare_state,
                suggested_commands.confirm,
                suggested_commands.explain,
                suggested_commands.look_closer,
            )
            commands = [suggest(self.a, self.b, decisive) for suggest in suggestions]
            return self._settle_inputs(decisive) + tuple(chain.from_iterable(commands))
        if holes:
            record_again = record_both(self.a, self.b, *self.hidden, "window") if self.hidden else ()
            return suggested_commands.verify(self.a, self.b, holes) + record_again
        if verdict is Verdict.UNKNOWN and any(p.state == "running" for t in (self.a, self.b) for p in t.processes):
            return (line("diff", self.a.path, self.b.path),)  # still being written
        return ()

    def _settle_inputs(self, decisive: Finding) -> tuple[str, ...]:
        """Commands that record inputs or kernels which the decisive finding lacks."""
        known = decisive.inputs_match
        rests = {InputsMatch.INFERRED: OF_COMPUTING, InputsMatch.UNKNOWN: {Cause.UNKNOWN}}.get(known, ())
        result = next((r for _, r in self.streams if r.decisive is decisive), None)
        if result is None or decisive.a_index is None or decisive.b_index is None:
            return ()
        a, b = row_at(result.a, decisive.a_index), row_at(result.b, decisive.b_index)
        if decisive.cause is Cause.UNKNOWN and (a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.MARKED:
            return suggested_commands.check_links(self.a, self.b)
        steps = a.step, b.step
        kernels = suggested_commands.name_kernels(self.a, self.b, decisive, *steps)
        return kernels or (suggested_commands.settle_inputs(self.a, self.b, *steps) if decisive.cause in rests else ())


SEED = event_name(Kind.SEED)


def _without_effect(comparison: Comparison) -> Comparison:
    """The same comparison, of runs that trained alike: no finding says that it affects results."""
    first, value = (f and without_effect(f) for f in (comparison.first, comparison.first_value))
    groups = (replace(group, finding=group.finding and without_effect(group.finding)) for group in comparison.groups)
    return replace(
        comparison,
        first=first,
        first_value=value,
        unordered=tuple(map(without_effect, comparison.unordered)),
        later=tuple(map(without_effect, comparison.later)),
        groups=tuple(groups),
    )


def _shown_first(finding: Finding) -> tuple[bool, str]:
    """The order in which findings without a known order are shown: last those that do not say where data came from."""
    lacks_origin = finding.event is None and finding.cause in (Cause.UNTRACKED_WRITE, Cause.UNKNOWN)
    return lacks_origin, finding.stream if finding.event is not None else ""


def _rank_of(group: StreamGroup, decisive: Finding | None) -> tuple[int, int, int]:
    """The place of a group: that of the decisive finding, by step and row, not known, agreeing."""
    finding = group.finding
    if finding is None:
        return (2 if group.why else 3), 0, 0
    is_first = decisive is not None and decisive.stream in group.streams
    row = finding.a_index if finding.a_index is not None else finding.b_index
    return (0 if is_first else 1), -1 if finding.step is None else finding.step, row or 0


def _recorded_on_both(a: ProcessTrace, b: ProcessTrace) -> NDArray[np.uint64]:
    """Numbers of A's steps whose ops were recorded on both sides, and so are compared op by op."""
    at_a, at_b = match_steps(a, a.steps, b, b.steps)
    flag = np.uint64(StepFlag.RECORDED)
    recorded = (a.steps[at_a, Step.FLAGS] & b.steps[at_b, Step.FLAGS] & flag) != 0
    numbers: NDArray[np.uint64] = a.steps[at_a[recorded], Step.STEP]
    return numbers
