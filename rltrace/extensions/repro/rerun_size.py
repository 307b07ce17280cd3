"""How much memory the ops of a few steps read that was written before them: what ``record --rerunnable`` would record.

Computed from the rows of a trace that holds none of it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from rltrace.query.ops import row_bounds
from rltrace.selectors import Range
from rltrace.trace.format import dtypes
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace

NOT_RUN: Final = ("c10d.", "_c10d_functional.", "_c10d_functional_autograd.", "inductor.", *LAUNCH_ROWS)
"""Beginnings of the names of ops that a rerun leaves out: what they write is recorded."""


@dataclass(frozen=True)
class RerunSize:
    """What the ops of some steps of one process read and did not make."""

    process: str
    ops: int
    """Those that would be run again."""
    tensors: int
    bytes: int
    """Of the tensors as they are read; where an op reads a part of a storage, all of that is recorded."""


def rerun_size(process: ProcessTrace, steps: Range) -> RerunSize | None:
    """The memory that steps read; None: the process has no ops of them. Raises HoleError."""
    ops, written = 0, set[int]()
    read: dict[object, tuple[int, int | None]] = {}
    for stream in process.streams:
        start, stop = row_bounds(process, stream, steps)
        rows = stream.read(start, stop)
        for i in range(len(rows)):
            cells = rows.columns[i]
            if not steps.matches(int(cells[Column.STEP])) or cells[Column.KIND] != Kind.OP:
                continue
            if _is_run(process, rows, i):
                ops += 1
                written.update(rows.outputs(i))
                for key, nbytes, digest in _reads(process, stream, rows, i, start):
                    read.setdefault(key, (nbytes, digest))
    found = [nbytes for nbytes, digest in read.values() if digest is None or digest not in written]
    return RerunSize(process.name, ops, len(found), sum(found)) if ops else None


def _is_run(process: ProcessTrace, rows: Rows, i: int) -> bool:
    name = process.words.op(int(rows.columns[i, Column.OP]))
    return not rows.has(i, RowFlag.VIEW | RowFlag.ALLOCATION) and not name.startswith(NOT_RUN)


def _reads(
    process: ProcessTrace, stream: StreamTrace, rows: Rows, i: int, start: int
) -> Iterator[tuple[object, int, int | None]]:
    """(what identifies it, bytes, digest if known) of each input of a row that no run op of these rows wrote."""
    layouts = process.words.tensors(int(rows.columns[i, Column.STRUCTURE]))
    for place, (link, layout) in enumerate(zip(rows.inputs(i), layouts, strict=True)):
        if link.distance == Origin.OVERWRITTEN:
            continue
        if link.distance == Origin.MIXED and not start:
            continue  # nothing was written before the first row
        target = i - link.distance
        if link.distance > 0 and target >= 0 and (link.known or _is_run(process, rows, target)):
            continue
        nbytes = (dtypes.itemsize(layout[0]) or 0) * prod(layout[1])
        yield _identity(stream, rows, i, place, link, nbytes), nbytes, link.digest


def _identity(stream: StreamTrace, rows: Rows, i: int, place: int, link: Link, nbytes: int) -> object:
    """Equal for two reads of the same bytes, as far as rows say: a transposed view counts as the same."""
    if link.distance > 0 and link.slot is not None:
        return stream.index, rows.first + i - link.distance, link.slot, link.known, nbytes
    return stream.index, *((rows.first + i, place) if link.digest is None else (link.digest,))
