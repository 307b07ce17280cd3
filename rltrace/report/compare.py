"""Two programs compared by row, for people: where they part, because of what, how far, and what to do next.

Owns the order of the report and its wording; readable at 80 columns and without colour. Computes nothing. The first
lines answer the question; then come the first module, all modules in execution order, and what must be known besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rltrace.diff.model import Pair
from rltrace.parity.model import (
    Distance,
    ModuleResult,
    Origin,
    Parity,
    ParityOp,
    Reason,
    Required,
    Side,
    Verdict,
)
from rltrace.report.finding import WIDTH, wrapped
from rltrace.report.style import Style
from rltrace.report.telling import cut, sentence

SHOWN = 40
"""Modules that are listed one by one; the JSON report has all of them."""
LISTED = 8
"""Of anything else."""
NAME = 38
"""Columns of a module's name."""

HEADLINES = {
    Verdict.BITWISE: "BITWISE EQUAL",
    Verdict.DIFFERS: "DIFFERS",
    Verdict.UNDECIDED: "UNDECIDED",
}
COLORS = {Verdict.BITWISE: "32", Verdict.DIFFERS: "31", Verdict.UNDECIDED: "33"}

CAUSES = {
    Reason.WEIGHTS: "other weights",
    Reason.INPUTS: "other inputs",
    Reason.OPERATOR: "other operators",
    Reason.DTYPE: "another dtype",
    Reason.ARGUMENTS: "other arguments",
    Reason.KERNEL: "another kernel",
    Reason.SHAPE: "the shape of the batch",
    Reason.COMPUTATION: "the same computation, other bits",
    Reason.UNKNOWN: "not known",
}


def render_parity(
    parity: Parity, required: Sequence[Required] = (), more: Iterable[str] = (), *, color: bool = False
) -> str:
    """The report, without a newline at its end. ``more``: sections of others, put in before the modules."""
    style = Style(color)
    sections: list[Iterable[str]] = [
        _head(parity, required, style),
        _first(parity, style),
        *([text] for text in more),
        _others(parity, style),
        _modules(parity, style),
        _dtypes(parity, style),
        _disagreements(parity, style),
        _apart(parity, style),
        _alone(parity, style),
        _listed("Parts that cannot be read", parity.holes, style),
        _listed("Note", parity.notes, style),
        _next(parity, style),
    ]
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text)


# --- head -------------------------------------------------------------------------------------------------------------


def _head(parity: Parity, required: Sequence[Required], style: Style) -> Iterator[str]:
    first = parity.first
    where = f"  from {first.path.b} on, because of {CAUSES[first.reason]}" if first is not None else ""
    known = where if first is None or first.reason is not Reason.UNKNOWN else f"  from {first.path.b} on"
    yield style.paint(HEADLINES[parity.verdict], COLORS[parity.verdict]) + known
    if first is not None:
        yield from wrapped(sentence(first.because))
    else:
        yield from wrapped(sentence(parity.why))
    yield from _ending(parity)
    for one in required:
        mark = {True: "holds", False: "FAILS", None: "cannot be said"}[one.holds]
        yield from wrapped(f"required {one.text}: {mark}, {one.why}")
    yield ""
    for name, side in (("A", parity.a), ("B", parity.b)):
        yield from _side(name, side)
    yield from wrapped(parity.how, "     ", "  =  ")


def _ending(parity: Parity) -> Iterator[str]:
    """What becomes of it at the end of the model."""
    last = parity.compared[-1] if parity.compared else None
    if last is None or not last.differing:
        return
    apart = f", {distance_text(last.distance)}" if last.distance is not None else ""
    yield from wrapped(f"What {last.path.b} gives differs in {_of(last.differing, last.rows)}{apart}.")


def _side(name: str, side: Side) -> Iterator[str]:
    stream = f", {side.stream}" if side.stream else ""
    yield from wrapped(f"{side.path}{stream}: {side.what}", "     ", f"  {name}  ")
    lacks = []
    if side.missing:
        excused = f", {side.excused:,} of them the last of a sequence, or padding" if side.excused else ""
        lacks.append(f"{side.missing:,} that {'B' if name == 'A' else 'A'} never computed{excused}")
    if side.unknown:
        lacks.append(f"{side.unknown:,} more that belong to sequences whose beginning is not known")
    counts = f"{counted(side.passes, 'forward pass', 'forward passes')}, {counted(side.rows, 'row')}"
    yield from wrapped("; ".join([counts, *lacks]), "     ")


# --- the first module -------------------------------------------------------------------------------------------------


def _first(parity: Parity, style: Style) -> Iterator[str]:
    origin = parity.first
    if origin is None:
        return
    yield style.bold("First module whose inputs agree and whose outputs do not")
    renamed = "" if origin.path.a == origin.path.b else f" ({origin.path.a} in A)"
    yield f"  module   {style.bold(str(origin.path.b))}{renamed}"
    if origin.own:
        yield "           (its own work: no module that it calls explains it)"
    yield f"  rows     {origin.rows:,} of {origin.of:,} whose inputs agree; the first is {origin.row}"
    calls = f"call {origin.call.a} of A, call {origin.call.b} of B"
    yield f"  computed {calls}"
    yield from _ops(origin, style)
    yield from wrapped(f"{origin.reason.value}: {sentence(origin.because)}", "           ", "  cause    ")


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


def _others(parity: Parity, style: Style) -> Iterator[str]:
    rest = parity.origins[1:]
    if not rest:
        return
    yield style.bold("Other modules that part by themselves, in rows that agree up to them")
    for origin in rest[:LISTED]:
        yield from wrapped(f"{origin.path.b}: {_of(origin.rows, origin.of)}, {origin.because}", "    ", "  ")
    if len(rest) > LISTED:
        yield f"  … and {len(rest) - LISTED} more"


# --- all modules ------------------------------------------------------------------------------------------------------


def _modules(parity: Parity, style: Style) -> Iterator[str]:
    compared = parity.compared
    if not compared:
        return
    yield style.bold("Modules, each after those that it calls")
    yield f"    {'':<{NAME}}{'rows':>7} {'differ':>7}  {'largest':>9} {'ULP':>9}"
    origins = {origin.path.a for origin in parity.origins}
    for module in _shown(compared, origins):
        yield module if isinstance(module, str) else _module(module, str(module.path.a) in origins, style)


def _shown(modules: Sequence[ModuleResult], origins: set[str | None]) -> Iterator[ModuleResult | str]:
    """All of a few; of many, those at which something changes, and how many are in between."""
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


def _module(module: ModuleResult, is_origin: bool, style: Style) -> str:
    mark = "!" if is_origin else ("x" if module.differing else "=")
    name = _tail(str(module.path.b), NAME - 1)
    text = f"  {mark} {name:<{NAME}}{module.rows:>7,} {module.differing:>7,}"
    if module.distance is not None:
        ulp = "" if module.distance.ulp is None else f"{module.distance.ulp:,}"
        text += f"  {_short(module.distance.absolute):>9} {ulp:>9}"
    return style.bold(text) if is_origin else text.rstrip()


def _tail(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[-(width - 1) :]


def _dtypes(parity: Parity, style: Style) -> Iterator[str]:
    changed = [module for module in parity.compared if module.dtype is not None]
    if not changed:
        return
    yield style.bold("Modules whose outputs have another dtype")
    for module in changed[:LISTED]:
        assert module.dtype is not None
        yield from wrapped(f"{module.path.b}: {module.dtype.a} in A, {module.dtype.b} in B", "    ", "  ")
    if len(changed) > LISTED:
        yield f"  … and {len(changed) - LISTED} more"


def _disagreements(parity: Parity, style: Style) -> Iterator[str]:
    if not parity.disagreements:
        return
    yield style.bold("The same row, computed twice by one side")
    for one in parity.disagreements:
        text = f"{counted(one.rows, 'row')} of {one.module} came out in more than one way, first in {one.what}"
        yield from wrapped(f"{one.side.upper()} disagrees with itself: {text}")


def _apart(parity: Parity, style: Style) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for module in parity.modules:
        for one in module.apart:
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


def _alone(parity: Parity, style: Style) -> Iterator[str]:
    renamed = [f"{pair.a} of A is {pair.b} of B" for pair in parity.renamed]
    alone = [
        f"{counted(len(paths), 'module')} of {name} without a partner: {', '.join(paths[:4])}"
        + (", …" if len(paths) > 4 else "")
        for name, paths in (("A", parity.only_a), ("B", parity.only_b))
        if paths
    ]
    yield from _listed("Names", [*renamed, *alone], style)


def _listed(title: str, texts: Sequence[str], style: Style) -> Iterator[str]:
    if texts:
        yield style.bold(title)
    for text in texts[:LISTED]:
        yield from wrapped(sentence(text), "    ", "  ")
    if len(texts) > LISTED:
        yield f"  … and {len(texts) - LISTED} more (--format json has them all)"


def _next(parity: Parity, style: Style) -> Iterator[str]:
    if parity.advice:
        yield style.bold("Next")
        yield from (f"  {command}" for command in parity.advice)


# --- words ------------------------------------------------------------------------------------------------------------


def counted(count: int, one: str, many: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"


def _of(count: int, whole: int) -> str:
    return f"all {whole:,} rows" if count == whole else f"{count:,} of {whole:,} rows"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def distance_text(distance: Distance | None) -> str:
    """``at most 5.4e-07 apart (relative 2.7e-03, 26,134 ULP), at token 10 of sequence 7``."""
    if distance is None or distance.absolute is None:
        return "values that are not finite" if distance is not None else "how far apart is not known"
    rest = [] if distance.relative is None else [f"relative {distance.relative:.1e}"]
    rest += [] if distance.ulp is None else [f"{distance.ulp:,} ULP"]
    at = f", most at {distance.worst}" if distance.worst else ""
    return f"at most {distance.absolute:.1e} apart ({', '.join(rest)}){at}"
