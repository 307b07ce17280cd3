"""The keys of activation rows: which row of a tensor belongs to which token of its forward pass.

Owns the keys of one side. They follow from the shape (``layouts``); else from the content, where the same bits were at
tokens of one key only in the same forward pass before (the tokens that a router hands to an expert, the last position
that a head is given); else an output has the rows of an input of the same shape whose keys follow from content. Rows
that remain unidentified are not compared, and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from rltrace.extensions.parity.call_range import CallRange, came_from, inputs_of, outputs_of, row_shape
from rltrace.extensions.parity.matching.forward_passes import INTEGERS
from rltrace.extensions.parity.matching.layouts import (
    RowLayout,
    is_certain,
    layouts,
    op_layouts,
    placement,
)
from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.module_names import root_of
from rltrace.extensions.parity.token_keys import NO_KEY, NONE, Keys, Numbers
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, OpRows, Part

# --- calls of forward passes ------------------------------------------------------------------------------------------


def passes_of(call_range: CallRange, grids: Sequence[TokenGrid]) -> Mapping[int, TokenGrid]:
    """By number of a call, its forward pass: the one within it or around it, else the one that its outermost call
    continues. Unlike ``patching.forward_tracker``, this knows later calls: those before the anchor are identified too.
    """
    within: dict[int, list[TokenGrid]] = {}
    for grid in grids:
        for call in (grid.anchor, *call_range.around(grid.anchor)):
            within.setdefault(call.number, []).append(grid)
    found: dict[int, TokenGrid] = {}
    current: dict[str, _Calls] = {}
    unidentified: set[int] = set()
    for call in call_range.calls:
        chain = (call, *call_range.around(call))
        own = next((within[one.number] for one in chain if one.number in within), [])
        root = root_of(call.module)
        calls = current.get(root)
        if len(own) == 1:
            if calls is None or calls.grid is not own[0]:
                calls = current[root] = _Calls(own[0])
        elif call.number in within or calls is None or chain[-1].number in unidentified:
            continue
        elif call is chain[-1] and not calls.continues(call):
            unidentified.add(call.number)
            continue
        found[call.number] = calls.grid
        calls.add(call, outermost=call is chain[-1])
    return found


class _Calls:
    """The calls of a forward pass so far."""

    def __init__(self, grid: TokenGrid) -> None:
        self.grid = grid
        self._modules: set[str] = set()
        self._outputs: list[ActivationRows] = []

    def add(self, call: ModuleCall, *, outermost: bool) -> None:
        self._modules.add(call.module)
        if outermost:
            self._outputs += outputs_of(call)

    def continues(self, call: ModuleCall) -> bool:
        """Whether an outermost call belongs here: its module has not run, or its inputs are outputs of these."""
        if call.module not in self._modules:
            return True
        inputs = [tensor for tensor in inputs_of(call) if tensor.digests.size]
        return bool(inputs) and all(any(came_from(tensor, one) for one in self._outputs) for tensor in inputs)


# --- keying -----------------------------------------------------------------------------------------------------------


SEARCHED = 24
"""Earlier tensors of a forward pass that are searched for content, the latest first."""

_FOLD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """The identified activation rows of one tensor, grouped by token; [n] tokens."""

    tensor: ActivationRows
    grid: TokenGrid
    tokens: Numbers
    """[n]: the tokens, as indices into the flat grid."""
    tensor_rows: Numbers
    """[n, k]: the rows of the tensor for each token, in the order of ``tensor.digests``."""

    @cached_property
    def digests(self) -> Keys:
        """[n]: the digests of each token's rows, folded into one."""
        return fold(self.tensor.digests.ravel()[self.tensor_rows])

    @property
    def keys(self) -> Keys:
        return self.grid.keys[self.tokens]

    @property
    def width(self) -> tuple[int, ...]:
        """(shape of a row, rows for each token): tensors of different widths are not comparable."""
        return (*row_shape(self.tensor), self.tensor_rows.shape[1])

    def drop_unkeyed(self) -> KeyedRows:
        """Without tokens that have no key."""
        own = self.keys != NO_KEY
        return self if own.all() else replace(self, tokens=self.tokens[own], tensor_rows=self.tensor_rows[own])


@dataclass(frozen=True)
class Unkeyed:
    """A tensor whose rows are not identified, and why."""

    tensor: ActivationRows
    why: str


Keyed = KeyedRows | Unkeyed


def fold(digests: Keys) -> Keys:
    """One digest for several, [n, k] to [n]; their order matters."""
    if digests.shape[1] == 1:
        only: Keys = digests[:, 0]
        return only
    with np.errstate(over="ignore"):
        return reduce(lambda done, one: (done ^ (done >> np.uint64(29))) * _FOLD + one, digests.T)


class Keying:
    """The keyed tensors of all calls of a call range."""

    def __init__(self, call_range: CallRange, grids: Sequence[TokenGrid]) -> None:
        self.call_range = call_range
        self.compared: frozenset[str] | None = None
        """Modules of which rows are compared with those of a partner; None: all."""
        self.grids = tuple(grid for grid in grids if len(grid.keys))
        self._passes = passes_of(call_range, self.grids)
        self._keyed: dict[int, list[KeyedRows]] = {}
        self._found: dict[int, list[Keyed]] = {}
        for call, part in call_range.moments:
            for tensor in call.tensors:
                if tensor.part is part:
                    self._found.setdefault(call.number, []).append(self._key(call, tensor))

    def is_part(self, path: str, of: str) -> bool:
        """Whether the ops of a module are those of module ``of``: it is that, or one within it that is not compared."""
        while path != of and self.compared is not None and path.startswith(f"{of}.") and path not in self.compared:
            path = path.rpartition(".")[0]
        return path == of

    def grid(self, call: ModuleCall) -> TokenGrid | None:
        """The forward pass of a call; None: unknown, or there are several within it."""
        return self._passes.get(call.number)

    def of(self, call: ModuleCall) -> Sequence[Keyed]:
        """The rows of each tensor of a call: inputs, then outputs."""
        return self._found.get(call.number, ())

    def of_op(self, call: ModuleCall, op: OpRows) -> Sequence[Keyed]:
        """The rows of each tensor of an op that ran in ``call``, by their shapes."""
        grid = self.grid(call)
        if grid is None:
            return [Unkeyed(tensor, _NO_GRID) for tensor in op.tensors]
        return [self._by_shape(grid, tensor, op_layouts(tensor.digests.shape, grid.shape)) for tensor in op.tensors]

    # --- one tensor -------------------------------------------------------------------------------------------------

    def _key(self, call: ModuleCall, tensor: ActivationRows) -> Keyed:
        grid = self.grid(call)
        if grid is None:
            return Unkeyed(tensor, _RECOMPUTED if call.phase == "backward" else _NO_GRID)
        original, tensor = tensor, self._add_element_rows(grid, tensor)
        possible = layouts(tensor.digests.shape, grid.shape)
        if tensor is original and len(possible) == 1 and not is_certain(possible, tensor.digests.ndim):
            possible = ()
        found = self._by_shape(grid, tensor, possible)
        if isinstance(found, Unkeyed) or _is_doubtful(tensor, possible):
            found = self._identify(call, grid, tensor, found)
        if isinstance(found, KeyedRows):
            self._keyed.setdefault(id(grid), []).append(found)
        return found

    def _identify(self, call: ModuleCall, grid: TokenGrid, tensor: ActivationRows, found: Keyed) -> Keyed:
        """The rows by content, where the shape fits no layout or may fit one by chance."""
        if isinstance(found, KeyedRows) and self._has_earlier(found):
            return KeyedRows(tensor, grid, found.tokens, found.tensor_rows)
        may_be_earlier = isinstance(found, Unkeyed) or tensor.part is Part.INPUT
        by_content = self._by_content(grid, tensor) if may_be_earlier else None
        return by_content or self._as_input(call, tensor) or found

    def _add_element_rows(self, grid: TokenGrid, tensor: ActivationRows) -> ActivationRows:
        """Integers, one for each token, such as positions: with a row for each element."""
        shared = grid.shape[1:]
        if tensor.dtype not in (*INTEGERS, "bool") or tensor.shape not in (grid.shape, (1, *shared), shared):
            return tensor
        numbers = self.call_range.numbers(tensor)
        if numbers is None:
            return tensor
        axes = tuple(range(len(tensor.shape)))
        digests = fold(np.stack([numbers.ravel().astype(np.int64).view(np.uint64) + np.uint64(1)], axis=1))
        named = tensor.part, tensor.name, tensor.dtype, tensor.shape
        return ActivationRows(*named, axes, digests.reshape(tensor.shape), tensor.whole)

    def _by_shape(self, grid: TokenGrid, tensor: ActivationRows, possible: tuple[RowLayout, ...]) -> Keyed:
        shape = tensor.digests.shape
        if not possible:
            return Unkeyed(tensor, f"its {_counted(shape)} are not the {_counted(grid.shape)} of the forward pass")
        if len(possible) > 1:
            return Unkeyed(tensor, f"{_counted(shape)} can be read as {' and as '.join(possible)}")
        placed = placement(shape, grid.shape, possible[0])
        return KeyedRows(tensor, grid, placed.tokens, placed.tensor_rows)

    def _has_earlier(self, found: KeyedRows) -> bool:
        """Whether an earlier tensor of this forward pass has the same rows at the same tokens."""
        for earlier in self._earlier(found.grid, found.tensor):
            own = np.full(len(earlier.grid.keys), -1)
            own[earlier.tokens] = np.arange(len(earlier.tokens))
            at = own[found.tokens]
            if (at >= 0).all() and np.array_equal(earlier.digests[at], found.digests):
                return True
        return False

    def _earlier(self, grid: TokenGrid, tensor: ActivationRows) -> Iterator[KeyedRows]:
        """Tensors of this forward pass with rows of the same dtype and shape, the latest first; none for integers,
        whose rows are too often equal by chance.
        """
        if tensor.dtype in (*INTEGERS, "bool"):
            return iter(())
        kind = tensor.dtype, row_shape(tensor)
        found = [one for one in self._keyed.get(id(grid), ()) if (one.tensor.dtype, row_shape(one.tensor)) == kind]
        return (one for one in reversed(found[-SEARCHED:]) if one.tensor_rows.shape[1] == 1 and len(one.tokens))

    def _by_content(self, grid: TokenGrid, tensor: ActivationRows) -> KeyedRows | None:
        """Rows that an earlier tensor of this forward pass has at tokens of one key only."""
        digests = tensor.digests.ravel()
        for earlier in self._earlier(grid, tensor):
            at = places_of(digests, earlier.digests, earlier.keys)
            if at is not None and (at != NONE).any():
                own = np.flatnonzero(at != NONE)
                return KeyedRows(tensor, grid, earlier.tokens[at[own]], own[:, None])
        return None

    def _as_input(self, call: ModuleCall, tensor: ActivationRows) -> KeyedRows | None:
        """The rows of an output, as those of an input of the same shape whose rows are not simply all tokens."""
        if tensor.part is not Part.OUTPUT:
            return None
        for rows in self.of(call):
            if isinstance(rows, Unkeyed) or rows.tensor.part is not Part.INPUT or rows.tensor_rows.shape[1] > 1:
                continue
            is_plain = np.array_equal(rows.tokens, np.arange(len(rows.grid.keys)))
            if rows.tensor.digests.shape == tensor.digests.shape and not is_plain:
                return KeyedRows(tensor, rows.grid, rows.tokens, rows.tensor_rows)
        return None


def places_of(digests: Keys, known: Keys, keys: Keys) -> Numbers | None:
    """For each digest the index of its equal in ``known``, of several the next one each time; NONE where these have
    several ``keys``. None unless each of them has one."""
    order = np.argsort(known, kind="stable")
    ordered, own = known[order], keys[order]
    first, last = np.searchsorted(ordered, digests), np.searchsorted(ordered, digests, side="right") - 1
    if not len(digests) or (last < first).any():
        return None
    changes = np.concatenate([[0], np.cumsum(own[1:] != own[:-1])])
    places = order[np.minimum(first + occurrences(digests), last)]
    return np.where(changes[first] == changes[last], places, NONE)


def occurrences(keys: Keys, ranks: Numbers | None = None) -> Numbers:
    """The occurrence of each key among its equals, from 0, by rank and then in order."""
    order = np.argsort(keys, kind="stable") if ranks is None else np.lexsort((ranks, keys))
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(keys) else np.zeros(0, np.int64)
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    return found


_RECOMPUTED = "it was recomputed in a backward pass"
_NO_GRID = "its forward pass is unknown, or it holds several"


def _is_doubtful(tensor: ActivationRows, possible: tuple[RowLayout, ...]) -> bool:
    """Whether a shape may fit by chance, such as that of the tokens of one expert."""
    return possible == (RowLayout.FLAT,) and tensor.digests.size > 1


def _counted(shape: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, shape)) or 1} rows"
