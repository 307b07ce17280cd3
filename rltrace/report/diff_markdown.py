"""A comparison as Markdown for an issue tracker: what a maintainer has to know, short enough to be read.

Owns the order and what is cut. GitHub's dialect renders it as meant whatever the traces hold: recorded names stand in
code spans and fences only, where nothing is a mention, a link, a tag or a table's border. Computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from rltrace.diff.base.model import Comparison, Finding, Pair, Side, Verdict
from rltrace.report.curves import account, story
from rltrace.report.phrases import (
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
from rltrace.report.redaction import NOTHING, Disclosure, left_out, outgoing_comparison

# --- markdown text ----------------------------------------------------------------------------------------------------
#
# Recorded text that stays text in GitHub's Markdown: as code, in a fence, in a sentence.
#
# Owns escaping: in code spans and fences nothing is a mention, a link, a tag or the border of a table.


WIDEST, LONGEST = 160, 600
"""Characters of a name, and of a sentence or a line of source."""

_PLAIN = re.compile(r"(?:[^\W_]|['%×,;–-])*|[0-9]+\.[0-9]+|…")
_REFERENCE = re.compile(r"GH-[0-9]+")
_OPEN, _CLOSE = "(", ".,:;)?!"


def prose(text: str) -> str:
    """Words of a sentence of ours as they are; whatever looks like a name, a shape or a path as code."""
    return " ".join(_word(word) for word in cut(plain(text), LONGEST).split())


def _word(word: str) -> str:
    core = word.lstrip(_OPEN)
    opening = word[: len(word) - len(core)]
    bare = core.rstrip(_CLOSE)
    if bare.count("(") > bare.count(")"):  # the call's own bracket: f(x)
        missing = bare.count("(") - bare.count(")")
        bare += core[len(bare) : len(bare) + missing]
    closing = core[len(bare) :]
    harmless = _PLAIN.fullmatch(bare) and not _REFERENCE.fullmatch(bare)
    return f"{opening}{bare if harmless else code(bare)}{closing}"


def code(text: str) -> str:
    """A code span that holds ``text`` whatever is in it; on one line."""
    text = cut(plain(text), WIDEST)
    if not text.strip():
        return "(empty)"
    fence = "`" * (_longest_run(text) + 1)
    room = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{room}{text}{room}{fence}"


def fenced(lines: Iterable[str], language: str = "", longest: int = LONGEST) -> Iterator[str]:
    """A code block."""
    shown = [cut(plain(line), longest) for line in lines]
    fence = "`" * max(3, 1 + max((_longest_run(line) for line in shown), default=0))
    yield fence + language
    yield from shown
    yield fence


def plain(text: str) -> str:
    """On one line, without what cannot be seen and turns what can be seen around."""
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character in "\n\r\t\v\f\u2028\u2029\x85":
        return " "
    return character if character.isprintable() or character == " " else "\ufffd"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


# --- markdown ---------------------------------------------------------------------------------------------------------


ROOM = 65_536
"""Characters that an issue of GitHub's holds."""

MOST = 20
"""Entries of a list; the JSON report has all of them."""

MOST_FINDINGS, MOST_PROCESSES, MOST_FRAMES, MOST_COMMANDS = 5, 5, 30, 6
MOST_OUTPUTS, MOST_CELLS = 2, 8

LONGEST_COMMAND = 2000
"""Characters; a command that is cut cannot be run."""

Lines = Iterator[str]


def comparison_markdown(comparison: Comparison, asked: Disclosure = NOTHING) -> str:
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
    yield prose(sentence(finding.explanation if diverged and finding is not None else comparison.why))
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
    why = "" if is_main else f". {prose(sentence(finding.explanation))}"  # the report begins with it
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
    if not comparison.system:
        if comparison.verdict is Verdict.DIVERGED:
            yield "#### System and settings"
            yield ""
            yield NO_FACT
        return
    yield f"#### System and settings ({len(comparison.system)} differ)"
    yield ""
    yield "| fact | A | B |"
    yield "| --- | --- | --- |"
    for fact in comparison.system[: 2 * MOST]:
        cells = (code(fact.name), *(code(v) if v else "(unset)" for v in (fact.a, fact.b)))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    more = len(comparison.system) - 2 * MOST
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


def _end(asked: Disclosure) -> Lines:
    text = left_out(asked)
    if text:
        yield f"<sub>{text}</sub>"


def _limited(lines: list[str]) -> Lines:
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"- … and {len(lines) - MOST:,} more"
