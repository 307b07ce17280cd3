"""Matches kernel launches to recorded ops: torch.profiler's events joined to the rows of a stream.

Owns that join, pure on data. It needs nothing around an op: torch emits an event for every call of a dispatch mode
(``PythonDispatchMode``), one for each op that the recorder sees, in the same order; for a region of torch.compile and
for a launch row the recorder emits one (``REGION``). The operator within each such bracket must be that of its row, and
both must be equally many, calls that raised and have no row included: else all launches are unknown, since a wrong name
is worse than none.

How Kineto ties both sides: an op has an id of torch, a call of the CUDA runtime and what it started on the device share
an id of CUPTI, and both name the innermost op around the call (``linked``). The two kinds of ids overlap. A call that
should have started something of which the profile has nothing on the device (captured into a CUDA graph, or lost) makes
its row's launches unknown; but a copy or memset does not where something else of the row was seen, since cuBLASLt and
cuDNN also call these with 0 bytes, for which the device does nothing. The code for devices has not been run on one.
"""

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
from rltrace.trace.kernels.evidence import LAUNCH_ROWS

# --- kernel names -----------------------------------------------------------------------------------------------------
#
# Kernel names are demangled where they are recorded: readers of traces have no torch for it. Whether Kineto's names are
# mangled depends on its version and their source (those of CUPTI are).


_DESCRIPTORS = (" [clone .kd]", ".kd")
"""Suffixes of ROCm's symbols of kernel descriptors."""


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """``void at::native::…<…>(…)`` of ``_ZN2at6native…``; any other name as it is."""
    for ending in _DESCRIPTORS:
        name = name.removesuffix(ending)
    if not name.startswith("_Z"):
        return name
    demangled: str = torch._C._demangle(name)
    return demangled or name


# --- events -----------------------------------------------------------------------------------------------------------


BRACKET: Final = "PythonDispatchMode"

DETACH: Final = "aten::detach"
"""Called by autograd it reaches the mode without a bracket, or not at all. It launches nothing."""

STARTS: Final = re.compile(
    r"(?:cuda|hip|cu)(?:Ext)?(?:Module)?"
    r"(?:Launch(?:Cooperative)?Kernel|GraphLaunch|(?P<move>Mem(?:cpy\w*(?:Async|WithStream)|set)))"
)
"""Calls of a runtime or driver that start something on the device."""


class ProfilerEvent(NamedTuple):
    """One event of a profile."""

    name: str
    start: int
    """Nanoseconds; on a device as on the host."""
    end: int
    thread: int
    """Host thread; meaningless for an event of a device."""
    correlation: int = 0
    """torch's id of an op; CUPTI's id of a runtime call and of what ran on the device."""
    linked: int = 0
    """Of the latter two: torch's id of the innermost op around the call; 0: none."""
    device: bool = False
    """It ran on a device."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    runtime: bool = False
    """It is a call of the runtime or driver."""


class Launch(NamedTuple):
    """What ran on a device: a kernel, a copy, a memset. The latter two have no grid."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


class Bracket(NamedTuple):
    """One call of the recorder's mode, and the operators run in it, in order, without the recorder's own work."""

    start: int
    thread: int
    ran: tuple[tuple[str, tuple[Launch, ...]], ...] = ()
    """(``aten::addmm``, its launches), for each."""
    launches: tuple[Launch, ...] = ()
    """All launches."""
    region: bool = False
    """It is of a region of torch.compile, or of a launch row."""
    lost: bool = False
    """A launch in it has no event on the device."""

    def is_of(self, op: str) -> bool:
        """Whether the row of ``op`` may be of this call; where the profiler has no operator, any may be."""
        is_region = op.startswith(REGIONS)
        if self.region or is_region:
            return self.region and is_region
        return not self.ran or any(name == op for name, _ in self.ran)

    def of(self, op: str) -> tuple[Launch, ...]:
        return next((launches for name, launches in self.ran if name == op), self.launches)


class Joined(NamedTuple):
    """The result of a join."""

    launches: tuple[tuple[Launch, ...], ...] = ()
    """Of each row, in order, but for one that is unfinished; empty where they are unknown."""
    why: str = ""
    """Why they are unknown."""
    lost: frozenset[int] = frozenset()
    """Rows whose launches are unknown: one has no event on the device."""
    strays: tuple[tuple[str, str, int], ...] = ()
    """Launches for no row: name, what launched it ("": unknown), count."""


def join(
    events: Iterable[ProfilerEvent], ops: Sequence[str], raised: Sequence[int] = (), *, unfinished: bool = False
) -> Joined:
    """Launches of the rows whose operators are ``ops`` (``aten.addmm.default``): one stream's, in order.

    ``raised``: for each call that raised, and so has no row, the number of the row that would have been its.
    ``unfinished``: the profile ended in the call of the last row; before torch 2.12 it has no event then.

    Where a program has several threads, the operators are those of one thread, or of all together (the autograd engine
    runs in another thread for a stream that waits).
    """
    profile = _Profile(list(events))
    strays = profile.strays()
    calls = sorted(profile.brackets, key=lambda bracket: bracket.start)
    found = [bracket for bracket in calls if [name for name, _ in bracket.ran] != [DETACH]]
    threads = dict.fromkeys(bracket.thread for bracket in found)
    by_thread = [[bracket for bracket in found if bracket.thread == thread] for thread in threads]
    rows = list(_expected(ops, raised))
    for chosen in (found, *by_thread):
        missing = len(rows) - len(chosen)
        if missing in (0, int(unfinished)) and _first_mismatch(chosen, rows) is None:
            pairs = [(row, call, op) for (row, op), call in zip(rows, chosen, strict=False) if row is not None]
            launched = {row: call.of(op) for row, call, op in pairs}
            lost = frozenset(row for row, call, _ in pairs if call.lost)
            return Joined(tuple(launched.get(row, ()) for row in range(len(ops) - missing)), "", lost, strays)
    if len(found) != len(rows):
        why = f"the profile has {len(found):,} calls of the recorder, but there are {len(rows):,} rows"
        return Joined(why=why, strays=strays)
    index = _first_mismatch(found, rows) or 0
    ran = ", ".join(name for name, _ in found[index].ran)
    row = rows[index][0]
    return Joined(
        why=f"call {index:,} of the profile ran {ran or 'nothing'}, its row has {ops[row or 0]}", strays=strays
    )


def _expected(ops: Sequence[str], raised: Sequence[int]) -> Iterator[tuple[int | None, str]]:
    """(row or None, operator or "" for any) of each call that must have a bracket, in order."""
    raised_before = Counter(raised)
    for row, op in enumerate(ops):
        yield from [(None, "")] * raised_before[row]
        if _plain(op) != DETACH:
            yield row, _plain(op)
    yield from [(None, "")] * raised_before[len(ops)]


def _first_mismatch(found: Sequence[Bracket], rows: Sequence[tuple[int | None, str]]) -> int | None:
    """Index of the first call whose operator is not that of its row."""
    pairs = enumerate(zip(found, rows, strict=False))
    return next((i for i, (bracket, (row, op)) in pairs if row is not None and not bracket.is_of(op)), None)


def brackets(events: Sequence[ProfilerEvent]) -> Iterator[Bracket]:
    """The calls of the recorder's mode: the innermost ones of dispatch modes, and regions."""
    yield from _Profile(events).brackets


class _Call:
    """A bracket whose events are being collected."""

    __slots__ = ("event", "launched", "launchers", "lost", "passed_down", "ran")

    def __init__(self, event: ProfilerEvent) -> None:
        self.event = event
        self.passed_down = False
        """Another mode's bracket is inside it: this call only passed the op down."""
        self.ran: list[str] = []
        self.launchers: list[int] | None = None
        """By launch: the index of its operator in ``ran``; -1: none."""
        self.launched: list[Launch] | None = None
        self.lost = False

    def launch(self, operator: int, event: ProfilerEvent) -> None:
        if self.launched is None or self.launchers is None:
            self.launched, self.launchers = [], []
        self.launched.append(Launch(demangle(event.name), event.grid, event.block))
        self.launchers.append(operator)

    def bracket(self) -> Bracket:
        event = self.event
        launched: tuple[Launch, ...] = tuple(self.launched or ())
        pairs = list(zip(self.launchers or (), launched, strict=True))
        ran = [(name, tuple([one for i, one in pairs if i == index])) for index, name in enumerate(self.ran)]
        return Bracket(event.start, event.thread, tuple(ran), launched, event.name == REGION, self.lost)


class _Profile:
    """Finds the bracket of every event of a profile, in one pass in the order of their starts."""

    def __init__(self, events: Sequence[ProfilerEvent]) -> None:
        self._device = sorted((event for event in events if event.device), key=itemgetter(CORRELATION, START))
        self._calls = [event for event in events if event.runtime]
        self._ops = {event.correlation: event.linked for event in (*self._calls, *self._device) if event.linked}
        """By CUPTI's ids: torch's id of the innermost op around the call."""
        self._names: dict[int, str] = {}
        """By torch's ids: names of ops."""
        self._owners: dict[int, tuple[_Call | None, int]] = {}
        """By torch's ids: the bracket of an op (None: the recorder's own work), and its operator's index in ``ran``."""
        self._inner_calls: set[int] = set()
        """CUPTI's ids of calls inside another call, the driver's in the runtime's: the outer one launches."""
        self._found: list[_Call] = []
        self._threads = {event.thread for event in events if not event.device and not event.runtime}
        for thread in _threads(events):
            self._collect(thread)
        self._attribute()
        self.brackets = [call.bracket() for call in self._found if not call.passed_down]

    def _collect(self, events: Sequence[ProfilerEvent]) -> None:
        """Assign ``events`` of one thread, in the order of their starts, outer ones first."""
        names, owners, found = self._names, self._owners, self._found
        ends: list[int] = []
        called = 0
        around: list[tuple[int, _Call | None, int, bool]] = []
        """Of each enclosing event: its id, its bracket, its operator's index, whether it is the recorder's own work."""
        for event in events:
            name, start, end, _, correlation = event[:5]
            while ends and (ends[-1] < end or ends[-1] <= start):
                ends.pop(), around.pop()
            _, call, operator, is_own = around[-1] if around else NOTHING
            if event.runtime:
                if around and correlation not in self._ops:
                    self._ops[correlation] = around[-1][0]
                if end <= called:
                    self._inner_calls.add(correlation)
                called = max(called, end)
                continue
            names[correlation] = name
            if is_own or name == OWN_WORK:
                is_own = True
                owners[correlation] = OF_RECORDER
            elif name == REGION or (name == BRACKET and (call is None or call.event.name != REGION)):
                if call is not None:
                    call.passed_down = True
                call, operator = _Call(event), -1
                found.append(call)
                owners[correlation] = call, operator
            elif call is not None:
                if operator < 0:
                    operator = len(call.ran)
                    call.ran.append(name)
                owners[correlation] = call, operator
            ends.append(end)
            around.append((correlation, call, operator, is_own))

    def _attribute(self) -> None:
        """Assign what ran on the device, and what should have, to the brackets."""
        for event in self._device:
            call, operator = self._owners.get(self._ops.get(event.correlation, 0), OF_RECORDER)
            if call is not None:
                call.launch(operator, event)
        known = {event.correlation for event in self._device} | self._inner_calls
        for event in self._calls:
            if event.correlation not in known and (start := STARTS.match(event.name)):
                call, _ = self._owners.get(self._ops.get(event.correlation, 0), OF_RECORDER)
                if call is not None and not (start["move"] and call.launched):
                    call.lost = True

    def strays(self) -> tuple[tuple[str, str, int], ...]:
        """Launches for no row, in the order of their first."""
        runtimes = {call.correlation: self._describe(call) for call in self._calls}
        found: Counter[tuple[str, str]] = Counter()
        for event in self._device:
            op = self._ops.get(event.correlation, 0)
            call, _ = owner = self._owners.get(op, UNKNOWN)
            if owner != OF_RECORDER and (call is None or call.passed_down):
                launcher = self._names.get(op) or runtimes.get(event.correlation, "")
                found[demangle(event.name), launcher] += 1
        return tuple((name, launcher, count) for (name, launcher), count in found.items())

    def _describe(self, call: ProfilerEvent) -> str:
        """CUPTI sees all threads of a process, the profiler the ops of some."""
        return call.name if call.thread in self._threads else f"{call.name} in another thread"


NOTHING: Final = (0, None, -1, False)
OF_RECORDER: Final = None, -1
"""Owner of the recorder's own work."""
UNKNOWN: Final = None, 0
"""Owner of what names no op of the profile."""
START: Final = ProfilerEvent._fields.index("start")
CORRELATION: Final = ProfilerEvent._fields.index("correlation")


def _threads(events: Sequence[ProfilerEvent]) -> Iterator[list[ProfilerEvent]]:
    """Events of each host thread in the order of their starts; of two equal starts the first in ``events`` is outer."""
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
    return "::".join(op.split(".")[:2])


REGIONS: Final = (_plain(REGION_OP), *(start.replace(".", "::") for start in LAUNCH_ROWS))
"""Starts of the names of what has a bracket from the recorder: compiled regions, launch rows."""
