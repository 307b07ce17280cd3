"""Which row of a module call's tensors is which row of the forward pass that the call belongs to.

Owns the keys of rows of one side. What a shape tells is taken (``layouts``); where it does not, a row is known by its
content if the same bits stood in the same forward pass before, for one key alone (the tokens that a router hands to an
expert, the last position that the head is given); and a module that gives back as many rows as such an input had gives
them back in that order. Anything else is not compared by row, and told: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from rltrace.parity.call_range import CallRange, came_from, inputs_of, outputs_of, row_shape
from rltrace.parity.matching.forward_passes import INTEGERS
from rltrace.parity.matching.layouts import RowLayout, common_layouts, layouts, op_layouts, placement, settled
from rltrace.parity.matching.token_grids import TokenGrid
from rltrace.parity.module_names import root_of
from rltrace.token_keys import NO_KEY, Keys, Numbers
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, OpRows, Part

# --- passes -----------------------------------------------------------------------------------------------------------
#
# Which calls are parts of which forward pass.
#
# Owns what becomes of outermost calls that no grid is known from: a policy whose parts are called one by one goes on
# with the same rows, until a part is called anew with something else.


def covers(call_range: CallRange, grids: Sequence[TokenGrid]) -> Mapping[int, TokenGrid]:
    """By number of a call, the forward pass that it is a part of: the one in it or around it, else the one that its
    outermost call goes on with.
    """
    held: dict[int, list[TokenGrid]] = {}
    for grid in grids:
        for call in (grid.anchor, *call_range.around(grid.anchor)):
            held.setdefault(call.number, []).append(grid)
    found: dict[int, TokenGrid] = {}
    last: dict[str, _Pass] = {}
    apart: set[int] = set()
    for call in call_range.calls:
        chain = (call, *call_range.around(call))
        near = [held[one.number] for one in chain if one.number in held]
        own, root = near[0] if near else [], root_of(call.module)
        under_way = last.get(root)
        if len(own) == 1:
            found[call.number] = own[0]
            if under_way is None or under_way.grid is not own[0]:
                under_way = last[root] = _Pass(own[0])
        elif call.number in held or under_way is None or chain[-1].number in apart:
            continue
        elif call is chain[-1] and not under_way.goes_on(call):
            apart.add(call.number)
            continue
        else:
            found[call.number] = under_way.grid
        under_way.met(call, outermost=call is chain[-1])
    return found


class _Pass:
    """A forward pass while its calls come by."""

    def __init__(self, grid: TokenGrid) -> None:
        self.grid = grid
        self._modules: set[str] = set()
        self._gave: list[ActivationRows] = []

    def met(self, call: ModuleCall, *, outermost: bool) -> None:
        """``call`` is a part of it."""
        self._modules.add(call.module)
        if outermost:
            self._gave += outputs_of(call)

    def goes_on(self, call: ModuleCall) -> bool:
        """Whether an outermost call is a part of it: its module has not run in it yet, or works on what came of it."""
        if call.module not in self._modules:
            return True
        given = [tensor for tensor in inputs_of(call) if tensor.digests.size]
        return bool(given) and all(any(came_from(tensor, one) for one in self._gave) for tensor in given)


# --- keying -----------------------------------------------------------------------------------------------------------


SEARCHED = 24
"""Earlier tensors of a forward pass in which content is looked for, the latest first."""

_FOLD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """The rows of one tensor that are known, one for each row of the grid that it has; [n] each."""

    tensor: ActivationRows
    grid: TokenGrid
    rows: Numbers
    """Rows of the grid, flat."""
    parts: Numbers
    """[n, k]: the rows of the tensor that are its, in the order of ``tensor.digests``."""
    assumed: str = ""
    """What was taken for granted about it; "": nothing."""

    @cached_property
    def digests(self) -> Keys:
        """Of each row, those of its parts folded into one."""
        return fold(self.tensor.digests.ravel()[self.parts])

    @property
    def keys(self) -> Keys:
        return self.grid.keys[self.rows]

    @property
    def width(self) -> tuple[int, ...]:
        """Shape of one part of a row, and how many parts there are: rows of another width are not comparable."""
        return (*row_shape(self.tensor), self.parts.shape[1])

    def of_known(self) -> KeyedRows:
        """Without rows that have no key."""
        own = self.keys != NO_KEY
        return self if own.all() else KeyedRows(self.tensor, self.grid, self.rows[own], self.parts[own], self.assumed)


@dataclass(frozen=True)
class Unkeyed:
    """A tensor whose rows are not known, and why."""

    tensor: ActivationRows
    why: str


Keyed = KeyedRows | Unkeyed


def fold(parts: Keys) -> Keys:
    """One digest for the digests of several rows, [n, k] to [n]; their order counts."""
    if parts.shape[1] == 1:
        only: Keys = parts[:, 0]
        return only
    with np.errstate(over="ignore"):
        return reduce(lambda done, one: (done ^ (done >> np.uint64(29))) * _FOLD + one, parts.T)


class Keying:
    """The keys of the rows of all calls of one call range."""

    def __init__(self, call_range: CallRange, grids: Sequence[TokenGrid]) -> None:
        self.call_range = call_range
        self.grids = tuple(grid for grid in grids if len(grid.keys))
        self._covers = covers(call_range, self.grids)
        grids_of_calls = ((call, self._covers[call.number]) for call in call_range.calls if call.number in self._covers)
        self._layouts = common_layouts(
            (_name(call, tensor), layouts(tensor.digests.shape, grid.shape))
            for call, grid in grids_of_calls
            for tensor in call.tensors
        )
        self._met: dict[int, list[KeyedRows]] = {}
        self._found: dict[int, list[Keyed]] = {}
        for call, part in call_range.moments:
            for tensor in call.tensors:
                if tensor.part is part:
                    self._found.setdefault(call.number, []).append(self._key(call, tensor))

    def grid(self, call: ModuleCall) -> TokenGrid | None:
        """The forward pass that a call belongs to; None: none, or it holds several."""
        return self._covers.get(call.number)

    def of(self, call: ModuleCall) -> Sequence[Keyed]:
        """The rows of each tensor of a call: inputs, then outputs."""
        return self._found.get(call.number, ())

    def of_op(self, call: ModuleCall, op: OpRows) -> Sequence[Keyed]:
        """The rows of each tensor of an op that ran in ``call``, by their shapes alone."""
        grid = self.grid(call)
        if grid is None:
            return [Unkeyed(tensor, _NO_GRID) for tensor in op.tensors]
        return [self._by_shape(grid, tensor, op_layouts(tensor.digests.shape, grid.shape)) for tensor in op.tensors]

    # --- one tensor -------------------------------------------------------------------------------------------------

    def _key(self, call: ModuleCall, tensor: ActivationRows) -> Keyed:
        grid = self.grid(call)
        if grid is None:
            return Unkeyed(tensor, _AGAIN if call.phase == "backward" else _NO_GRID)
        given, tensor = tensor, self._by_element(grid, tensor)
        possible = layouts(tensor.digests.shape, grid.shape)
        if tensor is given:
            possible = settled(possible, tensor.digests.ndim, self._layouts[_name(call, tensor)])
        found = self._by_shape(grid, tensor, possible)
        if isinstance(found, Unkeyed) or _is_doubtful(tensor, possible):
            found = self._settled(call, grid, tensor, found)
        if isinstance(found, KeyedRows):
            self._met.setdefault(id(grid), []).append(found)
        return found

    def _settled(self, call: ModuleCall, grid: TokenGrid, tensor: ActivationRows, found: Keyed) -> Keyed:
        """What the content tells where a shape tells nothing, or may do so by chance."""
        if isinstance(found, KeyedRows) and self._stood_there(found):
            return KeyedRows(tensor, grid, found.rows, found.parts)
        may_be_met = isinstance(found, Unkeyed) or found.assumed or tensor.part is Part.INPUT
        return (self._by_content(grid, tensor) if may_be_met else None) or self._passed_through(call, tensor) or found

    def _by_element(self, grid: TokenGrid, tensor: ActivationRows) -> ActivationRows:
        """Whole numbers that stand one for each token, as positions do: each is a row by itself."""
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
        assumed = "taken as those of the last tokens" if possible[0] is RowLayout.TAIL else ""
        return KeyedRows(tensor, grid, placed.rows, placed.parts, assumed)

    def _stood_there(self, found: KeyedRows) -> bool:
        """Whether the same rows stood at the same tokens of this forward pass before."""
        for met in self._earlier(found.grid, found.tensor):
            own = np.full(len(met.grid.keys), -1)
            own[met.rows] = np.arange(len(met.rows))
            at = own[found.rows]
            if (at >= 0).all() and np.array_equal(met.digests[at], found.digests):
                return True
        return False

    def _earlier(self, grid: TokenGrid, tensor: ActivationRows) -> Iterator[KeyedRows]:
        """Tensors of this forward pass with rows of the same kind, the latest first; none of whole numbers, which are
        too few to tell rows apart.
        """
        if tensor.dtype in (*INTEGERS, "bool"):
            return iter(())
        kind = tensor.dtype, row_shape(tensor)
        met = [one for one in self._met.get(id(grid), ()) if (one.tensor.dtype, row_shape(one.tensor)) == kind]
        return (one for one in reversed(met[-SEARCHED:]) if one.parts.shape[1] == 1 and len(one.rows))

    def _by_content(self, grid: TokenGrid, tensor: ActivationRows) -> KeyedRows | None:
        """Rows that stood somewhere in this forward pass before, each at one place alone."""
        wanted = tensor.digests.ravel()
        for met in self._earlier(grid, tensor) if len(wanted) else ():
            order = np.lexsort((met.rows, met.digests))
            known = met.digests[order]
            first = np.searchsorted(known, wanted)
            if not (known[np.minimum(first, len(known) - 1)] == wanted).all():
                continue
            places = order[np.minimum(first + _nth(wanted), len(known) - 1)]
            rows = met.rows[places]
            same = (met.digests[places] == wanted) & self._one_key(met, order, first, wanted)
            own = np.flatnonzero(same)
            if len(own):
                return KeyedRows(tensor, grid, rows[own], own[:, None])
        return None

    def _one_key(self, met: KeyedRows, order: Numbers, first: Numbers, wanted: Keys) -> NDArray[np.bool_]:
        """Which rows stood only at tokens of one key: several sequences may begin with the same tokens."""
        known = met.digests[order]
        last = np.searchsorted(known, wanted, side="right") - 1
        keys = met.keys[order]
        changes = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])
        one: NDArray[np.bool_] = changes[first] == changes[last]
        return one

    def _passed_through(self, call: ModuleCall, tensor: ActivationRows) -> KeyedRows | None:
        """An output with as many rows as an input whose rows are no plain ones has that one's."""
        if tensor.part is not Part.OUTPUT:
            return None
        for given in self.of(call):
            if isinstance(given, Unkeyed) or given.tensor.part is not Part.INPUT or given.parts.shape[1] > 1:
                continue
            is_plain = np.array_equal(given.rows, np.arange(len(given.grid.keys)))
            if given.tensor.digests.shape == tensor.digests.shape and not is_plain:
                return KeyedRows(tensor, given.grid, given.rows, given.parts, given.assumed)
        return None


def _nth(digests: Keys) -> Numbers:
    """How manieth of its kind each is, from 0."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    nth = np.empty(len(digests), np.int64)
    nth[order] = np.arange(len(digests)) - np.repeat(begins, np.diff(np.append(begins, len(digests))))
    return nth


_AGAIN = "it was recomputed in a backward pass"
_NO_GRID = "its forward pass is unknown, or it holds several"


def _is_doubtful(tensor: ActivationRows, possible: tuple[RowLayout, ...]) -> bool:
    """Rows of which as many may stand together for another reason: the tokens that one expert is handed."""
    return possible == (RowLayout.TAIL,) or (possible == (RowLayout.FLAT,) and tensor.digests.size > 1)


def _name(call: ModuleCall, tensor: ActivationRows) -> tuple[str, Part, str]:
    return call.module, tensor.part, tensor.name


def _counted(shape: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, shape)) or 1} rows"
