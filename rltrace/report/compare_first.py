"""The first module that parts, in lines of text: which rows, which op on each side, and because of what.

Owns the words that every part of the report on two programs uses, too: counts, distances, causes.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.diff.model import Pair
from rltrace.parity.model import Distance, Origin, Parity, ParityOp, Reason
from rltrace.report.finding import WIDTH, wrapped
from rltrace.report.style import Style
from rltrace.report.telling import cut, sentence

LISTED = 8
"""Entries of a list that are shown; the JSON report has all of them."""

CAUSES = {
    Reason.WEIGHTS: "different weights",
    Reason.INPUTS: "different inputs",
    Reason.RNG: "random numbers",
    Reason.OPERATOR: "different operators",
    Reason.DTYPE: "different dtype",
    Reason.ARGUMENTS: "different arguments",
    Reason.KERNEL: "different kernel",
    Reason.SHAPE: "the shape of the batch",
    Reason.BESIDE: "more than the batch size",
    Reason.COMPUTATION: "same computation, different bits",
    Reason.UNKNOWN: "unknown",
}


def first_lines(parity: Parity, style: Style) -> Iterator[str]:
    origin = parity.first
    if origin is None:
        return
    yield style.bold("First module whose inputs agree and whose outputs differ")
    renamed = "" if origin.path.a == origin.path.b else f" ({origin.path.a} in A)"
    yield f"  module   {style.bold(str(origin.path.b))}{renamed}"
    if origin.own:
        yield "           (its own ops: no module that it calls explains it)"
    yield f"  rows     {origin.rows:,} of {origin.of:,} whose inputs agree; the first is {origin.row}"
    calls = f"call {origin.call.a} of A, call {origin.call.b} of B"
    yield f"  computed {calls}"
    yield from _ops(origin, style)
    yield from wrapped(sentence(cause_text(origin)), "           ", "  cause    ")


def _ops(origin: Origin, style: Style) -> Iterator[str]:
    if origin.op.a is not None or origin.op.b is not None:
        yield from _pair_of_ops("op", origin.op, style)
    for number, pair in enumerate(origin.several[:LISTED]):
        yield from _pair_of_ops("one of" if not number else "", pair, style)
    if len(origin.several) > LISTED:
        yield f"           … and {len(origin.several) - LISTED} more"


def _pair_of_ops(label: str, pair: Pair[ParityOp], style: Style) -> Iterator[str]:
    for side, op in (("A", pair.a), ("B", pair.b)):
        text = "none" if op is None else f"{op.op}({', '.join(op.layouts)}), row {op.row:,}"
        yield from wrapped(text, "                ", f"  {label:<8} {side}  ")
        label = ""
        if op is not None and op.kernel and (pair.a is None or pair.b is None or pair.a.kernel != pair.b.kernel):
            yield from wrapped(op.kernel, "                ", "              by ")
    shown = pair.b or pair.a
    if pair.a is not None and pair.b is not None and pair.a.kernel == pair.b.kernel and pair.a.kernel:
        yield from wrapped(f"{pair.a.kernel} on both sides", "           ", "  kernel   ")
    if shown is not None and shown.site is not None:
        site = shown.site
        yield from wrapped(f"{site.file}:{site.line} in {site.function}", "             ", "  site     ")
        if site.source:
            yield f"             {cut(site.source, WIDTH - 13)}"


def other_lines(parity: Parity, style: Style) -> Iterator[str]:
    rest = parity.origins[1:]
    if not rest:
        return
    yield style.bold("Other modules that diverge independently, on rows that agree up to them")
    for origin in rest[:LISTED]:
        yield from wrapped(f"{origin.path.b}: {part_of(origin.rows, origin.of)}, {origin.because}", "    ", "  ")
    if len(rest) > LISTED:
        yield f"  … and {len(rest) - LISTED} more"


def cause_text(origin: Origin) -> str:
    """``the shape of the batch: addmm over 4 rows against 80 rows``."""
    return f"{CAUSES[origin.reason]}: {origin.because}" if origin.reason is not Reason.UNKNOWN else origin.because


def counted(count: int, one: str, many: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"


def part_of(count: int, whole: int) -> str:
    return f"all {whole:,} rows" if count == whole else f"{count:,} of {whole:,} rows"


def short(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def distance_text(distance: Distance | None) -> str:
    """``at most 5.4e-07 apart (relative 2.7e-03, 26,134 ULP), at token 10 of sequence 7``."""
    if distance is None or distance.absolute is None:
        return "not finite" if distance is not None else "distance unknown"
    rest = [] if distance.relative is None else [f"relative {distance.relative:.1e}"]
    rest += [] if distance.ulp is None else [f"{distance.ulp:,} ULP"]
    at = f", largest at {distance.worst}" if distance.worst else ""
    return f"max |A - B| {distance.absolute:.1e} ({', '.join(rest)}){at}"
