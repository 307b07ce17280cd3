"""A's activation rows, looked up by tensor and key.

Owns the look-up, and the choice where A computed a row several times. Reads values on demand. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.extensions.parity.token_keys import NO_KEY, NONE, Keys, Numbers
from rltrace.trace.read.values import Value

Fetch = Callable[[int], Value | None]

OUTPUT = ""
"""The name of no op: an output of the module."""

CACHE_BYTES = 256 << 20
"""Of values."""


class TensorPlace(NamedTuple):
    """A tensor of a forward pass."""

    module: str
    """A's path."""
    op: str
    """``aten.topk.default``; ``OUTPUT``: an output of the module."""
    nth: int
    """Occurrence of the op in the module, or of the module's call, in the forward pass, from 0."""
    name: str
    """``indices``, ``logits``, ``0``; empty where it is the whole result."""


@dataclass(frozen=True, eq=False)
class RowSource:
    """Rows of one tensor of A."""

    place: TensorPlace
    whole: int
    """Digest of the tensor, for its value."""
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Of rows."""
    keys: Keys
    """[n]: of each token."""
    tensor_rows: Numbers
    """[n, k]: the rows of the tensor for each token, such as one for each head."""
    digests: Keys
    """[n]: of each token's rows."""
    sequences: Numbers
    """[n]: number of each token's sequence; NONE: none."""
    step: int
    order: int
    """Number in execution order."""
    fetch: Fetch

    @property
    def form(self) -> tuple[str, tuple[int, ...], int]:
        """(dtype, shape of a row, rows for each token), equal for all tensors whose rows are interchangeable."""
        return self.dtype, row_shape(self.shape, self.axes), self.tensor_rows.shape[1]


@dataclass(frozen=True, eq=False)
class RowLookup:
    """The rows that were found; [n] each."""

    source: Numbers
    """Number of the source; NONE: A has no such row."""
    row: Numbers
    """Index of the row in the source."""
    several: NDArray[np.bool_]
    """Whether A has several candidates with different bits."""


def row_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one row, without axes of length 1."""
    return tuple(size for axis, size in enumerate(shape) if axis not in axes and size != 1)


def _of_step(steps: Numbers, step: int) -> Numbers:
    """Indices into ``steps``, ascending: of this step, else of the last one before it, else of the first after it."""
    nearest = steps[max(0, int(np.searchsorted(steps, step, "right")) - 1)]
    return np.flatnonzero(steps == nearest)


@dataclass(frozen=True, eq=False)
class _Entries:
    """The rows of one tensor by key; those of a key by step, and in the order of calls."""

    keys: Keys
    steps: Numbers
    sequences: Numbers
    digests: Keys
    source: Numbers
    row: Numbers

    @classmethod
    def of(cls, numbered: Sequence[tuple[int, RowSource]]) -> _Entries:
        lengths = [len(one.keys) for _, one in numbered]
        keys, sequences, digests = (
            np.concatenate([getattr(one, name) for _, one in numbered]) for name in ("keys", "sequences", "digests")
        )
        number, step, order = (
            np.repeat(each, lengths) for each in zip(*((n, one.step, one.order) for n, one in numbered), strict=True)
        )
        row = np.concatenate([np.arange(length) for length in lengths])
        placed = np.lexsort((row, order, step, keys))
        return cls(*(column[placed] for column in (keys, step, sequences, digests, number, row)))

    def find(self, keys: Keys, sequences: Numbers, step: int) -> RowLookup:
        first, stop = (np.searchsorted(self.keys, keys, side) for side in ("left", "right"))
        there = (first < stop) & (keys != NO_KEY)
        at, several = np.where(there, first, 0), np.zeros(len(keys), bool)
        for i in np.flatnonzero(there & (stop - first > 1)).tolist():
            candidates = first[i] + _of_step(self.steps[first[i] : stop[i]], step)
            own = candidates[(self.sequences[candidates] == sequences[i]) & (sequences[i] != NONE)]
            candidates = own if len(own) else candidates
            at[i], several[i] = candidates[0], (self.digests[candidates] != self.digests[candidates[0]]).any()
        return RowLookup(np.where(there, self.source[at], NONE), self.row[at], several)


class RowTable:
    """A's selected rows."""

    def __init__(
        self,
        sources: Sequence[RowSource],
        anchors: Collection[str] = (),
        sequences: tuple[Keys, Numbers, Numbers] | None = None,
        axes: tuple[int, ...] | None = None,
        *,
        observed: bool = False,
    ) -> None:
        """``anchors``: paths of the modules that are given tokens. ``sequences``: (keys, numbers of their sequences,
        steps) of all tokens of A. ``axes``: requested axes of rows, as of ``rltrace.trace.format.records.axes_of``.
        ``observed``: keys are of observations, not tokens.
        """
        self.observed = observed
        self.sources = tuple(sources)
        self.anchors = frozenset(anchors)
        self.axes = axes
        at: dict[TensorPlace, list[tuple[int, RowSource]]] = {}
        for number, source in enumerate(self.sources):
            if len(source.keys):
                at.setdefault(source.place, []).append((number, source))
        self._entries = {place: _Entries.of(own) for place, own in at.items()}
        keys, numbers, steps = sequences or (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        placed = np.lexsort((steps, keys))
        self._sequence_keys, self._sequences, self._steps = keys[placed], numbers[placed], steps[placed]
        found: dict[str, set[str]] = {}
        for place in self._entries:
            found.setdefault(place.module, set()).add(place.op)
        self.places: Mapping[str, frozenset[str]] = {module: frozenset(ops) for module, ops in found.items()}
        """For each module of A the names of its ops with rows; ``OUTPUT`` for its outputs."""
        self._cache: dict[int, NDArray[Any]] = {}
        self._cached = 0

    @property
    def selected(self) -> frozenset[tuple[str, str]]:
        """(module, op) of all rows."""
        return frozenset((place.module, place.op) for place in self._entries)

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules of A with rows, and of the anchors."""
        return tuple(dict.fromkeys((*sorted(self.anchors), *sorted(self.places))))

    def __contains__(self, place: TensorPlace) -> bool:
        return place in self._entries

    def find(self, place: TensorPlace, keys: Keys, sequences: Numbers, step: int) -> RowLookup:
        """Find A's rows for these keys.

        Of several for one key: those of optimizer step ``step``, else of the last one before it, else of the first one
        after it; of these, those of the sequence in ``sequences`` (as of ``like``), if any; of these, the first.
        """
        return self._entries[place].find(keys, sequences, step)

    def like(self, keys: Keys, step: int) -> Numbers:
        """For each sequence of ``keys`` [sequences, tokens], the number of the one of A with the longest common prefix.

        Of several, one of the step that ``find`` prefers, another for each sequence; NONE: A has none of its tokens.
        """
        found = np.full(len(keys), NONE)
        used: dict[int, int] = {}
        for i, own in enumerate(keys):
            first = np.searchsorted(self._sequence_keys, own, "left")
            stop = np.searchsorted(self._sequence_keys, own, "right")
            known = np.flatnonzero((first < stop) & (own != NO_KEY))
            if len(known):
                last = int(known[-1])
                candidates = first[last] + _of_step(self._steps[first[last] : stop[last]], step)
                numbers = list(dict.fromkeys(self._sequences[candidates].tolist()))
                nth = used.get(int(own[last]), 0)
                found[i] = numbers[min(nth, len(numbers) - 1)]
                used[int(own[last])] = nth + 1
        return found

    def rows(self, number: int, rows: Numbers) -> NDArray[Any]:
        """Rows of a source, [n, k, elements] as stored. Raises HoleError."""
        source = self.sources[number]
        own: NDArray[Any] = self._flat(source)[source.tensor_rows[rows]]
        return own

    def _flat(self, source: RowSource) -> NDArray[Any]:
        """All rows of the tensor, [rows, elements]."""
        found = self._cache.get(source.whole)
        if found is None:
            value = source.fetch(source.whole)
            if value is None:
                raise HoleError(f"A has no value {source.whole:016x}")
            found = value.raw
            if self._cached + found.nbytes > CACHE_BYTES:
                self._cache.clear()
                self._cached = 0
            self._cache[source.whole] = found
            self._cached += found.nbytes
        ahead = np.moveaxis(found, source.axes, range(len(source.axes)))
        lengths = [source.shape[axis] for axis in source.axes]
        return ahead.reshape(int(np.prod(lengths, dtype=np.int64)), -1)


CHOICES: Mapping[str, str] = {
    f"aten.{op}": "indices"
    for op in ("topk.default", "topk.values", "sort.default", "sort.stable", "max.dim", "min.dim")
}
"""By operator that chooses among its inputs, the name of its indices; its other result are the values there."""
