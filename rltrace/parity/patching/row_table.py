"""A's rows, to be looked up by what each is of: its module, where it stood in the forward pass, and its key.

Owns the look-up, and which one is meant where A computed a row several times. Reads values only when they are asked
for. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.parity.matching.layouts import RowLayout
from rltrace.token_keys import NO_KEY, Keys, Numbers
from rltrace.trace.read.values import Value

Fetch = Callable[[int], Value | None]

NONE = -1
"""In place of the number of an entry: there is none."""

OUTPUT = ""
"""In place of an op's name: what the module itself gives."""

CACHED = 256 << 20
"""Bytes of values that are held on to."""


class TensorPlace(NamedTuple):
    """A tensor of a forward pass."""

    module: str
    """A's path."""
    op: str
    """``aten.topk.default``; "": the module's own output."""
    nth: int
    """How-manieth of that module's ops of this name, or of its calls, since the forward pass was given its tokens."""
    name: str
    """Where the tensor stood: ``indices``, ``logits``, ``0``; "" where it is the result itself."""


@dataclass(frozen=True, eq=False)
class RowSource:
    """Rows of one tensor of A."""

    spot: TensorPlace
    whole: int
    """The tensor's digest, by which its value is found."""
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Along which rows are counted."""
    keys: Keys
    """[n]: of each row."""
    parts: Numbers
    """[n, k]: the rows of the tensor, in the order of its axes, that make up each (a token has one for each head)."""
    digests: Keys
    """[n]: equal where the rows' bytes are."""
    sequences: Numbers
    """[n]: number of the sequence of A that each belongs to; NONE: of none."""
    step: int
    order: int
    """Of the calls of A in execution order."""
    fetch: Fetch

    @property
    def form(self) -> tuple[str, tuple[int, ...], int]:
        """What a row of another tensor must have in common with these: dtype, shape, and how many parts it has."""
        return self.dtype, row_shape(self.shape, self.axes), self.parts.shape[1]


@dataclass(frozen=True, eq=False)
class RowLookup:
    """Where the rows that were looked up stand; [n] each."""

    source: Numbers
    """Number of the source; NONE: A has no such row."""
    row: Numbers
    """Which of its rows."""
    several: NDArray[np.bool_]
    """A computed it several times, not alike, and any of these may be meant."""


def _of_step(steps: Numbers, step: int) -> Numbers:
    """Which of these, ascending, are of this step, else of the last one before it, else of the first one after it."""
    wanted = steps[max(0, int(np.searchsorted(steps, step, "right")) - 1)]
    return np.flatnonzero(steps == wanted)


def row_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Of one row of a tensor whose rows are counted along ``axes``; lengths of 1 aside, which say nothing."""
    return tuple(size for axis, size in enumerate(shape) if axis not in axes and size != 1)


class _Entries:
    """The rows at one spot, step by step."""

    def __init__(self, numbered: Sequence[tuple[int, RowSource]]) -> None:
        of_step: dict[int, list[tuple[int, RowSource]]] = {}
        for number, source in numbered:
            of_step.setdefault(source.step, []).append((number, source))
        self._steps = {step: _StepEntries(own) for step, own in sorted(of_step.items())}
        self._keys = np.unique(np.concatenate([source.keys for _, source in numbered]))

    def find(self, keys: Keys, sequences: Numbers, step: int) -> RowLookup:
        found = RowLookup(np.full(len(keys), NONE), np.zeros(len(keys), np.int64), np.zeros(len(keys), bool))
        left = np.flatnonzero(np.isin(keys, self._keys) & (keys != NO_KEY))
        before = [other for other in self._steps if other <= step]
        for other in (*reversed(before), *(later for later in self._steps if later > step)):
            if not len(left):
                break
            here = self._steps[other].find(keys[left], sequences[left])
            known = here.source != NONE
            at = left[known]
            found.source[at], found.row[at], found.several[at] = (
                here.source[known],
                here.row[known],
                here.several[known],
            )
            left = left[~known]
        return found


class _StepEntries:
    """Those of one step: once by key, in the order of calls; once by key and sequence."""

    def __init__(self, numbered: Sequence[tuple[int, RowSource]]) -> None:
        keys = np.concatenate([s.keys for _, s in numbered])
        source = np.concatenate([np.full(len(s.keys), number) for number, s in numbered])
        row = np.concatenate([np.arange(len(s.keys)) for _, s in numbered])
        order = np.concatenate([np.full(len(s.keys), s.order) for _, s in numbered])
        digests = np.concatenate([s.digests for _, s in numbered])
        sequence = np.concatenate([s.sequences for _, s in numbered])
        self._known = np.unique(keys)
        self._width = int(sequence.max(initial=0)) + 2  # sequences are numbered from NONE on
        dense = np.searchsorted(self._known, keys)
        self._by_key = _Sorted.of(dense, (row, order), source, row, digests)
        self._by_sequence = _Sorted.of(dense * self._width + sequence + 1, (row, order), source, row, digests)

    def find(self, keys: Keys, sequences: Numbers) -> RowLookup:
        dense = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        there = self._known[dense] == keys
        plain = self._by_key.first(np.where(there, dense, NONE))
        told = there & (sequences >= 0) & (sequences + 1 < self._width)
        own = self._by_sequence.first(np.where(told, dense * self._width + sequences + 1, NONE))
        is_own = own.source != NONE
        return RowLookup(
            np.where(is_own, own.source, plain.source),
            np.where(is_own, own.row, plain.row),
            np.where(is_own, own.several, plain.several),
        )


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Entries by a number that several may share."""

    numbers: Numbers
    source: Numbers
    row: Numbers
    changes: Numbers
    """Counts up wherever an entry's bits are others than those of the one before."""

    @classmethod
    def of(cls, numbers: Numbers, then: tuple[Numbers, ...], source: Numbers, row: Numbers, digests: Keys) -> _Sorted:
        placed = np.lexsort((*then, numbers))
        own = digests[placed]
        return cls(numbers[placed], source[placed], row[placed], np.r_[0, np.cumsum(own[1:] != own[:-1])])

    def first(self, numbers: Numbers) -> RowLookup:
        """For each number its first entry, and whether another one has other bits."""
        first = np.searchsorted(self.numbers, numbers, "left")
        stop = np.searchsorted(self.numbers, numbers, "right")
        there = first < stop
        first, last = np.where(there, first, 0), np.where(there, stop - 1, 0)
        several = there & (self.changes[first] != self.changes[last])
        return RowLookup(np.where(there, self.source[first], NONE), self.row[first], several)


class RowTable:
    """All of A's rows that are to be put in."""

    def __init__(
        self,
        sources: Sequence[RowSource],
        anchors: Collection[str] = (),
        sequences: tuple[Keys, Numbers, Numbers] | None = None,
        axes: tuple[int, ...] | None = None,
        layouts: Mapping[tuple[str, str, str], Collection[RowLayout]] | None = None,
        *,
        observed: bool = False,
    ) -> None:
        """``anchors``: paths of the modules that are given the tokens of a forward pass. ``sequences``: every key of A,
        the number of the sequence that it is in, and the step. ``axes``: along which rows were asked to be counted, as
        ``rltrace.trace.format.records.axes_of`` takes it. ``layouts``: by module, op and name, how A's tensors lie.
        ``observed``: rows are told by what outermost modules are given, not by tokens.
        """
        self.observed = observed
        self.sources = tuple(sources)
        self.anchors = frozenset(anchors)
        self.axes = axes
        self.layouts = layouts or {}
        at: dict[TensorPlace, list[tuple[int, RowSource]]] = {}
        for number, source in enumerate(self.sources):
            if len(source.keys):
                at.setdefault(source.spot, []).append((number, source))
        self._entries = {spot: _Entries(own) for spot, own in at.items()}
        keys, numbers, steps = sequences or (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        placed = np.lexsort((steps, keys))
        self._sequence_keys, self._sequences, self._steps = keys[placed], numbers[placed], steps[placed]
        found: dict[str, set[str]] = {}
        for spot in self._entries:
            found.setdefault(spot.module, set()).add(spot.op)
        self.places: Mapping[str, frozenset[str]] = {module: frozenset(ops) for module, ops in found.items()}
        """For each module of A the names of its ops that have rows here; OUTPUT for its own outputs."""
        self._cache: dict[int, NDArray[Any]] = {}
        self._cached = 0

    @property
    def selected(self) -> frozenset[tuple[str, str]]:
        """(module, op) of all that has rows here."""
        return frozenset((spot.module, spot.op) for spot in self._entries)

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of all modules of A that matter here."""
        return tuple(dict.fromkeys((*sorted(self.anchors), *sorted(self.places))))

    def __contains__(self, spot: TensorPlace) -> bool:
        return spot in self._entries

    def find(self, spot: TensorPlace, keys: Keys, sequences: Numbers, step: int) -> RowLookup:
        """Where A has these rows.

        Of several that A computed for one key: those of the step (of optimizers) ``step``, else of the last one before
        it, else of the first one after it; of these, those of the sequence of A in ``sequences`` (as ``like`` gives
        it), if any; of these, the first.
        """
        return self._entries[spot].find(keys, sequences, step)

    def like(self, keys: Keys, step: int) -> Numbers:
        """For each sequence, [sequences, tokens], the number of the one of A that goes on as it does for longest.

        Of several alike, those of the step that ``find`` takes, each given to one; NONE: A has none of its tokens.
        """
        found = np.full(len(keys), NONE)
        given: dict[int, int] = {}
        for i, own in enumerate(keys):
            first = np.searchsorted(self._sequence_keys, own, "left")
            stop = np.searchsorted(self._sequence_keys, own, "right")
            known = np.flatnonzero((first < stop) & (own != NO_KEY))
            if len(known):
                last = int(known[-1])
                alike = first[last] + _of_step(self._steps[first[last] : stop[last]], step)
                numbers = list(dict.fromkeys(self._sequences[alike].tolist()))
                nth = given.get(int(own[last]), 0)
                found[i] = numbers[min(nth, len(numbers) - 1)]
                given[int(own[last])] = nth + 1
        return found

    def rows(self, number: int, rows: Numbers) -> NDArray[Any]:
        """Rows of a source, [n, k, elements] as they are stored. Raises HoleError."""
        source = self.sources[number]
        own: NDArray[Any] = self._flat(source)[source.parts[rows]]
        return own

    def _flat(self, source: RowSource) -> NDArray[Any]:
        """All rows of the tensor, [rows, elements]."""
        found = self._cache.get(source.whole)
        if found is None:
            value = source.fetch(source.whole)
            if value is None:
                raise HoleError(f"A has no value {source.whole:016x}")
            found = value.raw
            if self._cached + found.nbytes > CACHED:
                self._cache.clear()
                self._cached = 0
            self._cache[source.whole] = found
            self._cached += found.nbytes
        ahead = np.moveaxis(found, source.axes, range(len(source.axes)))
        lengths = [source.shape[axis] for axis in source.axes]
        return ahead.reshape(int(np.prod(lengths, dtype=np.int64)), -1)


# --- choices ----------------------------------------------------------------------------------------------------------
#
# Ops that choose among what they are given. Owns which they are. No torch.


CHOICES: Mapping[str, str] = {
    f"aten.{op}": "indices"
    for op in ("topk.default", "topk.values", "sort.default", "sort.stable", "max.dim", "min.dim")
}
"""By operator, the name of what it chose; what else it gives is looked up there."""
