"""The recorded data of one side: module calls of a stream, their nesting, and values.

Owns looking up, also by the selectors of ``--rows``; decides nothing. The calls are those of a trace, or were built in
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.digest.activation_rows import row_digests
from rltrace.errors import HoleError
from rltrace.extensions.parity.module_names import root_of
from rltrace.selectors import Key, Selector
from rltrace.trace.format.activation_rows import FACTS, NAMED, POINT, SHARD, ActivationRows, ModuleCall, OpRows, Part
from rltrace.trace.format.schema import Column
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.selector_mask import RowMask
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.read.values import Value

Find = Callable[[int], Value | None]
"""The value with a digest; None: it was not recorded. Raises HoleError."""


@dataclass(frozen=True)
class RecordedStream:
    """The stream of a call range, for reading its ops."""

    process: ProcessTrace
    stream: StreamTrace


@dataclass(frozen=True, eq=False)
class CallRange:
    """Some module calls of one stream, in the order in which they began."""

    side: str
    """``a`` or ``b``."""
    calls: tuple[ModuleCall, ...]
    what: str = "all calls"
    """The selection of calls, in words."""
    path: str = ""
    """Of the trace, as on the command line."""
    ops: Mapping[int, OpRows] = field(default_factory=dict)
    """By row of the stream, including ops outside of these calls."""
    find: Find = lambda digest: None
    recorded: RecordedStream | None = None
    """None: it was built in memory, and its ops cannot be read."""
    holes: list[str] = field(default_factory=list)
    """What could not be read; ``value`` adds to it."""
    facts: Mapping[int, Mapping[str, ActivationRows]] = field(default_factory=dict)
    """By number of a call, what an adapter declared of its batch: by name."""

    ranks: Mapping[int, CallRange] = field(default_factory=dict)
    """By number of a call, the other rank that it is of, where several are united."""
    parts: tuple[CallRange, ...] = ()
    """The other ranks, where each had a part of every layer."""
    notes: tuple[str, ...] = ()

    @property
    def stream(self) -> str:
        ranks = dict.fromkeys([*self.ranks.values(), *self.parts])
        return " and ".join(one.recorded.stream.name for one in (self, *ranks) if one.recorded is not None)

    def rank_of(self, call: ModuleCall) -> CallRange:
        """The call range of one stream that a call is of."""
        return self.ranks.get(call.number, self)

    @cached_property
    def part(self) -> tuple[int, int] | None:
        """(rank, number of ranks) where each of several ranks has a part of every layer."""
        found = [shard for call in self.calls for tensor in call.tensors if (shard := shard_of(tensor))]
        return max(found, key=lambda shard: shard[1], default=None)

    @cached_property
    def by_number(self) -> Mapping[int, ModuleCall]:
        return {call.number: call for call in self.calls}

    @cached_property
    def modules(self) -> Mapping[str, tuple[ModuleCall, ...]]:
        """Calls by module path, in the order in which the modules' first calls ended. A module that has another name in
        the checkpoint has that; where a call has declared points of other modules, it is a call of these too."""
        found: dict[str, list[ModuleCall]] = {}
        for call in self.ended:
            for path in (*_pointed(call), self.named.get(call.module, call.module)):
                found.setdefault(path, []).append(call)
        return {path: tuple(sorted(calls, key=lambda call: call.number)) for path, calls in found.items()}

    @cached_property
    def named(self) -> Mapping[str, str]:
        """By path of a module, its path by the names of the checkpoint, where an adapter declared one."""
        return {
            call.module: f"{root_of(call.module)}.{point}"
            for call in self.calls
            for tensor in call.tensors
            if tensor.name.endswith(NAMED) and (point := point_of(tensor))
        }

    def own_path(self, path: str) -> str:
        """The program's own path of one of ``modules``; that of a point is the checkpoint's."""
        module = self.modules[path][0].module
        return module if self.named.get(module) == path else path

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps in which there is a call, ascending."""
        return tuple(sorted({call.step for call in self.calls}))

    def parent(self, call: ModuleCall) -> ModuleCall | None:
        """The innermost call of the call range around ``call``; None: there is none."""
        return self._parents.get(call.number)

    def around(self, call: ModuleCall) -> Sequence[ModuleCall]:
        """Every call of the call range around ``call``, the innermost first."""
        found = [call]
        while (above := self.parent(found[-1])) is not None:
            found.append(above)
        return found[1:]

    def has_gradient(self, call: ModuleCall) -> bool:
        """Whether the outermost call around it records gradients: a model may switch them off within itself."""
        return (call, *self.around(call))[-1].grad

    @cached_property
    def outermost(self) -> tuple[ModuleCall, ...]:
        return tuple(call for call in self.calls if self.parent(call) is None)

    @cached_property
    def inner(self) -> Mapping[int, tuple[ModuleCall, ...]]:
        """By number of a call, the calls directly in it, in the order in which they began."""
        found: dict[int, list[ModuleCall]] = {}
        for call in self.calls:
            above = self.parent(call)
            if above is not None:
                found.setdefault(above.number, []).append(call)
        return {number: tuple(calls) for number, calls in found.items()}

    @property
    def moments(self) -> Iterator[tuple[ModuleCall, Part]]:
        """Every call twice, in order: as it began, with its inputs, and as it ended, with its outputs."""
        running: list[ModuleCall] = []
        for call in self.calls:
            above = self.parent(call)
            while running and running[-1] is not above:
                yield running.pop(), Part.OUTPUT
            running.append(call)
            yield call, Part.INPUT
        yield from ((call, Part.OUTPUT) for call in reversed(running))

    @cached_property
    def ended(self) -> tuple[ModuleCall, ...]:
        """All calls in the order in which they ended."""
        return tuple(call for call, part in self.moments if part is Part.OUTPUT)

    @cached_property
    def _parents(self) -> Mapping[int, ModuleCall]:
        """By rows of the stream where the parent was not recorded: what begins before and ends after a call."""
        found: dict[int, ModuleCall] = {}
        open_calls: list[ModuleCall] = []
        for call in self.calls:
            known = None if call.parent is None else self.by_number.get(call.parent)
            if known is not None:
                while open_calls and open_calls[-1] is not known:
                    open_calls.pop()
            elif call.parent is None:
                open_calls.clear()
            while open_calls and not _within(call, open_calls[-1]):
                open_calls.pop()
            if open_calls:
                found[call.number] = open_calls[-1]
            open_calls.append(call)
        return found

    def value(self, tensor: ActivationRows) -> Value | None:
        """The whole tensor's value; None: it was not recorded, or cannot be read (then ``holes`` has the reason)."""
        try:
            return self.find(tensor.whole)
        except HoleError as error:
            if str(error) not in self.holes:
                self.holes.append(str(error))
            return None

    def numbers(self, tensor: ActivationRows) -> NDArray[Any] | None:
        """Its elements as numbers, in its shape; None as of ``value``."""
        value = self.value(tensor)
        return None if value is None else value.numbers


def united(ranks: Sequence[CallRange]) -> CallRange:
    """The call ranges of data-parallel ranks as one; ops that are selected are those of the first."""
    first, *others = ranks
    calls, facts, of = list(first.calls), dict(first.facts), dict[int, CallRange]()
    for rank in others:
        ahead = calls[-1].number + 1
        numbered = [
            replace(call, number=call.number + ahead, parent=None if call.parent is None else call.parent + ahead)
            for call in rank.calls
        ]
        calls += numbered
        facts |= {number + ahead: named for number, named in rank.facts.items()}
        of |= {call.number: rank for call in numbered}

    def find(digest: int) -> Value | None:
        return next((value for rank in ranks if (value := rank.find(digest)) is not None), None)

    holes = [hole for rank in ranks for hole in rank.holes]
    return replace(first, calls=tuple(calls), facts=facts, ranks=of, find=find, holes=holes)


def put_together(ranks: Sequence[CallRange]) -> CallRange:
    """The call ranges of tensor-parallel ranks as one: the calls of the first, with the tensors whole of which each has
    a part, where the values of all parts were recorded, and without what differs between the ranks otherwise."""
    first, made, lost = ranks[0], dict[int, Value](), list[str]()
    others = [_occurrences(rank) for rank in ranks[1:]]
    calls = []
    for key, call in _occurrences(first).items():
        beside = [{_bare(one): one for one in other[key].tensors} if key in other else {} for other in others]
        declared = {tensor.part for tensor in call.tensors if shard_of(tensor)}
        tensors = []
        for tensor in call.tensors:
            found = [(rank, named.get(_bare(tensor))) for rank, named in zip(ranks[1:], beside, strict=True)]
            known = [(rank, one) for rank, one in found if one is not None]
            whole: tuple[ActivationRows, Value | None] | None = tensor, None
            if shard_of(tensor):
                whole = _joined([(one, rank.value(one)) for rank, one in ((first, tensor), *known)])
            elif any(one.whole != tensor.whole for _, one in known):
                whole = None
            if whole is not None:
                tensors.append(whole[0])
                made |= {} if whole[1] is None else {whole[1].digest: whole[1]}
            elif shard_of(tensor) or tensor.part not in declared:
                lost.append(call.module)
        calls.append(replace(call, tensors=tuple(tensors)))
    names = list(dict.fromkeys(lost))
    why = (
        f"ranks hold parts of what {', '.join(names[:4])}{', …' if len(names) > 4 else ''} have, which are not compared"
    )
    return replace(
        first,
        calls=tuple(calls),
        find=lambda digest: made[digest] if digest in made else first.find(digest),
        parts=tuple(ranks[1:]),
        notes=(why,) if names else (),
    )


def _occurrences(rank: CallRange) -> dict[tuple[str, int], ModuleCall]:
    """The calls by module and how many of it there were before."""
    counts, found = dict[str, int](), {}
    for call in rank.calls:
        counts[call.module] = counts.get(call.module, -1) + 1
        found[call.module, counts[call.module]] = call
    return found


def _bare(tensor: ActivationRows) -> tuple[Part, str]:
    return tensor.part, tensor.name if shard_of(tensor) is None else tensor.name.rpartition(SHARD)[0]


def shard_of(tensor: ActivationRows) -> tuple[int, int] | None:
    """(rank, number of ranks) of a tensor of which each has a part; None: it is whole."""
    name, at, shard = tensor.name.rpartition(SHARD)
    if not at or not name.startswith(POINT):
        return None
    rank, _, count = shard.partition(":")
    return int(rank), int(count)


def _joined(parts: Sequence[tuple[ActivationRows, Value | None]]) -> tuple[ActivationRows, Value] | None:
    """The tensor of which these are the parts, by the rank that each names; None: not all of them are known."""
    known = {shard: value.raw for tensor, value in parts if (shard := shard_of(tensor)) and value is not None}
    ranks, like = sorted(known), parts[0][0]
    if not known or [rank for rank, _ in ranks] != list(range(ranks[0][1])):
        return None
    whole = np.concatenate([known[rank] for rank in ranks], axis=-1)
    data, shape = memoryview(whole.tobytes()), whole.shape
    digest = digest_buffer(data, seed_of(like.dtype, shape))
    rows = row_digests(data, like.dtype, shape, whole.itemsize, like.axes)
    made = replace(like, name=_bare(like)[1], shape=shape, digests=rows, whole=digest)
    return made, Value(digest, like.dtype, shape, data)


def split_facts(
    calls: Collection[ModuleCall],
) -> tuple[tuple[ModuleCall, ...], Mapping[int, Mapping[str, ActivationRows]]]:
    """The calls with the program's own tensors, and ``CallRange.facts``."""
    facts = {
        call.number: named for call in calls if (named := {one.name: one for one in call.tensors if one.name in FACTS})
    }
    own = (
        replace(call, tensors=tuple(one for one in call.tensors if one.name not in FACTS))
        if call.number in facts
        else call
        for call in calls
    )
    return tuple(own), facts


def point_of(tensor: ActivationRows) -> str | None:
    """The checkpoint's name of the module whose tensor it is, "": the called one; None: it is no declared point."""
    return tensor.name.removeprefix(POINT).partition("/")[0] if tensor.name.startswith(POINT) else None


def name_of(tensor: ActivationRows) -> str:
    """The name of a tensor in its module."""
    return tensor.name if point_of(tensor) is None else tensor.name.partition("/")[2]


def _pointed(call: ModuleCall) -> Iterator[str]:
    """Paths of the modules of the checkpoint of which a call has declared points."""
    points = (point_of(tensor) for tensor in call.tensors if not tensor.name.endswith(NAMED))
    return (f"{root_of(call.module)}.{point}" for point in dict.fromkeys(points) if point)


def tensors_of(call: ModuleCall, path: str) -> tuple[ActivationRows, ...]:
    """The tensors of a call that are those of the module ``path`` of ``CallRange.modules``: declared ones in place of
    others."""
    own = path.partition(".")[2] if path in _pointed(call) else ""
    declared = {tensor.part for tensor in call.tensors if point_of(tensor) == own and not tensor.name.endswith(NAMED)}
    return tuple(
        tensor
        for tensor in call.tensors
        if (point_of(tensor) == own and not tensor.name.endswith(NAMED))
        or (point_of(tensor) is None and tensor.part not in declared and (not own or tensor.part is Part.INPUT))
    )


def _within(call: ModuleCall, around: ModuleCall) -> bool:
    return around.first_row <= call.first_row and call.end_row <= around.end_row


def inputs_of(call: ModuleCall) -> tuple[ActivationRows, ...]:
    return tuple(tensor for tensor in call.tensors if tensor.part is Part.INPUT)


def outputs_of(call: ModuleCall) -> tuple[ActivationRows, ...]:
    return tuple(tensor for tensor in call.tensors if tensor.part is Part.OUTPUT)


def flat_rows(tensor: ActivationRows, whole: NDArray[Any]) -> NDArray[Any]:
    """``whole``, the elements of a tensor, as [rows, elements of a row], in the order of its digests."""
    ahead = np.moveaxis(whole, tensor.axes, range(len(tensor.axes)))
    return ahead.reshape(tensor.digests.size, -1)


def came_from(tensor: ActivationRows, earlier: ActivationRows) -> bool:
    """Whether every row of ``tensor`` is one of ``earlier``."""
    return bool(np.isin(tensor.digests, earlier.digests).all())


def row_shape(tensor: ActivationRows) -> tuple[int, ...]:
    """Lengths of the axes of one row."""
    return tuple(size for axis, size in enumerate(tensor.shape) if axis not in tensor.axes)


def all_inner(call_range: CallRange, call: ModuleCall, skip: ModuleCall | None = None) -> Iterator[ModuleCall]:
    """Every call within ``call``, in order, without ``skip`` and the calls within it."""
    for one in call_range.inner.get(call.number, ()):
        if one is not skip:
            yield one
            yield from all_inner(call_range, one, skip)


# --- selected results -------------------------------------------------------------------------------------------------


FLOATS = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class Selected:
    """One selected tensor."""

    row: int
    """Of the stream: of its op, or of the end of its call."""
    name: str
    """Of the op or the module."""
    call: ModuleCall | None
    """The call that returned it; None: an op did."""
    tensor: ActivationRows


def selected_in(call_range: CallRange, selector: Selector) -> list[Selected]:
    """Floating-point results that the selector finds, in execution order."""
    calls = [(call.end_row, call.module, call) for call in call_range.calls if finds_call(selector, call_range, call)]
    ops = [(row, name, None) for row, name in ops_in(call_range, selector)]
    return [
        Selected(row, name, call, tensor)
        for row, name, call in sorted([*calls, *ops], key=lambda found: found[0])
        for tensor in (call_range.ops[row] if call is None else call).tensors
        if tensor.part is Part.OUTPUT and tensor.dtype in FLOATS
    ]


def finds_call(selector: Selector, call_range: CallRange, call: ModuleCall) -> bool:
    """Whether a clause without conditions of ops selects a module call."""
    return selector.call_clauses.matches(
        {Key.MODULE: call.module, Key.PHASE: call.phase, Key.STREAM: call_range.stream, Key.STEP: call.step}
    )


def ops_in(call_range: CallRange, selector: Selector) -> Iterator[tuple[int, str]]:
    """(row, operator) of each recorded op that the selector finds."""
    if call_range.recorded is None or not call_range.ops:
        return
    process, stream = call_range.recorded.process, call_range.recorded.stream
    mask = RowMask(selector, stream.name, process.words)
    for segment in stream.segments if mask.is_possible else ():
        try:
            rows = stream.read_segment(segment)
        except HoleError as error:
            mask.skip()
            call_range.holes.append(str(error))
            continue
        for i in mask.op_indices(rows).tolist():
            if rows.first + i in call_range.ops:
                yield rows.first + i, process.words.op(int(rows.columns[i, Column.OP]))


def around(call_range: CallRange, row: int) -> ModuleCall | None:
    """The innermost call of the call range around a row of the stream; None: there is none."""
    at = bisect_right(call_range.calls, row, key=lambda call: call.first_row) - 1
    call = call_range.calls[at] if at >= 0 else None
    while call is not None and row >= call.end_row:
        call = call_range.parent(call)
    return call
