"""Rows that are no tokens: known by what the program handed in for them, or by their number.

Owns the grids of those. What is handed in enters at outermost calls. Where two of those follow each other (a policy
whose parts are called one by one), what the second is given came out of the first: it goes on with the first one's
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rltrace.parity.rows.forwards import root_of
from rltrace.parity.rows.grids import UNKNOWN, Grid
from rltrace.parity.stretch import Stretch, came_from, inputs_of, outputs_of
from rltrace.row_keys import NO_KEY, Keys
from rltrace.trace.tensor_rows import KeptRows, ModuleCall

SHARED = 0.5
"""Of the smaller side's different rows, how many the other has to have too, for an input to tell rows apart."""

Given = tuple[str, str]
"""Module path and name of an input."""


def observation_grids(a: Stretch, b: Stretch) -> tuple[tuple[Grid, ...], tuple[Grid, ...]]:
    """Grids by the inputs of which the two sides share the most rows; none where they share too few."""
    handed = _handed_in(a), _handed_in(b)
    every = [_distinct(side) for side in handed]
    chosen = [_chosen(side, other) for side, other in zip(handed, reversed(every), strict=True)]
    return _grids(handed[0], chosen[0]), _grids(handed[1], chosen[1])


Handed = Mapping[Given, list[tuple[ModuleCall, KeptRows]]]


def _handed_in(stretch: Stretch) -> Handed:
    """Inputs of outermost calls that no call before them gave, by module and name."""
    found: dict[Given, list[tuple[ModuleCall, KeptRows]]] = {}
    given: dict[str, list[KeptRows]] = {}
    for call in stretch.outermost:
        earlier = given.setdefault(root_of(call.module), [])
        for tensor in inputs_of(call):
            if tensor.digests.size and tensor.axes and not any(came_from(tensor, one) for one in earlier):
                found.setdefault((call.module, tensor.name), []).append((call, tensor))
        earlier[:] = [*earlier, *outputs_of(call)][-16:]
    return found


def _distinct(handed: Handed) -> Keys:
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *(t.digests.ravel() for _, t in _all(handed))]))


def _all(handed: Handed) -> Iterator[tuple[ModuleCall, KeptRows]]:
    for calls in handed.values():
        yield from calls


def _chosen(handed: Handed, others: Keys) -> Mapping[str, str]:
    """For each module the input of which the other side knows the most rows."""
    best: dict[str, tuple[int, str]] = {}
    for (module, name), calls in handed.items():
        own = np.unique(np.concatenate([tensor.digests.ravel() for _, tensor in calls]))
        shared = int(np.isin(own, others).sum())
        if shared >= SHARED * min(len(own), len(others)) and shared > best.get(module, (0, ""))[0]:
            best[module] = (shared, name)
    return {module: name for module, (_, name) in best.items()}


def _grids(handed: Handed, chosen: Mapping[str, str]) -> tuple[Grid, ...]:
    found = [
        _grid(call, tensor, np.where(tensor.digests == NO_KEY, np.uint64(1), tensor.digests).ravel())
        for (module, name), calls in handed.items()
        for call, tensor in calls
        if chosen.get(module) == name
    ]
    return tuple(sorted(found, key=lambda grid: grid.anchor.number))


def _grid(call: ModuleCall, tensor: KeptRows, keys: Keys) -> Grid:
    unknown = np.full(len(keys), UNKNOWN)
    return Grid(call, tensor.digests.shape, keys, unknown, unknown)


def counted_grids(stretch: Stretch) -> tuple[Grid, ...]:
    """Grids by number: the k-th row that goes into an outermost module, over all its calls."""
    counts: dict[str, int] = {}
    grids = []
    for call in stretch.outermost:
        tensor = _counted_along(call)
        if tensor is None:
            continue
        first = counts.get(call.module, 0)
        counts[call.module] = first + tensor.digests.size
        grids.append(_grid(call, tensor, np.arange(first, counts[call.module]).astype(np.uint64) + np.uint64(1)))
    return tuple(grids)


def _counted_along(call: ModuleCall) -> KeptRows | None:
    """The tensor whose rows are counted: the first input of numbers, else the first output."""
    tensors: Sequence[KeptRows] = [t for t in (*inputs_of(call), *outputs_of(call)) if t.axes and t.digests.size]
    numbers = [tensor for tensor in tensors if "float" in tensor.dtype]
    return next(iter(numbers or tensors), None)
