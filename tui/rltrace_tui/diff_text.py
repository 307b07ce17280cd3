"""Lines of text from what the library returned: verdict, evidence, bars and curves.

Owns glyphs and layout within a width. Pure functions; no widget, nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, repeat
from textwrap import wrap

from textual.content import Content

from rltrace.diff.base.model import Cause, Comparison, Finding, Pair, Verdict
from rltrace.diff.display.browser import Browser, BrowserLine
from rltrace.diff.display.row_pairs import Relation
from rltrace.report.phrases import INPUTS, apart, noun, sentence

LABEL = 8
HEADLINES = {
    Verdict.IDENTICAL: ("IDENTICAL", "$text-success"),
    Verdict.SAME_VALUES: ("SAME VALUES", "$text-success"),
    Verdict.DIVERGED: ("DIVERGED", "$text-error"),
    Verdict.UNKNOWN: ("UNKNOWN", "$text-warning"),
}

GLYPHS = {
    Relation.EQUAL: "=",
    Relation.DIFFERS: "≠",
    Relation.RECEIVES: "~",
    Relation.UNSURE: "?",
    Relation.ONLY_A: "<",
    Relation.ONLY_B: ">",
    Relation.UNPAIRED: "?",
}

SPACES = re.compile(r"(?<=\S)\s{3,}")

LABELLED = re.compile(r"\s*\S+(?: \S+)?\s{2,}")
"""A word or two in a column of their own at the beginning of a line."""

Lines = list[Content]


def plain(text: str, style: str = "") -> Content:
    return Content.styled(text, style) if style else Content(text)


def labelled(label: str, text: str, width: int, style: str = "") -> Lines:
    """``label`` in a column of its own, ``text`` wrapped beside it."""
    room = max(10, width - LABEL)
    lines = wrap(text, room, break_long_words=True, break_on_hyphens=False) or [""]
    heads = [label] + [""] * (len(lines) - 1)
    return [
        Content.assemble((f"{head:<{LABEL}}", "$text-muted"), (line, style))
        for head, line in zip(heads, lines, strict=True)
    ]


def fit(text: str, width: int) -> str:
    """Exactly so many columns; what is cut off is marked."""
    return f"{text:<{width}}" if len(text) <= width else f"{text[: max(0, width - 1)]}…"[:width]


def fold_text(browser: Browser, line: BrowserLine) -> str:
    """What a fold says of the lines in it."""
    piece = line.piece
    assert piece is not None
    if piece.trouble:
        return f"⋯ rows {piece.a0:,} to {piece.a1 - 1:,} of A cannot be shown: {piece.trouble}"
    count = f"{piece.rows:,} op" + ("" if piece.rows == 1 else "s")
    if piece.equal and not browser.alone:
        return f"⋯ {count.replace(' op', ' identical op')} ⋯"
    step = browser.step_of(piece)
    where = "" if step is None else f"step {step:,}: "
    if piece.equal:
        return f"⋯ {where}{count} ⋯"
    a, b = piece.a1 - piece.a0, piece.b1 - piece.b0
    if not a or not b:
        return f"⋯ {where}{count} only in {'A' if a else 'B'} ⋯"
    sizes = count if a == b else f"{a:,} ops of A, {b:,} of B"
    return f"⋯ {where}{sizes}, not loaded ⋯"


# --- verdict --------------------------------------------------------------------------------------------------------


def verdict_lines(comparison: Comparison, finding: Finding | None, width: int) -> Lines:
    """The verdict, where it is, why, and what is known of the evidence."""
    word, style = HEADLINES[comparison.verdict]
    diverged = comparison.verdict is Verdict.DIVERGED and finding is not None
    lines = [Content.assemble((word, f"bold {style}"), f"  {_where(finding)}" if diverged and finding else "")]
    if not diverged:
        lines += [plain(line) for line in wrap(sentence(comparison.why), width)]
    if finding is not None:
        if not diverged:
            unsure = comparison.verdict is Verdict.UNKNOWN
            what = "First difference" if unsure else "A harmless difference in structure"
            lines.append(plain(f"{what}: {_where(finding)}", "bold"))
        lines += finding_lines(finding, width)
    for note in comparison.notes:
        lines += labelled("note", sentence(note), width)
    for hole in comparison.holes[:5]:
        lines += labelled("damage", f"{hole.side.upper()}: {hole.why}", width, "$text-warning")
    for command in comparison.advice:
        lines += labelled("next", command, width, "$text-accent")
    return lines


def _where(finding: Finding) -> str:
    row = finding.a_index if finding.a_index is not None else finding.b_index
    parts = [] if row is None else [f"op {row:,}"]
    parts += [] if finding.step is None else [f"step {finding.step:,}"]
    parts += [finding.cause.value] if finding.cause is not Cause.UNKNOWN else []
    return "  ".join(parts)


def finding_lines(finding: Finding, width: int) -> Lines:
    """One finding: op, place, cause, how the inputs are known, digests."""
    lines: Lines = []
    if finding.op is not None:
        module = f"   {finding.module}" if finding.module else ""
        lines += labelled(noun(finding), finding.op + module, width, "bold")
    if finding.site is not None:
        site = finding.site
        lines += labelled("site", f"{site.file}:{site.line} {site.function}", width)
        lines += labelled("", " ".join(site.source.split()), width, "$text-muted") if site.source else []
    lines += labelled("cause", sentence(finding.explanation), width)
    both = finding.a_index is not None and finding.b_index is not None
    if finding.op is not None and finding.boundary is None and both:
        lines += labelled("inputs", INPUTS[finding.inputs_match], width)
        lines += pair_lines("kernel", finding.kernel, width)
    for name, pair in apart(finding)[:2] if finding.op is not None else ():
        told = pair if finding.boundary is None else Pair(f"{name} {pair.a or '–'}", f"{name} {pair.b or '–'}")
        lines += pair_lines("output" if finding.boundary is None else "field", told, width)
    unit, count = "op" if finding.op is not None else "step", finding.identical_before
    return [*lines, *labelled("before", f"{count:,} identical {unit}{'' if count == 1 else 's'}", width)]


def pair_lines(label: str, pair: Pair[str], width: int) -> Lines:
    """The same fact on both sides, on one line where it is equal."""
    if pair.a is None and pair.b is None:
        return []
    if pair.a == pair.b:
        return labelled(label, f"= {pair.a}", width)
    first = labelled(label, f"≠ A {pair.a or '–'}", width)
    return [*first, *labelled("", f"  B {pair.b or '–'}", width)]


def environment_lines(comparison: Comparison, width: int) -> Lines:
    """What differs between the machines and processes."""
    if not comparison.system:
        return [plain(line, "$text-muted") for line in wrap("No recorded fact differs.", width)]
    lines: Lines = []
    for fact in comparison.system:
        a, b = fact.a or "(unset)", fact.b or "(unset)"
        short = f"≠ {fact.name}  {a} | {b}"
        if len(short) <= width:
            lines.append(Content.assemble(("≠ ", "$text-warning"), (fact.name, "bold"), f"  {a} | {b}"))
            continue
        for sign, part in zip(chain("≠", repeat(" ")), at_dots(fact.name, width - 2), strict=False):
            lines.append(Content.assemble((f"{sign} ", "$text-warning"), (part, "bold")))
        for side, value in (("A", a), ("B", b)):
            lines += [plain(line) for line in wrap(value, width, initial_indent=f"  {side} ", subsequent_indent="    ")]
    return lines


def at_dots(name: str, width: int) -> list[str]:
    """A dotted name on lines of at most ``width``, parted after dots; within words only where one is longer."""
    if len(name) <= width:
        return [name]
    return [line.replace(". ", ".") for line in wrap(name.replace(".", ". "), width)]


def text_lines(lines: Iterable[str], width: int) -> Lines:
    """Lines of a report, wrapped under where their text begins; headings without an indent are set off."""
    found: Lines = []
    for line in "\n".join(lines).strip("\n").splitlines():
        if len(line) > width:
            line = SPACES.sub("  ", line)  # a column is worth less than a value on the same line
        indent = len(line) - len(line.lstrip())
        label = LABELLED.match(line)
        more = " " * (label.end() if label and label.end() < width // 2 else indent + 2)
        wrapped = wrap(line, width, subsequent_indent=more, drop_whitespace=True, break_on_hyphens=False) or [""]
        style = "bold" if indent == 0 and label is None else ""
        found += [plain(part, style) for part in wrapped]
    return found
