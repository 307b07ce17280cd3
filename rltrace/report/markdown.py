"""A comparison as Markdown for an issue tracker: what a maintainer has to know, short enough to be read.

Owns the order and what is cut. GitHub's dialect renders it as meant whatever the traces hold: recorded names stand in
code spans and fences only, where nothing is a mention, a link, a tag or a table's border. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rltrace.diff.model import Comparison, Finding, Pair, Side, Verdict
from rltrace.report.drifting import account, story
from rltrace.report.markdown_text import WIDEST, code, fenced, prose
from rltrace.report.outgoing import NOTHING, Asked, left_out, outgoing_comparison
from rltrace.report.telling import (
    HEADLINES,
    INPUTS,
    NO_FACT,
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

ROOM = 65_536
"""Characters that an issue of GitHub's holds."""

MOST = 20
"""Entries of a list; the JSON report has all of them."""

MOST_FINDINGS, MOST_PROCESSES, MOST_FRAMES, MOST_COMMANDS = 5, 5, 30, 6
MOST_OUTPUTS, MOST_CELLS = 2, 8

LONGEST_COMMAND = 2000
"""Characters; a command that is cut cannot be run."""

Lines = Iterator[str]


def comparison_markdown(comparison: Comparison, asked: Asked = NOTHING) -> str:
    """The verdict, the first difference with its evidence, and what to do next; ends with a newline.

    Hides folders, the machine and command arguments unless ``asked``.
    """
    shown = outgoing_comparison(comparison, asked)
    first = _blocks(_head(shown), _findings(shown))
    middle = _blocks(_environment(shown), _curves(shown), _drift(shown), _remarks(shown), _structure(shown))
    last = _blocks(_advice(shown), _end(asked))
    room = ROOM - sum(len(block) + 2 for block in [*first, *last])
    return "\n\n".join([*first, *_fitting(middle, room), *last]) + "\n"


def _blocks(*parts: Lines) -> list[str]:
    return [block for part in parts if (block := "\n".join(part))]


def _fitting(blocks: list[str], room: int) -> Lines:
    """Those of ``blocks`` that fit, and the titles of the others."""
    for number, block in enumerate(blocks):
        short = f"{block.partition(chr(10))[0]}\n\n(too long for an issue; see the JSON report)"
        kept = 200 * (len(blocks) - number)  # the titles of those that follow
        shown = block if len(block) + kept < room else short
        room -= len(shown) + 2
        yield shown


# --- head and findings ----------------------------------------------------------------------------------------------


def _head(comparison: Comparison) -> Lines:
    finding = shown_finding(comparison)
    diverged = comparison.verdict is Verdict.DIVERGED and finding is not None
    where = f" at {prose(place(finding))}" if diverged and finding is not None else ""
    yield f"### rltrace: {HEADLINES[comparison.verdict]}{where}"
    yield ""
    yield prose(sentence(finding.because if diverged and finding is not None else comparison.why))
    yield ""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        yield from _side(name, side)
    if comparison.level == "op":
        for stream, count in islice(comparison.compared.items(), MOST):
            yield f"- compared {code(stream)}: {count:,} ops"


def _side(name: str, side: Side) -> Lines:
    states = sorted({p.state for p in side.processes}) or ["nothing recorded"]
    level = "" if side.level == "op" else f", level {prose(side.level)}"
    yield f"- **{name}** {code(side.path)}: {extent(side)}, {prose(', '.join(states))}{level}"
    for process in islice((p for p in side.processes if p.state != "complete"), MOST_PROCESSES):
        yield f"  - {code(process.name)}: {prose(process.state)}" + (f", {prose(process.why)}" if process.why else "")


def _findings(comparison: Comparison) -> Lines:
    findings = list(titled_findings(comparison))
    for number, (title, finding) in enumerate(findings[:MOST_FINDINGS]):
        if number:
            yield ""
        yield f"#### {prose(title)}"
        yield ""
        is_main = comparison.verdict is Verdict.DIVERGED and number == 0 and shown_finding(comparison) is not None
        yield from _finding(finding, is_main)
        yield from [f"- {before_it(finding)}"] if is_main else []
        yield from _site(finding, with_stack=number == 0)
    if len(findings) > MOST_FINDINGS:
        yield ""
        yield f"… and {len(findings) - MOST_FINDINGS:,} findings more"


def _finding(finding: Finding, is_main: bool) -> Lines:
    paired = finding.a_index is not None and finding.b_index is not None
    if finding.op is not None:
        yield f"- {noun(finding)}: {code(finding.op)}, row {rows(finding)} of {code(finding.stream)}"
    yield f"- when: {prose(when(finding))}"
    if finding.module:
        yield f"- module: {code(finding.module)}"
    if finding.site is not None:
        yield f"- site: {code(f'{finding.site.file}:{finding.site.line}')} in {code(finding.site.function)}"
    why = "" if is_main else f". {prose(sentence(finding.because))}"  # the report begins with it
    yield f"- cause: **{finding.cause.value}**{why}"
    if finding.op is not None and paired and finding.boundary is None:
        yield f"- inputs: {INPUTS[finding.inputs_match]}"
    if paired:
        yield from _pair("kernel", finding.kernel)
    elif finding.kernel.a or finding.kernel.b:
        yield f"- kernel: {code(finding.kernel.a or finding.kernel.b or '')}"
    yield from _outputs(finding)


def _outputs(finding: Finding) -> Lines:
    is_op = finding.op is not None and finding.boundary is None
    differing = apart(finding)
    for name, pair in differing[: MOST_OUTPUTS if is_op else MOST_CELLS]:
        yield from _pair(prose(name), pair)
    if is_op and len(finding.outputs) > 1 and differing:
        yield f"  - {len(differing):,} of {len(finding.outputs):,} outputs differ"


def _pair(label: str, pair: Pair[str]) -> Lines:
    a, b = (code(value) if value else "–" for value in (pair.a, pair.b))
    if pair.a == pair.b:
        yield from [] if pair.a is None else [f"- {label}: {a} on both sides"]
    else:
        yield f"- {label}: A {a}, B {b}"


def _site(finding: Finding, with_stack: bool) -> Lines:
    """The source line for all to see, the stack for who opens it."""
    if finding.site is not None and finding.site.source:
        yield ""
        yield from fenced([finding.site.source], "python")
    if with_stack and len(finding.stack) > 1:
        frames = [
            line
            for site in finding.stack[:MOST_FRAMES]
            for line in (f"{site.file}:{site.line} in {site.function}", f"    {site.source}" if site.source else "")
            if line
        ]
        more = len(finding.stack) - MOST_FRAMES
        yield ""
        yield f"<details><summary>Call stack, innermost first ({len(finding.stack)} frames)</summary>"
        yield ""
        yield from fenced([*(cut(line, 2 * WIDEST) for line in frames), *([f"… {more} more"] if more > 0 else [])])
        yield ""
        yield "</details>"


# --- the rest -------------------------------------------------------------------------------------------------------


def _structure(comparison: Comparison) -> Lines:
    structure = comparison.structure
    counts = structure_counts(structure)
    if not counts:
        return
    yield "#### Ops on one side only, or reordered"
    yield ""
    remarks = "".join(f" ({remark})" for remark in structure_remarks(structure))
    yield prose(", ".join(counts)) + remarks
    yield ""
    yield from _limited([f"- {prose(hunks_text(group))}" for group in alike(structure.hunks)])


def _environment(comparison: Comparison) -> Lines:
    if not comparison.environment:
        if comparison.verdict is Verdict.DIVERGED:
            yield "#### System and settings"
            yield ""
            yield NO_FACT
        return
    yield f"#### System and settings ({len(comparison.environment)} differ)"
    yield ""
    yield "| fact | A | B |"
    yield "| --- | --- | --- |"
    for fact in comparison.environment[: 2 * MOST]:
        cells = (code(fact.name), *(code(v) if v else "(unset)" for v in (fact.a, fact.b)))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    more = len(comparison.environment) - 2 * MOST
    if more > 0:
        yield ""
        yield f"… and {more:,} more"


def _curves(comparison: Comparison) -> Lines:
    if not comparison.curves:
        return
    yield "#### Logged scalars that differ"
    yield ""
    finding = comparison.first_value
    if finding is not None and finding.step is not None:
        yield lag(finding.step, comparison.curves[0].step)
        yield ""
    yield from _limited(
        [
            f"- step {point.step:,}: {code(point.name)} {code(repr(point.a))} in A, {code(repr(point.b))} in B"
            for point in comparison.curves
        ]
    )


def _drift(comparison: Comparison) -> Lines:
    if not comparison.drift:
        return
    yield "#### How the curves diverge"
    yield ""
    yield prose(story(comparison))
    yield ""
    yield from _limited([f"- {code(drift.name)} {prose(account(drift))}" for drift in comparison.drift])


def _remarks(comparison: Comparison) -> Lines:
    told, marked = told_text(comparison), marked_text(comparison)
    found = [f"- {prose(sentence(f'data from environments and files: {told}'))}"] if told else []
    found += [f"- {prose(sentence(f'uninitialised memory: {marked}'))}"] if marked else []
    found += [f"- cannot be read: {hole.side.upper()}, {prose(hole_text(hole))}" for hole in comparison.holes[:MOST]]
    found += [f"- {prose(sentence(note))}" for note in comparison.notes[:MOST]]
    if found:
        yield "#### Notes"
        yield ""
        yield from found
    more = len(comparison.holes) - MOST
    if more > 0:
        yield f"- … and {more:,} more that cannot be read"


def _advice(comparison: Comparison) -> Lines:
    if comparison.advice:
        yield "#### Next"
        yield ""
        yield from fenced(comparison.advice[:MOST_COMMANDS], "sh", LONGEST_COMMAND)


def _end(asked: Asked) -> Lines:
    text = left_out(asked)
    if text:
        yield f"<sub>{text}</sub>"


def _limited(lines: list[str]) -> Lines:
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"- … and {len(lines) - MOST:,} more"
