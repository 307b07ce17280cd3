"""Recorded ops that were run again, one after the other, as text. Never prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rltrace.query.rerun_size import RerunSize
from rltrace.report.diff_text import render_comparison, wrapped
from rltrace.report.style import Style
from rltrace.rerun.program import ProgramRerun
from rltrace.rerun.rerun_result import DifferingOp, RerunResult
from rltrace.selectors import Range
from rltrace.wording import counted, joined

MAX_KINDS: Final = 8
"""Kinds of op that the text lists."""


def rerun_lines(result: RerunResult, steps: Sequence[int], style: Style) -> Iterator[str]:
    """The result as text."""
    of = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    if result.bitwise:
        yield f"{style.bold('BITWISE')}  {counted(result.ops, 'op')} of {of}, {result.process}: the recorded bits"
    else:
        yield (
            f"{style.bold('DIFFERS')}  {result.differing:,} of {counted(result.ops, 'op')} of {of}, {result.process}, "
            "give other bits here"
        )
    if result.first is not None:
        yield ""
        yield f"first     {result.first.op}, {_place(result.first)}, step {result.first.step:,}"
        if result.first.module:
            yield f"module    {result.first.module}"
        if result.first.site:
            yield f"at        {result.first.site}"
        yield f"recorded  {' '.join(result.first.recorded)}"
        yield f"here      {' '.join(result.first.here)}"
    if result.kinds:
        yield ""
        yield "Give other bits here on recorded inputs:"
        for kind in result.kinds[:MAX_KINDS]:
            apart = "" if kind.distance is None else f", by {kind.distance:.3g} at most"
            yield f"  {kind.op:<40}  {kind.count:,} of {kind.of:,}, the first is {_place(kind.first)}{apart}"
        if len(result.kinds) > MAX_KINDS:
            yield f"  … and {counted(len(result.kinds) - MAX_KINDS, 'other kind')}"
    if result.unsettled:
        yield ""
        what = "Not compared: memory that nothing had written, or that a collective was writing, reached"
        yield from wrapped(f"{what} {counted(result.unsettled, 'op')}.", "  ", "")
    if result.from_record:
        names = joined(f"{count:,} {name}" for name, count in result.from_record)
        yield ""
        yield from wrapped(f"Not run, what they wrote is as it was recorded: {names}.", "  ", "")


def size_lines(found: Sequence[RerunSize], steps: Range, sizes: Callable[[int], str], style: Style) -> Iterator[str]:
    """What recording ``steps`` to run them again takes, as text; ``sizes`` writes a number of bytes."""
    last = steps.start if steps.stop is None else steps.stop - 1
    of = f"step {last:,}" if last == steps.start else f"steps {steps.start:,} to {last:,}"
    total = sum(one.bytes for one in found)
    yield f"{style.bold('ABOUT ' + sizes(total))}  of memory: what the ops of {of} read that was written before"
    yield ""
    width = max(len(one.process) for one in found)
    for one in found:
        what = f"{counted(one.tensors, 'tensor')} of {counted(one.ops, 'op')}"
        yield f"{one.process:<{width}}  {sizes(one.bytes):>9}  {what}"


def program_lines(result: ProgramRerun, style: Style) -> Iterator[str]:
    """The same of a program that ran the steps."""
    memory, comparison = result.memory, result.comparison
    if memory.refused is not None:
        yield f"{style.bold('REFUSED')}  {memory.refused}"
        yield ""
        yield "The record has no answer to it, so the program was ended there."
    elif comparison is None:
        yield f"{style.bold('NOT REACHED')}  the program ended before the recorded steps began"
        yield from filter(None, [result.why])
        return
    elif result.bitwise:
        ops = counted(sum(comparison.compared.values()), "op")
        yield f"{style.bold('BITWISE')}  {ops} of {result.process}, run by the program: the recorded bits"
    else:
        yield f"{style.bold('DIFFERS')}  {result.process}, run by the program, from what was recorded"
    yield ""
    collectives = counted(memory.answered, "collective")
    yield f"memory    written for {counted(memory.injected, 'op')}; {collectives} answered as recorded"
    if memory.lacking:
        first = memory.missed[0]
        where = f"op {first.row:,} of {first.stream}"
        yield f"          not for {counted(memory.lacking, 'op')}, the first is {where}: {first.why}"
    if comparison is not None and not result.bitwise:
        yield ""
        yield render_comparison(comparison, color=style.color)


def _place(op: DifferingOp) -> str:
    return f"op {op.row:,} of {op.stream}"
