"""Which module of A a module of the running program is, by the rules by which two programs are compared.

Owns when the modules of the program are looked over: whenever an outermost one is met that was not there before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from rltrace.errors import UsageError
from rltrace.parity.mapfile import Line, parse_map
from rltrace.parity.names import match_names
from rltrace.record.modules import members

Roots = Callable[[], Sequence[tuple[str, torch.nn.Module]]]
"""The outermost modules that there are, with their names."""


def root_of(path: str) -> str:
    """The outermost module's name: a class, and which of its objects."""
    return path.partition(".")[0]


class Names:
    """Modules of A, to be found by the paths that the running program has for them."""

    def __init__(self, paths: Iterable[str], roots: Roots, lines: Sequence[Line] = ()) -> None:
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


def read_lines(path: str | Path) -> tuple[Line, ...]:
    """The lines of a map file. Raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_map(text, str(path))


def mapped(lines: Sequence[Line], a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
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
