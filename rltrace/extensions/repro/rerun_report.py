"""The documents of recorded ops that were run again one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rltrace.diff.base.model import Verdict
from rltrace.extensions.repro.rerun_result import DifferingKind, DifferingOp, RerunResult
from rltrace.extensions.repro.rerun_size import RerunSize
from rltrace.report.document import ALL, Code, Document, Fact, Number, Section
from rltrace.selectors import Range
from rltrace.wording import counted, joined, sentences


def rerun_document(result: RerunResult, steps: Sequence[int]) -> Document:
    """Of the recorded ops of ``steps``."""
    of = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    ops = f"{counted(result.ops, 'op')} of {of}, {result.process}"
    unsettled = counted(result.unsettled, "op")
    reached = f"memory that nothing had written, or that a collective was writing, reached {unsettled}"
    names = joined(f"{count:,} {name}" for name, count in result.from_record) if result.from_record else ""
    notes = (
        f"not compared: {reached}" if result.unsettled else "",
        f"not run, what they wrote is as it was recorded: {names}" if names else "",
    )
    sections = (
        Section("first", "First op that differs", facts=tuple(_facts(result.first)) if result.first else ()),
        Section("kinds", "Give other bits here on recorded inputs", columns=KINDS, rows=tuple(map(_row, result.kinds))),
        Section("notes", "Notes", sentences(*notes)),
    )
    return Document(
        "BITWISE" if result.bitwise else "DIFFERS",
        Verdict.IDENTICAL if result.bitwise else Verdict.DIVERGED,
        scope=f"{ops}: the recorded bits" if result.bitwise else f"{result.differing:,} of {ops}, give other bits here",
        sections=tuple(filter(None, sections)),
    )


KINDS = ("op", "differ", "largest distance", "first")


def _row(kind: DifferingKind) -> tuple[str, ...]:
    distance = "" if kind.distance is None else f"{kind.distance:.3g}"
    return kind.op, f"{kind.count:,} of {kind.of:,}", distance, _place(kind.first)


def _facts(first: DifferingOp) -> Iterator[Fact]:
    yield Fact("op", Code(first.op))
    yield Fact("row", f"{_place(first)}, step {first.step:,}")
    if first.module:
        yield Fact("module", Code(first.module))
    if first.site:
        yield Fact("site", Code(str(first.site)))
    yield Fact("recorded", Code(" ".join(first.recorded)))
    yield Fact("here", Code(" ".join(first.here)))


def size_document(found: Sequence[RerunSize], steps: Range, sizes: Callable[[int], str]) -> Document:
    """What recording ``steps`` to run them again takes; ``sizes`` writes a number of bytes."""
    last = steps.start if steps.stop is None else steps.stop - 1
    of = f"step {last:,}" if last == steps.start else f"steps {steps.start:,} to {last:,}"
    rows = (
        (one.process, Number(sizes(one.bytes)), f"{counted(one.tensors, 'tensor')} of {counted(one.ops, 'op')}")
        for one in found
    )
    return Document(
        f"ABOUT {sizes(sum(one.bytes for one in found))}",
        scope=f"of memory: what the ops of {of} read that was written before",
        sections=(Section("processes", "", columns=("", "", ""), rows=tuple(rows), limit=ALL),),
    )


def _place(op: DifferingOp) -> str:
    return f"op {op.row:,} of {op.stream}"
