"""One side of a comparison: a stream, read a few segments at a time, with the names and portable keys of its ids.

Interned entries are compared by portable keys, never by ids: two traces may have interned them in another order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.sequences import EMPTY, Tokens, grouped
from rltrace.diff.base.tokens import RowTokens, mix, values_of
from rltrace.errors import HoleError
from rltrace.trace.format.row_hashes import Keyed, RowHashes, row_hashes
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import PLACEMENT_ALIGNMENT, VALUE_FLAGS, Column, Kind, RowFlag, Step, event_name
from rltrace.trace.kernels.evidence import Evidence
from rltrace.trace.read.names import Site, Words
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace

# --- lines ------------------------------------------------------------------------------------------------------------
#
# Call sites of B that are sites of A in renamed files, renamed functions or edited lines.
#
# Unmatched sites with equal source lines are matched from the tables alone. Edited lines are learned from ops that are
# proven to be matched (``learn``); every stack with such a line is then matched too.


Frame = tuple[str, str, str]
"""File, function, text of the line."""

Stack = tuple[Frame, ...]

MAX_UNMATCHED_SITES = 1 << 16
"""Unmatched sites of a side; with more, it is another program."""


class SiteNames:
    """Keys of B's sites, those of renamed ones replaced by A's."""

    def __init__(self, a: ProcessTrace, b: ProcessTrace) -> None:
        self._own_a, self._own_b = a.tables["sites"].keys, b.tables["sites"].keys
        self.keys: Tokens = self._own_b.copy()
        """Shape [sites of B]; A's key for a site that was renamed."""
        only_a, only_b = _unmatched_sites(a, self._own_b), _unmatched_sites(b, self._own_a)
        if not len(only_a) or not len(only_b) or max(len(only_a), len(only_b)) > MAX_UNMATCHED_SITES:
            only_a = only_b = []
        self.any = False
        """Whether any site was renamed."""
        self._a, self._b = _stacks(a, only_a), _stacks(b, only_b)
        self._frames: dict[Frame, Frame] = {}
        """Frames of B to the frames of A that they were."""
        self._in_torch = [{i: p.words.frames_in_torch(i) for i in only} for p, only in ((a, only_a), (b, only_b))]
        for key in (_without_files, _without_names):
            self._rename(self._one_to_one(key, self._in_torch))
            self._rename(self._one_to_one(key, [{}, {}]))
        if is_shifted(a, b):  # the program that resumes another calls the same from elsewhere
            self._rename(self._one_to_one(_called, self._in_torch))

    def learn(self, a: int, b: int) -> bool:
        """Match site ``a`` of A with ``b`` of B; False where they are matched already, or cannot be.

        Their stacks must have one depth and differ in one frame: the edited line.
        """
        if a not in self._a or b not in self._b:
            return False
        stack_a, stack_b = self._a[a], self._b[b]
        differing = [(x, y) for x, y in zip(stack_a, stack_b, strict=False) if x != self._frames.get(y, y)]
        if len(stack_a) != len(stack_b) or len(differing) != 1:
            return False
        if differing[0][1] in self._frames or differing[0][0] in self._frames.values():
            return False
        self._frames.update((y, x) for x, y in differing)
        in_a, in_b = self._in_torch
        by_stack = {(stack, in_a[site]): site for site, stack in self._a.items()}
        translated = {j: tuple(self._frames.get(frame, frame) for frame in stack) for j, stack in self._b.items()}
        found = [(by_stack.get((stack, in_b[j])), j) for j, stack in translated.items()]
        self._rename((i, j) for i, j in found if i is not None)
        return True

    def _one_to_one(self, key: StackKey, in_torch: Sequence[Mapping[int, object]]) -> list[tuple[int, int]]:
        """Pairs of sites whose key occurs exactly once on each side, with the same frames in torch where given."""
        a, b = (
            grouped(((key(stack), own.get(site)), site) for site, stack in stacks.items())
            for stacks, own in zip((self._a, self._b), in_torch, strict=True)
        )
        return [(found[0], b[k][0]) for k, found in a.items() if k[0] and len(found) == len(b.get(k, ())) == 1]

    def _rename(self, pairs: Iterable[tuple[int, int]]) -> None:
        for i, j in pairs:
            if i in self._a and j in self._b:
                self.keys[j], self.any = self._own_a[i], True
                stacks = self._a.pop(i), self._b.pop(j)
                if len(stacks[0]) == len(stacks[1]):
                    self._frames.update((y, x) for x, y in zip(*stacks, strict=True) if x != y)


def _unmatched_sites(process: ProcessTrace, others: Tokens) -> list[int]:
    """Ids of the readable sites whose keys the other side lacks."""
    sites = process.tables["sites"]
    found: list[int] = np.flatnonzero(sites.present & ~np.isin(sites.keys, others)).tolist()
    return found


def _stacks(process: ProcessTrace, sites: Iterable[int]) -> dict[int, Stack]:
    """The frames outside torch of each of these sites."""
    return {i: tuple((f.file, f.function, f.source.strip()) for f in process.words.stack(i)) for i in sites}


StackKey = Callable[[Stack], tuple[tuple[str, ...], ...]]
"""What a rename leaves of a stack as it was; whole frames where their source line is not known."""


def _without_files(stack: Stack) -> tuple[tuple[str, ...], ...]:
    return tuple(frame[1:] if frame[2] else frame for frame in stack)


def _without_names(stack: Stack) -> tuple[tuple[str, ...], ...]:
    return tuple(frame[2:] if frame[2] else frame for frame in stack)


def _called(stack: Stack) -> tuple[tuple[str, ...], ...]:
    """The frames without the outermost one, and without those of a script around it."""
    end = len(stack) - 1
    while end > 0 and "/" not in stack[end - 1][0]:
        end -= 1
    return stack[:end]


# --- shortcuts -----------------------------------------------------------------------------------------------------
#
# What a comparison leaves out because digests or links prove that it changes nothing. Without any one of them the
# result is the same: tests compare their pairs that way, too (tests/support/shortcuts.py).


@dataclass(frozen=True)
class Shortcuts:
    """The shortcuts that a comparison takes; all of them, except in tests of each."""

    bisection: bool = True
    """The first difference is searched among prefix digests, and no event where these or a table prove that none
    differs; False: rows are read up to it."""
    first_step: bool = True
    """The step of the first difference is found without the other steps."""
    step_digests: bool = True
    """Rows of a step with equal digests are not read."""
    any_order: bool = True
    """A step with equal order-independent digests is not aligned; its rows are matched by their hashes."""
    batches: bool = True
    """Small steps are aligned together."""
    row_hashes: bool = True
    """Pairs of rows with equal hashes are not compared cell by cell."""
    links: bool = True
    """An input that matched ops wrote is equal where they wrote the same, whatever its layout."""
    caches: bool = True
    """Hashes and tokens of rows that are read again in parts are kept."""


ALL = Shortcuts()


# --- view -------------------------------------------------------------------------------------------------------------


MAX_OPENING_ROWS = 1 << 16
"""Opening rows of a window that are read at most."""


class RowRange:
    """Adjacent rows of one side, with their hashes and tokens."""

    def __init__(self, view: StreamView, rows: Rows) -> None:
        self.view = view
        self.rows = rows
        self.first = rows.first

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """Row after the last one."""
        return self.first + len(self.rows)

    @cached_property
    def hashes(self) -> RowHashes:
        return row_hashes(self.rows, self.view.process.tables)

    @cached_property
    def computation(self) -> Tokens:
        """Kind, op, tensor structure and skeleton of the arguments of each row, whatever the call site."""
        kind = self.rows.column(Column.KIND).astype(np.uint64)
        keys = (self.view.keys(t, self.rows.column(c)) for t, c in COMPUTATION)
        return mix(kind, *keys)

    @cached_property
    def tokens(self) -> RowTokens:
        op = self.view.keys("ops", self.rows.column(Column.OP))
        site = self.view.keys("sites", self.rows.column(Column.SITE))
        kind = self.rows.column(Column.KIND)
        structure = self._structure()
        # an event is identified by its subject as well: a parameter's name, in the scalars
        event = np.where(kind == Kind.OP, np.uint64(0), structure)
        return RowTokens(
            identity=mix(kind.astype(np.uint64), op, site, event),
            structure=structure,
            values=values_of(self.rows),
            computation=self.computation,
            operator=mix(kind.astype(np.uint64), op),
            has_values=(self.rows.column(Column.DIGESTS) > 0) | self.flags(VALUE_FLAGS),
            draws=self.flags(RowFlag.RNG),
            links=self.rows.links,
            link_offsets=self.rows.link_offsets,
        )

    def drop_tokens(self) -> None:
        """Discard the tokens, as site names have changed."""
        self.__dict__.pop("tokens", None)

    def _structure(self) -> Tokens:
        """The structure of each row, with the other side's names of renamed sites."""
        names = self.view.other_names
        if names is None:
            return self.hashes.structure
        tables: dict[str, Keyed] = {**self.view.process.tables, "sites": _Keys(names)}
        return row_hashes(self.rows, tables).structure

    def flags(self, mask: RowFlag) -> NDArray[np.bool_]:
        """Which rows have any of these flags."""
        found: NDArray[np.bool_] = (self.rows.column(Column.FLAGS) & np.uint32(mask)) != 0
        return found

    @cached_property
    def marked_ops(self) -> NDArray[np.bool_]:
        """Which rows are ops that may hold uninitialised memory."""
        found: NDArray[np.bool_] = self.flags(RowFlag.MARKED) & (self.rows.column(Column.KIND) == Kind.OP)
        return found

    def cut(self, start: int, stop: int) -> RowRange:
        """Rows ``start`` to ``stop`` of the stream, with hashes and tokens that were computed already."""
        rows = self.rows.cut(start - self.first, stop - self.first)
        part, own = RowRange(self.view, rows), slice(start - self.first, stop - self.first)
        if "hashes" in self.__dict__:
            part.hashes = RowHashes(*(hashes[own] for hashes in self.hashes))
        if "computation" in self.__dict__:
            part.computation = self.computation[own]
        if "tokens" in self.__dict__:
            whole = self.tokens
            part.tokens = RowTokens(
                identity=whole.identity[own],
                structure=whole.structure[own],
                values=whole.values[own],
                computation=whole.computation[own],
                operator=whole.operator[own],
                has_values=whole.has_values[own],
                draws=whole.draws[own],
                links=rows.links,
                link_offsets=rows.link_offsets,
            )
        return part


class _Keys(NamedTuple):
    keys: Tokens


EACH_BY_ITSELF = "aten._foreach_"
"""Beginning of the names of operators that treat each tensor of their lists by itself."""

COMPUTATION = (("ops", Column.OP), ("structures", Column.STRUCTURE), ("scalars", Column.SCALARS))


class StreamView:
    """A stream of one process of one side."""

    def __init__(self, process: ProcessTrace, stream: StreamTrace, shortcuts: Shortcuts = ALL) -> None:
        self.process = process
        self.stream = stream
        self.shortcuts = shortcuts
        self.start = 0
        """Rows before it are not compared: in a shifted comparison, what a side ran before the first common step."""
        self.extra_attempts = EMPTY
        """Places, among ``steps``, of the attempts that the other side does not make."""
        self._other: ProcessTrace | None = None
        self._cached: RowRange | None = None
        self._firsts = [int(segment.first) for segment in stream.segments]

    def use_site_names_of(self, a: StreamView) -> None:
        """Give sites that were only renamed the keys that they have in ``a``."""
        if self._other is not a.process:
            self._other, self._cached = a.process, None
            self.__dict__.pop("_names", None)

    @cached_property
    def _names(self) -> SiteNames | None:
        return None if self._other is None else SiteNames(self._other, self.process)

    @property
    def other_names(self) -> Tokens | None:
        """Keys of this side's sites with the other side's for renamed ones; None: none was renamed."""
        return self._names.keys if self._names is not None and self._names.any else None

    def learn(self, site: int, own: int) -> bool:
        """Match site ``own`` with the other side's ``site``, an edited line; False: nothing new. Changes tokens."""
        learned = self._names is not None and self._names.learn(site, own)
        if learned:
            self._cached = None
        return learned

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def rows(self) -> int:
        return int(self.stream.rows)

    @cached_property
    def steps(self) -> NDArray[np.uint64]:
        """The attempts of this stream's thread, ordered by their end row; shape [n, len(Step)]."""
        steps = self.process.steps
        own = steps[steps[:, Step.STREAM] == self.stream.index]
        ordered: NDArray[np.uint64] = own[np.argsort(own[:, Step.END_ROW], kind="stable")]
        return ordered

    def row_after_step(self, step: int) -> int:
        """The first row of a later step, by the steps of the rows; HoleError as ``read``. Reads few segments."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            rows, place = self.row(middle)
            low, high = (middle + 1, high) if int(rows.columns[place, Column.STEP]) <= step else (low, middle)
        return low

    def attempt_after(self, row: int) -> NDArray[np.uint64] | None:
        """The first attempt of this stream that ends after ``row``; None: none does. Reads few step parts."""
        own = self._own_steps(self._step_part_after(row))
        found = own[own[:, Step.END_ROW] > np.uint64(row)]
        return found[0] if len(found) else None

    def attempt_before(self, row: int) -> NDArray[np.uint64] | None:
        """The last attempt of this stream that ended before ``row``; None: none did. Reads few step parts."""
        for number in range(min(self._step_part_after(row), len(self.process.step_parts) - 1), -1, -1):
            own = self._own_steps(number)
            before: NDArray[np.uint64] = own[own[:, Step.END_ROW] <= np.uint64(row)]
            if len(before):
                last: NDArray[np.uint64] = before[-1]
                return last
        return None

    def _step_part_after(self, row: int) -> int:
        """Number of the first of ``step_parts`` in which an attempt of this stream ends after ``row``."""
        low, high = 0, len(self.process.step_parts)
        while low < high:
            middle = (low + high) // 2
            if self._ended_by(middle) > row:
                high = middle
            else:
                low = middle + 1
        return low

    def _ended_by(self, number: int) -> int:
        """Row at which the last attempt of this stream in ``step_parts`` up to ``number`` ended."""
        while number >= 0:
            own = self._own_steps(number)
            if len(own):
                return int(own[-1, Step.END_ROW])
            number -= 1
        return 0

    def _own_steps(self, number: int) -> NDArray[np.uint64]:
        if number >= len(self.process.step_parts):
            return np.zeros((0, len(Step)), np.uint64)
        steps = self.process.steps_of(self.process.step_parts[number])
        own: NDArray[np.uint64] = steps[steps[:, Step.STREAM] == self.stream.index]
        return own

    def read(self, start: int, stop: int) -> RowRange:
        """Rows ``start`` to ``stop``; HoleError where some of them cannot be read."""
        cached = self._cached
        if cached is not None and cached.first <= start <= stop <= cached.end:
            return cached.cut(start, stop)
        return RowRange(self, self.stream.read(start, stop))

    def cache(self, stretch: RowRange) -> None:
        """Cache rows that will be read again in parts, so that hashes and tokens are computed once."""
        if self.shortcuts.caches:
            _ = stretch.tokens
            self._cached = stretch

    def row(self, index: int) -> tuple[Rows, int]:
        """The rows of the segment with row ``index``, and its place in them; HoleError as ``read``."""
        at = bisect_right(self._firsts, index) - 1
        segment = self.stream.segments[at] if at >= 0 else None
        if segment is None or index >= segment.stop:
            return self.stream.read(index, index + 1), 0  # raises with the reason
        return self.stream.read_segment(segment), index - segment.first

    @cached_property
    def opening_digests(self) -> set[int]:
        """Digests of every window's opening rows; empty where the stream was recorded from its start."""
        found: set[int] = set()
        for _, _, row in self.stream.windows:
            try:
                rows = self.stream.read(row, min(self.rows, row + MAX_OPENING_ROWS))
            except HoleError:
                continue
            later = np.flatnonzero(rows.column(Column.KIND) != Kind.WINDOW)
            count = int(later[0]) if len(later) else len(rows)
            found.update(rows.digests[: rows.digest_offsets[count]].tolist())
        return found

    def alignments(self, row: int) -> dict[int, int] | None:
        """Alignment in bytes of the address of each input of a row: a power of two up to 64; 64 is left out.
        None: not known."""
        values, stream = self.process.values, self.stream.index
        lying = values.placements(stream, row)
        if not lying and not values.inputs(stream, row):
            return None
        addresses = {place: (lies.alignment + lies.offset) % PLACEMENT_ALIGNMENT for place, lies in lying.items()}
        return {place: address & -address for place, address in addresses.items() if address}

    def hole(self, start: int, stop: int) -> tuple[int, int, str] | None:
        """The first (row, rows, reason) in ``start`` to ``stop`` known to be unreadable. Reading may find more."""
        found = [hole for hole in self.stream.holes if hole[0] < stop and hole[0] + hole[1] > start]
        return min(found) if found else None

    def readable(self, start: int, stop: int) -> int:
        """The first row from ``start`` on that cannot be read, ``stop`` where all can. Reads all of them."""
        hole = self.hole(start, stop)
        end = stop if hole is None else max(hole[0], start)
        try:
            self.stream.read(start, end)
        except HoleError:  # a hole that was not known
            return self.readable(start, end)
        return end

    # --- names of ids -----------------------------------------------------------------------------------------------

    @cached_property
    def words(self) -> Words:
        """Names of ids."""
        return self.process.words

    @cached_property
    def list_ops(self) -> NDArray[np.int64]:
        """Ids of the operators that treat each tensor of their lists by itself."""
        count = len(self.process.tables["ops"].keys)
        return np.array([op for op in range(count) if self.words.op(op).startswith(EACH_BY_ITSELF)], np.int64)

    def keys(self, table: str, ids: NDArray[np.uint32]) -> Tokens:
        """Portable keys of table entries."""
        renamed = self.other_names if table == "sites" else None
        keys: Tokens = (self.process.tables[table].keys if renamed is None else renamed)[ids]
        return keys

    def op(self, rows: Rows, i: int) -> str:
        """``aten.addmm.default``, or the name of the event that the row is."""
        kind = int(rows.columns[i, Column.KIND])
        return self.words.op(int(rows.columns[i, Column.OP])) if kind == Kind.OP else event_name(kind)

    def module(self, rows: Rows, i: int) -> str:
        return self.words.module(int(rows.columns[i, Column.MODULE]))

    def skeleton(self, rows: Rows, i: int) -> list[Any]:
        """The arguments of a row without numbers and tensors; for an event, the names of its cells."""
        return self.words.skeleton(int(rows.columns[i, Column.SCALARS]))

    def tensors(self, rows: Rows, i: int) -> list[Any]:
        """The layout of each tensor input of a row: dtype, shape, strides, device."""
        return self.words.tensors(int(rows.columns[i, Column.STRUCTURE]))

    def stack(self, rows: Rows, i: int) -> tuple[Site, ...]:
        """The recorded frames of a row outside torch, innermost first."""
        return self.words.stack(int(rows.columns[i, Column.SITE]))

    def is_inside_torch(self, rows: Rows, i: int) -> bool:
        """Whether torch called the op of a row, not the program itself: the innermost frame is in torch."""
        return self.words.is_inside_torch(int(rows.columns[i, Column.SITE]))

    def kernel(self, rows: Rows, i: int) -> Evidence:
        """Kernel evidence of a row; empty where there is none."""
        return self.words.evidence(int(rows.columns[i, Column.KERNEL]))

    def settings(self, rows: Rows, i: int) -> dict[str, object]:
        """Settings of torch when the op of a row ran; empty where they are not known."""
        return self.words.settings(int(rows.columns[i, Column.SETTINGS]))


def is_shifted(a: ProcessTrace, b: ProcessTrace) -> bool:
    """Whether one of two processes is compared from a later step on than its first."""
    return bool(len(a.steps_before) or len(b.steps_before))
