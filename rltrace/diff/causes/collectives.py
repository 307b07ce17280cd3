"""Collectives: where the processes of a program meet, and with which of them what an op reads came in.

Owns which operators these are, which way they carry data, and how they are counted within a stream: the nth of a group
is one event of all members. Looks at one stream at a time; what follows for several is ``order.py``'s.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.collectives import FUNCTIONAL
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import SLOT_UNKNOWN, Column, Kind, Origin, Step
from rltrace.trace.read.process import ProcessTrace

ARRIVING = frozenset(
    f"c10d.{name}"
    for name in (
        "allreduce_",
        "allreduce_coalesced_",
        "reduce_",
        "broadcast_",
        "allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "gather_",
        "scatter_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "recv_",
        "recv_any_source_",
    )
)
"""Have something sent into what their first argument holds, if it holds anything."""

IN_FLIGHT = frozenset(f"_c10d_functional.{name}" for name in FUNCTIONAL)
"""Return before what they return has been sent."""

FROM_ONE = frozenset({"c10d.broadcast_", "c10d.scatter_", "_c10d_functional.broadcast", "_c10d_functional.broadcast_"})
TO_ONE = frozenset({"c10d.reduce_", "c10d.gather_"})
BETWEEN_TWO = {"c10d.send": True, "c10d.recv_": False}
"""True: this process sends."""
OTHERS = frozenset({"c10d.barrier", "c10d.monitored_barrier_"})
NOT_ORDERED = frozenset(
    {"c10d.recv_any_source_"} | {f"_c10d_functional.{n}" for n in ("irecv", "isend", "batch_p2p_ops")}
)
"""Between two processes, of which the row does not name the other."""

AT_ONCE = 1 << 14
LONGEST_SCAN = 1 << 23
"""Rows of a stream that are read at most to count its collectives."""

Key = tuple[object, ...]
"""What a collective is counted by: its group, and for two processes who sends to whom."""


@dataclass(frozen=True)
class Meeting:
    """One row that meets the rows of other processes."""

    row: int
    op: str
    ranks: tuple[int, ...]
    """Who takes part, by rank in the whole program."""
    own: int
    key: Key
    senders: frozenset[int]
    """Whose data others may have after it."""
    receivers: frozenset[int]
    """Who has data of others after it."""
    at_once: bool
    """Data is there when it returns."""


@dataclass
class CollectiveLog:
    """The collectives of a stream from one row to another."""

    counts: Counter[Key] = field(default_factory=Counter)
    """How many began before the last row, by what they are counted by."""
    ops: dict[Key, list[str]] = field(default_factory=dict)
    """Their names, in order."""
    done: dict[Key, list[tuple[int, Meeting]]] = field(default_factory=dict)
    """(how many of its like were before it, the meeting) of each that was over by the last row."""

    def is_over(self, number: int, meeting: Meeting) -> None:
        self.done.setdefault(meeting.key, []).append((number, meeting))


def met(view: StreamView, start: int, last: int) -> CollectiveLog | None:
    """The collectives of rows ``start`` to ``last``; None where that cannot be known.

    One that does not wait counts as over when a row has read what came with it.
    """
    if last - start > LONGEST_SCAN:
        return None
    found = CollectiveLog()
    names = [_name(op) for op in view.process.tables["ops"].payloads]
    arrivals: list[tuple[int, Meeting] | None] = []
    try:
        for at in range(start, last + 1, AT_ONCE):
            stretch = view.read(at, min(at + AT_ONCE, last + 1))
            _take(found, stretch, names, arrivals, last)
    except HoleError:
        return None
    return found


def _take(
    found: CollectiveLog, stretch: RowRange, names: list[str], arrivals: list[tuple[int, Meeting] | None], last: int
) -> None:
    """Add the collectives of some rows; ``arrivals``: of each row so far that has anything sent, unless it is over."""
    view, rows = stretch.view, stretch.rows
    places = _rows_of(rows, [name.startswith(("c10d.", "_c10d_functional.")) for name in names])
    readers = _readers(rows)
    at = 0
    for i in [*places.tolist(), len(rows)]:
        while at < len(readers[0]) and readers[0][at] <= i:
            back = int(readers[1][at])
            if 0 < back <= len(arrivals) and (over := arrivals[-back]) is not None:
                found.is_over(*over)
                arrivals[-back] = None
            at += 1
        if i == len(rows):
            break
        name = names[int(rows.columns[i, Column.OP])]
        meeting = meeting_at(view, rows, i, name)
        here = None
        if meeting is not None and stretch.first + i < last:
            here = found.counts[meeting.key], meeting
            found.counts[meeting.key] += 1
            found.ops.setdefault(meeting.key, []).append(meeting.op)
            if meeting.at_once:
                found.is_over(*here)
                here = None
        if arrives(view, rows, i, name):
            arrivals.append(here)


def _readers(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that read what other processes sent, by place, and with which collective before them it came."""
    slots = (rows.links >> 2) & SLOT_UNKNOWN
    sent = np.flatnonzero((rows.links & 1 != 0) & (rows.links >> 12 == Origin.OUTSIDE) & (slots < SLOT_UNKNOWN))
    return np.searchsorted(rows.link_offsets, sent, side="right") - 1, slots[sent]


# --- one row --------------------------------------------------------------------------------------------------------


def meeting_at(view: StreamView, rows: Rows, i: int, name: str) -> Meeting | None:
    """What the row of a collective is; None where it does not say who takes part."""
    words = view.skeleton(rows, i)
    told = next(filter(None, map(_group, words)), None)
    if told is None or name in NOT_ORDERED:
        return None
    group, own, ranks = told
    everyone = frozenset(ranks)
    at_once = name.startswith("c10d.") and any(word is False for word in words)
    other = _other(rows, i, ranks)
    if name in BETWEEN_TWO:
        if other is None:
            return None
        sender, receiver = (own, other) if BETWEEN_TWO[name] else (other, own)
        key: Key = (group, sender, receiver)
        return Meeting(rows.first + i, "", ranks, own, key, frozenset({sender}), frozenset({receiver}), at_once)
    one = frozenset() if other is None else frozenset({other})
    senders = one if name in FROM_ONE else everyone
    receivers = one if name in TO_ONE else everyone
    return Meeting(rows.first + i, name, ranks, own, (group,), senders, receivers, at_once)


def arrives(view: StreamView, rows: Rows, i: int, name: str) -> bool:
    """Whether other processes send something with the row, which links count."""
    if name in IN_FLIGHT:
        return True
    words = view.skeleton(rows, i) if name in ARRIVING else []
    return bool(words) and _holds_tensor(words[0])


def came_with(row: RowAt, link: Link) -> RowAt | None:
    """The collective with which other processes sent what a row read; None where they did not, or it is not said."""
    if link.distance != Origin.OUTSIDE or link.slot is None or link.digest is None:
        return None
    names = [_name(op) for op in row.view.process.tables["ops"].payloads]
    left, stop = link.slot, row.index
    try:
        while stop > max(0, row.index - LONGEST_SCAN):
            rows = row.view.read(max(0, stop - AT_ONCE), stop).rows
            for i in _rows_of(rows, [name in ARRIVING or name in IN_FLIGHT for name in names])[::-1].tolist():
                left -= arrives(row.view, rows, i, names[int(rows.columns[i, Column.OP])])
                if not left:
                    return row_at(row.view, rows.first + i)
            stop = rows.first
    except HoleError:
        return None
    return None


def own_rank(process: ProcessTrace) -> int | None:
    """The rank of a process, as it was told to a collective; None where none was."""
    for payload in process.tables["scalars"].payloads:
        for word in payload if isinstance(payload, list) else ():
            if (group := _group(word)) is not None:
                return group[1]
    return None


def first_row(view: StreamView, step: int) -> int | None:
    """The row of a stream at which a step begins; None where the step before was not ended by the stream."""
    if step == 0:
        return 0
    steps = view.process.steps
    ended = steps[(steps[:, Step.STEP] == np.uint64(step - 1)) & (steps[:, Step.STREAM] == view.stream.index)]
    return int(ended[0, Step.END_ROW]) if len(ended) else None


def ranks_of(row: RowAt) -> tuple[int, ...]:
    """Who takes part in a collective."""
    meeting = meeting_at(row.view, row.rows, row.place, _name(row.op))
    return meeting.ranks if meeting is not None else ()


def _rows_of(rows: Rows, wanted: list[bool]) -> NDArray[np.int64]:
    """Places of the rows of operators that are ``wanted``, by id."""
    if not any(wanted):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.array(wanted)[rows.column(Column.OP)] & (rows.column(Column.KIND) == Kind.OP))


def _other(rows: Rows, i: int, ranks: tuple[int, ...]) -> int | None:
    """The process that a row names by its first number, the rank within the group."""
    at, end = rows.integer_offsets[i : i + 2].tolist()
    number = int(rows.integers[at]) if at < end else -1
    return ranks[number] if 0 <= number < len(ranks) else None


def _group(word: object) -> tuple[str, int, tuple[int, ...]] | None:
    """A group's name, the own rank and all of its members', in the order of their ranks within it."""
    if not isinstance(word, dict) or not isinstance(word.get("ranks"), list):
        return None
    name, own, ranks = word.get("group"), word.get("rank"), word["ranks"]
    if not isinstance(name, str) or not isinstance(own, int) or not all(isinstance(rank, int) for rank in ranks):
        return None
    return name, own, tuple(ranks)


def _holds_tensor(word: object) -> bool:
    return word == "T" or (isinstance(word, list) and any(map(_holds_tensor, word)))


def _name(op: object) -> str:
    """``c10d.allreduce_`` of ``c10d.allreduce_.default``."""
    return str(op).rpartition(".")[0]
