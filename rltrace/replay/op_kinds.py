"""Kinds of op at which two runs compute differently: one operator, one kernel, one line of the program.

Owns what makes two ops of one kind, how a kind is named, and the tally of a replay: at how many ops of each kind B had
other values than A, how far apart they were, and where the first was met. No torch.
"""

from __future__ import annotations

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

MEASURED = 1 << 24
"""Elements of one tensor that are measured at most; of a larger one it is only known that it differs."""

OUTSIDE, GENERATOR, NUMBER, RESULT = "outside", "generator", "number", "result"
"""What of an op was another one in B: data that came in from outside, its generator's state, the Python number that it
returned, a tensor that it returned or wrote."""


@dataclass(frozen=True)
class OpKind:
    """What ops of one kind share. It is the same in every run of a program that is not edited meanwhile."""

    op: str
    kernel: str | None
    site: Site | None
    """The innermost user frame."""

    @property
    def label(self) -> str:
        """``aten.mm.default at train.py:12 (update), MKL auto, 1 thread``: names one kind among those of a trace."""
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
    """How far B's values at one op were from A's, while they are being replaced."""

    parts: list[str] = field(default_factory=list)
    ulp: int | None = None
    relative: float | None = None

    def tensors(self, part: str, dtype: str, a: NDArray[Any], b: NDArray[Any]) -> None:
        """A tensor differs; arrays as ``measure`` takes them."""
        self.parts.append(part)
        if a.size > MEASURED:
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
    """Ops of one kind at which B had other values than A, until A's were put in."""

    op: str
    kernel: Pair[str]
    site: Site | None
    """In A's source."""
    count: int
    parts: tuple[str, ...]
    """What differed, of ``outside`` data, a ``generator``'s state, a logged ``number`` and a ``result``."""
    stream: str
    row: int
    """In A, of the first one."""
    step: int
    max_ulp: int | None
    """None: no floating-point numbers, none that has a distance, or too large to measure."""
    max_relative: float | None
    kind: str
    """Label of the kind in A."""
    kinds_b: tuple[str, ...]
    """Labels of the same ops in B."""
    rows: Mapping[str, tuple[int, ...]]
    """By stream, in A: all of them."""


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
    """Counts them while a program runs."""

    def __init__(self) -> None:
        self._found: dict[OpKind, _Tally] = {}

    def add(self, a: OpKind, b: OpKind, stream: str, row: int, step: int, apart: OpDistance) -> None:
        """One op: its kinds on both sides, where it is in A, and what was different."""
        tally = self._found.get(a)
        if tally is None:
            tally = self._found[a] = _Tally(a, stream, row, step)
        tally.count += 1
        tally.ulp = larger(tally.ulp, apart.ulp)
        tally.relative = larger(tally.relative, apart.relative)
        tally.parts |= dict.fromkeys(apart.parts)
        tally.others[b] = None
        tally.rows.setdefault(stream, []).append(row)

    def kinds(self) -> tuple[OtherKind, ...]:
        """In the order in which they were met."""
        return tuple(map(_told, self._found.values()))


def _told(tally: _Tally) -> OtherKind:
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
    """Kinds of several processes, those of one name as one."""
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
