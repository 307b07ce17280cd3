"""Samples of series on their way into full chunks; until there is one, each commit's own are in its journal record.

Owns the journal's records of series, as they are written. Steps are packed alike (``packing.py``); but a program may
watch a number at every environment step, so samples stay arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import codec
from rltrace.trace.arrays import SERIES
from rltrace.trace.journal import Record
from rltrace.trace.packing import WriteChunk, rows_to_text
from rltrace.trace.schema import SAMPLE_CHUNK, Sample


class SamplePacker:
    """Samples that are in no chunk yet."""

    def __init__(self) -> None:
        self.count = 0
        """Samples so far."""
        self._chunks = 0
        self._tail: NDArray[np.uint64] = np.zeros((0, len(Sample)), np.uint64)

    def write(self, new: NDArray[np.uint64] | None, write_chunk: WriteChunk, *, last: bool = False) -> list[Record]:
        """Records of the chunks that are full now, and of new samples that are in none; ``last``: all go into one."""
        waiting = self._tail if new is None else np.concatenate([self._tail, new])
        first = self.count - len(self._tail)
        self.count = first + len(waiting)
        records: list[Record] = []
        while len(waiting) >= SAMPLE_CHUNK or (last and len(waiting)):
            part, waiting = waiting[:SAMPLE_CHUNK], waiting[SAMPLE_CHUNK:]
            stored = np.zeros(codec.stored_shape(SERIES), np.uint64)
            stored[:, : len(part)] = part.T
            file = write_chunk(SERIES.name, SERIES, self._chunks, stored)
            records.append({"type": "series", "first": first, "samples": len(part), "chunk": self._chunks})
            records[-1]["files"] = [file]
            first += len(part)
            self._chunks += 1
        told = 0 if new is None else min(len(new), len(waiting))
        if told:
            text = rows_to_text(SERIES, waiting[-told:])
            records.append({"type": "series", "first": self.count - told, "samples": told, "rows": text})
        self._tail = waiting.copy()
        return records
