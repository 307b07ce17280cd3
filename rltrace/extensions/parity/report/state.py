"""The document of parameters, gradients and optimizer state of two programs, compared as whole tensors."""

from collections.abc import Iterator, Sequence

from rltrace.diff.base.model import Verdict
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.extensions.parity.state import (
    FACTOR,
    StateComparison,
    StateSide,
    StateTensor,
    StateVerdict,
    TensorId,
)
from rltrace.report.document import ALL, Code, Document, Fact, Inline, Number, Section
from rltrace.trace.format.shards import ShardKind
from rltrace.wording import counted, sentence, sentences

SHOWN = 20
"""Tensors that are listed one by one; the JSON report has all of them."""

HEADLINES = {
    StateVerdict.BITWISE: ("BITWISE EQUAL", Verdict.IDENTICAL),
    StateVerdict.EXPLAINED: ("EXPLAINED BY THE ORDER OF SUMS", Verdict.IDENTICAL),
    StateVerdict.DIFFERS: ("DIFFERS", Verdict.DIVERGED),
    StateVerdict.UNDECIDED: ("UNDECIDED", Verdict.UNKNOWN),
}


def state_document(found: StateComparison) -> Document:
    """The first tensor that differs, all that do, and what was not compared."""
    renamed = (f"{one.a} of A matches {one.b} of B" for one in found.renamed)
    sections = (
        _first(found),
        _tensors(found.tensors),
        Section("replicas", "Copies that differ between ranks", tuple(_replicas(found))),
        Section("uncompared", "Not compared", sentences(*_uncompared(found))),
        Section("notes", "Notes", sentences(*renamed, *found.notes)),
    )
    headline, verdict = HEADLINES[found.verdict]
    equal = f"{found.equal:,} bitwise equal"
    compared = f"{counted(found.compared, 'tensor')} of {counted(len(found.steps), 'step')}, {equal}"
    facts = (
        *(Fact(name, _side(side)) for name, side in (("A", found.a), ("B", found.b))),
        Fact("compared", compared),
        Fact("", _how(found)),
    )
    return Document(headline, verdict, lead=sentences(found.why), facts=facts, sections=tuple(filter(None, sections)))


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


def _first(found: StateComparison) -> Section:
    first = found.first
    if first is None:
        return Section("first", "")
    dtypes = first.dtype.a if first.dtype.a == first.dtype.b else f"{first.dtype.a} in A, {first.dtype.b} in B"
    renamed = "" if first.name.a == first.name.b else f" ({first.name.a} in A)"
    facts = (
        Fact("tensor", (Code(str(TensorId(first.kind, str(first.name.b), first.key))), renamed)),
        Fact("when", f"optimizer step {first.step}"),
        Fact("shape", f"{list(first.shape)} {dtypes}, {counted(first.differing, 'element')} differ"),
        Fact("distance", _distance(first)),
        Fact("element", f"{list(first.index)}: {first.values.a} in A, {first.values.b} in B"),
        Fact("order", sentence(_explanation(first))),
    )
    beyond = "" if first.explained else " by more than is explained"
    return Section("first", f"First tensor that differs{beyond}", facts=facts)


def _distance(tensor: StateTensor) -> str:
    if tensor.absolute is None:
        return "not finite on one side"
    rest = [] if tensor.relative is None else [f"relative {tensor.relative:.1e}"]
    rest += [] if tensor.ulp is None or tensor.ulp > MOST_ULP else [f"{tensor.ulp:,} ULP"]
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


def _tensors(tensors: Sequence[StateTensor]) -> Section:
    """At most ``SHOWN``: those beyond what is explained before others, in their order."""
    chosen = sorted(range(len(tensors)), key=lambda at: (tensors[at].explained, at))[:SHOWN]
    rows: list[tuple[Inline, ...]] = [_row(tensors[at]) for at in sorted(chosen)]
    if len(tensors) > SHOWN:
        rows.append((f"… and {len(tensors) - SHOWN:,} more (--format json has them all)",))
    title = "Tensors that differ, in order (!: by more than is explained)"
    columns = ("tensor", "what", "step", "largest", "ULP", "explained")
    return Section("tensors", title, columns=columns, rows=tuple(rows), limit=ALL)


def _row(tensor: StateTensor) -> tuple[Inline, ...]:
    name = (" " if tensor.explained else "!", " ", Code(str(tensor.name.b)))
    largest = "" if tensor.absolute is None else f"{tensor.absolute:.1e}"
    ulp = "" if tensor.ulp is None else f"{tensor.ulp:,}"
    share = "none" if tensor.excess is None else f"x {tensor.excess:.1g}"
    return name, tensor.key or tensor.kind.value, *map(Number, (f"{tensor.step}", largest, ulp, share))


def _replicas(found: StateComparison) -> Iterator[str]:
    for one in found.replicas:
        yield sentence(
            f"{TensorId(one.kind, one.name, one.key)} at step {one.step}: ranks {one.ranks[0]} and {one.ranks[1]} of"
            f" {one.side.upper()} differ; that of rank {one.ranks[0]} was compared"
        )


def _uncompared(found: StateComparison) -> list[str]:
    only = [f"parameter {name}: only A has it" for name in found.only_a]
    only += [f"parameter {name}: only B has it" for name in found.only_b]
    return only + [f"{TensorId(one.kind, one.name, one.key)} at step {one.step}: {one.why}" for one in found.uncompared]
