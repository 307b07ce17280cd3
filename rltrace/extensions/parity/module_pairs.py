"""Modules of A paired with modules of B, tensor by tensor, row by row; and which of those rows are equal.

Owns which tensors of two modules are compared (those of the same name, else in order), and which rows cannot be.
Measures no distances.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Pair
from rltrace.extensions.parity.call_range import inputs_of, name_of, tensors_of
from rltrace.extensions.parity.matching.forward_passes import MASKS, PADDING_MASKS, POSITIONS
from rltrace.extensions.parity.matching.row_keying import KeyedRows, Keying, Unkeyed
from rltrace.extensions.parity.matching.row_pairs import KeyedTable, Pairs, pair, table_of
from rltrace.extensions.parity.model import UncomparedTensor
from rltrace.extensions.parity.token_keys import Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall, Part

Name = tuple[Part, str]
Sources = Mapping[Name, list[tuple[ModuleCall, KeyedRows]]]


@dataclass(frozen=True, eq=False)
class PairedTensor:
    """One tensor of a module on both sides."""

    part: Part
    name: Pair[str]
    a: KeyedTable
    b: KeyedTable
    pairs: Pairs
    equal: NDArray[np.bool_]
    """[pairs]: whether their digests are equal."""

    @cached_property
    def dtype(self) -> Pair[str]:
        """Dtypes of the paired rows of each side, joined by ``/``."""
        return Pair(*(_dtypes(table, at) for table, at in ((self.a, self.pairs.a), (self.b, self.pairs.b))))

    @property
    def differing(self) -> Numbers:
        """Pairs whose digests differ."""
        return np.flatnonzero(~self.equal)


@dataclass(frozen=True, eq=False)
class PairedModule:
    """A module of A and its partner in B."""

    path: Pair[str]
    kind: Pair[str]
    calls: Pair[int]
    tensors: tuple[PairedTensor, ...]
    uncompared: tuple[UncomparedTensor, ...]
    fused: bool = False
    """Whether a side computes it as a part of another module."""

    def of(self, part: Part) -> tuple[PairedTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.part is part)


def pair_modules(a: Keying, b: Keying, names: Iterable[tuple[str, str]], ranks: Numbers) -> list[PairedModule]:
    """The modules of ``names`` in the order in which A's first calls ended. ``ranks``: as of ``row_pairs.partners``."""
    partners = dict(names)
    calls_a, calls_b = a.call_range.modules, b.call_range.modules
    return [
        _pair_module(a, b, Pair(path, partners[path]), calls_a[path], calls_b[partners[path]], ranks)
        for path in calls_a
        if path in partners
    ]


def _pair_module(
    a: Keying, b: Keying, path: Pair[str], own: Sequence[ModuleCall], other: Sequence[ModuleCall], ranks: Numbers
) -> PairedModule:
    (sources_a, uncompared_a), (sources_b, uncompared_b) = _sources(a, path.a, own), _sources(b, path.b, other)
    tensors, uncompared = [], [*uncompared_a, *uncompared_b]
    names, unsure = _tensor_names(sources_a, sources_b)
    uncompared += unsure
    for name_a, name_b in names:
        found = _pair_tensor(name_a, name_b, table_of(sources_a[name_a], ranks), table_of(sources_b[name_b]))
        tensors += [found] if len(found.pairs.ids) else []
        if not len(found.pairs.ids) and len(found.a) and len(found.b):
            why = "none of its rows was computed by both sides in the same length"
            uncompared.append(UncomparedTensor(name_a[0].name.lower(), name_a[1], "both", len(own), why))
    if tensors and all(tensor.part is Part.OUTPUT for tensor in tensors) and (_has_inputs(own) or _has_inputs(other)):
        why = "no input of the module is compared, so it may be given something else"
        uncompared += [UncomparedTensor("output", str(tensor.name.a), "both", len(own), why) for tensor in tensors]
        tensors = []
    kinds, counts = Pair(own[0].kind, other[0].kind), Pair(len(own), len(other))
    shown = Pair(a.call_range.own_path(str(path.a)), b.call_range.own_path(str(path.b)))
    fused = (own[0].module, other[0].module) != (shown.a, shown.b)
    return PairedModule(shown, kinds, counts, tuple(tensors), _merged(uncompared), fused)


def _sources(keying: Keying, path: str | None, calls: Sequence[ModuleCall]) -> tuple[Sources, list[UncomparedTensor]]:
    """The rows of each tensor over all calls of a module; and the tensors without identified rows."""
    side = keying.call_range.side
    found: dict[Name, list[tuple[ModuleCall, KeyedRows]]] = {}
    unkeyed: dict[tuple[Name, str], int] = {}
    for call in calls:
        own = {(tensor.part, tensor.name) for tensor in tensors_of(call, str(path))}
        for rows in keying.of(call):
            if (rows.tensor.part, rows.tensor.name) not in own:
                continue
            name = rows.tensor.part, name_of(rows.tensor)
            if isinstance(rows, Unkeyed):
                unkeyed[name, rows.why] = unkeyed.get((name, rows.why), 0) + 1
            else:
                found.setdefault(name, []).append((call, rows))
    return found, [
        UncomparedTensor(name[0].name.lower(), name[1], side, count, why) for (name, why), count in unkeyed.items()
    ]


def _merged(uncompared: Sequence[UncomparedTensor]) -> tuple[UncomparedTensor, ...]:
    """One for each tensor of a side, with the first reason."""
    found: dict[tuple[str, str, str], UncomparedTensor] = {}
    for one in uncompared:
        key = one.part, one.name, one.side
        before = found.get(key)
        found[key] = one if before is None else UncomparedTensor(*key, before.calls + one.calls, before.why)
    return tuple(found.values())


def _has_inputs(calls: Sequence[ModuleCall]) -> bool:
    return any(tensor.axes for call in calls for tensor in inputs_of(call))


def _tensor_names(a: Sources, b: Sources) -> tuple[list[tuple[Name, Name]], list[UncomparedTensor]]:
    """Tensors of the same name, and the others in order among those of the same width, where both sides have as many:
    a module that returns (output, residual) does not return what one that returns their sum does.
    """
    found = [(name, name) for name in a if name in b]
    unsure = []
    left_a, left_b = ([name for name in own if name not in other] for own, other in ((a, b), (b, a)))
    for kind in dict.fromkeys(_kind(name, a) for name in left_a):
        of_a = [name for name in left_a if _kind(name, a) == kind]
        of_b = [name for name in left_b if _kind(name, b) == kind]
        if len(of_a) == len(of_b):
            found += zip(of_a, of_b, strict=True)
        elif of_b:
            why = f"A has {len(of_a)} such tensors, B {len(of_b)}: which is which is not known"
            unsure += [UncomparedTensor(kind[0].name.lower(), of_a[0][1], "both", len(a[of_a[0]]), why)]
    return sorted(found, key=lambda both: both[0][0]), unsure


def _kind(name: Name, sources: Sources) -> tuple[Part, tuple[int, ...], str]:
    """(part, width, meaning): positions are no mask, though both are integers of the same shape."""
    last = name[1].rpartition(".")[2]
    meaning = "positions" if last in POSITIONS else "mask" if last in MASKS + PADDING_MASKS else ""
    return name[0], sources[name][0][1].width, meaning


def _pair_tensor(name_a: Name, name_b: Name, a: KeyedTable, b: KeyedTable) -> PairedTensor:
    pairs = pair(a, b)
    pairs = pairs.where(_widths(a, pairs.a) == _widths(b, pairs.b))
    equal = a.digests[pairs.a] == b.digests[pairs.b]
    return PairedTensor(name_a[0], Pair(name_a[1], name_b[1]), a, b, pairs, equal)


def _widths(table: KeyedTable, at: Numbers) -> Keys:
    """A number for the width of each of these rows, the same in every table."""
    kinds = [hash(rows.width) for _, rows in table.sources]
    return np.array([*kinds, 0], np.int64).view(np.uint64)[table.source[at]]


def _dtypes(table: KeyedTable, at: Numbers) -> str:
    used = dict.fromkeys(table.source[at].tolist())
    return "/".join(dict.fromkeys(table.sources[k][1].tensor.dtype for k in used))
