"""The recorded ops of a trace that a selector matches, one at a time.

Owns the description of one row (``OpLine``). Reads a segment at a time, so memory stays flat; rows that cannot be read
are one ``HoleLine``. Never prints.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError, SelectorError
from rltrace.selectors import Key, Range, Selector, within_steps
from rltrace.trace.format.events import Event, event_of
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag, Step, event_name
from rltrace.trace.read.names import Site, Words
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace

FLAGS = {
    RowFlag.MARKED: "marked",
    RowFlag.VIEW: "view",
    RowFlag.ALLOCATION: "allocation",
    RowFlag.OVERLAPPING: "overlapping",
}

Value = bool | int | float | complex | None


@dataclass(frozen=True)
class OpInput:
    """One tensor input and its producer."""

    layout: str
    """``float32[64,4]``, with ``@device`` unless it is the CPU; "" where it was not recorded."""
    producer: int | None
    """Row that wrote it, or that read the same unchanged view; null: see ``origin``."""
    origin: str
    """``row``, ``outside``, ``mixed`` or ``unknown``."""
    digest: str | None
    """16 hex digits, where this op's inputs were hashed."""
    result: int | None = None
    """Which of the producer's results it is, or a part of; null: not known, or it wrote none."""
    storage_offset: int = 0
    """Elements in its storage before its first one."""


@dataclass(frozen=True)
class OpLine:
    """One row of a stream, described."""

    stream: str
    row: int
    kind: str
    """``op``, or the event's name."""
    step: int
    phase: str
    op: str
    inputs: tuple[OpInput, ...]
    module: str
    site: Site | None
    """Innermost user frame."""
    stack: tuple[Site, ...]
    """All user frames, innermost first."""
    outputs: tuple[str, ...]
    """Digests, 16 hex digits each."""
    names: tuple[str, ...]
    """Of the outputs, "" for one that has none; empty: none has one. Those of JAX programs have."""
    rng: str | None
    """Digest of the RNG state before the op, where the op draws from it."""
    value: Value
    kernel: str
    flags: tuple[str, ...]
    """``marked``, ``view``, ``allocation``, ``overlapping``."""
    event: Event | None = None
    """The content of a row that is an event."""


@dataclass(frozen=True)
class HoleLine:
    """Recorded rows that cannot be read."""

    stream: str
    first: int
    rows: int
    why: str


Line = OpLine | HoleLine


NEAR: Final = 10
"""Rows before and after one, that are around it."""


def list_ops(trace: Trace, selector: Selector, steps: Range | None = None, around: int | None = None) -> Iterator[Line]:
    """Rows within ``steps`` that ``selector`` matches: process by process, stream by stream, in execution order.

    ``around``: only rows at most NEAR before or after this one. Raises SelectorError for it together with ``nth``,
    which needs all rows of a step.
    """
    if around is not None and Key.NTH in selector.keys:
        raise SelectorError("nth= cannot be used with --around, which reads no whole step")
    selector = selector & within_steps(steps) if steps else selector
    for process in trace.processes:
        for stream in process.streams:
            yield from _stream_ops(process, stream, selector, around)


def _stream_ops(process: ProcessTrace, stream: StreamTrace, selector: Selector, around: int | None) -> Iterator[Line]:
    mask = RowMask(selector, stream.name, process.words)
    if not mask.is_possible:
        return
    start, stop = row_bounds(process, stream, selector.steps)
    if around is not None:
        start, stop = max(start, around - NEAR), min(stop, around + NEAR + 1)
    for first, end in _pieces(stream, start, stop):
        try:
            rows = stream.read(first, end)
        except HoleError as error:
            mask.skip()
            yield HoleLine(stream.name, first, end - first, str(error))
            continue
        for i in np.flatnonzero(mask.compute(rows)).tolist():
            yield op_line(rows, i, stream.name, process.words)


def row_bounds(process: ProcessTrace, stream: StreamTrace, steps: Range) -> tuple[int, int]:
    """(start, stop) of the rows of the stream that can have a step in ``steps``."""
    ended = process.steps[process.steps[:, Step.STREAM] == stream.index]
    before = ended[ended[:, Step.STEP] < steps.start]
    start = int(before[:, Step.END_ROW].max()) if len(before) else 0
    if steps.stop is None:
        return start, stream.rows
    after = ended[ended[:, Step.STEP] >= steps.stop - 1]
    return start, int(after[:, Step.END_ROW].min()) if len(after) else stream.rows


def _pieces(stream: StreamTrace, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """``start`` to ``stop``, cut at segments and gaps: each piece can be read as a whole or not at all."""
    cuts = {start, stop}
    for segment in stream.segments:
        cuts |= {segment.first, segment.stop}
    edges = sorted(cut for cut in cuts if start <= cut <= stop)
    yield from pairwise(edges)


def op_line(rows: Rows, i: int, stream: str, words: Words) -> OpLine:
    """Describe row ``i`` of ``rows``."""
    columns: NDArray[np.uint32] = rows.columns[i]
    kind, flags = int(columns[Column.KIND]), rows.flags(i)
    stack = words.stack(int(columns[Column.SITE]))
    rng = rows.rng(i)
    skeleton = words.skeleton(int(columns[Column.SCALARS]))
    event = None if kind in (Kind.OP, Kind.WINDOW) else event_of(rows, i, skeleton)
    return OpLine(
        stream=stream,
        row=rows.first + i,
        kind=event_name(kind),
        step=int(columns[Column.STEP]),
        phase=words.phase(int(columns[Column.PHASE])),
        op=words.op(int(columns[Column.OP])) if kind == Kind.OP else event_name(kind),
        inputs=_inputs(rows, i, words),
        module=words.module(int(columns[Column.MODULE])),
        site=stack[0] if stack else None,
        stack=stack,
        outputs=tuple(f"{digest:016x}" for digest in rows.outputs(i)),
        names=tuple(words.written(int(columns[Column.SCALARS]))),
        rng=None if rng is None else f"{rng:016x}",
        value=rows.value(i),
        kernel=words.kernel(int(columns[Column.KERNEL])) or "",
        flags=tuple(word for flag, word in FLAGS.items() if flag in flags) if event is None else (),
        event=event,
    )


def _inputs(rows: Rows, i: int, words: Words) -> tuple[OpInput, ...]:
    layouts = list(words.layouts(int(rows.columns[i, Column.STRUCTURE])))
    links = list(rows.inputs(i))
    layouts += [""] * (len(links) - len(layouts))
    inputs = []
    for number, layout in enumerate(layouts):
        link = links[number] if number < len(links) else None
        distance = int(Origin.UNKNOWN) if link is None else link.distance
        inputs.append(
            OpInput(
                layout=layout,
                producer=rows.first + i - distance if distance > 0 else None,
                origin="row" if distance > 0 else Origin(distance).name.lower(),
                digest=None if link is None or link.digest is None else f"{link.digest:016x}",
                result=None if link is None or link.known or distance <= 0 else link.slot,
                storage_offset=0 if link is None else link.offset,
            )
        )
    return tuple(inputs)
