"""The forward passes of one thread of the running program, followed call by call.

Owns to which forward pass a call or an op belongs, and its occurrence there. Only earlier calls are known; of a trace,
``matching.row_keying`` knows later ones too.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch

from rltrace.digest.activation_rows import row_digests
from rltrace.extensions.parity.call_range import CallRange
from rltrace.extensions.parity.matching.forward_passes import INTEGERS, Forward, forwards_of
from rltrace.extensions.parity.matching.token_grids import (
    UNKNOWN,
    EarlierOutputs,
    SequenceFollower,
    TokenGrid,
    first_position,
)
from rltrace.extensions.parity.module_names import ModulePartners, root_of
from rltrace.extensions.parity.patching.row_table import OUTPUT, RowTable
from rltrace.extensions.parity.token_keys import NONE, Keys, Numbers
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import Layouts, dtype_name
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.records import axes_of
from rltrace.trace.read.values import Value

# --- the rule ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ForwardPass:
    """One forward pass."""

    number: int
    """Of its thread, from 0."""
    grid: TokenGrid
    """The keys of its tokens."""
    sequences: Numbers
    """For each token the sequence of A that goes on as its own does; NONE: there is none."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(module, op) of its calls and counted ops, in order."""

    def describe(self, row: int) -> str:
        """A token in words: ``token 19 of sequence 1, in forward pass 3``."""
        place, sequence = int(self.grid.places[row]), int(self.grid.sequences[row])
        if place == UNKNOWN:
            return f"row {row:,} of forward pass {self.number:,}"
        return f"token {place:,} of sequence {sequence:,}, in forward pass {self.number:,}"


class Traversal:
    """The run through a forward pass, or a repeated run through the rest of it (activation checkpointing)."""

    def __init__(self, forward_pass: ForwardPass, start: int | None = None) -> None:
        """``start``: the number of earlier events where it is repeated; None: it is not."""
        self.forward_pass = forward_pass
        self.is_repeated = start is not None
        self._counts = Counter(() if start is None else forward_pass.events[:start])

    def count(self, module: str, op: str) -> int:
        """The occurrence, from 0, of this call or op, which runs now."""
        occurrence = self._counts[module, op]
        self._counts[module, op] += 1
        if not self.is_repeated:
            self.forward_pass.events.append((module, op))
        return occurrence


@dataclass(eq=False)
class TrackedCall:
    """A call of a module."""

    module: str | None
    """A's path; None: A has no such module."""
    path: str
    kind: str = ""
    depth: int = 0
    arguments: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Named tensors of the running program."""
    traversal: Traversal | None = None
    """None: it is unknown to which forward pass the call belongs."""
    nth: int | None = None
    """Occurrence of the module in the forward pass, from 0; None: unknown."""
    start: int = 0
    """Earlier events of the forward pass."""
    passes: int = 0
    """Forward passes that began within the call."""
    is_recomputed: bool = False
    """It began within a backward pass."""


class ForwardTracker:
    """Forward passes, by the beginnings and ends of module calls.

    A call that is given tokens begins a forward pass, to which later calls of the same outermost module belong, and the
    calls around it, if no other forward pass begins in them. A call of a module that had one begin in it before belongs
    to none until one does.
    """

    def __init__(self, anchors: Collection[str]) -> None:
        """``anchors``: A's paths of the modules that are given tokens; empty: rows are identified by observations."""
        self.calls: list[TrackedCall] = []
        """Calls that have not ended, the innermost last."""
        self._anchors = frozenset(anchors)
        self._traversals: dict[str, Traversal] = {}
        """The current one, by name of the outermost module."""
        self._enclosing: set[str] = set()
        """Paths of modules within which a forward pass began before."""
        self._outputs = EarlierOutputs()

    def begin(self, call: TrackedCall, new: Callable[[], ForwardPass | None]) -> None:
        """``new`` returns the forward pass that begins with the call; None: none does."""
        root = root_of(call.path)
        self.calls.append(call)
        if call.path in self._enclosing or call.module in self._anchors:
            self._traversals.pop(root, None)
        forward_pass = new()
        if forward_pass is not None:
            traversal = self._traversals[root] = Traversal(forward_pass)
            for around in self.calls[:-1]:
                around.passes += 1
                self._enclosing.add(around.path)
                self._assign(around, traversal if around.passes == 1 else None)
        self._assign(call, self._traversals.get(root))

    def repeat(self, call: TrackedCall, traversal: Traversal | None) -> None:
        """A call begins that a backward pass recomputes."""
        self.calls.append(call)
        self._assign(call, traversal)

    def end(self, call: TrackedCall) -> None:
        while self.calls and self.calls.pop() is not call:
            pass

    def _assign(self, call: TrackedCall, traversal: Traversal | None) -> None:
        call.traversal, call.nth = traversal, None
        if traversal is not None:
            call.start = len(traversal.forward_pass.events)
            if call.module is not None:
                call.nth = traversal.count(call.module, OUTPUT)

    # --- observations -----------------------------------------------------------------------------------------------

    def observation(self, call: TrackedCall, inputs: Iterable[Keys]) -> Keys | None:
        """The first of these inputs, by the digests of its rows, that an outermost call was given as an observation.

        None: there is none. Of several inputs a trace shows which differs most; here it is not known yet.
        """
        for digests in inputs if len(self.calls) == 1 else ():
            if digests.size and not self._outputs.hold(call.path, digests):
                self._outputs.forget(call.path)
                return digests
        return None

    def add_outputs(self, call: TrackedCall, outputs: Iterable[Keys]) -> None:
        """Digests of rows that a call returned, after it ended."""
        for digests in outputs if not self.calls else ():
            self._outputs.add(call.path, digests)


# --- the running program ----------------------------------------------------------------------------------------------


REMEMBERED = 1 << 15
"""Calls that are found again when a backward pass recomputes them: hundreds of them in a forward pass."""

MAX_BYTES = 1 << 26
"""Of a tensor of token ids, positions or a mask."""

_Address = tuple[str, int, int, tuple[int, ...]]
"""Path of a module; storage, offset and shape of the first tensor that it is given."""


class RunningPasses:
    """The forward passes of one thread of the running program."""

    def __init__(self, table: RowTable, partners: ModulePartners, layouts: Layouts, step: Callable[[], int]) -> None:
        """``step`` returns the optimizer step."""
        self._tracker = ForwardTracker(() if table.observed else table.anchors)
        self._table = table
        self._partners = partners
        self._layouts = layouts
        self._step = step
        self._models: dict[str, SequenceFollower] = {}
        self._offset: int | None = None
        """The first position of a sequence; None: no positions so far."""
        self._count = 0
        self._remembered: OrderedDict[_Address, tuple[ForwardPass, int]] = OrderedDict()
        self._repeated: tuple[int, Traversal] | None = None
        """(autograd node, traversal) of what is being recomputed."""

    @property
    def call(self) -> TrackedCall | None:
        """The innermost call."""
        return self._tracker.calls[-1] if self._tracker.calls else None

    def begin(self, path: str, kind: str, depth: int, arguments: list[tuple[str, torch.Tensor]]) -> TrackedCall:
        """A module of class ``kind`` is about to be called, within ``depth`` other calls."""
        while (around := self.call) is not None and around.depth >= depth:  # an interrupt left it unended
            self._tracker.end(around)
        call = TrackedCall(self._partners.of(path), path, kind, depth, arguments)
        node = torch._C._current_autograd_node()
        if node is None:
            self._repeated = None
            self._tracker.begin(call, lambda: self._new(call))
            self._remember(call)
        else:
            call.is_recomputed = True
            within = around is not None and around.is_recomputed
            self._tracker.repeat(call, around.traversal if within and around else self._find(call, node._sequence_nr()))
        return call

    def end(self, call: TrackedCall) -> None:
        self._tracker.end(call)

    def add_outputs(self, call: TrackedCall, tensors: Iterable[torch.Tensor]) -> None:
        """What a call returned, after it ended."""
        if self._table.observed and torch._C._current_autograd_node() is None:
            self._tracker.add_outputs(call, (self._digests(tensor) for tensor in tensors if _has_rows(tensor)))

    # --- a new forward pass -----------------------------------------------------------------------------------------

    def _new(self, call: TrackedCall) -> ForwardPass | None:
        """The forward pass that begins with a call; None: none does."""
        found = self._over_observations(call) if self._table.observed else self._over_tokens(call)
        if found is None:
            return None
        grid, sequences = found
        self._count += 1
        return ForwardPass(self._count - 1, grid, sequences)

    def _over_tokens(self, call: TrackedCall) -> tuple[TokenGrid, Numbers] | None:
        if call.module not in self._table.anchors:
            return None
        root = root_of(call.path)
        forward = _forward([each for each in self._tracker.calls if root_of(each.path) == root], self._layouts)
        if forward is None:
            return None
        follower = self._models.setdefault(call.path, SequenceFollower(None, 0, count()))
        if forward.positions is not None and self._offset is None:
            self._offset = first_position([forward])
        follower.offset = self._offset or 0
        grid = follower.grid(forward)
        keys = grid.keys.reshape(forward.ids.shape)
        return grid, np.broadcast_to(self._table.like(keys, self._step())[:, None], keys.shape).ravel()

    def _over_observations(self, call: TrackedCall) -> tuple[TokenGrid, Numbers] | None:
        inputs = (self._digests(tensor) for _, tensor in call.arguments if _has_rows(tensor))
        digests = self._tracker.observation(call, inputs)
        if digests is None:
            return None
        anchor = ModuleCall(self._count, None, call.path, call.kind, 0, "", False, 0, 0, ())
        return TokenGrid.of_inputs(anchor, digests), np.full(digests.size, NONE)

    def _digests(self, tensor: torch.Tensor) -> Keys:
        try:
            data = bytes_of(tensor, self._layouts.of(tensor))
        except NoBytesError:
            return np.zeros(0, np.uint64)
        axes = axes_of(self._table.axes, tensor.dim())
        return row_digests(data, dtype_name(tensor.dtype), tuple(map(int, tensor.shape)), tensor.element_size(), axes)

    # --- a repeated one ---------------------------------------------------------------------------------------------

    def _remember(self, call: TrackedCall) -> None:
        address = _address(call)
        if call.traversal is not None and address is not None:
            self._remembered[address] = call.traversal.forward_pass, call.start
            self._remembered.move_to_end(address)
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)

    def _find(self, call: TrackedCall, node: int) -> Traversal | None:
        """The traversal of the outermost call that a backward pass recomputes."""
        address = _address(call)
        known = None if address is None else self._remembered.get(address)
        if known is not None:
            self._repeated = node, Traversal(*known)
        elif self._repeated is not None and self._repeated[0] != node:
            self._repeated = None
        return None if self._repeated is None else self._repeated[1]


def _has_rows(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel() > 0


def _address(call: TrackedCall) -> _Address | None:
    """The memory of the first input, by which a recomputation is found; None: there is none."""
    for _, tensor in call.arguments:
        address = address_of(tensor)
        if address and tensor.is_floating_point():
            return call.path, address, int(tensor.storage_offset()), tuple(tensor.shape)
    return None


def _forward(calls: Iterable[TrackedCall], layouts: Layouts) -> Forward | None:
    """The forward pass whose tokens are given to the last of these nested calls."""
    values: dict[int, Value] = {}
    recorded = []
    for number, call in enumerate(calls):
        rows = [_recorded(name, tensor, layouts, values) for name, tensor in call.arguments]
        parent = number - 1 if number else None
        tensors = tuple(tensor for tensor in rows if tensor is not None)
        recorded.append(ModuleCall(number, parent, call.path, call.kind, 0, "", False, 0, 1, tensors))
    found = forwards_of(CallRange("b", tuple(recorded), find=values.get))
    own = [forward for forward in found if forward.call is recorded[-1]]
    return own[0] if own and own[0].ids.size else None


def _recorded(name: str, tensor: torch.Tensor, layouts: Layouts, values: dict[int, Value]) -> ActivationRows | None:
    """A tensor of whole numbers as a recording would have it; its value is added to ``values``."""
    dtype = dtype_name(tensor.dtype)
    if dtype not in (*INTEGERS, "bool") or tensor.numel() * tensor.element_size() > MAX_BYTES:
        return None
    try:
        data = bytes_of(tensor, layouts.of(tensor))
    except NoBytesError:
        return None
    number, shape = len(values), tuple(tensor.shape)
    values[number] = Value(number, dtype, shape, memoryview(data))
    return ActivationRows(Part.INPUT, name, dtype, shape, (), np.zeros((), np.uint64), number)
