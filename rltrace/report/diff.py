"""The document of a comparison of two traces.

Owns the facts that all of its reports show: which, their order and their words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import repeat, starmap, takewhile

from rltrace.diff.base.model import (
    Cause,
    Comparison,
    Drift,
    Finding,
    FindingEvent,
    Hole,
    Hunk,
    InputsMatch,
    NamedDifference,
    OptimizerCount,
    Pair,
    ProcessSummary,
    Side,
    SourceEdit,
    StreamGroup,
    Structure,
    Verdict,
)
from rltrace.diff.base.sequences import grouped
from rltrace.diff.causes.nondeterminism import advice_text
from rltrace.diff.edits import nearest_edit
from rltrace.diff.metrics.distances import MOST_ULP, Distances
from rltrace.diff.metrics.series import RATE
from rltrace.diff.shift import from_text
from rltrace.report.curves import curve_name, drift_summary, drift_text, growth_text
from rltrace.report.document import Code, Document, Fact, Form, Section, Stack
from rltrace.trace.format.schema import has_iterations
from rltrace.trace.read.names import Site
from rltrace.wording import counted, ordinal, sentence, sentences

MAX_OUTPUTS, MAX_CELLS = 4, 8
"""Outputs of an op, and cells of an event, that are shown where they differ."""

MANY = 8
"""More streams than these are reported by their first difference, not one by one."""

MAX_RUNS = 4
"""Runs of streams, as in ``rank0/main to rank3/main``, that are named."""

MAX_LINES = 20
"""Edited lines of a file and run that are listed."""

EDIT_CONTEXT = 24
"""Characters of an edited line that are shown before its first change."""

MAX_MOVED_ROWS = 3
"""Rows at another place that are named."""

MAX_OTHERS = 3
"""Other first differences of many streams that are shown with their evidence."""

MAX_PAIRS = 60
"""Facts and logged scalars that differ of which a text shows both sides."""

MAX_FILES = 4
"""Edited source files that are named at once."""


def verdict_document(comparison: Comparison) -> Document:
    """The document of a comparison; empty sections are left out, and what differs between different programs."""
    shown = comparison.shown
    diverged = comparison.verdict is Verdict.DIVERGED and shown is not None
    findings = (
        Section(f"finding-{number}" if number else "finding", title, facts=tuple(_finding(comparison, finding)))
        for number, (title, finding) in enumerate(titled_findings(comparison))
    )
    differences = (
        _structure(comparison.structure),
        _edits(comparison.edits),
        _system(comparison),
        Section("drift", "How the curves diverge", sentences(drift_summary(comparison)), tuple(_drift(comparison))),
        Section("events", "Data from environments and files", sentences(events_text(comparison))),
        Section("marked", "Uninitialised memory", sentences(marked_text(comparison))),
    )
    rest = (
        _one_sided_streams(comparison),
        _stream_groups(comparison),
        *(() if comparison.unlike else differences),
        Section("holes", "Cannot be read", facts=tuple(map(_hole, comparison.holes)), form=Form.LIST),
        Section("notes", "Notes", sentences(*comparison.notes)),
        Section("next", "Next", commands=comparison.advice),
    )
    return Document(
        headline(comparison.verdict),
        comparison.verdict,
        place(shown) if diverged and shown is not None else "",
        sentences(answer(comparison)) if diverged else (),
        "" if comparison.shift is None else from_text(comparison.shift),
        sentences(shown.explanation if diverged and shown is not None else comparison.why),
        tuple(_runs(comparison)),
        tuple(filter(None, (*findings, *rest))),
    )


def headline(verdict: Verdict) -> str:
    """``SAME VALUES``."""
    return verdict.value.replace("-", " ").upper()


# --- answer ---------------------------------------------------------------------------------------------------------


def answer(comparison: Comparison) -> str:
    """What was changed between the runs, and what differs first: ``B adds --seed 5; first difference: environment 0 was
    reset with seed 0 in A and seed 5 in B at its reset 1 (rank0/worker:1)``; "" where no change is known."""
    finding, changed = comparison.shown, list(changes(comparison))
    changed += () if finding is None else finding.made
    if finding is None or not changed:
        return ""
    first = finding.explanation.partition("; ")[0] or place(finding)
    if finding.op is not None and finding.event is None:
        own = own_frame(finding) or finding.site
        at = "" if own is None else f" at {own.file}:{own.line}"
        first = f"{finding.op}{at}, {first}"
    where = f" ({finding.stream})" if len(comparison.compared) > 1 else ""
    return f"{'; '.join(changed)}; first difference: {first}{where}"


def own_frame(finding: Finding) -> Site | None:
    """The innermost frame of the program itself; None: all are of libraries."""
    return next((frame for frame in finding.stack if not frame.is_library), None)


def changes(comparison: Comparison) -> Iterator[str]:
    """What a person changed between the runs: the command, source files; if neither, a variable."""
    edited = [edit.file for edit in comparison.edits]
    if comparison.commands:
        yield f"the command: {comparison.commands}"
    if edited:
        more = f" and {counted(len(edited) - 1, 'more file')}" if len(edited) > 1 else ""
        yield f"between the runs {edited[0]}{more} {'was' if len(edited) == 1 else 'were'} edited"
    if not comparison.commands and not edited:
        variables = (fact for fact in comparison.system if fact.name.startswith(VARIABLE))
        for fact in list(variables)[:1]:
            values = (_fact_text(value) or "not set" for value in (fact.a, fact.b))
            yield f"{fact.name.removeprefix(VARIABLE)}: {' in A, '.join(values)} in B"


VARIABLE = "env."
"""Start of the facts that hold environment variables."""


def step_word(engine: str) -> str:
    """What a step is in recordings of this engine."""
    return "iteration" if has_iterations(engine) else "optimizer step"


# --- runs -----------------------------------------------------------------------------------------------------------


def _runs(comparison: Comparison) -> Iterator[Fact]:
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        states = {f"stopped ({p.why})" if _is_stopped(p) else p.state: None for p in side.processes}
        yield Fact(name, (Code(side.path), f": {extent(side)}, {', '.join(sorted(states)) or 'nothing recorded'}"))
        for process in side.processes:
            if process.state != "complete" and not _is_stopped(process):
                why = f", {process.why}" if process.why else ""
                yield Fact("process", (f"{name}'s ", Code(process.name), f": {process.state}{why}"))
            elif uncaught := re.match(r"exception (\w+)", process.exit or ""):
                yield Fact("process", (f"{name}'s ", Code(process.name), f": ended with an uncaught {uncaught[1]}"))
    if comparison.commands:
        yield Fact("commands", comparison.commands)
    if comparison.edits:
        yield from _sources(comparison.edits)
    if comparison.shift is not None:
        yield Fact("start", sentence(comparison.shift.explanation))
    yield Fact("level", Pair(*(f"{side.level}, engine {side.engine}" for side in (comparison.a, comparison.b))))
    if comparison.level == "op":
        yield from _compared(comparison.compared)


def _sources(edits: Iterable[SourceEdit]) -> Iterator[Fact]:
    """Files that differ, and files that one run alone loaded."""
    for side, verb in (("", "edited between the runs"), ("a", "loaded by A only"), ("b", "loaded by B only")):
        names = [edit.file for edit in edits if edit.loaded_by == side]
        more = f" and {len(names) - MAX_FILES:,} more" if len(names) > MAX_FILES else ""
        was = "was" if len(names) == 1 else "were"
        if names:
            yield Fact("sources", (Code(", ".join(names[:MAX_FILES])), f"{more} {was} {verb}"))


def _compared(compared: Mapping[str, int]) -> Iterator[Fact]:
    if len(compared) > MANY:
        least, most = min(compared.values()), max(compared.values())
        each = f"{counted(most, 'op')} each" if least == most else f"{least:,} to {counted(most, 'op')} each"
        yield Fact("compared", f"{len(compared):,} streams, {each}")
        return
    for stream, rows in compared.items():
        yield Fact("compared", (Code(stream), f": {counted(rows, 'op')}"))


def _is_stopped(process: ProcessSummary) -> bool:
    """Whether an option ended the run: then its state says so, and no process needs a line of it."""
    return process.state == "stopped" and bool(process.why) and str(process.why).startswith("--")


def extent(side: Side) -> str:
    """``35,965 ops, 32 optimizer steps``."""
    return f"{counted(side.ops, 'op')}, {counted(side.steps, step_word(side.engine))}"


# --- findings -------------------------------------------------------------------------------------------------------


def _finding(comparison: Comparison, finding: Finding) -> Iterator[Fact]:
    if finding.op is not None:
        yield Fact("op" if finding.event is None else "event", Code(finding.op))
        yield Fact("row", (f"{rows(finding)} of ", Code(finding.stream)))
    if finding.module:
        yield Fact("module", Code(finding.module))
    own = own_frame(finding)
    if own is not None and own != finding.site:
        yield Fact("program", own)
    if finding.site is not None:
        yield Fact("site", finding.site)
    streams = [other.stream for other in _elsewhere(comparison, finding)]
    if streams:
        yield Fact("also in", (Code(streams_text(streams)), ", at the same place"))
    yield Fact("cause", f"{finding.cause.value}: {sentence(finding.explanation)}")
    known = advice_text(finding)
    if known is not None:
        yield Fact("known", known)
    edited = nearest_edit(comparison.edits, finding) if finding == comparison.shown else None
    if edited is not None:
        yield Fact("edited", edited)
    yield from _evidence(finding)
    yield from _rates(finding, comparison.drift)
    yield Fact("when", when(finding, comparison.a.engine))
    if finding == comparison.shown:
        yield Fact("before", identical_before(finding, comparison))
    if len(finding.stack) > 1:
        yield Fact("from", Stack(finding.stack))


def _evidence(finding: Finding) -> Iterator[Fact]:
    """Kernel, inputs and outputs of an op; without an op, what differs at the end of the step."""
    paired = finding.a_index is not None and finding.b_index is not None
    is_op = finding.op is not None and finding.event is None
    if is_op and paired:
        yield Fact("inputs", INPUTS[finding.inputs_match])
    kernel = finding.kernel.a or finding.kernel.b
    if kernel:
        yield Fact("kernel", finding.kernel if paired else Code(kernel))
    if finding.cause is Cause.SAME_KERNEL and finding.repeats is not None:
        yield Fact("repeats", f"the op gave {'the same' if finding.repeats else 'other'} bits when run again")
    differing = differing_outputs(finding)
    for name, pair in differing[: MAX_OUTPUTS if is_op else MAX_CELLS]:
        numbered = not is_op or name.startswith("output")
        label = "field" if finding.event is not None else name if numbered else "output"
        yield Fact(label, pair, "" if name == label else name)
    if is_op and paired and finding.outputs and not differing:
        yield Fact("output", "equal on both sides")
    if is_op and len(finding.outputs) > 1 and differing:
        yield Fact("outputs", f"{len(differing):,} of {len(finding.outputs):,} differ")


def _rates(finding: Finding, drifts: Iterable[Drift]) -> Iterator[Fact]:
    """Learning rates that differ from the attempt of a finding on, where it is in that attempt of their optimizer."""
    if finding.phase != "optimizer" or finding.optimizer is None:
        return
    start = f"optimizer:{finding.optimizer.ordinal}/"
    own = [d for d in drifts if d.kind == RATE and d.name.startswith(start) and finding.stream.startswith(d.stream)]
    first = [(d, d.first) for d in own if d.first is not None and d.first.step == finding.step]
    for drift, point in first[:MAX_OUTPUTS]:
        yield Fact("rate", Pair(repr(point.a), repr(point.b)), curve_name(drift))


INPUTS = {
    InputsMatch.READ: "read: hashed at this op on both sides",
    InputsMatch.INFERRED: "inferred: matched ops of this step wrote them; not hashed again here",
    InputsMatch.DIFFER: "differ",
    InputsMatch.UNKNOWN: "unknown",
}

STEP_OUTPUTS = ("gradient", "params", "rng", "rng")
"""Labels of the digests of a finding without an op."""


def differing_outputs(finding: Finding) -> list[tuple[str, Pair[str]]]:
    """Name and values of what differs: outputs of an op, cells of an event, digests at the end of a step."""
    if finding.event is not None:
        return [(shown.name, Pair(shown.a, shown.b)) for shown in _fields(finding.event)]
    if finding.op is not None and (finding.a_index is None or finding.b_index is None):
        return []
    names: Iterable[str] = STEP_OUTPUTS if finding.op is None else finding.output_names or repeat("")
    pairs = enumerate(zip(names, finding.outputs, strict=False))
    several = len(finding.outputs) > 1
    return [(name or (f"output {n}" if several else "output"), x) for n, (name, x) in pairs if x.a != x.b]


def _fields(event: FindingEvent) -> Iterator[NamedDifference]:
    """The fields of an event that differ, as numbers where these were recorded."""
    for cell in event.cells:
        numbers = [one for one in event.components if one.name.partition(",")[0] == cell.name]
        yield from numbers or [cell]


def place(finding: Finding) -> str:
    """``op 288, step 0, cause: kernel``."""
    index = finding.a_index if finding.a_index is not None else finding.b_index
    of_b = "" if finding.b_step is None else f" (B's step {finding.b_step:,})"
    step = f"step {finding.step:,}{of_b}" if finding.step is not None else finding.stream
    at = f"op {index:,}, {step}" if index is not None else step
    return at if finding.cause is Cause.UNKNOWN else f"{at}, cause: {finding.cause.value}"


def titled_findings(comparison: Comparison) -> Iterator[tuple[str, Finding]]:
    """(title, finding) of every finding, the one that a verdict of ``diverged`` rests on first; none of different
    programs."""
    if comparison.unlike:
        return
    shown = comparison.shown if comparison.verdict is Verdict.DIVERGED else None
    seen, streams = ([], set()) if shown is None else ([shown], {shown.stream})
    if shown is not None:
        seen += _elsewhere(comparison, shown)
        yield _title(comparison, shown), shown
    others: Iterable[Finding] = (*comparison.unordered, *comparison.later)
    if _are_many(comparison):
        firsts = [group.finding for group in comparison.groups if shown is None or shown.stream not in group.streams]
        others = [finding for finding in others if finding in firsts][:MAX_OTHERS]
    for finding in (comparison.first, comparison.first_value, *others):
        if finding is not None and finding not in seen and not _is_of_one_sided_stream(comparison, finding):
            yield _other_title(comparison, finding, shown, streams), finding
            seen += [finding, *_elsewhere(comparison, finding)]
            streams.add(finding.stream)


def _elsewhere(comparison: Comparison, finding: Finding) -> list[Finding]:
    """The same difference in other streams: of other ranks, or other workers."""

    def kind(one: Finding) -> tuple[object, ...]:
        cells = [cell.name for cell in one.event.cells] if one.event is not None else None
        return one.cause, one.op, one.site, one.module, one.step, one.a_index, one.b_index, cells

    if finding.op is None:
        return []
    others = (one for one in (*comparison.unordered, *comparison.later) if one.received is None)
    return [one for one in others if one.stream != finding.stream and kind(one) == kind(finding)]


def _title(comparison: Comparison, finding: Finding) -> str:
    if finding.cause is Cause.ENDED:
        return "One run ended earlier"
    if finding.op is None:
        return "First step that differs" if finding.phase == "optimizer" else "Final state"
    if finding == comparison.first_value or finding.cause is not Cause.CONTROL_FLOW:
        return "First difference in values"
    return "First difference"


def _other_title(comparison: Comparison, finding: Finding, shown: Finding | None, above: Set[str]) -> str:
    """``above``: the streams of the findings above it; the rows of one stream have an order."""
    if finding in comparison.unordered and finding.stream not in above:
        shown_first = comparison.shown if shown is None else shown
        is_independent = shown_first is not None and shown_first.is_independent_of(finding)
        order = "which the above does not depend on" if is_independent else "order to the above unknown"
        return f"In {finding.stream}, {order}" if above else f"First difference of {finding.stream}"
    if finding == comparison.first_value:
        return "First difference in values" + (", after it" if comparison.first not in (None, finding) else "")
    if finding in comparison.later and above:
        return f"{'Received by' if finding.received or finding.sender else 'In'} {finding.stream}, after it"
    if shown is None and comparison.verdict is Verdict.UNKNOWN:
        return "First difference"
    is_below = shown is not None or finding.stream in above
    return "Before it, the first difference in structure" if is_below else "First difference in structure"


def identical_before(finding: Finding, comparison: Comparison) -> str:
    """``288 identical ops``: how far the two sides were identical."""
    unit = "op" if finding.op is not None else "step"
    is_origin = finding.op is not None and finding.cause is not Cause.ENDED and finding.event is None
    hides_later = is_origin and comparison.verdict is Verdict.DIVERGED and comparison.shift is None
    finds = ", rltrace confirm finds them" * any(" confirm " in command for command in comparison.advice)
    more = f"; later independent differences may be hidden{finds}" if hides_later else ""
    events, row = comparison.events, finding.a_index
    if events.stream == finding.stream and events.row is not None and row is not None and events.row < row:
        more = f"; data from outside torch differs from row {events.row:,} on{more}"
    return counted(finding.identical_before, f"identical {unit}") + more


def rows(finding: Finding) -> str:
    """``288``; ``288 (A), 290 (B)`` where the rows differ."""
    a, b = finding.a_index, finding.b_index
    if a is None or b is None:
        return f"{a:,} (A only)" if a is not None else f"{b:,} (B only)" if b is not None else "?"
    return f"{a:,}" if a == b else f"{a:,} (A), {b:,} (B)"


BEFORE = ("init", "rollout", "evaluation")
"""Phases that lie before the update which ends the step."""


def when(finding: Finding, engine: str = "") -> str:
    """``optimizer step 37 (critic's Adam, its 2,001st step, after 12,100 environment steps), phase forward``;
    ``before the first optimizer step (critic's Adam), phase rollout``; ``before the first iteration (jit.train)``."""
    word = step_word(engine)
    if finding.step is None:
        phase = "" if finding.phase == "other" else f"phase {finding.phase}; "
        return f"{phase}no {word} in this process"
    is_before = finding.op is not None and (finding.phase in BEFORE or _precedes_loop(finding, engine))
    is_first = is_before and finding.step == 0
    details = [] if finding.b_step is None else [f"B's step {finding.b_step:,}"]
    if finding.optimizer is not None:
        unit = "iteration" if has_iterations(engine) else "step"
        has_count = not (is_first and finding.optimizer.count == 0)
        details.append(_attempt(finding.optimizer, unit, has_count=has_count))
    if finding.environment_step is not None and not is_before:  # the count is that at the end of the step
        details.append(f"after {counted(finding.environment_step, 'environment step')}")
    more = f" ({', '.join(details)})" if details else ""
    phase = f", phase {finding.phase}" if finding.op is not None and finding.phase != "other" else ""
    step = f"the first {word}" if is_first else f"{word} {finding.step:,}"
    return f"{'before ' if is_before else ''}{step}{more}{phase}"


def _precedes_loop(finding: Finding, engine: str) -> bool:
    """Whether a row of JAX is another call than that of the loop, or what the call computes before its loop."""
    if not has_iterations(engine) or finding.optimizer is None or not str(finding.op).startswith("jit."):
        return False
    loop = finding.optimizer.name
    return finding.op == f"{loop}.before" or not f"{finding.op}.".startswith(f"{loop}.")


def _attempt(optimizer: OptimizerCount, unit: str, *, has_count: bool) -> str:
    """``critic's Adam, its 2,001st step``; without the count where the sentence has it."""
    name = optimizer.name if optimizer.ordinal == 0 else f"{optimizer.name} #{optimizer.ordinal}"
    count = f"{ordinal(optimizer.count + 1)} {unit}"
    if optimizer.owner is not None:
        return f"{optimizer.owner}'s {optimizer.name}" + (f", its {count}" if has_count else "")
    return f"{name}'s {count}" if has_count else name


def _is_of_one_sided_stream(comparison: Comparison, finding: Finding) -> bool:
    """Whether only one side has the stream."""
    one_sided = (finding.a_index is None) != (finding.b_index is None)
    return one_sided and finding.event is None and finding.stream not in comparison.compared


def _one_sided_streams(comparison: Comparison) -> Section:
    """Threads and processes that one side alone has, as workers; a line for those of one name, numbers apart."""
    groups: dict[tuple[str, str, Site | None], list[Finding]] = {}
    for finding in () if comparison.unlike else (*comparison.unordered, *comparison.later):
        if finding != comparison.shown and _is_of_one_sided_stream(comparison, finding):
            side = "A" if finding.b_index is None else "B"
            groups.setdefault((side, re.sub(r"\d+", "", finding.stream), finding.site), []).append(finding)
    return Section("one-sided", "On one side only", facts=tuple(starmap(_one_sided_fact, groups.items())))


def _one_sided_fact(key: tuple[str, str, Site | None], found: list[Finding]) -> Fact:
    side, _, site = key
    names = streams_text([finding.stream for finding in found])
    at = "" if site is None else f" at {site.file}:{site.line}"
    return Fact(f"{side} only", (Code(names), f": {counted(len(found), 'stream')}, the first op {found[0].op}{at}"))


def _are_many(comparison: Comparison) -> bool:
    return sum(len(group.streams) for group in comparison.groups) > MANY


def _stream_groups(comparison: Comparison) -> Section:
    """Many streams by their first difference, a line for each group; none where all agree."""
    facts = tuple(map(_stream_group, comparison.groups)) if _are_many(comparison) else ()
    agree = len(facts) == 1 and comparison.groups[0].finding is None and not comparison.groups[0].why
    return Section("streams", "Streams by their first difference", facts=() if agree else facts)


def _stream_group(group: StreamGroup) -> Fact:
    names, finding = streams_text(group.streams), group.finding
    count = counted(len(group.streams), "stream")
    if finding is None:
        label, why = ("unknown", f", as {group.why}") if group.why else ("agree", "")
        return Fact(label, (f"{count}{why}: ", Code(names)))
    at = "" if finding.site is None else f", {finding.site.file}:{finding.site.line}"
    what = "" if finding.op is None else f" ({finding.op}{at})"
    return Fact("diverge", (f"{count}, the first at {place(finding)}{what}: ", Code(names)))


def streams_text(names: Sequence[str]) -> str:
    """``rank0/main to rank3/main, rank5/main and 490 more``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    shown = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:MAX_RUNS]]
    more = sum(map(len, runs[MAX_RUNS:]))
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _follows(name: str, other: str) -> bool:
    """Whether they are the same stream of two ranks, or of two workers, in a row."""
    parts = [re.split(r"(\d+)", each) for each in (name, other)]
    pairs = [(x, y) for x, y in zip(*parts, strict=False) if x != y]
    return (
        len(parts[0]) == len(parts[1])
        and len(pairs) == 1
        and all(map(str.isdecimal, pairs[0]))
        and int(pairs[0][0]) + 1 == int(pairs[0][1])
    )


# --- the rest -------------------------------------------------------------------------------------------------------

SIGNS = {"only-a": "<", "only-b": ">", "reordered": "~"}


def _structure(structure: Structure) -> Section:
    counts = structure_counts(structure)
    remarks = "".join(f" ({remark})" for remark in structure_remarks(structure))
    alike = grouped(
        ((hunk.kind, hunk.stream, hunk.a_count, hunk.b_count, hunk.first), hunk) for hunk in structure.hunks
    )
    return Section(
        "structure",
        "Ops on one side only, or reordered",
        (", ".join(counts) + remarks,) if counts else (),
        tuple(Fact(SIGNS.get(hunks[0].kind, "?"), hunks_text(hunks)) for hunks in alike.values() if counts),
        Form.LIST,
    )


def _edits(edits: Iterable[SourceEdit]) -> Section:
    facts = tuple(fact for edit in edits for fact in _edited_lines(edit))
    text = "Of one run only: A (<), B (>); the nearest to the finding first." if facts else ""
    return Section("edits", "Edited source lines", sentences(text), facts, Form.LIST)


def _edited_lines(edit: SourceEdit) -> Iterator[Fact]:
    """The lines of A, then those of B; a line next to its counterpart where both sides have as many."""
    if [site.function for site in edit.only_a] != [site.function for site in edit.only_b]:
        for sign, sites in (("<", edit.only_a), (">", edit.only_b)):
            yield from (Fact(sign, site) for site in sites[:MAX_LINES])
        return
    for a, b in zip(edit.only_a[:MAX_LINES], edit.only_b[:MAX_LINES], strict=True):
        texts = a.source.strip(), b.source.strip()
        same = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
        skipped = sum(1 for _ in same) - EDIT_CONTEXT
        for sign, site, text in zip("<>", (a, b), texts, strict=True):
            yield Fact(sign, replace(site, source=f"…{text[skipped:]}" if skipped > 1 else text))


def _system(comparison: Comparison) -> Section:
    found = comparison.system
    text = "The likeliest to change results first." if len(found) > 1 else ""
    if comparison.verdict is Verdict.DIVERGED and not found:
        text = "No recorded fact of system, settings, packages or source files differs."
    return Section(
        "system",
        f"System and settings ({len(found):,} differ)" if found else "System and settings",
        sentences(text),
        tuple(Fact(Code(fact.name), Pair(_fact_text(fact.a), _fact_text(fact.b))) for fact in found),
        Form.TABLE,
        limit=MAX_PAIRS,
    )


def _fact_text(value: str | None) -> str | None:
    """What an environment variable holds that is set to nothing is not what reports show of one that is not set."""
    return "(empty)" if value == "" else value


def _drift(comparison: Comparison) -> Iterator[Fact]:
    several = len(comparison.a.processes) > 1 or len({drift.stream for drift in comparison.drift}) > 1
    for drift in comparison.drift:
        grows = f"; by {growth_text(drift)}" if len(drift.growth) > 1 else ""
        where = f"in {drift.stream}: " if several and drift.stream else ""
        yield Fact(Code(curve_name(drift)), where + drift_text(drift) + grows)


def _hole(hole: Hole) -> Fact:
    """``rank0/main rows 4,096 to 8,191: the chunk is missing``."""
    span = ""
    if hole.first is not None:
        span = f" rows {hole.first:,} to {hole.first + (hole.rows or 1) - 1:,}:"
    return Fact(hole.side.upper(), f"{hole.stream or hole.process or 'the trace'}{span} {hole.why}")


def structure_counts(structure: Structure) -> list[str]:
    """``3 only in B (>)``: the counts of ops on one side only, and of reordered ones."""
    counts = [
        f"{count:,} {words}"
        for count, words in (
            (structure.only_a, "only in A (<)"),
            (structure.only_b, "only in B (>)"),
            (structure.reordered, "reordered (~)"),
        )
        if count
    ]
    steps = structure.reordered_steps
    if steps:
        more = " more" if structure.reordered else ""
        counts.append(f"{steps:,}{more} {'step holds' if steps == 1 else 'steps hold'} the same ops in another order")
    return counts


def structure_remarks(structure: Structure) -> list[str]:
    """Limits of those counts."""
    remarks = ["their digests prove it; which ops moved was not read"] if structure.reordered_steps else []
    return remarks if structure.whole else [*remarks, "counted up to the first difference in values"]


def hunks_text(group: list[Hunk]) -> str:
    """``3 times 1 op from aten.mean.default at train.py:50 (train); the first at row 12, step 0``."""
    hunk = group[0]
    at, count = (hunk.b_start, hunk.b_count) if hunk.kind == "only-b" else (hunk.a_start, hunk.a_count)
    times = f"{len(group):,} times " if len(group) > 1 else ""
    ops = counted(count, "op")
    first = "the first " if len(group) > 1 else ""
    step = "" if hunk.step is None else f", step {hunk.step:,}"
    return f"{times}{ops} from {hunk.first}; {first}at row {at:,}{step}"


def marked_text(comparison: Comparison) -> str:
    """Ops that differ and may read uninitialised memory; "" if there are none."""
    marked = comparison.marked
    if not marked.differing:
        return ""
    at_least = "" if marked.whole else "at least "
    first = f", the first at {marked.first}" if marked.first else ""
    verb = "differs" if marked.differing == 1 else "differ"
    text = f"{at_least}{marked.differing:,} of the ops that may read such memory {verb}{first}."
    if marked.unused:
        others = "1 other op computes" if marked.unused == 1 else f"{marked.unused:,} other ops compute"
        unused = "" if comparison.verdict is Verdict.DIVERGED else ", and no optimizer's step used that"
        text += f" {others} with what they returned{unused}."
    shown = comparison.shown
    is_origin = shown is not None and shown.cause in (Cause.UNINITIALISED, Cause.UNKNOWN)
    return text if is_origin else f"{text} It does not decide the verdict."


def events_text(comparison: Comparison) -> str:
    """Events that differ; "" if there are none, or the finding is one."""
    events, shown = comparison.events, comparison.shown
    is_shown = (
        shown is not None and shown.event is not None and (shown.stream, shown.a_index) == (events.stream, events.row)
    )
    if not events.differing or is_shown:
        return ""
    at_least = "" if events.whole else "at least "
    count = "1 event differs" if events.differing == 1 else f"{events.differing:,} events differ"
    first = f", the first is the {events.first}" if events.first else ""
    if events.explanation and events.row is not None:
        where = "" if shown is not None and shown.stream == events.stream else f" of {events.stream}"
        first = f", the first in row {events.row:,}{where}: {events.explanation}"
    text = f"{at_least}{count} in data from outside torch{first}."
    return text if comparison.verdict is Verdict.DIVERGED else f"{text} It does not decide the verdict."


def distances_text(found: Distances) -> str:
    """How far the recorded values of both sides differ: ``2 of 6 elements differ, by at most 4 ULP, …``."""
    clauses = [f"{found.differing:,} of {found.elements:,} elements differ"]
    if found.largest is not None and not (found.unit == "ULP" and found.largest > MOST_ULP):
        clauses.append(f"by at most {found.largest:,} {found.unit}".rstrip())
    if found.largest_absolute is not None:
        clauses.append(f"|A - B| up to {found.largest_absolute:.3g}")
    if found.largest_relative is not None:
        clauses.append(f"relatively {found.largest_relative:.3g}")
    counts = (
        (found.zeros, "only in the sign of zero"),
        (found.nans, "NaN on one side"),
        (found.payloads, "NaN of other bits"),
        (found.infinities, "infinite on a side"),
    )
    moved = [(a, b) for a, b in enumerate(found.rows_in_b) if a != b]
    if moved:
        rows = ", ".join(f"row {a:,} of A is row {b:,} of B" for a, b in moved[:MAX_MOVED_ROWS])
        clauses.insert(0, f"the same rows in another order ({rows}{', …' if len(moved) > MAX_MOVED_ROWS else ''})")
    if found.all_rows_equal:
        clauses.insert(0, f"all rows of {found.all_rows_equal} are equal")
    return ", ".join([*clauses, *(f"{count:,} {words}" for count, words in counts if count)])
