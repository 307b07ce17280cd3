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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

import torch

from rltrace.recorder.core.compiled import NAME as REGION_OP
from rltrace.recorder.core.regions import BRACKET as REGION
from rltrace.recorder.digests.layouts import OWN_WORK

# --- demangled --------------------------------------------------------------------------------------------------------
#
# The whole name of a GPU kernel, as C++ writes it. Owns that a mangled one is put into words where it is recorded.
#
# Whether Kineto hands out mangled names depends on its version and on where they come from (CUPTI has them mangled); a
# reader of traces has no torch that could tell.


_DESCRIPTORS = (" [clone .kd]", ".kd")
"""Endings of ROCm: the symbol of a kernel's descriptor, which is not the kernel's."""


@lru_cache(maxsize=4096)
def whole_name(name: str) -> str:
    """``void at::native::…<…>(…)`` of ``_ZN2at6native…``; any other name as it is."""
    for ending in _DESCRIPTORS:
        name = name.removesuffix(ending)
    if not name.startswith("_Z"):
        return name
    demangled: str = torch._C._demangle(name)
    return demangled or name


# --- profiled ---------------------------------------------------------------------------------------------------------


BRACKET: Final = "PythonDispatchMode"

DETACH: Final = "aten::detach"
"""Where autograd calls it the mode gets it by a way that has no bracket, or does not get it. It launches nothing."""

STARTS: Final = re.compile(
    r"(?:cuda|hip|cu)(?:Ext)?(?:Module)?(?:Launch(?:Cooperative)?Kernel|Mem(?:cpy|set)\w*Async|GraphLaunch)"
)
"""Calls of a runtime or driver that start something on the device."""


class ProfilerEvent(NamedTuple):
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


def join(events: Iterable[ProfilerEvent], ops: Sequence[str], raised: Sequence[int] = ()) -> Joined:
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
        why = f"the profile has {len(found):,} calls of the recorder, but there are {len(rows):,} rows"
        return Joined(why=why, strays=strays)
    at = _first_other(found, rows) or 0
    ran = ", ".join(name for name, _ in found[at].ran)
    row = rows[at][0]
    return Joined(why=f"call {at:,} of the profile ran {ran or 'nothing'}, its row has {ops[row or 0]}", strays=strays)


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


def brackets(events: Sequence[ProfilerEvent]) -> Iterator[Bracket]:
    """The calls of the recorder's mode: the innermost ones of dispatch modes, and regions."""
    yield from _Profile(events).brackets


class _Call:
    """A bracket while it is being looked through."""

    __slots__ = ("event", "handed_on", "launched", "lost", "parts", "ran")

    def __init__(self, event: ProfilerEvent) -> None:
        self.event = event
        self.handed_on = False
        """Another mode's bracket lies in it: that one was handed the op first."""
        self.ran: list[str] = []
        self.parts: list[int] | None = None
        """Of each of ``launched``: which of ``ran`` it was launched in; -1: in none."""
        self.launched: list[Launch] | None = None
        self.lost = False

    def launch(self, part: int, event: ProfilerEvent) -> None:
        if self.launched is None or self.parts is None:
            self.launched, self.parts = [], []
        self.launched.append(Launch(whole_name(event.name), event.grid, event.block))
        self.parts.append(part)

    def bracket(self) -> Bracket:
        event = self.event
        launched: tuple[Launch, ...] = tuple(self.launched or ())
        pairs = list(zip(self.parts or (), launched, strict=True))
        ran = [(name, tuple([one for at, one in pairs if at == part])) for part, name in enumerate(self.ran)]
        return Bracket(event.start, event.thread, tuple(ran), launched, event.name == REGION, self.lost)


class _Profile:
    """Whose every event of a profile is, found in one pass over them as they began."""

    def __init__(self, events: Sequence[ProfilerEvent]) -> None:
        self._device = sorted((event for event in events if event.device), key=itemgetter(CORRELATION, START))
        self._calls = [event for event in events if event.runtime and not event.device]
        self._ops = {event.correlation: event.linked for event in (*self._calls, *self._device) if event.linked}
        """By CUPTI's ids: torch's id of the innermost op around the call."""
        self._names: dict[int, str] = {}
        """By torch's ids: ops."""
        self._whose: dict[int, tuple[_Call | None, int]] = {}
        """By torch's ids: the bracket that an op lies in (None: it is the recorder's own), and which of its parts."""
        self._within_calls: set[int] = set()
        """CUPTI's ids of calls that another call made, a driver's within the runtime's: that one starts something."""
        self._found: list[_Call] = []
        self._threads = {event.thread for event in events if not event.device and not event.runtime}
        for own in _threads(events):
            self._go_through(own)
        self._attribute()
        self.brackets = [call.bracket() for call in self._found if not call.handed_on]

    def _go_through(self, events: Sequence[ProfilerEvent]) -> None:
        """``events`` of one thread, as they began, outer ones first."""
        names, whose, found = self._names, self._whose, self._found
        ends: list[int] = []
        called = -1
        around: list[tuple[int, _Call | None, int, bool]] = []
        """Of each event around: its id, its bracket, which part of that it lies in, whether it is the recorder's."""
        for event in events:
            name, start, end, _, correlation = event[:5]
            while ends and (ends[-1] < end or ends[-1] <= start):
                ends.pop(), around.pop()
            _, call, part, is_own = around[-1] if around else NOBODY
            if event.runtime:
                if around and correlation not in self._ops:
                    self._ops[correlation] = around[-1][0]
                if end <= called:
                    self._within_calls.add(correlation)
                called = max(called, end)
                continue
            names[correlation] = name
            if is_own or name == OWN_WORK:
                is_own = True
                whose[correlation] = None, -1
            elif name == REGION or (name == BRACKET and (call is None or call.event.name != REGION)):
                if call is not None:
                    call.handed_on = True
                call, part = _Call(event), -1
                found.append(call)
                whose[correlation] = call, part
            elif call is not None:
                if part < 0:
                    part = len(call.ran)
                    call.ran.append(name)
                whose[correlation] = call, part
            ends.append(end)
            around.append((correlation, call, part, is_own))

    def _attribute(self) -> None:
        """What ran on the device, and what should have, to the brackets."""
        for event in self._device:
            call, part = self._whose.get(self._ops.get(event.correlation, 0), (None, -1))
            if call is not None:
                call.launch(part, event)
        known = {event.correlation for event in self._device} | self._within_calls
        for event in self._calls:
            if event.correlation not in known and STARTS.match(event.name):
                call, _ = self._whose.get(self._ops.get(event.correlation, 0), (None, -1))
                if call is not None:
                    call.lost = True

    def strays(self) -> tuple[tuple[str, str, int], ...]:
        """What was launched for no row, in the order in which it came first."""
        runtimes = {call.correlation: self._call_in_words(call) for call in self._calls}
        found: Counter[tuple[str, str]] = Counter()
        for event in self._device:
            op = self._ops.get(event.correlation, 0)
            call, _ = whose = self._whose.get(op, (None, 0))
            if whose != (None, -1) and (call is None or call.handed_on):
                launcher = self._names.get(op) or runtimes.get(event.correlation, "")
                found[whole_name(event.name), launcher] += 1
        return tuple((name, launcher, count) for (name, launcher), count in found.items())

    def _call_in_words(self, call: ProfilerEvent) -> str:
        """CUPTI sees all threads of a process, the profiler's events of ops are of some."""
        return call.name if call.thread in self._threads else f"{call.name} in another thread"


NOBODY: Final = (0, None, -1, False)
START: Final = ProfilerEvent._fields.index("start")
CORRELATION: Final = ProfilerEvent._fields.index("correlation")


def _threads(events: Sequence[ProfilerEvent]) -> Iterator[list[ProfilerEvent]]:
    """Events of each thread of the host as they began; of two that began at once the first given is the outer one."""
    threads: dict[int, list[ProfilerEvent]] = {}
    for event in events:
        if not event.device:
            threads.setdefault(event.thread, []).append(event)
    for own in threads.values():
        own.sort(key=itemgetter(START))
        yield own


@lru_cache(maxsize=4096)
def _plain(op: str) -> str:
    """``aten::addmm`` of ``aten.addmm.default``."""
    parts = op.split(".")
    return "::".join(parts[:2]) if len(parts) > 1 else op


REGION_PLAIN: Final = _plain(REGION_OP)
