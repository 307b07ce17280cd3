"""The series of a trace: numbers over time, with the optimizer step of each.

Owns what counts as one series and its name: watched numbers, learning rates and gradient scalers as they were recorded,
and the scalars that one call site logged (``.item()``). A series is two arrays. Compares nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import VALUE_FLAGS, Column, RowFlag, Sample, Step
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import AHEAD, StreamTrace

ITEM, WATCH, RATE, SCALER, EFFECTIVE = "item", "watch", "learning-rate", "scaler", "effective-rate"
INNER, STACKED, CALLBACK = "inner", "stacked", "callback"

KINDS = {
    WATCH: "rltrace.watch",
    SCALER: "Gradient scalers",
    STACKED: "Stacked by loops of JAX, arrays by their mean",
    CALLBACK: "Given to callbacks by JAX, arrays by their mean",
    RATE: "Learning rates",
    EFFECTIVE: "Learning rates, 0 where the step was skipped",
    ITEM: ".item()",
    INNER: "Read with .item() inside torch",
}
"""Kinds of series in the order in which they are listed, in words."""

MAX_SEGMENTS = 256
"""Segments of a stream that are read for its logged scalars; of more, this many evenly spaced ones."""

StepNumbers = NDArray[np.int64]
Values = NDArray[np.float64]


Point = tuple[int, float]
"""(step, number)."""

MOST_POINTS = 1 << 14
"""Of one series, before a chart has its width."""

MAX_POINTS = 240
"""Points of a series in JSON."""


@dataclass(frozen=True, eq=False)
class Series:
    """The numbers of one series, in the order in which they were taken."""

    KEYS: ClassVar = ("kind", "name", "stream", "place", "count", "min", "max", "not_finite", "whole", "points")

    kind: str
    """``watch``, ``scaler``, ``stacked`` or ``callback`` (of JAX), ``learning-rate``, ``effective-rate``, ``item``
    or ``inner`` (read within torch)."""
    name: str
    """The program's or the recorder's name; for ``.item()``, the source line."""
    stream: str
    """Name of the stream that recorded them; "" of ``tensorboard``."""
    place: str
    """``train.py:12``; for a learning rate its optimizer, ``critic's Adam``; of a JAX program the function with the
    loop, ``jit.train``, or the callback; else ""."""
    key: tuple[object, ...]
    """Identifies it in another trace of the same program."""
    steps: StepNumbers
    """Optimizer step of each number; shape [n], ascending."""
    values: Values
    whole: bool = True
    """False: sampled, or a part of it cannot be read."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def count(self) -> int:
        return len(self)

    @property
    def min(self) -> float | None:
        return float(self._finite.min()) if len(self._finite) else None

    @property
    def max(self) -> float | None:
        """Of its finite numbers, as ``min``."""
        return float(self._finite.max()) if len(self._finite) else None

    @property
    def not_finite(self) -> int:
        """How many are NaN or infinite."""
        return len(self) - len(self._finite)

    @property
    def points(self) -> tuple[Point, ...]:
        """Step and number, at most about 240; a longer series keeps the first, last, smallest and largest of each
        piece."""
        return tuple(points_of(self, MAX_POINTS))

    @property
    def _finite(self) -> Values:
        return self.values[np.isfinite(self.values)]

    @property
    def is_flat(self) -> bool:
        """Whether all of its numbers are equal."""
        return not len(self) or bool(np.array_equal(self.values, np.full(len(self), self.values[0]), equal_nan=True))


def decimated(values: Values, most: int, keep: Sequence[int] = ()) -> NDArray[np.int64]:
    """Places of at most about ``most`` of ``values``, ascending: all of them, or those that M4 keeps.

    M4 (Jugel and others, VLDB 2014) takes the first, last, smallest and largest number of each bucket, so a spike stays
    a spike. Here one that is not finite is taken too, and whatever stands at ``keep``: where two runs diverge, say.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, most // 5) + 1).astype(np.int64).tolist()
    found = [_extremes(values, first, stop)[:most] for first, stop in pairwise(edges)]
    return np.unique(np.concatenate([*found, np.asarray(keep, np.int64)]))


def _extremes(values: Values, first: int, stop: int) -> StepNumbers:
    own = values[first:stop]
    finite = np.isfinite(own)
    found = [first, stop - 1]
    if finite.any():
        found.append(first + int(np.where(finite, own, np.inf).argmin()))
        found.append(first + int(np.where(finite, own, -np.inf).argmax()))
    if not finite.all():
        found.append(first + int(finite.argmin()))
    return np.array(found, np.int64)


def points_of(series: Series, most: int = MOST_POINTS, *, last: bool = False) -> list[Point]:
    """A series for a chart, decimated; ``last``: the last number of each step alone."""
    at = np.arange(len(series))
    if last and len(series):
        at = np.flatnonzero(np.append(series.steps[1:] != series.steps[:-1], True))
    at = at[decimated(series.values[at], most)]
    return list(zip(series.steps[at].tolist(), series.values[at].tolist(), strict=True))


def all_series(
    trace: Trace,
    names: Sequence[str] = (),
    *,
    segments: int = MAX_SEGMENTS,
    renames_of: Trace | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Series, ...]:
    """Every series of a trace, those of one kind together; ``names``: only those that match one of these globs.

    ``renames_of``: the trace to compare with; call sites that were only renamed get the keys that they have there.
    """
    others = {} if renames_of is None else {s.name: (p, s) for p in renames_of.processes for s in p.streams}
    found: list[Series] = []
    for process in trace.processes:
        found += recorded_series(process)
        for stream in process.streams:
            if not cancelled():
                view = StreamView(process, stream)
                if stream.name in others:
                    view.use_site_names_of(StreamView(*others[stream.name]))
                found += item_series(view, chosen_segments(stream, segments), cancelled)
    kinds = list(KINDS)
    chosen = [series for series in found if not names or matches(series, names)]
    return tuple(sorted(chosen, key=lambda series: kinds.index(series.kind)))


def matches(series: Series, globs: Iterable[str]) -> bool:
    """Whether the name or place of a series matches one of these globs; case is ignored."""
    words = (series.name, series.place)
    return any(fnmatch.fnmatch(word.lower(), glob.lower()) for glob in globs for word in words if word)


# --- recorded series --------------------------------------------------------------------------------------------------


def recorded_series(process: ProcessTrace) -> Iterator[Series]:
    """Recorded series, in the order of their first numbers; then the effective learning rates."""
    if not process.sample_parts:
        return
    samples, whole = process.samples, not process.other_holes
    streams = {stream.index: stream.name for stream in process.streams}
    rates: list[Series] = []
    scaled = False
    for own in _by_series(process, samples):
        entry, stream = (int(cell) for cell in own[0, [Sample.SERIES, Sample.STREAM]])
        payload = _payload(process, entry)
        if payload is None or payload["kind"] not in KINDS:
            continue  # from a newer version, or lost
        kind, name, thread = payload["kind"], payload["name"], payload.get("thread")
        stream_name = f"{process.name}/thread:{thread}" if thread else streams.get(stream, process.name)
        where = stream_name if kind in (WATCH, ITEM) else process.name
        key: tuple[object, ...] = (process.name, where, kind, name)
        values = np.ascontiguousarray(own[:, Sample.VALUE]).view(np.float64)
        place = owner_of(process, name) if kind == RATE else str(payload.get("place", ""))
        if place and kind != RATE:
            key += (place,)
        if kind == ITEM:
            site = _site(process, payload)
            if site is None:
                continue
            stack = process.words.stack(site)
            key = (where, ITEM, int(process.tables["sites"].keys[site]), call_of(stack))
            name, place = site_name(stack)
        series = Series(kind, name, where, place, key, own[:, Sample.STEP].astype(np.int64), values, whole)
        if kind == RATE:
            rates.append(series)
        scaled |= kind == SCALER
        yield series
    if scaled:
        yield from _effective(process, rates)


def _by_series(process: ProcessTrace, samples: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """The samples of each series, ordered by their first ones. Watched and logged numbers are separate series per
    thread, others are not."""
    payloads = process.tables["series"].payloads
    watched = np.array([isinstance(p, dict) and p["kind"] in (WATCH, ITEM) for p in payloads] + [False])
    entries = np.minimum(samples[:, Sample.SERIES], np.uint64(len(payloads)))
    streams = np.where(watched[entries.astype(np.int64)], samples[:, Sample.STREAM], np.uint64(0))
    codes = samples[:, Sample.SERIES] << np.uint64(24) | streams
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []
    for part in sorted(parts, key=lambda part: int(part[0])):
        yield samples[part]


def _site(process: ProcessTrace, payload: Mapping[str, Any]) -> int | None:
    site = payload.get("site")
    return site if isinstance(site, int) and 0 <= site < len(process.tables["sites"].keys) else None


def _payload(process: ProcessTrace, entry: int) -> dict[str, Any] | None:
    payloads = process.tables["series"].payloads
    found = payloads[entry] if entry < len(payloads) else None
    return found if isinstance(found, dict) else None


def _effective(process: ProcessTrace, rates: Iterable[Series]) -> Iterator[Series]:
    """The learning rate of every attempt, 0 for skipped ones, for optimizers with at least one skipped attempt."""
    for rate in rates:
        attempts, skipped = attempts_of(process, _ordinal(rate.name))
        if not len(attempts) or not skipped.any():
            continue
        at = np.searchsorted(rate.steps, attempts, side="right") - 1
        values = np.where(at >= 0, rate.values[np.maximum(at, 0)], np.nan)
        values = np.where(skipped, 0.0, values)
        name = f"{rate.name.removesuffix('/lr')}/effective-lr"
        key = (process.name, process.name, EFFECTIVE, name)
        whole = rate.whole and process.has_all_steps
        yield Series(EFFECTIVE, name, rate.stream, rate.place, key, attempts, values, whole)


def _ordinal(name: str) -> int:
    """``1`` for ``optimizer:1/group:0/lr``; -1: it names no optimizer."""
    number = name.removeprefix("optimizer:").partition("/")[0]
    return int(number) if number.isdecimal() else -1


def owner_of(process: ProcessTrace, name: str) -> str:
    """``critic's Adam`` for ``optimizer:1/group:0/lr``; "" where that is not known."""
    payloads = (p for p in process.tables["optimizers"].payloads if isinstance(p, dict))
    found = next((p for p in payloads if p["ordinal"] == _ordinal(name)), None)
    if found is None:
        return ""
    return f"{found['owner']}'s {found['class']}" if found.get("owner") else str(found["class"])


def attempts_of(process: ProcessTrace, ordinal: int) -> tuple[StepNumbers, NDArray[np.bool_]]:
    """Steps that attempts of one optimizer ended, and whether each was skipped, as far as is known."""
    steps = process.steps[process.are_of_optimizer(process.steps, ordinal)]
    numbers = steps[:, Step.STEP].astype(np.int64)
    by_scaler = _recorded_skips(process, ordinal)  # where a fused optimizer skips on the device
    return numbers, (steps[:, Step.SKIPPED] == 1) | np.isin(numbers, by_scaler)


def _recorded_skips(process: ProcessTrace, ordinal: int) -> StepNumbers:
    payloads = process.tables["series"].payloads
    ending = f"/skipped:{ordinal}"
    own = [
        number
        for number, payload in enumerate(payloads)
        if isinstance(payload, dict) and payload["kind"] == SCALER and str(payload["name"]).endswith(ending)
    ]
    samples = process.samples[np.isin(process.samples[:, Sample.SERIES], own)]
    positive = np.ascontiguousarray(samples[:, Sample.VALUE]).view(np.float64) > 0
    skipped: StepNumbers = samples[positive, Sample.STEP].astype(np.int64)
    return skipped


# --- logged scalars ---------------------------------------------------------------------------------------------------


def chosen_segments(stream: StreamTrace, limit: int, start: int = 0) -> list[int]:
    """Numbers of the segments to read from row ``start`` on: all, or ``limit`` evenly spaced ones."""
    first = next((n for n, segment in enumerate(stream.segments) if segment.stop > start), len(stream.segments))
    count = len(stream.segments) - first
    if count <= limit:
        return list(range(first, len(stream.segments)))
    if limit < 2:
        return [len(stream.segments) - 1] * limit
    return sorted({first + round(k * (count - 1) / (limit - 1)) for k in range(limit)})


def item_series(
    view: StreamView,
    segments: Sequence[int],
    cancelled: Callable[[], bool] = lambda: False,
    *,
    start: int = 0,
    whole: bool | None = None,
) -> list[Series]:
    """The scalars that each call site logged in these segments, from row ``start`` on.

    ``whole``: whether these segments are all that count; None: it is whether they are all segments of the stream.
    """
    parts: dict[Place, list[tuple[StepNumbers, Values]]] = {}
    names: dict[Place, tuple[str, str, str]] = {}
    if whole is None:
        whole = len(segments) == len(view.stream.segments)
    wanted = [view.stream.segments[number] for number in segments]
    for place, number in enumerate(segments):
        view.stream.read_ahead(wanted[place : place + AHEAD])
        if cancelled():
            whole = False
            break
        try:
            stretch = RowRange(view, view.stream.read_segment(view.stream.segments[number]))
        except HoleError:
            whole = False
            continue
        _add_items(stretch, start, parts, names)
    return [
        Series(
            names[site][0],
            names[site][1],
            view.name,
            names[site][2],
            (view.name, ITEM, *site),
            np.concatenate([steps for steps, _ in own]),
            np.concatenate([values for _, values in own]),
            whole,
        )
        for site, own in parts.items()
    ]


NUMBERS = VALUE_FLAGS & ~RowFlag.VALUE_COMPLEX & ~RowFlag.VALUE_BOOL
"""Logged values that count as numbers of a series; a bool is a decision."""


def _add_items(
    stretch: RowRange,
    start: int,
    parts: dict[Place, list[tuple[StepNumbers, Values]]],
    names: dict[Place, tuple[str, str, str]],
) -> None:
    at = np.flatnonzero(stretch.flags(NUMBERS))
    at = at[at >= start - stretch.first]
    if not len(at):
        return
    rows = stretch.rows
    real = (rows.column(Column.FLAGS)[at] & np.uint32(RowFlag.VALUE_FLOAT)) != 0
    values = np.zeros(len(at))
    values[real] = rows.floats[rows.float_offsets[at[real] + 1] - 1]
    values[~real] = rows.integers[rows.integer_offsets[at[~real] + 1] - 1]
    steps = rows.column(Column.STEP)[at].astype(np.int64)
    numbers = rows.column(Column.SITE)[at]
    places = {number: item_place(stretch.view, number) for number in np.unique(numbers).tolist()}
    for site in dict.fromkeys(places.values()):
        own = np.isin(numbers, [number for number, place in places.items() if place == site])
        if site not in names:
            names[site] = item_name(stretch, int(at[own][0]))
        parts.setdefault(site, []).append((steps[own], values[own]))


Place = tuple[int, str]
"""The key of a call site, and which of several calls of its line: both are equal in another trace."""


def item_place(view: StreamView, site: int) -> Place:
    """Where a number was read, of a site by its id."""
    return int(view.keys("sites", np.array([site], np.uint32))[0]), call_of(view.process.words.stack(site))


def call_of(stack: Sequence[Site]) -> str:
    """The call of its line, where the line reads several numbers; else ""."""
    return stack[0].call if stack else ""


def item_name(stretch: RowRange, i: int) -> tuple[str, str, str]:
    """(whether the program or torch itself called ``.item()``, source line, place) of a logged scalar."""
    view, rows = stretch.view, stretch.rows
    kind = INNER if view.is_inside_torch(rows, i) else ITEM
    stack = view.stack(rows, i)
    return (kind, *site_name(stack)) if stack else (kind, view.op(rows, i), "")


def site_name(stack: Sequence[Site]) -> tuple[str, str]:
    """(source line, place) of a call site."""
    if not stack:
        return "", ""
    return " ".join((stack[0].call or stack[0].source).split()) or stack[0].function, f"{stack[0].file}:{stack[0].line}"
