"""Which calls are parts of which forward pass.

Owns what becomes of outermost calls that no grid is known from: a policy whose parts are called one by one goes on with
the same rows, until a part is called anew with something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rltrace.parity.rows.forwards import root_of
from rltrace.parity.rows.grids import Grid
from rltrace.parity.stretch import Stretch, came_from, inputs_of, outputs_of
from rltrace.trace.tensor_rows import KeptRows, ModuleCall


def covers(stretch: Stretch, grids: Sequence[Grid]) -> Mapping[int, Grid]:
    """By number of a call, the forward pass that it is a part of: the one in it or around it, else the one that its
    outermost call goes on with.
    """
    held: dict[int, list[Grid]] = {}
    for grid in grids:
        for call in (grid.anchor, *stretch.around(grid.anchor)):
            held.setdefault(call.number, []).append(grid)
    found: dict[int, Grid] = {}
    last: dict[str, _Pass] = {}
    apart: set[int] = set()
    for call in stretch.calls:
        chain = (call, *stretch.around(call))
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

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._modules: set[str] = set()
        self._gave: list[KeptRows] = []

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
