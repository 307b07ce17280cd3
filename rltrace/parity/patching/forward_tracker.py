"""The forward passes of the running program: which tokens each is over, and which of A's rows its rows are.

Owns following them from the calls of modules, in one thread. A module that is called again while gradients are computed
(activation checkpointing) is found by the memory that it was given: its rows are those that it had the first time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch

from rltrace.digest.activation_rows import row_digests
from rltrace.parity.call_range import CallRange
from rltrace.parity.matching.forward_passes import INTEGERS, Forward, forwards_of
from rltrace.parity.matching.token_grids import UNKNOWN, SequenceFollower, TokenGrid, first_position
from rltrace.parity.patching.known_tensors import KnownTensors
from rltrace.parity.patching.layout import BY_ELEMENT, Names, Observed, grid_of, readings, root_of
from rltrace.parity.patching.row_table import NONE, OUTPUT, RowTable
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import Layouts, dtype_name
from rltrace.token_keys import Keys, Numbers
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.records import axes_of
from rltrace.trace.read.values import Value

# --- walks ------------------------------------------------------------------------------------------------------------
#
# A forward pass of the running program, the calls in it, and going through it again. Owns what is known of them.


Arguments = list[tuple[str, torch.Tensor]]
"""A call's tensors, each with a name for where it stands."""


@dataclass(eq=False)
class Pass:
    """One forward pass."""

    number: int
    """Of this thread, from 0."""
    grid: TokenGrid
    """The keys of its tokens."""
    alike: Numbers
    """For each of them, the sequence of A that goes on as its own does."""
    met: KnownTensors
    """Tensors whose rows are known."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(module, op) of everything in it that is counted, in order."""

    def words(self, row: int) -> str:
        """Which token it is: ``token 19 of sequence 1, in forward pass 3``."""
        place, sequence = int(self.grid.places[row]), int(self.grid.sequences[row])
        if place == UNKNOWN:
            return f"row {row:,} of forward pass {self.number:,}"
        return f"token {place:,} of sequence {sequence:,}, in forward pass {self.number:,}"


class ForwardWalk:
    """Going through a forward pass, for the first time or once more."""

    def __init__(self, over: Pass, begun: int | None = None) -> None:
        """``begun``: how many events there were before; None: this is the first time."""
        self.over = over
        self._counts = Counter(() if begun is None else over.events[:begun])
        self.again = begun is not None

    def count(self, module: str, op: str) -> int:
        """How many there were of this op in this module before; one more comes now."""
        number = self._counts[module, op]
        self._counts[module, op] += 1
        if not self.again:
            self.over.events.append((module, op))
        return number


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """A tensor that holds the rows of some tokens."""

    lengths: tuple[int, ...]
    """Of the axes along which its rows are counted."""
    rows: Numbers
    """The row of the pass that each is; NONE: not known."""

    def fits(self, lengths: tuple[int, ...]) -> bool:
        """Whether a tensor with rows along these has the same."""
        return lengths in (self.lengths, (len(self.rows),))


class TrackedCall:
    """A call of a module that has begun."""

    __slots__ = ("anew", "arguments", "depth", "given", "inside", "kind", "module", "nth", "path", "walk")

    def __init__(self, module: str | None, path: str, kind: str, depth: int, arguments: Arguments) -> None:
        self.module = module
        """A's path; None: it is none of A's."""
        self.path = path
        self.kind = kind
        self.depth = depth
        self.arguments = arguments
        self.anew = False
        """It began while gradients were computed."""
        self.given: list[KnownTensor] = []
        """Of what it was given, tensors that have not a row for each token."""
        self.inside = 0
        """Forward passes that were given their tokens in it."""
        self.walk: ForwardWalk | None = None
        """The pass that it is of; None: not known."""
        self.nth: int | None = None
        """How-manieth call of its module in that pass; None: not counted."""


# --- passes -----------------------------------------------------------------------------------------------------------


REMEMBERED = 1 << 15
"""Calls whose memory is remembered, should they be made again: hundreds of them in a forward pass."""

MOST_BYTES = 1 << 26
"""Of whole numbers that tokens may be told by."""

_Place = tuple[str, int, int, tuple[int, ...]]
"""A call, by the module, and storage, offset and shape of the first tensor that it is given."""


class Passes:
    """The forward passes of one thread."""

    def __init__(self, table: RowTable, names: Names, layouts: Layouts, step: Callable[[], int]) -> None:
        """``step`` says which step of the optimizers is under way."""
        self._table = table
        self._step = step
        self._layouts = layouts
        self._names = names
        self._open: list[TrackedCall] = []
        self._walks: dict[str, ForwardWalk] = {}
        """By the name of an outermost module: its last one, while it is known what is computed."""
        self._enclosing: set[str] = set()
        """Paths of modules in which a forward pass was given its tokens before."""
        self._models: dict[str, SequenceFollower] = {}
        self._offset: int | None = None
        """What the first position of a sequence is called; None: not met yet."""
        self._numbers = count()
        self._observed = Observed()
        self._remembered: OrderedDict[_Place, tuple[Pass, int]] = OrderedDict()
        self._again: tuple[int, ForwardWalk] | None = None
        """(autograd node, walk) of what is being computed anew."""

    @property
    def here(self) -> TrackedCall | None:
        """The innermost call that is under way."""
        return self._open[-1] if self._open else None

    def begin(self, path: str, kind: str, depth: int, arguments: Arguments) -> TrackedCall:
        """A module is about to be called, in ``depth`` others; ``kind`` is its class."""
        while self._open and self._open[-1].depth >= depth:  # an interrupt came before it could end
            self._open.pop()
        call = TrackedCall(self._names.of_a(path), path, kind, depth, arguments)
        node = torch._C._current_autograd_node()
        if node is None:
            self._again = None
            self._open.append(call)
            if path in self._enclosing or self._is_anchor(call):  # until its tokens are known, nothing is
                self._walks.pop(root_of(path), None)
            call.walk = self._begun_by(call) or self._walks.get(root_of(path))
            self._remember(call)
        else:
            call.anew, around = True, self.here
            within = around is not None and around.anew
            call.walk = around.walk if within and around else self._found_again(call, node._sequence_nr())
            self._open.append(call)
        self._count(call)
        if call.walk is not None:
            self._take_in(call, call.walk.over)
        return call

    def _meet(self, over: Pass, tensors: Iterable[torch.Tensor]) -> None:
        """Remember where the rows of these tensors stand, as far as their shapes tell."""
        for tensor in tensors:
            if self._is_plain(over, tensor):
                over.met.add(tensor, np.arange(len(over.grid.keys)))

    def _is_plain(self, over: Pass, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a row for each token, in order."""
        found = readings(tuple(map(int, tensor.shape)), over.grid.shape, None)
        return len(found) == 1 and found[0].layout in BY_ELEMENT and len(found[0].axes) < tensor.dim()

    def _take_in(self, call: TrackedCall, over: Pass) -> None:
        """Look at what a call was given."""
        tensors = [tensor for _, tensor in call.arguments]
        if call.module in self._table.places:
            for tensor in tensors:
                rows = None if self._is_plain(over, tensor) else over.met.rows(tensor)
                if rows is not None:
                    call.given.append(KnownTensor(tuple(map(int, tensor.shape[:-1])), rows))
        self._meet(over, tensors)

    def _count(self, call: TrackedCall) -> None:
        if call.walk is not None and call.module is not None and OUTPUT in self._table.places.get(call.module, ()):
            call.nth = call.walk.count(call.module, OUTPUT)

    def end(self, call: TrackedCall) -> None:
        while self._open and self._open.pop() is not call:
            pass

    # --- a new pass -------------------------------------------------------------------------------------------------

    def _is_anchor(self, call: TrackedCall) -> bool:
        """Whether a forward pass is given its tokens in this call."""
        return not self._table.observed and call.module in self._table.anchors

    def _begun_by(self, call: TrackedCall) -> ForwardWalk | None:
        """The pass that begins with a call; None: none does."""
        if self._table.observed:
            return self._observed_by(call)
        if not self._is_anchor(call):
            return None
        forward = _forward([each for each in self._open if root_of(each.path) == root_of(call.path)], self._layouts)
        if forward is None:
            return None
        follower = self._models.setdefault(call.path, SequenceFollower(None, 0))
        if forward.positions is not None and self._offset is None:
            self._offset = first_position([forward])
        follower.offset = self._offset or 0
        grid = follower.grid(forward)
        keys = grid.keys.reshape(forward.ids.shape)
        alike = np.broadcast_to(self._table.like(keys, self._step())[:, None], keys.shape)
        over = Pass(next(self._numbers), grid, alike.ravel(), KnownTensors(grid.keys, self._layouts))
        walk = self._walks[root_of(call.path)] = ForwardWalk(over)
        for around in self._open[:-1]:  # they began before it was known what they are of
            around.inside += 1
            around.walk, around.nth = (walk, None) if around.inside == 1 else (None, None)
            self._enclosing.add(around.path)
            self._count(around)
        return walk

    def _observed_by(self, call: TrackedCall) -> ForwardWalk | None:
        """The same, of a policy that is given observations."""
        if len(self._open) > 1:
            return None
        given = [self._digests(tensor) for _, tensor in call.arguments if _has_rows(tensor)]
        digests = self._observed.first_new(root_of(call.path), given)
        if digests is None:
            return None
        number = next(self._numbers)
        grid = grid_of(ModuleCall(number, None, call.path, call.kind, 0, "", False, 0, 0, ()), digests)
        over = Pass(number, grid, np.full(digests.size, NONE), KnownTensors(grid.keys, self._layouts))
        walk = self._walks[root_of(call.path)] = ForwardWalk(over)
        return walk

    def _digests(self, tensor: torch.Tensor) -> Keys:
        try:
            data = bytes_of(tensor, self._layouts.of(tensor))
        except NoBytesError:
            return np.zeros(0, np.uint64)
        shape = tuple(map(int, tensor.shape))
        axes = axes_of(self._table.axes, len(shape))
        return row_digests(data, dtype_name(tensor.dtype), shape, tensor.element_size(), axes)

    def gave(self, call: TrackedCall, tensors: Iterable[torch.Tensor]) -> None:
        """A call has returned these."""
        tensors = list(tensors)
        if call.walk is not None:
            self._meet(call.walk.over, tensors)
        if self._table.observed and not self._open and torch._C._current_autograd_node() is None:
            for tensor in filter(_has_rows, tensors):
                self._observed.gave(root_of(call.path), self._digests(tensor))

    # --- the same once more -----------------------------------------------------------------------------------------

    def _remember(self, call: TrackedCall) -> None:
        place = _place_of(call)
        if call.walk is not None and place is not None:
            self._remembered[place] = call.walk.over, len(call.walk.over.events)
            self._remembered.move_to_end(place)
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)

    def _found_again(self, call: TrackedCall, node: int) -> ForwardWalk | None:
        """The walk of a call that no other one encloses, within a backward pass."""
        place = _place_of(call)
        known = None if place is None else self._remembered.get(place)
        if known is not None:
            self._again = node, ForwardWalk(*known)
        elif self._again is not None and self._again[0] != node:
            self._again = None
        return None if self._again is None else self._again[1]


def _has_rows(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() > 0


def _place_of(call: TrackedCall) -> _Place | None:
    """What tells a call from the others that its module is given: where the first tensor lies. None: it has none."""
    for _, tensor in call.arguments:
        address = address_of(tensor)
        if address and tensor.is_floating_point():
            return call.path, address, int(tensor.storage_offset()), tuple(tensor.shape)
    return None


def _forward(calls: Iterable[TrackedCall], layouts: Layouts) -> Forward | None:
    """The forward pass that the last of these calls, each within the one before, is given the tokens of."""
    values: dict[int, Value] = {}
    made = []
    for number, call in enumerate(calls):
        tensors = [
            kept for name, tensor in call.arguments if (kept := _kept(name, tensor, layouts, values)) is not None
        ]
        parent = number - 1 if number else None
        made.append(ModuleCall(number, parent, call.path, call.kind, 0, "", False, 0, 1, tuple(tensors)))
    found = forwards_of(CallRange("b", tuple(made), find=values.get))
    own = [forward for forward in found if forward.call is made[-1]]
    return own[0] if own and own[0].ids.size else None


def _kept(name: str, tensor: torch.Tensor, layouts: Layouts, values: dict[int, Value]) -> ActivationRows | None:
    """A tensor of whole numbers as a recording would have it; its value is in ``values`` then."""
    dtype = dtype_name(tensor.dtype)
    if dtype not in (*INTEGERS, "bool") or tensor.numel() * tensor.element_size() > MOST_BYTES:
        return None
    try:
        data = bytes_of(tensor, layouts.of(tensor))
    except NoBytesError:
        return None
    number, shape = len(values), tuple(tensor.shape)
    values[number] = Value(number, dtype, shape, memoryview(data))
    return ActivationRows(Part.INPUT, name, dtype, shape, (), np.zeros((), np.uint64), number)
