"""Kinds of op at which two runs compute differently: one operator, one kernel, one line of the program.

Owns the identity and the label of a kind, and the tally of a replay: for each kind the number of ops at which B's
values differed from A's, their largest distance, and the first of them. No torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import measure
from rltrace.errors import UsageError
from rltrace.trace.read.names import Site, Words

MAX_MEASURED = 1 << 24
"""Elements of a tensor whose distance is measured, at most."""

OUTSIDE, GENERATOR, NUMBER, RESULT = "outside", "generator", "number", "result"
"""Parts of an op that may differ in B: outside data, the RNG state, the returned Python number, a tensor result."""


@dataclass(frozen=True)
class OpKind:
    """The facts that ops of one kind share; equal in all runs of an unedited program."""

    op: str
    kernel: str | None
    site: Site | None
    """The innermost user frame."""

    @property
    def label(self) -> str:
        """``aten.mm.default at train.py:12 (update), MKL auto, 1 thread``: unique in a trace."""
        where = "" if self.site is None else f" at {self.site.file}:{self.site.line} ({self.site.function})"
        return f"{self.op}{where}{f', {self.kernel}' if self.kernel else ''}"


class OpKinds:
    """The kinds of one process's ops, found by the ids of their rows."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.of = cache(self._of)

    def _of(self, op: str, site: int, kernel: int) -> OpKind:
        """``site`` and ``kernel``: ids in the tables of these names."""
        return OpKind(op, self._words.kernel(kernel), self._words.innermost(site))


@dataclass
class OpDistance:
    """Distance of B's values at one op from A's, which replace them."""

    parts: list[str] = field(default_factory=list)
    ulp: int | None = None
    relative: float | None = None

    def tensors(self, part: str, dtype: str, a: NDArray[Any], b: NDArray[Any]) -> None:
        """A tensor differs; arrays as ``measure`` takes them."""
        self.parts.append(part)
        if a.size > MAX_MEASURED:
            return
        found = measure(dtype, a, b, listed=0)
        if found.unit == "ULP":
            self.ulp = larger(self.ulp, found.largest)
            self.relative = larger(self.relative, found.largest_relative)

    def number(self, a: object, b: object) -> None:
        """A Python number differs."""
        self.parts.append(NUMBER)
        if isinstance(a, float) and isinstance(b, float):
            found = measure("float64", np.array([a]), np.array([b]), listed=0)
            self.relative = larger(self.relative, found.largest_relative)

    def generator(self) -> None:
        self.parts.append(GENERATOR)

    def __bool__(self) -> bool:
        return bool(self.parts)


@dataclass(frozen=True)
class OtherKind:
    """Ops of one kind at which B's values differed from A's, before these were injected."""

    op: str
    kernel: Pair[str]
    site: Site | None
    """In A's source."""
    count: int
    parts: tuple[str, ...]
    """What differed, of ``outside`` data, a ``generator``'s state, a logged ``number`` and a ``result``."""
    stream: str
    row: int
    """In A, of the first op."""
    step: int
    max_ulp: int | None
    """None: no floating-point numbers, none that has a distance, or too large to measure."""
    max_relative: float | None
    kind: str
    """Label of the kind in A."""
    kinds_b: tuple[str, ...]
    """Labels of the same ops in B."""
    rows: Mapping[str, tuple[int, ...]]
    """All rows in A, by stream."""


@dataclass
class _Tally:
    kind: OpKind
    stream: str
    row: int
    step: int
    count: int = 0
    ulp: int | None = None
    relative: float | None = None
    parts: dict[str, None] = field(default_factory=dict)
    others: dict[OpKind, None] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)


class Tallies:
    """Counts of ops by kind, while a program runs."""

    def __init__(self) -> None:
        self._found: dict[OpKind, _Tally] = {}

    def add(self, a: OpKind, b: OpKind, stream: str, row: int, step: int, distance: OpDistance) -> None:
        """Add one op: its kinds on both sides, its place in A, and the distance."""
        tally = self._found.get(a)
        if tally is None:
            tally = self._found[a] = _Tally(a, stream, row, step)
        tally.count += 1
        tally.ulp = larger(tally.ulp, distance.ulp)
        tally.relative = larger(tally.relative, distance.relative)
        tally.parts |= dict.fromkeys(distance.parts)
        tally.others[b] = None
        tally.rows.setdefault(stream, []).append(row)

    def kinds(self) -> tuple[OtherKind, ...]:
        """In the order of first occurrence."""
        return tuple(map(_other_kind, self._found.values()))


def _other_kind(tally: _Tally) -> OtherKind:
    first = next(iter(tally.others))
    return OtherKind(
        op=tally.kind.op,
        kernel=Pair(tally.kind.kernel, first.kernel),
        site=tally.kind.site,
        count=tally.count,
        parts=tuple(tally.parts),
        stream=tally.stream,
        row=tally.row,
        step=tally.step,
        max_ulp=tally.ulp,
        max_relative=tally.relative,
        kind=tally.kind.label,
        kinds_b=tuple(kind.label for kind in tally.others),
        rows={stream: tuple(sorted(rows)) for stream, rows in tally.rows.items()},
    )


def merged(parts: Sequence[OtherKind]) -> tuple[OtherKind, ...]:
    """The kinds of several processes, equal ones merged."""
    found: dict[str, OtherKind] = {}
    for kind in parts:
        known = found.get(kind.kind)
        found[kind.kind] = kind if known is None else _joined(known, kind)
    return tuple(found.values())


def _joined(a: OtherKind, b: OtherKind) -> OtherKind:
    return replace(
        a,
        count=a.count + b.count,
        parts=tuple(dict.fromkeys((*a.parts, *b.parts))),
        max_ulp=larger(a.max_ulp, b.max_ulp),
        max_relative=larger(a.max_relative, b.max_relative),
        kinds_b=tuple(dict.fromkeys((*a.kinds_b, *b.kinds_b))),
        rows={**a.rows, **b.rows},
    )


def read_labels(path: str | Path) -> frozenset[str]:
    """The labels of kinds in a file that holds a JSON list of them. Raises UsageError."""
    found = read_json(path)
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise UsageError(
            f'{path} is no JSON list of kinds, such as ["aten.mm.default at train.py:12 (update), MKL auto"]'
        )
    return frozenset(found)


def read_json(path: str | Path) -> Any:
    """What a file holds; None where it is no JSON. Raises UsageError where it cannot be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        return None


def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers, where None is none."""
    return b if a is None else a if b is None else max(a, b)
