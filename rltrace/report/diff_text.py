"""A comparison for people: what differs first, what kind of difference it is, and what to do next.

Owns the order of the report and its wording; readable at 80 columns and without colour. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from textwrap import wrap

from rltrace.diff.base.model import Comparison, Finding, Hunk, Pair, Side, Site, Verdict
from rltrace.report.curves import account, growing, story
from rltrace.report.phrases import (
    HEADLINES,
    INPUTS,
    NO_FACT,
    SIGNS,
    alike,
    apart,
    before_it,
    cut,
    extent,
    hole_text,
    hunks_text,
    lag,
    marked_text,
    noun,
    place,
    rows,
    sentence,
    shown_finding,
    structure_counts,
    structure_remarks,
    titled_findings,
    told_text,
    when,
)
from rltrace.report.style import Style

# --- finding ----------------------------------------------------------------------------------------------------------
#
# One finding in lines of text, and the few ways in which text is fitted to a terminal.


WIDTH = 80
MOST_OUTPUTS = 2
MOST_CELLS = 6
"""Of an event that differs."""


def finding_lines(title: str, finding: Finding, style: Style) -> Iterator[str]:
    """A heading, and a line for each thing that is known."""
    yield style.bold(title)
    if finding.op is not None:
        yield f"  {noun(finding):<8} {style.bold(finding.op)}"
        yield f"  row      {rows(finding)} of {finding.stream}"
    yield from wrapped(when(finding), "           ", "  when     ")
    if finding.module:
        yield f"  module   {finding.module}"
    for number, site in enumerate(finding.stack):
        yield from _site_lines(site, "  site     " if number == 0 else "  from     ")
    yield from _evidence(finding)
    yield from wrapped(f"{finding.cause.value}: {sentence(finding.explanation)}", "           ", "  cause    ")
    both = finding.a_index is not None and finding.b_index is not None
    if finding.op is not None and both and finding.boundary is None:
        yield from wrapped(INPUTS[finding.inputs_match], "           ", "  inputs   ")


def _evidence(finding: Finding) -> Iterator[str]:
    """What ran, and the digests of what it returned."""
    if finding.op is None or finding.boundary is not None:
        for name, pair in apart(finding)[:MOST_CELLS]:
            yield from _pair(name, pair)
    elif finding.a_index is None or finding.b_index is None:
        kernel = finding.kernel.a or finding.kernel.b
        if kernel:
            yield from wrapped(kernel, "           ", "  kernel   ")
    else:
        yield from _pair("kernel", finding.kernel)
        yield from _outputs(finding)


def _outputs(finding: Finding) -> Iterator[str]:
    """Of several outputs, those that differ, and how many do."""
    differing = apart(finding)
    if not differing and finding.outputs:
        yield "  output   equal on both sides"
    for name, pair in differing[:MOST_OUTPUTS]:
        yield from _pair(name, pair)
    if len(finding.outputs) > 1 and differing:
        yield f"           ({len(differing):,} of {len(finding.outputs):,} outputs differ)"


def _site_lines(site: Site, label: str) -> Iterator[str]:
    yield from wrapped(f"{site.file}:{site.line} in {site.function}", "             ", label)
    if site.source:
        yield f"             {cut(site.source, WIDTH - 13)}"


def _pair(label: str, pair: Pair[str]) -> Iterator[str]:
    if pair.a is None and pair.b is None:
        return
    if pair.a == pair.b:
        yield from wrapped(f"{pair.a} on both sides", "           ", f"  {label:<8} ")
        return
    if len(label) > 8:
        yield f"  {label}"
        label = ""
    yield from wrapped(f"A  {pair.a or '-'}", "              ", f"  {label:<8} ")
    yield from wrapped(f"B  {pair.b or '-'}", "              ", "           ")


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> Iterator[str]:
    """Lines of at most WIDTH columns; ``first``: what the first one begins with instead of ``indent``."""
    yield from wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- text -------------------------------------------------------------------------------------------------------------


SHOWN = 20
"""Lines of a list that are printed; the JSON report has all of it."""


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
        _drift(comparison, style),
        _told(comparison, style),
        _marked(comparison, style),
        _holes(comparison, style),
        _notes(comparison, style),
        _advice(comparison, style),
    )
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text)


# --- head -----------------------------------------------------------------------------------------------------------


def _head(comparison: Comparison, style: Style) -> Iterator[str]:
    shown = shown_finding(comparison)
    where = f"  {place(shown)}" if shown is not None and comparison.verdict is Verdict.DIVERGED else ""
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
    yield f"     {extent(side)}, {', '.join(states)}"
    for process in side.processes:
        if process.state != "complete":
            yield from wrapped(
                f"{process.name}: {process.state}" + (f", {process.why}" if process.why else ""), "     "
            )


# --- findings -------------------------------------------------------------------------------------------------------


def _main_finding(comparison: Comparison, style: Style) -> Iterator[str]:
    if comparison.verdict is not Verdict.DIVERGED or shown_finding(comparison) is None:
        return
    for title, finding in islice(titled_findings(comparison), 1):
        yield from finding_lines(title, finding, style)
        yield ""
        yield from wrapped(before_it(finding))


def _other_findings(comparison: Comparison, style: Style) -> Iterator[str]:
    first = 1 if comparison.verdict is Verdict.DIVERGED and shown_finding(comparison) is not None else 0
    for number, (title, finding) in enumerate(islice(titled_findings(comparison), first, None)):
        if number:
            yield ""
        yield from finding_lines(title, finding, style)


# --- the rest -------------------------------------------------------------------------------------------------------


def _structure(comparison: Comparison, style: Style) -> Iterator[str]:
    structure = comparison.structure
    counts = structure_counts(structure)
    if not counts:
        return
    yield style.bold("Ops on one side only, or reordered")
    yield f"  {', '.join(counts)}"
    yield from (f"  ({remark})" for remark in structure_remarks(structure))
    yield from _limited([line for group in alike(structure.hunks) for line in _hunks(group)])


def _hunks(group: list[Hunk]) -> Iterator[str]:
    yield from wrapped(hunks_text(group), "      ", f"  {SIGNS.get(group[0].kind, '?')} ")


def _environment(comparison: Comparison, style: Style) -> Iterator[str]:
    differences = comparison.system
    if not differences:
        if comparison.verdict is Verdict.DIVERGED:
            yield style.bold("System and settings")
            yield f"  {NO_FACT}"
        return
    yield style.bold(f"System and settings ({len(differences)} differ)")
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
    yield style.bold("Logged scalars that differ")
    finding = comparison.first_value
    steps = finding is not None and finding.step is not None
    if finding is not None and finding.step is not None:
        yield from wrapped(lag(finding.step, comparison.curves[0].step))
    for point in comparison.curves[:SHOWN]:
        name = f"step {point.step:,}: {point.name}" if steps else point.name
        yield f"  {cut(name, WIDTH - 2)}"
        yield f"      {point.a!r} | {point.b!r}"


def _drift(comparison: Comparison, style: Style) -> Iterator[str]:
    if not comparison.drift:
        return
    yield style.bold("How the curves diverge")
    yield from wrapped(story(comparison))
    lines: list[str] = []
    for drift in comparison.drift:
        lines += [f"  {cut(drift.name, WIDTH - 2)}", *wrapped(account(drift), "      ")]
        lines += wrapped(f"by {growing(drift)}", "      ") if len(drift.growth) > 1 else []
    yield from _limited(lines)


def _told(comparison: Comparison, style: Style) -> Iterator[str]:
    text = told_text(comparison)
    if text:
        yield style.bold("Data from environments and files")
        yield from wrapped(sentence(text))


def _marked(comparison: Comparison, style: Style) -> Iterator[str]:
    text = marked_text(comparison)
    if text:
        yield style.bold("Uninitialised memory")
        yield from wrapped(text)


def _holes(comparison: Comparison, style: Style) -> Iterator[str]:
    if not comparison.holes:
        return
    yield style.bold("Cannot be read")
    lines = []
    for hole in comparison.holes:
        lines += list(wrapped(hole_text(hole), "     ", f"  {hole.side.upper()}  "))
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
