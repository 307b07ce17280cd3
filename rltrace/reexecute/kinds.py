"""Which kinds of call there are in a process of a trace that oneDNN or MKL may be called for.

Owns what is worth asking about. Reads rows; makes no call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rltrace.errors import HoleError, UsageError
from rltrace.record.kernels import Kernels
from rltrace.record.plans import make_plan
from rltrace.record.tables import Tables
from rltrace.reexecute.recorded import find_operator
from rltrace.trace.prefix import GOLDEN
from rltrace.trace.ran import call_keys
from rltrace.trace.reader import ProcessTrace, StreamTrace
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column, Kind, RowFlag

MOST = 20_000
"""Kinds of call that are asked for; of more, those that are met first."""


@dataclass
class Found:
    """A kind of call, where it was met first, and how often."""

    key: int
    kernel: int
    stream: int
    row: int
    threads: int
    settings: list[int] = field(default_factory=list)
    """Ids in table "settings": what torch was set to at one of its calls or another."""
    times: int = 0


@dataclass
class Looked:
    """What there is to ask of a process."""

    calls: dict[tuple[int, int], Found] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    """Why calls cannot be asked for, and how many kinds."""

    def leave_out(self, why: str) -> None:
        self.unknown[why] = self.unknown.get(why, 0) + 1


def look_through(process: ProcessTrace, steps: range | None) -> Looked:
    """Every kind of call among the rows of these steps (None: of all) that a library may be called for."""
    looked, askable = Looked(), _Askable(process)
    for stream in process.streams:
        for segment in stream.segments:
            try:
                rows = stream.read_segment(segment)
            except HoleError:
                continue
            _take(looked, askable, process, stream, rows, steps)
    return looked


def _take(
    looked: Looked, askable: _Askable, process: ProcessTrace, stream: StreamTrace, rows: Rows, steps: range | None
) -> None:
    column = rows.column(Column.STEP)
    idle = (rows.column(Column.FLAGS) & np.uint32(RowFlag.VIEW | RowFlag.ALLOCATION)) != 0
    chosen = (rows.column(Column.KIND) == Kind.OP) & ~idle & askable.of(rows.column(Column.OP))
    if steps is not None:
        chosen &= (column >= steps.start) & (column < steps.stop)
    at = np.flatnonzero(chosen)
    kernels = rows.column(Column.KERNEL)[at]
    keys = call_keys(rows, process.tables)[at]
    settings = rows.column(Column.SETTINGS)[at]
    kinds = (keys + kernels.astype(np.uint64) * GOLDEN) * GOLDEN + settings.astype(np.uint64)
    _, first, counts = np.unique(kinds, return_index=True, return_counts=True)
    for i, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
        key, kernel = int(keys[i]), int(kernels[i])
        evidence = process.tables["kernels"].payloads[kernel]
        threads = evidence.get("threads") if isinstance(evidence, dict) else None
        if (key, kernel) not in looked.calls:
            if not isinstance(threads, int) or len(looked.calls) >= MOST:
                looked.leave_out("on another device" if threads is None else f"more than {MOST:,} kinds of call")
                continue
            looked.calls[key, kernel] = Found(key, kernel, stream.index, rows.first + int(at[i]), threads)
        call = looked.calls[key, kernel]
        call.times += count
        if settings[i] not in call.settings:
            call.settings.append(int(settings[i]))


class _Askable:
    """Which operators may call a library: those of ATen, but for what computes each element for itself."""

    def __init__(self, process: ProcessTrace) -> None:
        kernels = Kernels(Tables())
        names = [str(name) for name in process.tables["ops"].payloads]
        self._known = np.array([_may_call(name, kernels) for name in names], bool)

    def of(self, ops: Any) -> Any:
        return self._known[ops]


def _may_call(name: str, kernels: Kernels) -> bool:
    if not name.startswith("aten.") or name.startswith(("aten._foreach_", "aten._fused_")):
        return False
    try:
        func = find_operator(name)
    except UsageError:
        return False
    if not make_plan(0, func).computes:
        return False
    return torch.Tag.pointwise not in func.tags or kernels.library(name) != "ATen"
