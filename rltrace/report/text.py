"""A comparison for people: what differs first, what kind of difference it is, and what to do next.

Owns the order of the report and its wording; readable at 80 columns and without colour. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rltrace.diff.model import Cause, Comparison, Finding, Hunk, Side, Verdict
from rltrace.report.finding import WIDTH, cut, finding_lines, sentence, wrapped
from rltrace.report.style import Style

SHOWN = 20
"""Lines of a list that are printed; the JSON report has all of it."""


HEADLINES = {
    Verdict.IDENTICAL: "IDENTICAL",
    Verdict.SAME_VALUES: "SAME VALUES",
    Verdict.DIVERGED: "DIVERGED",
    Verdict.UNKNOWN: "UNKNOWN",
}


def render_comparison(comparison: Comparison, *, color: bool) -> str:
    """The report, without a newline at its end."""
    style = Style(color)
    sections = (
        _head(comparison, style),
        _main_finding(comparison, style),
        _other_findings(comparison, style),
        _structure(comparison, style),
        _environment(comparison, style),
        _curves(comparison, style),
        _marked(comparison, style),
        _holes(comparison, style),
        _notes(comparison, style),
        _advice(comparison, style),
    )
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text)


# --- head -----------------------------------------------------------------------------------------------------------


def _head(comparison: Comparison, style: Style) -> Iterator[str]:
    shown = _shown(comparison)
    where = f"  {_place(shown)}" if shown is not None and comparison.verdict is Verdict.DIVERGED else ""
    yield style.verdict(HEADLINES[comparison.verdict], comparison.verdict) + where
    if not where:
        yield from wrapped(sentence(comparison.why))
    yield ""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        yield from _side(name, side)
    unit = "ops" if comparison.level == "op" else "steps"
    if comparison.level == "op":
        for stream, rows in comparison.compared.items():
            yield f"  compared  {stream}: {rows:,} {unit}"


def _side(name: str, side: Side) -> Iterator[str]:
    states = sorted({p.state for p in side.processes}) or ["nothing recorded"]
    level = "" if side.level == "op" else f" (level {side.level})"
    yield f"  {name}  {side.path}{level}"
    yield f"     {side.ops:,} ops, {side.steps:,} optimizer steps, {', '.join(states)}"
    for process in side.processes:
        if process.state != "complete":
            yield from wrapped(
                f"{process.name}: {process.state}" + (f", {process.why}" if process.why else ""), "     "
            )


def _place(finding: Finding) -> str:
    index = finding.a_index if finding.a_index is not None else finding.b_index
    step = f"step {finding.step:,}" if finding.step is not None else finding.stream
    at = f"op {index:,}, {step}" if index is not None else step
    return at if finding.cause is Cause.UNKNOWN else f"{at}, cause: {finding.cause.value}"


# --- findings -------------------------------------------------------------------------------------------------------


def _shown(comparison: Comparison) -> Finding | None:
    return comparison.decisive or comparison.first_value or comparison.first


def _main_finding(comparison: Comparison, style: Style) -> Iterator[str]:
    if comparison.verdict is not Verdict.DIVERGED:
        return
    finding = _shown(comparison)
    if finding is None:
        return
    yield from finding_lines(_title(comparison, finding), finding, style)
    yield ""
    unit = "ops" if finding.op is not None else "steps"
    is_origin = finding.op is not None and finding.cause is not Cause.ENDED
    masked = "; later origins are masked until lockstep" if is_origin else ""
    yield from wrapped(f"{finding.identical_before:,} identical {unit} before it{masked}.")


def _title(comparison: Comparison, finding: Finding) -> str:
    if finding.cause is Cause.ENDED:
        return "One run ended earlier"
    if finding.op is None:
        return "First step that differs"
    if finding is comparison.first_value or finding.cause is not Cause.CONTROL_FLOW:
        return "First difference in values"
    return "First difference"


def _other_findings(comparison: Comparison, style: Style) -> Iterator[str]:
    shown = _shown(comparison) if comparison.verdict is Verdict.DIVERGED else None
    told = [shown]
    for finding in (comparison.first, comparison.first_value, *comparison.unordered):
        if finding is None or finding in told:
            continue
        if len(told) > 1:
            yield ""
        told.append(finding)
        yield from finding_lines(_other_title(comparison, finding, shown), finding, style)


def _other_title(comparison: Comparison, finding: Finding, shown: Finding | None) -> str:
    if finding in comparison.unordered:
        return f"In {finding.stream}, in no known order to the above"
    if finding is comparison.first_value:
        return "First difference in values, after it"
    if shown is None and comparison.verdict is Verdict.UNKNOWN:
        return "First difference"
    return "Before it, the first difference in structure" if shown is not None else "First difference in structure"


# --- the rest -------------------------------------------------------------------------------------------------------


SIGNS = {"only-a": "<", "only-b": ">", "reordered": "~"}


def _structure(comparison: Comparison, style: Style) -> Iterator[str]:
    structure = comparison.structure
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
    if not counts:
        return
    yield style.bold("Ops that one side alone has, or that changed places")
    yield f"  {', '.join(counts)}"
    if steps:
        yield "  (their digests prove it; which ops moved there was not looked at)"
    if not structure.whole:
        yield "  (counted up to the first difference in values)"
    yield from _limited([line for group in _alike(structure.hunks) for line in _hunks(group)])


def _alike(hunks: Iterable[Hunk]) -> list[list[Hunk]]:
    """Hunks of one kind, length and first op together, in the order of their first."""
    groups: dict[tuple[object, ...], list[Hunk]] = {}
    for hunk in hunks:
        groups.setdefault((hunk.kind, hunk.stream, hunk.a_count, hunk.b_count, hunk.first), []).append(hunk)
    return list(groups.values())


def _hunks(group: list[Hunk]) -> Iterator[str]:
    hunk = group[0]
    at, count = (hunk.b_start, hunk.b_count) if hunk.kind == "only-b" else (hunk.a_start, hunk.a_count)
    times = f"{len(group):,} times " if len(group) > 1 else ""
    ops = "1 op" if count == 1 else f"{count:,} ops"
    first = "the first " if len(group) > 1 else ""
    step = "" if hunk.step is None else f", step {hunk.step:,}"
    text = f"{times}{ops} from {hunk.first}; {first}at row {at:,}{step}"
    yield from wrapped(text, "      ", f"  {SIGNS.get(hunk.kind, '?')} ")


def _environment(comparison: Comparison, style: Style) -> Iterator[str]:
    differences = comparison.environment
    if not differences:
        if comparison.verdict is Verdict.DIVERGED:
            yield style.bold("Environment")
            yield "  No recorded fact of machine, settings, packages and source files differs."
        return
    yield style.bold(f"Environment ({len(differences)} differ)")
    lines = []
    for difference in differences:
        a, b = difference.a or "(unset)", difference.b or "(unset)"
        line = f"  {difference.name}: {a} | {b}"
        lines += [line] if len(line) <= WIDTH else [f"  {difference.name}:", *wrapped(f"A  {a}", "       ", "    ")]
        lines += [] if len(line) <= WIDTH else wrapped(f"B  {b}", "       ", "    ")
    yield from _limited(lines, 3 * SHOWN)


def _curves(comparison: Comparison, style: Style) -> Iterator[str]:
    if not comparison.curves:
        return
    yield style.bold("Where the numbers that were read out part")
    finding = comparison.first_value
    steps = finding is not None and finding.step is not None
    if finding is not None and finding.step is not None:
        yield from wrapped(_lag(finding.step, comparison.curves[0].step))
    for point in comparison.curves[:SHOWN]:
        name = f"step {point.step:,}: {point.name}" if steps else point.name
        yield f"  {cut(name, WIDTH - 2)}"
        yield f"      {point.a!r} | {point.b!r}"


def _lag(values: int, seen: int) -> str:
    """How long after the values the numbers part that somebody can see."""
    if seen <= values:
        return f"In step {values:,} already, where the values part."
    later = "1 step" if seen == values + 1 else f"{seen - values:,} steps"
    return f"The values part in step {values:,}; the numbers show it {later} later."


def _marked(comparison: Comparison, style: Style) -> Iterator[str]:
    marked = comparison.marked
    if not marked.differing:
        return
    least = "" if marked.whole else "at least "
    yield style.bold("Memory that no op had written")
    first = f", the first at {marked.first}" if marked.first else ""
    shown = _shown(comparison)
    origin = shown is not None and shown.cause is Cause.UNINITIALISED
    verb = "differs" if marked.differing == 1 else "differ"
    text = f"{least}{marked.differing:,} of the ops that may have read such memory {verb}{first}."
    yield from wrapped(text if origin else f"{text} That alone is no verdict.")


def _holes(comparison: Comparison, style: Style) -> Iterator[str]:
    if not comparison.holes:
        return
    yield style.bold("Parts that cannot be read")
    lines = []
    for hole in comparison.holes:
        rows = ""
        if hole.first is not None:
            rows = f" rows {hole.first:,} to {hole.first + (hole.rows or 1) - 1:,}:"
        where = hole.stream or hole.process or "the trace"
        lines += list(wrapped(f"{where}{rows} {hole.why}", "     ", f"  {hole.side.upper()}  "))
    yield from _limited(lines)


def _notes(comparison: Comparison, style: Style) -> Iterator[str]:
    if comparison.notes:
        yield style.bold("Note")
    for note in comparison.notes:
        yield from wrapped(sentence(note))


def _advice(comparison: Comparison, style: Style) -> Iterator[str]:
    if not comparison.advice:
        return
    yield style.bold("Next")
    yield from (f"  {command}" for command in comparison.advice)


def _limited(lines: list[str], most: int = SHOWN) -> Iterable[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  … and {len(lines) - most + 1:,} lines more (--format json has them all)"]
