"""Two programs compared by row, as text: the first module that diverges, why, the distances, and what to do next.

Owns the order of the report and its wording; readable at 80 columns and without colour. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rltrace.diff.base.model import Pair
from rltrace.extensions.parity.model import (
    Distance,
    ModuleOrigin,
    ModuleResult,
    Parity,
    ParityOp,
    ParitySide,
    ParityVerdict,
    Reason,
    Required,
)
from rltrace.report.diff_text import WIDTH, wrapped
from rltrace.report.style import Style
from rltrace.wording import counted, cut, sentence

# --- origins ----------------------------------------------------------------------------------------------------------


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


def _ops(origin: ModuleOrigin, style: Style) -> Iterator[str]:
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
        yield from wrapped(f"{origin.path.b}: {part_of(origin.rows, origin.of)}, {origin.explanation}", "    ", "  ")
    if len(rest) > LISTED:
        yield f"  … and {len(rest) - LISTED} more"


def cause_text(origin: ModuleOrigin) -> str:
    """``the shape of the batch: addmm over 4 rows against 80 rows``."""
    return (
        f"{CAUSES[origin.reason]}: {origin.explanation}" if origin.reason is not Reason.UNKNOWN else origin.explanation
    )


def part_of(count: int, whole: int) -> str:
    return f"all {whole:,} rows" if count == whole else f"{count:,} of {whole:,} rows"


def short(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def listed(title: str, texts: Sequence[str], style: Style) -> Iterator[str]:
    """The first ``LISTED`` of some sentences, or nothing where there is none."""
    if texts:
        yield style.bold(title)
    for text in texts[:LISTED]:
        yield from wrapped(sentence(text), "    ", "  ")
    if len(texts) > LISTED:
        yield f"  … and {len(texts) - LISTED:,} more (--format json has them all)"


def distance_text(distance: Distance | None) -> str:
    """``at most 5.4e-07 apart (relative 2.7e-03, 26,134 ULP), at token 10 of sequence 7``."""
    if distance is None or distance.absolute is None:
        return "not finite" if distance is not None else "distance unknown"
    rest = [] if distance.relative is None else [f"relative {distance.relative:.1e}"]
    rest += [] if distance.ulp is None else [f"{distance.ulp:,} ULP"]
    at = f", largest at {distance.worst}" if distance.worst else ""
    return f"max |A - B| {distance.absolute:.1e} ({', '.join(rest)}){at}"


# --- the report -------------------------------------------------------------------------------------------------------


SHOWN = 40
"""Modules that are listed one by one; the JSON report has all of them."""
NAME = 40
"""Columns of a module's name."""

HEADLINES = {
    ParityVerdict.BITWISE: "BITWISE EQUAL",
    ParityVerdict.DIFFERS: "DIFFERS",
    ParityVerdict.UNDECIDED: "UNDECIDED",
}
COLORS = {ParityVerdict.BITWISE: "32", ParityVerdict.DIFFERS: "31", ParityVerdict.UNDECIDED: "33"}


def render_parity(
    parity: Parity, required: Sequence[Required] = (), more: Iterable[str] = (), *, color: bool = False
) -> str:
    """The report, without a newline at its end. ``more``: sections to insert before the modules."""
    style = Style(color)
    sections: list[Iterable[str]] = [
        _head(parity, required, style),
        first_lines(parity, style),
        *([text] for text in more),
        other_lines(parity, style),
        _modules(parity, style),
        _dtypes(parity, style),
        _disagreements(parity, style),
        _uncompared(parity, style),
        _unmatched(parity, style),
        listed("Cannot be read", parity.holes, style),
        listed("Note", parity.notes, style),
        _next(parity, style),
    ]
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text)


# --- head -------------------------------------------------------------------------------------------------------------


def _head(parity: Parity, required: Sequence[Required], style: Style) -> Iterator[str]:
    first = parity.first
    where = "" if first is None else f"  from {first.path.b} on"
    yield style.paint(HEADLINES[parity.verdict], COLORS[parity.verdict]) + where
    yield from wrapped(sentence(parity.why if first is None else cause_text(first)))
    yield from _final_outputs(parity)
    for one in required:
        mark = {True: "holds", False: "FAILS", None: "undecided"}[one.holds]
        yield from wrapped(f"required {one.text}: {mark}, {one.why}")
    yield from (f"  next: {command}" for command in parity.advice[:1])
    yield ""
    for name, side in (("A", parity.a), ("B", parity.b)):
        yield from _side(name, side)
    yield from wrapped(parity.how, "     ", "  =  ")


def _final_outputs(parity: Parity) -> Iterator[str]:
    """The difference at the end of the model."""
    last = parity.compared[-1] if parity.compared else None
    if last is None or not last.differing:
        return
    distance = f", {distance_text(last.distance)}" if last.distance is not None else ""
    yield from wrapped(f"The outputs of {last.path.b} differ in {part_of(last.differing, last.rows)}{distance}.")


def _side(name: str, side: ParitySide) -> Iterator[str]:
    stream = f", {side.stream}" if side.stream else ""
    yield from wrapped(f"{side.path}{stream}: {side.what}", "     ", f"  {name}  ")
    counts = f"{counted(side.passes, 'forward pass', 'forward passes')}, {counted(side.rows, 'row')}"
    yield from wrapped("; ".join([counts, *_missing(side, "B" if name == "A" else "A")]), "     ")


def _missing(side: ParitySide, other: str) -> Iterator[str]:
    """Counts of rows of a side without a partner."""
    counts = side.missing - side.excused
    if side.excused:
        ends = "the last tokens of their sequences, or padding"
        yield f"{side.excused:,} of them {other} did not have to compute: {ends}"
    if counts:
        yield f"{counts:,} that {other} never computed"
    if side.unknown:
        yield f"{side.unknown:,} more in sequences whose beginning is unknown"


# --- all modules ------------------------------------------------------------------------------------------------------


def _modules(parity: Parity, style: Style) -> Iterator[str]:
    compared = parity.compared
    if not compared:
        return
    root = _root(compared)
    yield style.bold(f"Modules{f' of {root}' if root else ''}, each after those that it calls")
    yield f"    {'':<{NAME}}{'rows':>7} {'differ':>7} {'largest':>9} {'ULP':>9}"
    origins = {origin.path.a for origin in parity.origins}
    for module in _shown(compared, origins):
        yield module if isinstance(module, str) else _module(module, root, str(module.path.a) in origins, style)


def _root(modules: Sequence[ModuleResult]) -> str:
    """The outermost module of all paths of B; empty: there are several."""
    roots = {str(module.path.b).partition(".")[0] for module in modules}
    return roots.pop() if len(roots) == 1 else ""


def _shown(modules: Sequence[ModuleResult], origins: set[str | None]) -> Iterator[ModuleResult | str]:
    """At most ``SHOWN`` modules; of more, those where something changes, and the counts of the others."""
    if len(modules) <= SHOWN:
        yield from modules
        return
    wanted = {0, len(modules) - 1}
    for at, module in enumerate(modules):
        if module.path.a in origins:
            wanted |= {at - 1, at, at + 1}
    changes = [at for at in range(1, len(modules)) if bool(modules[at].differing) != bool(modules[at - 1].differing)]
    for at in changes:
        if len(wanted) < SHOWN:
            wanted |= {at - 1, at}
    skipped = 0
    for at, module in enumerate(modules):
        if at not in wanted:
            skipped += 1
            continue
        if skipped:
            yield f"    … {skipped} more"
        skipped = 0
        yield module


def _module(module: ModuleResult, root: str, is_origin: bool, style: Style) -> str:
    mark = "!" if is_origin else ("x" if module.differing else "=")
    path = str(module.path.b)
    name = _tail(path.removeprefix(f"{root}.") if root else path, NAME - 1)
    text = f"  {mark} {name:<{NAME}}{module.rows:>7,} {module.differing:>7,}"
    if module.distance is not None:
        ulp = "" if module.distance.ulp is None else f"{module.distance.ulp:,}"
        text += f" {short(module.distance.absolute):>9} {ulp:>9}"
    return style.bold(text) if is_origin else text.rstrip()


def _tail(name: str, width: int) -> str:
    """The end of a path that is too long, cut between two names where that leaves more than half."""
    if len(name) <= width:
        return name
    end = name[-(width - 1) :]
    _, dot, rest = end.partition(".")
    return f"…{dot}{rest}" if len(rest) > width // 2 else f"…{end}"


def _dtypes(parity: Parity, style: Style) -> Iterator[str]:
    changed = [module for module in parity.compared if module.dtype is not None]
    if not changed:
        return
    yield style.bold("Modules whose outputs have different dtypes")
    for module in changed[:LISTED]:
        assert module.dtype is not None
        yield from wrapped(f"{module.path.b}: {module.dtype.a} in A, {module.dtype.b} in B", "    ", "  ")
    if len(changed) > LISTED:
        yield f"  … and {len(changed) - LISTED} more"


def _disagreements(parity: Parity, style: Style) -> Iterator[str]:
    if not parity.disagreements:
        return
    yield style.bold("Activation rows computed twice by one side")
    for one in parity.disagreements:
        text = f"{counted(one.rows, 'row')} of {one.module} computed twice with different results, first in {one.what}"
        yield from wrapped(f"{one.side.upper()} does not agree with itself: {text}")


def _uncompared(parity: Parity, style: Style) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for module in parity.modules:
        for one in module.uncompared:
            path = module.path.a if one.side == "a" else module.path.b
            found.setdefault(one.why, []).append(f"{one.part} {one.name}".rstrip() + f" of {path}")
    without = [module for module in parity.modules if not module.rows]
    if not found:
        return
    tensors = sum(len(set(names)) for names in found.values())
    head = f"Not compared by row: {counted(tensors, 'tensor')}"
    yield style.bold(head + (f", and nothing of {counted(len(without), 'module')}" if without else ""))
    for why, names in list(found.items())[:LISTED]:
        rest = f" and {len(set(names)) - 1} more" if len(set(names)) > 1 else ""
        yield from wrapped(f"{names[0]}{rest}: {why}", "    ", "  ")
    if len(found) > LISTED:
        yield f"  … and {len(found) - LISTED} more reasons (--format json has them all)"


def _unmatched(parity: Parity, style: Style) -> Iterator[str]:
    renamed = [f"{pair.a} of A matches {pair.b} of B" for pair in parity.renamed]
    unmatched = [
        f"{counted(len(paths), 'module')} of {name} unmatched: {', '.join(paths[:4])}"
        + (", …" if len(paths) > 4 else "")
        for name, paths in (("A", parity.only_a), ("B", parity.only_b))
        if paths
    ]
    yield from listed("Names", [*renamed, *unmatched], style)


def _next(parity: Parity, style: Style) -> Iterator[str]:
    if len(parity.advice) > 1:
        yield style.bold("Next")
        yield from (f"  {command}" for command in parity.advice)
