"""The finished optimizer attempts of a process, read part by part, from chunks or from the journal.

Owns what stands in for a chunk that is damaged, and when steps make no sense.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.arrays import STEPS
from rltrace.trace.codec import CodecError
from rltrace.trace.files import Folder, UnreadableError
from rltrace.trace.journal import Record
from rltrace.trace.packing import StepPart, add_part, parse_part, steps_from_text
from rltrace.trace.schema import Step
from rltrace.trace.stream import Counter, read_chunk


class Attempts:
    """Attempts by the part that holds them; each part is read once."""

    def __init__(
        self, folder: Folder, base: str, counter: Counter, damage: list[str], latest_end: Callable[[int], int]
    ) -> None:
        self.parts: list[StepPart] = []
        """Where they stand, in the order of their ending."""
        self._folder = folder
        self._base = base
        self._counter = counter
        self._damage = damage
        """Told of every part that cannot be read."""
        self._latest_end = latest_end
        """Number of a stream to the last row at which a step of it can end."""
        self._read: dict[int, NDArray[np.uint64]] = {}
        """By the number of the first attempt of the part."""

    def take(self, record: Record) -> None:
        """A journal record of steps. Raises ValueError, KeyError or TypeError where it makes no sense."""
        add_part(self.parts, parse_part(record))

    @cached_property
    def all(self) -> NDArray[np.uint64]:
        """Those that could be read, shape [n, len(Step)]; to be asked for once all records are taken."""
        return np.concatenate([_none(), *(self.of(part) for part in self.parts)])

    def of(self, part: StepPart) -> NDArray[np.uint64]:
        """The attempts of one part, without reading the others; those that can be read."""
        if part.first not in self._read:
            self._read[part.first] = self._read_part(part)
        return self._read[part.first]

    def _read_part(self, part: StepPart) -> NDArray[np.uint64]:
        try:
            steps = self._stored(part)
            self._check(steps)
            return steps
        except (UnreadableError, CodecError) as error:
            where = f"{self._base}/{part.file.key}" if part.file else "their journal record"
            left = [steps for own in part.instead if len(steps := self._read_part(own))]
            kept = f"; {sum(map(len, left))} of them are in the journal" if left else ""
            self._damage.append(f"steps {part.first} to {part.stop - 1}: {where} {error}{kept}")
            return np.concatenate([_none(), *left])

    def _stored(self, part: StepPart) -> NDArray[np.uint64]:
        if part.file is None:
            return steps_from_text(part.text, part.count)
        chunk = read_chunk(self._folder, self._base, STEPS, part.file, self._counter)
        steps: NDArray[np.uint64] = chunk[:, : part.count].T.copy()  # a view would keep the whole chunk
        return steps

    def _check(self, steps: NDArray[np.uint64]) -> None:
        """Refuse steps that are in no order, or end where no row is. Raises UnreadableError."""
        in_order = bool((steps[1:, Step.STEP] > steps[:-1, Step.STEP]).all())
        for stream in np.unique(steps[:, Step.STREAM]).tolist():
            ends = steps[steps[:, Step.STREAM] == stream, Step.END_ROW]
            in_order = in_order and bool((ends[1:] >= ends[:-1]).all()) and int(ends[-1]) <= self._latest_end(stream)
        if not in_order:
            raise UnreadableError("makes no sense")


def _none() -> NDArray[np.uint64]:
    return np.zeros((0, len(Step)), np.uint64)
