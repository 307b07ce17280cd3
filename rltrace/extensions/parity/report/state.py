"""Parameters, gradients and optimizer state of two programs, compared as whole tensors, as text.

Owns the order of the report and its wording; readable at 80 columns and without colour. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rltrace.extensions.parity.report.text import listed
from rltrace.extensions.parity.state import (
    FACTOR,
    StateComparison,
    StateSide,
    StateTensor,
    StateVerdict,
    described,
)
from rltrace.report.diff_text import wrapped
from rltrace.report.style import Style
from rltrace.trace.format.shards import ShardKind
from rltrace.wording import counted, sentence

SHOWN = 20
"""Tensors that are listed one by one; the JSON report has all of them."""

NAME = 30
"""Columns of a parameter's name."""

HEADLINES = {
    StateVerdict.BITWISE: ("BITWISE EQUAL", "32"),
    StateVerdict.EXPLAINED: ("EXPLAINED BY THE ORDER OF SUMS", "32"),
    StateVerdict.DIFFERS: ("DIFFERS", "31"),
    StateVerdict.UNDECIDED: ("UNDECIDED", "33"),
}


def render_state(found: StateComparison, *, color: bool = False) -> str:
    """The report, without a newline at its end."""
    style = Style(color)
    sections: list[Iterable[str]] = [
        _head(found, style),
        _first(found, style),
        _tensors(found, style),
        _replicas(found, style),
        listed("Not compared", _uncompared(found), style),
        listed("Note", [*(f"{one.a} of A matches {one.b} of B" for one in found.renamed), *found.notes], style),
    ]
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text)


def _head(found: StateComparison, style: Style) -> Iterator[str]:
    headline, color = HEADLINES[found.verdict]
    yield style.paint(headline, color)
    yield from wrapped(sentence(found.why))
    yield ""
    for name, side in (("A", found.a), ("B", found.b)):
        yield from wrapped(_side(side), "     ", f"  {name}  ")
    counts = (
        f"{counted(found.compared, 'tensor')} of {counted(len(found.steps), 'step')}, {found.equal:,} bitwise equal"
    )
    yield from wrapped(counts, "     ", "  =  ")
    yield from wrapped(_how(found), "     ", "     ")


def _side(side: StateSide) -> str:
    return f"{side.path}: {counted(side.ranks, 'rank')}{''.join(f'; {mesh}' for mesh in side.meshes)}"


def _how(found: StateComparison) -> str:
    if found.reference is not None:
        return (
            f"explained: at most {FACTOR:.0f} times as far from A as A is from the reference {found.reference}; of"
            " parameters after a step, what their gradients' differences can do to the update"
        )
    dtype = f" in {found.precision}" if found.precision else ""
    return (
        f"explained: at most what two orders of a sum of {found.summands:,} numbers{dtype} can differ by, relative to"
        " the tensor's largest number (--summands); of parameters after a step, what their gradients' differences can"
        " do to the update"
    )


def _first(found: StateComparison, style: Style) -> Iterator[str]:
    first = found.first
    if first is None:
        return
    beyond = "" if first.explained else " by more than is explained"
    yield style.bold(f"First tensor that differs{beyond}")
    name = str(first.name.b)
    yield f"  tensor   {style.bold(described(first.kind, name, first.key))}"
    if first.name.a != first.name.b:
        yield f"           ({first.name.a} in A)"
    yield f"  when     optimizer step {first.step}"
    dtypes = first.dtype.a if first.dtype.a == first.dtype.b else f"{first.dtype.a} in A, {first.dtype.b} in B"
    yield f"  shape    {list(first.shape)} {dtypes}, {counted(first.differing, 'element')} differ"
    yield from wrapped(_distance(first), "           ", "  distance ")
    yield f"  element  {list(first.index)}: {first.values.a} in A, {first.values.b} in B"
    yield from wrapped(sentence(_explanation(first)), "           ", "  order    ")


def _distance(tensor: StateTensor) -> str:
    if tensor.absolute is None:
        return "not finite on one side"
    rest = [] if tensor.relative is None else [f"relative {tensor.relative:.1e}"]
    rest += [] if tensor.ulp is None else [f"{tensor.ulp:,} ULP"]
    rest += [] if tensor.share is None else [f"{tensor.share:.1e} of the tensor's largest number"]
    return f"max |A - B| {tensor.absolute:.1e} ({', '.join(rest)})"


def _explanation(tensor: StateTensor) -> str:
    if tensor.kind is ShardKind.BEFORE and tensor.excess is None:
        return "no step was taken yet: the programs begin with other parameters, which no order of sums explains"
    if tensor.excess is None:
        return "no order of sums explains it"
    what = "can be explained by another order of sums" if tensor.explained else "is not explained by an order of sums"
    if tensor.kind is ShardKind.AFTER:
        what = f"{what}{'' if tensor.explained else ': the gradient does not explain this update'}"
    needs = "" if tensor.summands is None else f"; sums of {tensor.summands:.3g} numbers or more can differ by as much"
    return f"{what}: {tensor.excess:.2g} of what is explained{needs}"


def _tensors(found: StateComparison, style: Style) -> Iterator[str]:
    if not found.tensors:
        return
    yield style.bold("Tensors that differ, in order (!: by more than is explained)")
    yield f"    step  {'':<{NAME + 12}} {'largest':>9} {'ULP':>11} {'explained':>9}"
    for tensor in _shown(found.tensors):
        mark = " " if tensor.explained else "!"
        largest = "" if tensor.absolute is None else f"{tensor.absolute:.1e}"
        ulp = "" if tensor.ulp is None else f"{tensor.ulp:,}"
        share = "none" if tensor.excess is None else f"x {tensor.excess:.1g}"
        name = str(tensor.name.b)[-NAME:]
        what = tensor.key or tensor.kind.value
        yield f"  {mark} {tensor.step:>4}  {name:<{NAME}} {what[:11]:<11} {largest:>9} {ulp:>11} {share:>9}"
    if len(found.tensors) > SHOWN:
        yield f"    … and {len(found.tensors) - SHOWN:,} more (--format json has them all)"


def _shown(tensors: Sequence[StateTensor]) -> list[StateTensor]:
    """At most ``SHOWN``: those beyond what is explained before others, in their order."""
    chosen = sorted(range(len(tensors)), key=lambda at: (tensors[at].explained, at))[:SHOWN]
    return [tensors[at] for at in sorted(chosen)]


def _replicas(found: StateComparison, style: Style) -> Iterator[str]:
    texts = [
        f"{described(one.kind, one.name, one.key)} at step {one.step}: ranks {one.ranks[0]} and {one.ranks[1]} of"
        f" {one.side.upper()} differ; that of rank {one.ranks[0]} was compared"
        for one in found.replicas
    ]
    yield from listed("Copies that differ between ranks", texts, style)


def _uncompared(found: StateComparison) -> list[str]:
    only = [f"parameter {name}: only A has it" for name in found.only_a]
    only += [f"parameter {name}: only B has it" for name in found.only_b]
    return only + [
        f"{described(one.kind, one.name, one.key)} at step {one.step}: {one.why}" for one in found.uncompared
    ]
