"""How the rows of a tensor lie on the tokens of a forward pass, where its shape alone tells: the same for both sides.

Owns along which axes rows are counted. No torch.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rltrace.errors import UsageError
from rltrace.parity.matching.layouts import RowLayout, lie
from rltrace.parity.matching.layouts import layouts as readings_of
from rltrace.parity.matching.token_grids import UNKNOWN, TokenGrid
from rltrace.parity.module_names import MapLine, match_names, parse_map
from rltrace.recorder.core.modules import members
from rltrace.token_keys import NO_KEY, Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall
from rltrace.trace.format.records import axes_of

BY_ELEMENT = frozenset((RowLayout.PLAIN, RowLayout.FLAT))
"""Each row of the tensor is a token's, in order."""


@dataclass(frozen=True)
class RowReading:
    """One way to read a tensor's rows."""

    axes: tuple[int, ...]
    layout: RowLayout


def readings(shape: tuple[int, ...], grid: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[RowReading, ...]:
    """The ways in which a tensor of this shape may be read on a forward pass over ``grid`` tokens.

    ``axes``: along which rows were asked to be counted; None: along all but the last. Where that fits nothing, but each
    element is a token's (an index, a value), these are the rows. Fewer rows than tokens are nobody's, by shape alone.
    """
    own = axes_of(axes, len(shape))
    layouts = readings_of(tuple(shape[axis] for axis in own), grid)
    found = tuple(RowReading(own, layout) for layout in layouts if layout is not RowLayout.TAIL)
    if not found and axes is None:
        every = tuple(range(len(shape)))
        found = tuple(RowReading(every, layout) for layout in readings_of(shape, grid) if layout in BY_ELEMENT)
    return found


def chosen(possible: tuple[RowReading, ...], usual: Collection[RowLayout]) -> RowReading | None:
    """The one that is meant; None: there is none, or several are. ``usual``: layouts that the other calls allow."""
    if len(possible) > 1 or any(one.layout is RowLayout.SHARED and len(one.axes) == 1 for one in possible):
        possible = tuple(reading for reading in possible if reading.layout in usual)
    return possible[0] if len(possible) == 1 else None


def places(shape: tuple[int, ...], grid: tuple[int, ...], reading: RowReading) -> tuple[Numbers, Numbers]:
    """(parts [n, k], rows [n]): the rows of the tensor that make up each of these rows of the grid."""
    lying = lie(tuple(shape[axis] for axis in reading.axes), grid, reading.layout)
    return lying.parts, lying.rows


# --- observed ---------------------------------------------------------------------------------------------------------
#
# Rows of a policy that is given no tokens: known by what it is given for them, an observation each.
#
# Owns which of the tensors that outermost modules are given are new, and which came out of the one before (a policy
# whose parts are called one by one goes on with the same rows). The same for a trace and for a running program. No
# torch.


EARLIER = 16
"""Tensors that outermost calls of a root gave, among which a later one's are looked for."""


class Observed:
    """What the outermost calls of one thread are given."""

    def __init__(self) -> None:
        self._gave: dict[str, deque[Keys]] = {}

    def first_new(self, root: str, given: Sequence[Keys]) -> Keys | None:
        """Of tensors by the digests of their rows, the first whose rows did not all come out of this root before.

        None: there is none, and the call goes on with the rows of the one before.
        """
        earlier = self._gave.get(root, ())
        for digests in given:
            if digests.size and not any(np.isin(digests, gave).all() for gave in earlier):
                self._gave.pop(root, None)
                return digests
        return None

    def gave(self, root: str, digests: Keys) -> None:
        """An outermost call gave a tensor with rows of these digests."""
        self._gave.setdefault(root, deque(maxlen=EARLIER)).append(digests.ravel())


def grid_of(call: ModuleCall, digests: Keys) -> TokenGrid:
    """A row for each that was given, known by its digest."""
    keys = np.where(digests == NO_KEY, np.uint64(1), digests).ravel()
    unknown = np.full(len(keys), UNKNOWN)
    return TokenGrid(call, digests.shape, keys, unknown, unknown)


# --- names ------------------------------------------------------------------------------------------------------------
#
# Which module of A a module of the running program is, by the rules by which two programs are compared.
#
# Owns when the modules of the program are looked over: whenever an outermost one is met that was not there before.


Roots = Callable[[], Sequence[tuple[str, torch.nn.Module]]]
"""The outermost modules that there are, with their names."""


def root_of(path: str) -> str:
    """The outermost module's name: a class, and which of its objects."""
    return path.partition(".")[0]


class Names:
    """Modules of A, to be found by the paths that the running program has for them."""

    def __init__(self, paths: Iterable[str], roots: Roots, lines: Sequence[MapLine] = ()) -> None:
        """``lines`` of a map file, which go before what the names tell."""
        self._paths = tuple(dict.fromkeys(paths))
        self._roots = roots
        self._lines = lines
        self._met: set[str] = set()
        self._known: Mapping[str, str] = {}

    def of_a(self, path: str) -> str | None:
        """A's path for a module that is being called; None: A has none that it could be, or several."""
        if root_of(path) not in self._met:
            self._look_over()
            self._met.add(root_of(path))
        return self._known.get(path)

    def _look_over(self) -> None:
        own = list(dict.fromkeys(path for name, root in self._roots() for path in _paths_in(name, root)))
        self._met.update(map(root_of, own))
        self._known = {b: a for a, b in match_names(self._paths, own, mapped(self._lines, self._paths, own)).pairs}


def read_lines(path: str | Path) -> tuple[MapLine, ...]:
    """The lines of a map file. Raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_map(text, str(path))


def mapped(lines: Sequence[MapLine], a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Partners of A's modules among those that are there so far, as the lines have it; the first line that fits."""
    known, found = set(b), dict[str, str]()
    for line in lines:
        pattern = re.compile("(.*)".join(map(re.escape, line.a.split("*"))))
        for path in a:
            match = pattern.fullmatch(path)
            if match is None or path in found:
                continue
            groups = iter(match.groups())
            partner = "".join(part if part != "*" else next(groups) for part in re.split(r"(\*)", line.b))
            if partner in known and partner not in found.values():
                found[path] = partner
    return found


def _paths_in(name: str, root: torch.nn.Module) -> Iterator[str]:
    """The paths of a module and all in it; walks ``_modules`` itself, as ``modules()`` may be the program's own."""
    below = [(name, root)]
    met: set[int] = set()
    while below:
        path, module = below.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield path
        below += [(f"{path}.{own}", child) for own, child in members(module, "_modules") if child is not None]
