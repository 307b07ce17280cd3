"""Two programs compared by row, with log-probabilities and routing: what is printed as JSON, and its document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rltrace.diff.base.model import Pair, Verdict
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.extensions.parity.impact.logprobs import Gap, NoGap
from rltrace.extensions.parity.impact.routing import Flip, Routing
from rltrace.extensions.parity.impact.summary import Effects
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
from rltrace.report.document import ALL, Code, Document, Fact, Form, Inline, Number, Section
from rltrace.wording import counted, sentence, sentences

FLIPS = 6
"""Flipped decisions that are listed; the JSON report has more."""
TOKENS = 5


def effects_sections(effects: Effects) -> tuple[Section, ...]:
    """Those that are not empty."""
    return tuple(filter(None, (_gap(effects.gap), _routing(effects.routing, effects.routing_notes))))


# --- log-probabilities ------------------------------------------------------------------------------------------------


def _gap(gap: Gap | NoGap) -> Section:
    if isinstance(gap, NoGap):
        return Section("gap", "Log-probabilities", sentences(gap.why))
    if not gap.n:
        why = f"no sampled token has a log-probability on both sides: {gap.source}"
        return Section("gap", "Log-probabilities", sentences(why))
    furthest = ((one, (f"{one.a:.5f}", f"{one.b:.5f}", f"{one.b - one.a:.2e}")) for one in gap.furthest[:TOKENS])
    rows = ((_place(one.place, one.token), *map(Number, numbers)) for one, numbers in furthest)
    title = f"Log-probabilities of {gap.n:,} sampled tokens or actions"
    return Section(
        "gap", title, facts=tuple(_gap_facts(gap)), columns=("furthest", "A", "B", "B - A"), rows=tuple(rows)
    )


def _gap_facts(gap: Gap) -> Iterator[Fact]:
    share = "" if gap.share_equal is None else f" ({gap.share_equal:.1%})"
    yield Fact("equal", f"{gap.equal:,}{share}")
    if gap.mean is not None and gap.largest is not None and gap.k1 is not None and gap.k3 is not None:
        yield Fact("|A - B|", f"{gap.mean:.3e} mean, {gap.largest:.3e} max")
        yield Fact("KL(A||B)", f"k1 {gap.k1:.3e}, k3 {gap.k3:.3e}; sampled by A (Schulman 2020)")
    if gap.unmeasured:
        yield Fact("not finite", f"{gap.unmeasured:,}: NaN or infinite on one side")
    if gap.portions:
        parts = [f"{portion.carries:.0%} in the {portion.tokens:,}" for portion in gap.portions]
        yield Fact("share", f"{', '.join(parts)} with the largest |A - B|")
    if gap.only_a or gap.only_b:
        lacks = [f"{count:,} of {name}" for name, count in (("A", gap.only_a), ("B", gap.only_b)) if count]
        yield Fact("one side", " and ".join(lacks))
    yield Fact("from", sentence(gap.source))


def _place(place: str, token: int | None) -> str:
    """``token 14 of sequence 1, id 31``."""
    return place if token is None else f"{place}, id {token}"


# --- routing ----------------------------------------------------------------------------------------------------------


def _routing(routing: Sequence[Routing], notes: Sequence[str]) -> Section:
    flipped, decisions = sum(r.flipped for r in routing), sum(r.n for r in routing)
    reasons = dict.fromkeys([*(one.why_no_margins for one in routing if one.why_no_margins), *notes])
    flips = [_flip(one, flip) for one in routing for flip in one.flips]
    return Section(
        "routing",
        f"Routing: {flipped:,} of {decisions:,} decisions chose other experts",
        (*_margins(routing), *sentences(*reasons)),
        columns=("router", "chosen", "flipped", "order", "weights"),
        rows=tuple(map(_row, routing)),
        parts=(Section("", f"of the {flipped:,}", tuple(flips[:FLIPS])),) if flips else (),
        limit=ALL,
    )


def _row(one: Routing) -> tuple[Inline, ...]:
    chosen = f"{one.chosen}" if one.experts is None else f"{one.chosen}/{one.experts}"
    weights = "?" if one.reweighted is None else f"{one.reweighted:,}"
    name = ("! " if one.flipped else "= ", Code(_name(one)))
    return name, *map(Number, (chosen, f"{one.flipped:,}", f"{one.reordered:,}", weights))


def _margins(routing: Sequence[Routing]) -> Iterator[str]:
    """The margins of flipped decisions, and how many others have as small ones."""
    for one in routing:
        if one.largest_flipped is None:
            continue
        closer = "" if not one.closer else f"; {one.closer:,} with as small a margin in A did not flip"
        middle = f", the median margin is {one.margins_a.quantiles[3]:.1e}" if one.margins_a.known else ""
        yield f"{_name(one)} flipped at margins up to {one.largest_flipped:.1e}{closer}{middle}."


def _flip(one: Routing, flip: Flip) -> str:
    margins = [f"{name} {m:.1e}" for name, m in (("A", flip.margin_a), ("B", flip.margin_b)) if m is not None]
    close = f" (margin {', '.join(margins)})" if margins else ""
    return f"{_place(flip.place, flip.token)}, {_name(one)}: {list(flip.a)} became {list(flip.b)}{close}"


def _name(one: Routing) -> str:
    """Its path without the outermost module, and its number if there are several."""
    path = one.module_b.partition(".")[2] or one.module_b
    return path if not one.occurrence else f"{path} ({one.occurrence + 1})"


# --- modules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParityReport:
    """A comparison, what was required of it, and what it amounts to."""

    SCHEMA: ClassVar = "rltrace.compare/1"
    MERGED: ClassVar = ("parity", "effects")

    agrees: bool | None
    """True: exit status 0, False: 1, None: 3."""
    required: tuple[Required, ...]
    parity: Parity
    effects: Effects


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

HEADLINES = {
    ParityVerdict.BITWISE: ("BITWISE EQUAL", Verdict.IDENTICAL),
    ParityVerdict.DIFFERS: ("DIFFERS", Verdict.DIVERGED),
    ParityVerdict.UNDECIDED: ("UNDECIDED", Verdict.UNKNOWN),
}
HOLDS = {True: "holds", False: "FAILS", None: "undecided"}
"""By whether a requirement holds."""

SHOWN = 40
"""Modules that are listed one by one; the JSON report has all of them."""


def parity_document(report: ParityReport) -> Document:
    """The first module that diverges, why, what it amounts to, all modules, and what was not compared."""
    parity = report.parity
    dtypes = (Fact(Code(str(one.path.b)), one.dtype) for one in parity.compared if one.dtype is not None)
    others = (f"{one.path.b}: {part_of(one.rows, one.of)}, {one.explanation}." for one in parity.origins[1:])
    sections = (
        Section("first", _title(parity), facts=tuple(_first(parity))),
        *effects_sections(report.effects),
        Section(
            "others",
            "Other modules that diverge independently, on rows that agree up to them",
            tuple(others),
        ),
        _modules(parity),
        Section("dtypes", "Modules whose outputs have different dtypes", (), tuple(dtypes), Form.TABLE),
        Section("twice", "What one side computed more than once", tuple(_repeated(parity))),
        _uncompared(parity),
        Section("names", "Names", sentences(*_unmatched(parity))),
        Section("holes", "Cannot be read", sentences(*parity.holes)),
        Section("notes", "Notes", sentences(*parity.notes)),
        Section("next", "Next", commands=parity.advice),
    )
    first = parity.first
    return Document(
        *HEADLINES[parity.verdict],
        scope="" if first is None else f"from {first.path.b} on",
        lead=(
            *sentences(
                _unexplained(report), parity.why if first is None else cause_text(first), _final_outputs(parity)
            ),
            *(f"required {one.text}: {HOLDS[one.holds]}, {one.why}" for one in report.required),
        ),
        facts=tuple(_facts(parity)),
        sections=tuple(filter(None, sections)),
    )


def _facts(parity: Parity) -> Iterator[Fact]:
    for name, other, side in (("A", "B", parity.a), ("B", "A", parity.b)):
        stream = f", {side.stream}" if side.stream else ""
        yield Fact(name, (Code(f"{side.path}{stream}"), f": {side.what}"))
        counts = f"{counted(side.passes, 'forward pass', 'forward passes')}, {counted(side.rows, 'row')}"
        yield Fact("", "; ".join([counts, *_missing(side, other)]))
    yield Fact("rows", sentence(parity.how))


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


def _title(parity: Parity) -> str:
    if parity.first is not None and parity.first.reason is Reason.INPUTS:
        return "First module that is given something else"
    return "First module whose inputs agree and whose outputs differ"


UNEXPLAINED = 1_000.0
"""Log-probabilities of two models' logits differ by at most twice as much as these; what exceeds it by far is not of
them."""


def _unexplained(report: ParityReport) -> str:
    """That log-probabilities differ, where nothing else was compared or by more than the outputs of the models explain;
    else empty."""
    gap, compared = report.effects.gap, report.parity.compared
    if not isinstance(gap, Gap) or not gap.largest:
        return ""
    found = f"log-probabilities differ by up to {gap.largest:.2g}"
    if not compared:
        return found
    distance = compared[-1].distance
    if distance is None and compared[-1].differing:  # values were not recorded
        return ""
    apart = 0.0 if distance is None else distance.absolute
    if apart is None or gap.largest <= UNEXPLAINED * apart:
        return ""
    return f"{found}, and the last outputs by {apart:.1g}: what differs is computed from these outputs"


def _final_outputs(parity: Parity) -> str:
    """The difference at the end of the model."""
    last = parity.compared[-1] if parity.compared else None
    if last is None or not last.differing:
        return ""
    distance = f", {distance_text(last.distance)}" if last.distance is not None else ""
    return f"The outputs of {last.path.b} differ in {part_of(last.differing, last.rows)}{distance}"


# --- origins ----------------------------------------------------------------------------------------------------------


def _first(parity: Parity) -> Iterator[Fact]:
    origin = parity.first
    if origin is None:
        return
    renamed = "" if origin.path.a == origin.path.b else f" ({origin.path.a} in A)"
    yield Fact("module", (Code(str(origin.path.b)), renamed))
    if origin.own:
        yield Fact("", "(its own ops: no module that it calls explains it)")
    which = "that both computed" if origin.reason is Reason.INPUTS else "whose inputs agree"
    yield Fact("rows", f"{origin.rows:,} of {origin.of:,} {which}; the first is {origin.row}")
    yield Fact("computed", f"call {origin.call.a} of A, call {origin.call.b} of B")
    if origin.op.a is not None or origin.op.b is not None:
        yield from _pair_of_ops("op", origin.op)
    for pair in origin.several:
        yield from _pair_of_ops("one of", pair)
    yield Fact("cause", sentence(cause_text(origin)))


def _pair_of_ops(label: str, pair: Pair[ParityOp]) -> Iterator[Fact]:
    sides = (pair.a, pair.b)
    calls = (None if op is None else f"{op.op}({', '.join(op.layouts)}), row {op.row:,}" for op in sides)
    yield Fact(label, Pair(*calls))
    kernels = Pair(*(None if op is None else op.kernel or None for op in sides))
    if kernels.a or kernels.b:
        yield Fact("kernel", kernels)
    shown = pair.b or pair.a
    if shown is not None and shown.site is not None:
        yield Fact("site", shown.site)


def cause_text(origin: ModuleOrigin) -> str:
    """``the shape of the batch: addmm over 4 rows against 80 rows``."""
    return (
        f"{CAUSES[origin.reason]}: {origin.explanation}" if origin.reason is not Reason.UNKNOWN else origin.explanation
    )


def part_of(count: int, whole: int) -> str:
    return f"all {whole:,} rows" if count == whole else f"{count:,} of {whole:,} rows"


def distance_text(distance: Distance | None) -> str:
    """``at most 5.4e-07 apart (relative 2.7e-03, 26,134 ULP), at token 10 of sequence 7``."""
    if distance is None or distance.absolute is None:
        return "not finite" if distance is not None else "distance unknown"
    rest = [] if distance.relative is None else [f"relative {distance.relative:.1e}"]
    rest += [] if distance.ulp is None or distance.ulp > MOST_ULP else [f"{distance.ulp:,} ULP"]
    at = f", largest at {distance.worst}" if distance.worst else ""
    return f"max |A - B| {distance.absolute:.1e} ({', '.join(rest)}){at}"


# --- all modules ------------------------------------------------------------------------------------------------------


def _modules(parity: Parity) -> Section:
    root = _root(parity.compared)
    origins = {origin.path.a for origin in parity.origins}
    rows = (
        (one,) if isinstance(one, str) else _module(one, root, is_origin=one.path.a in origins)
        for one in _shown(parity.compared, origins)
    )
    title = f"Modules{f' of {root}' if root else ''}, each after those that it calls"
    columns = ("module", "rows", "differ", "largest", "ULP")
    return Section("modules", title, columns=columns, rows=tuple(rows), limit=ALL)


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
            yield f"… {skipped} more"
        skipped = 0
        yield module


def _module(module: ModuleResult, root: str, *, is_origin: bool) -> tuple[Inline, ...]:
    mark = "!" if is_origin else ("x" if module.differing else "=")
    path, distance = str(module.path.b), module.distance
    largest = "" if distance is None or distance.absolute is None else f"{distance.absolute:.1e}"
    ulp = "" if distance is None or distance.ulp is None else f"{distance.ulp:,}"
    name = path.removeprefix(f"{root}.") if root else path
    return (f"{mark} ", Code(name)), *map(Number, (f"{module.rows:,}", f"{module.differing:,}", largest, ulp))


def _repeated(parity: Parity) -> Iterator[str]:
    for one in parity.repeated:
        head = f"{one.side.upper()}, {one.how}"
        if one.rows:
            where = f"{part_of(one.rows, one.of)} of {one.module} differ, first in {one.what}"
            yield sentence(f"{head}: {where}, so it does not agree with itself")
        else:
            yield sentence(f"{head}: {counted(one.of, 'row')}, equal everywhere")


def _uncompared(parity: Parity) -> Section:
    found: dict[str, list[str]] = {}
    for module in parity.modules:
        for one in module.uncompared:
            path = module.path.a if one.side == "a" else module.path.b
            found.setdefault(one.why, []).append(f"{one.part} {one.name}".rstrip() + f" of {path}")
    without = [module for module in parity.modules if not module.rows]
    head = f"Not compared by row: {counted(sum(len(set(names)) for names in found.values()), 'tensor')}"
    return Section(
        "uncompared",
        head + (f", and nothing of {counted(len(without), 'module')}" if without else ""),
        tuple(
            sentence(f"{names[0]}{f' and {len(set(names)) - 1} more' if len(set(names)) > 1 else ''}: {why}")
            for why, names in found.items()
        ),
    )


def _unmatched(parity: Parity) -> Iterator[str]:
    yield from (f"{pair.a} of A matches {pair.b} of B" for pair in parity.renamed)
    for name, paths in (("A", parity.only_a), ("B", parity.only_b)):
        if paths:
            more = ", …" if len(paths) > 4 else ""
            yield f"{counted(len(paths), 'module')} of {name} unmatched: {', '.join(paths[:4])}{more}"
