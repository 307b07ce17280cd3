"""Which kernels were launched for which recorded op: torch.profiler's events joined to the rows of a stream.

Owns that join, pure on data. Nothing is added to an op for it: torch itself brackets every call of a dispatch mode with
an event of its own (``PythonDispatchMode``), one for each op that the recorder sees, in the same order. A kernel, copy
or memset on a device names the event of the op that launched it by correlation; from there it is the way up to the
bracket. The operator within each bracket must be that of its row, and there must be as many of one as of the other:
else nothing is said at all, since a wrong name would be worse than none.

The part that needs a device (events that name another by correlation) was written from Kineto's documentation and has
not been run on one; ``scripts/capture_profile.py`` captures what a test of it needs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import DeviceType

from rltrace.record.digests import OWN_WORK

BRACKET = "PythonDispatchMode"

DETACH = "aten::detach"
"""Where autograd calls it the mode gets it by a way that has no bracket, or does not get it. It launches nothing."""


@dataclass(frozen=True)
class Event:
    """One event of a profile."""

    name: str
    start: int
    """Nanoseconds; on a device as on the host."""
    end: int
    thread: int
    """Of the host that began it; of a device's event nothing that matters."""
    correlation: int = 0
    linked: int = 0
    """Of a device's event: the correlation of the host's event that launched it."""
    device: bool = False
    """It ran on a device."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """What ran on a device."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bracket:
    """One call of the recorder's mode, and what was run in it, one after the other, the recorder's own work aside."""

    start: int
    thread: int
    ran: tuple[tuple[str, tuple[Launch, ...]], ...] = ()
    """(``aten::addmm``, what it launched), for each."""
    launches: tuple[Launch, ...] = ()
    """All that was launched."""

    def is_of(self, op: str) -> bool:
        """Whether the row of ``op`` may be this call's; an operator of which the profiler has no event may be any."""
        return not self.ran or any(name == op for name, _ in self.ran)

    def of(self, op: str) -> tuple[Launch, ...]:
        return next((launches for name, launches in self.ran if name == op), self.launches)


@dataclass(frozen=True)
class Joined:
    """What the profile tells of rows."""

    launches: tuple[tuple[Launch, ...], ...] = ()
    """Of each row, in order; empty where nothing can be said."""
    why: str = ""
    """Why nothing can."""


def join(events: Iterable[Event], ops: Sequence[str]) -> Joined:
    """Launches of the rows whose operators are ``ops`` (``aten.addmm.default``): one stream's, in order.

    Where a program has several threads, it is those of one thread whose operators are these, or of all together (the
    autograd engine works in a thread of its own for a stream that waits).
    """
    calls = sorted(brackets(list(events)), key=lambda bracket: bracket.start)
    found = [bracket for bracket in calls if [name for name, _ in bracket.ran] != [DETACH]]
    threads = dict.fromkeys(bracket.thread for bracket in found)
    alone = [[bracket for bracket in found if bracket.thread == thread] for thread in threads]
    rows = [row for row, op in enumerate(ops) if _plain(op) != DETACH]
    wanted = [_plain(ops[row]) for row in rows]
    for chosen in (found, *(alone if len(alone) > 1 else ())):
        if len(chosen) == len(wanted) and _first_other(chosen, wanted) is None:
            launched = {row: call.of(op) for row, call, op in zip(rows, chosen, wanted, strict=True)}
            return Joined(tuple(launched.get(row, ()) for row in range(len(ops))))
    if len(found) != len(wanted):
        return Joined(why=f"the profile has {len(found):,} calls of the recorder, and there are {len(wanted):,} rows")
    at = _first_other(found, wanted) or 0
    ran = ", ".join(name for name, _ in found[at].ran)
    return Joined(why=f"call {at:,} of the profile ran {ran or 'nothing'}, its row says {ops[rows[at]]}")


def _first_other(found: Sequence[Bracket], wanted: Sequence[str]) -> int | None:
    """The first call that is not of the operator of its row."""
    pairs = enumerate(zip(found, wanted, strict=False))
    return next((at for at, (bracket, op) in pairs if not bracket.is_of(op)), None)


def brackets(events: Sequence[Event]) -> Iterator[Bracket]:
    """The innermost calls of dispatch modes."""
    launched: dict[int, list[Event]] = {}
    threads: dict[int, list[Event]] = {}
    for event in events:
        if event.device:
            launched.setdefault(event.linked, []).append(event)
        else:
            threads.setdefault(event.thread, []).append(event)
    for own in threads.values():
        yield from _of_thread(sorted(own, key=lambda event: (event.start, -event.end)), launched)


def _of_thread(events: Sequence[Event], launched: dict[int, list[Event]]) -> Iterator[Bracket]:
    """``events`` of one thread, as they began, outer ones first."""
    starts = [event.start for event in events]
    for at, event in enumerate(events):
        if event.name != BRACKET:
            continue
        inside = [e for e in events[at + 1 : bisect_right(starts, event.end, lo=at)] if e.end <= event.end]
        if any(other.name == BRACKET for other in inside):
            continue  # another mode's, which handed the op on
        parts = [part for part in _outermost(inside) if part[0].name != OWN_WORK]
        ran = tuple((part[0].name, _launches(part, launched)) for part in parts)
        own = _launches([event], launched)
        yield Bracket(event.start, event.thread, ran, (*own, *(launch for _, found in ran for launch in found)))


def _outermost(inside: Sequence[Event]) -> list[list[Event]]:
    """Events that lie in no other of these, each followed by those that lie in it."""
    parts: list[list[Event]] = []
    for event in inside:
        if parts and event.end <= parts[-1][0].end:
            parts[-1].append(event)
        else:
            parts.append([event])
    return parts


def _launches(events: Sequence[Event], launched: dict[int, list[Event]]) -> tuple[Launch, ...]:
    """What these events of the host launched, in that order: correlations count launches."""
    found = [kernel for event in events for kernel in launched.get(event.correlation, ())]
    found.sort(key=lambda kernel: (kernel.correlation, kernel.start))
    return tuple(Launch(kernel.name, kernel.grid, kernel.block) for kernel in found)


def _plain(op: str) -> str:
    """``aten::addmm`` of ``aten.addmm.default``."""
    parts = op.split(".")
    return "::".join(parts[:2]) if len(parts) > 1 else op


def events_of(profiler: Any) -> list[Event]:
    """The events of a finished ``torch.profiler.profile``."""
    return [
        Event(
            name=event.name(),
            start=event.start_ns(),
            end=event.end_ns(),
            thread=event.start_thread_id(),
            correlation=event.correlation_id(),
            linked=event.linked_correlation_id(),
            device=event.device_type() != DeviceType.CPU,
            **_geometry(event),
        )
        for event in profiler.profiler.kineto_results.events()
    ]


def _geometry(event: Any) -> dict[str, tuple[int, ...]]:
    """Grid and block of a kernel, from what Kineto writes down of it."""
    try:
        told = json.loads(f"{{{event.metadata_json()}}}")
    except (ValueError, AttributeError):
        return {}
    return {name: tuple(map(int, told[name])) for name in ("grid", "block") if isinstance(told.get(name), list)}
