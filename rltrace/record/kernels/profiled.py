"""Which kernels were launched for which recorded op: torch.profiler's events joined to the rows of a stream.

Owns that join, pure on data. Nothing is added to an op for it: torch itself brackets every call of a dispatch mode with
an event of its own (``PythonDispatchMode``), one for each op that the recorder sees, in the same order; a region of
torch.compile has a bracket that the recorder makes (``REGION``). The operator within each bracket must be that of its
row, and there must be as many of one as of the other, calls that raised and have no row counted in: else nothing is
said at all, since a wrong name would be worse than none.

How Kineto ties the two sides: an op has an id of torch's, a call of the CUDA runtime and what it started on the device
share an id of CUPTI's, and both name the innermost op around the call (``linked``). The two kinds of ids are counted
apart and overlap. A call that should have started something, and of which nothing is known on the device (captured into
a CUDA graph, or lost), makes its row's launches unknown. The part that needs a device has not been run on one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rltrace.record.compiler.compiled import NAME as REGION_OP
from rltrace.record.compiler.regions import BRACKET as REGION
from rltrace.record.digests import OWN_WORK
from rltrace.record.kernels.demangled import whole_name

BRACKET: Final = "PythonDispatchMode"

DETACH: Final = "aten::detach"
"""Where autograd calls it the mode gets it by a way that has no bracket, or does not get it. It launches nothing."""

STARTS: Final = re.compile(
    r"(?:cuda|hip|cu)(?:Ext)?(?:Module)?(?:Launch(?:Cooperative)?Kernel|Mem(?:cpy|set)\w*Async|GraphLaunch)"
)
"""Calls of a runtime or driver that start something on the device."""


class Event(NamedTuple):
    """One event of a profile."""

    name: str
    start: int
    """Nanoseconds; on a device as on the host."""
    end: int
    thread: int
    """Of the host that began it; of a device's event nothing that matters."""
    correlation: int = 0
    """Of an op torch's id; of a call of the runtime, and of what ran on the device, CUPTI's."""
    linked: int = 0
    """Of these two: torch's id of the innermost op around the call; 0: there was none."""
    device: bool = False
    """It ran on a device."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    runtime: bool = False
    """It is a call of the device's runtime or driver."""


class Launch(NamedTuple):
    """What ran on a device: a kernel, a copy, a memset. The latter two have no grid."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


class Bracket(NamedTuple):
    """One call of the recorder's mode, and what was run in it, one after the other, the recorder's own work aside."""

    start: int
    thread: int
    ran: tuple[tuple[str, tuple[Launch, ...]], ...] = ()
    """(``aten::addmm``, what it launched), for each."""
    launches: tuple[Launch, ...] = ()
    """All that was launched."""
    region: bool = False
    """It is of a region of torch.compile."""
    lost: bool = False
    """Something was started in it of which nothing is known on the device."""

    def is_of(self, op: str) -> bool:
        """Whether the row of ``op`` may be this call's; an operator of which the profiler has no event may be any."""
        if self.region or op == REGION_PLAIN:
            return self.region and op == REGION_PLAIN
        return not self.ran or any(name == op for name, _ in self.ran)

    def of(self, op: str) -> tuple[Launch, ...]:
        return next((launches for name, launches in self.ran if name == op), self.launches)


class Joined(NamedTuple):
    """What the profile tells of rows."""

    launches: tuple[tuple[Launch, ...], ...] = ()
    """Of each row, in order; empty where nothing can be said."""
    why: str = ""
    """Why nothing can."""
    lost: frozenset[int] = frozenset()
    """Rows of which it cannot: something was started of which nothing is known on the device."""
    strays: tuple[tuple[str, str, int], ...] = ()
    """What was launched for no row: its name, what launched it ("": nobody knows), how often."""


def join(events: Iterable[Event], ops: Sequence[str], raised: Sequence[int] = ()) -> Joined:
    """Launches of the rows whose operators are ``ops`` (``aten.addmm.default``): one stream's, in order.

    ``raised``: for each call that raised, and so has no row, the number of the row that would have been its.

    Where a program has several threads, it is those of one thread whose operators are these, or of all together (the
    autograd engine works in a thread of its own for a stream that waits).
    """
    profile = _Profile(list(events))
    strays = profile.strays()
    calls = sorted(profile.brackets, key=lambda bracket: bracket.start)
    found = [bracket for bracket in calls if [name for name, _ in bracket.ran] != [DETACH]]
    threads = dict.fromkeys(bracket.thread for bracket in found)
    alone = [[bracket for bracket in found if bracket.thread == thread] for thread in threads]
    rows = list(_expected(ops, raised))
    for chosen in (found, *(alone if len(alone) > 1 else ())):
        if len(chosen) == len(rows) and _first_other(chosen, rows) is None:
            pairs = [(row, call, op) for (row, op), call in zip(rows, chosen, strict=True) if row is not None]
            launched = {row: call.of(op) for row, call, op in pairs}
            lost = frozenset(row for row, call, _ in pairs if call.lost)
            return Joined(tuple(launched.get(row, ()) for row in range(len(ops))), "", lost, strays)
    if len(found) != len(rows):
        why = f"the profile has {len(found):,} calls of the recorder, and there are {len(rows):,} rows"
        return Joined(why=why, strays=strays)
    at = _first_other(found, rows) or 0
    ran = ", ".join(name for name, _ in found[at].ran)
    row = rows[at][0]
    return Joined(why=f"call {at:,} of the profile ran {ran or 'nothing'}, its row says {ops[row or 0]}", strays=strays)


def _expected(ops: Sequence[str], raised: Sequence[int]) -> Iterator[tuple[int | None, str]]:
    """(row or None, operator or "" for any) of each call that must have a bracket, in order."""
    waiting = Counter(raised)
    for row, op in enumerate(ops):
        yield from [(None, "")] * waiting[row]
        if _plain(op) != DETACH:
            yield row, _plain(op)
    yield from [(None, "")] * waiting[len(ops)]


def _first_other(found: Sequence[Bracket], rows: Sequence[tuple[int | None, str]]) -> int | None:
    """The first call that is not of the operator of its row."""
    pairs = enumerate(zip(found, rows, strict=False))
    return next((at for at, (bracket, (row, op)) in pairs if row is not None and not bracket.is_of(op)), None)


def brackets(events: Sequence[Event]) -> Iterator[Bracket]:
    """The calls of the recorder's mode: the innermost ones of dispatch modes, and regions."""
    yield from _Profile(events).brackets


Part = tuple[Event, list[Event]]
"""An event, and those that lie in it."""


class _Profile:
    """Whose every event of a profile is."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._device = [event for event in events if event.device]
        self._calls = [event for event in events if event.runtime and not event.device]
        self._launched: dict[int, list[Event]] = {}
        """By torch's id of the op that launched them."""
        self._missing: set[int] = set()
        """Torch's ids of ops that started something of which nothing is known on the device."""
        self._names: dict[int, str] = {}
        self._claimed: set[int] = set()
        """Torch's ids of ops that are a row's, or the recorder's own."""
        threads: dict[int, list[Event]] = {}
        for event in events:
            if not event.device and not event.runtime:
                threads.setdefault(event.thread, []).append(event)
                self._names[event.correlation] = event.name
        outermost = {
            thread: _outermost(sorted(own, key=lambda event: (event.start, -event.end)))
            for thread, own in threads.items()
        }
        self._link(outermost)
        parts = (part for own in outermost.values() for part in own)
        self.brackets = [bracket for outer, inside in parts for bracket in self._within(outer, inside)]

    def strays(self) -> tuple[tuple[str, str, int], ...]:
        """What was launched for no row, in the order in which it came first."""
        runtimes = {call.correlation: call.name for call in self._calls}
        found: Counter[tuple[str, str]] = Counter()
        for event in sorted(self._device, key=lambda event: event.correlation):
            op = self._ops.get(event.correlation, 0)
            if op not in self._claimed:
                found[whole_name(event.name), self._names.get(op) or runtimes.get(event.correlation, "")] += 1
        return tuple((name, launcher, count) for (name, launcher), count in found.items())

    def _link(self, outermost: Mapping[int, Sequence[Part]]) -> None:
        """Everything that was started, to the innermost op around the call that started it."""
        self._ops: dict[int, int] = {}
        """By CUPTI's ids: torch's id of that op."""
        for event in (*self._calls, *self._device):
            if event.linked:
                self._ops[event.correlation] = event.linked
        starts = {thread: [outer.start for outer, _ in own] for thread, own in outermost.items()}
        for call in self._calls:
            if call.correlation not in self._ops and call.thread in starts:
                at = bisect_right(starts[call.thread], call.start) - 1
                op = _innermost(outermost[call.thread][at], call) if at >= 0 else None
                if op is not None:
                    self._ops[call.correlation] = op.correlation
        for event in self._device:
            self._launched.setdefault(self._ops.get(event.correlation, 0), []).append(event)
        known = {event.correlation for event in self._device}
        for call in self._calls:
            if call.correlation not in known and STARTS.match(call.name):
                self._missing.add(self._ops.get(call.correlation, 0))

    def _within(self, outer: Event, inside: Sequence[Event]) -> Iterator[Bracket]:
        """The brackets of an event, or in it."""
        if outer.name == OWN_WORK:
            self._claimed.update(event.correlation for event in (outer, *inside))
        elif outer.name == REGION or (outer.name == BRACKET and not _hands_on(inside)):
            yield self._bracket(outer, inside)
        else:
            for event, within in _outermost(inside):
                yield from self._within(event, within)

    def _bracket(self, outer: Event, inside: Sequence[Event]) -> Bracket:
        parts = []
        for event, within in _outermost(inside):
            if event.name == OWN_WORK:
                self._claimed.update(own.correlation for own in (event, *within))
            else:
                parts.append([event, *_without_own(within, self._claimed)])
        own = [outer, *(event for part in parts for event in part)]
        self._claimed.update(event.correlation for event in own)
        ran = tuple((part[0].name, self._launches(part)) for part in parts)
        lost = any(event.correlation in self._missing for event in own)
        return Bracket(outer.start, outer.thread, ran, self._launches(own), outer.name == REGION, lost)

    def _launches(self, events: Sequence[Event]) -> tuple[Launch, ...]:
        """What these events of the host launched, in that order: CUPTI's ids count calls of the runtime."""
        found = [kernel for event in events for kernel in self._launched.get(event.correlation, ())]
        found.sort(key=lambda kernel: (kernel.correlation, kernel.start))
        return tuple(Launch(whole_name(kernel.name), kernel.grid, kernel.block) for kernel in found)


def _hands_on(inside: Sequence[Event]) -> bool:
    """Whether another mode's bracket lies in this one, or a region's: it was handed the op first."""
    return any(event.name in (BRACKET, REGION) for event in inside)


def _without_own(events: Sequence[Event], claimed: set[int]) -> Iterator[Event]:
    """These without what the recorder does for itself, wherever that lies; which is noted in ``claimed``."""
    end = -1
    for event in events:
        if event.name == OWN_WORK and event.end > end:
            end = event.end
        if event.end <= end:
            claimed.add(event.correlation)
        else:
            yield event


def _outermost(inside: Sequence[Event]) -> list[Part]:
    """Events that lie in no other of these, each with those that lie in it; given as they began, outer ones first."""
    parts: list[Part] = []
    for event in inside:
        if parts and event.end <= parts[-1][0].end:
            parts[-1][1].append(event)
        else:
            parts.append((event, []))
    return parts


def _innermost(part: Part, call: Event) -> Event | None:
    """The last of these to begin before a call and to end after it."""
    outer, inside = part
    if call.end > outer.end:
        return None
    around = [event for event in inside if event.start <= call.start and call.end <= event.end]
    return around[-1] if around else outer


def _plain(op: str) -> str:
    """``aten::addmm`` of ``aten.addmm.default``."""
    parts = op.split(".")
    return "::".join(parts[:2]) if len(parts) > 1 else op


REGION_PLAIN: Final = _plain(REGION_OP)
