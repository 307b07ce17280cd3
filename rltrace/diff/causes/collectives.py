"""Collectives: the ops through which processes exchange data, and the collective that an input was received from.

Owns which operators these are, the direction of their data, and how they are counted within a stream: the nth one of a
group is the same collective in all members. Reads one stream at a time; ``happened_before`` relates several.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.sequences import grouped
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.collectives import FUNCTIONAL
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import SLOT_UNKNOWN, Column, Kind, Origin
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
"""Receive data into the tensors of their first argument, if it has any."""

IN_FLIGHT = frozenset(f"_c10d_functional.{name}" for name in FUNCTIONAL)
"""Return before their data has arrived."""

FROM_ONE = frozenset({"c10d.broadcast_", "c10d.scatter_", "_c10d_functional.broadcast", "_c10d_functional.broadcast_"})
TO_ONE = frozenset({"c10d.reduce_", "c10d.gather_"})
BETWEEN_TWO = {"c10d.send": True, "c10d.recv_": False}
"""True: this process sends."""
UNORDERED = frozenset(
    {"c10d.recv_any_source_"} | {f"_c10d_functional.{n}" for n in ("irecv", "isend", "batch_p2p_ops")}
)
"""Point-to-point ops whose rows do not name the other process."""

RECEIVED = (Origin.OUTSIDE, Origin.UNKNOWN)
"""Origins of inputs that a collective may have brought: as it sent them, or as another thread computed from that."""

CHUNK_ROWS = 1 << 14
MAX_SCANNED = 1 << 23
"""Rows of a stream that are read at most to count collectives."""

Key = tuple[object, ...]
"""What collectives are counted by: the group; for point-to-point ops also the sender and the receiver."""


@dataclass(frozen=True)
class CollectiveCall:
    """The row of a collective, as one process runs it."""

    row: int
    op: str
    ranks: tuple[int, ...]
    """Ranks of the participants within the whole program."""
    own: int
    key: Key
    senders: frozenset[int]
    """Ranks whose data others may have after it."""
    receivers: frozenset[int]
    """Ranks that have data of others after it."""
    synchronous: bool
    """The data has arrived when it returns."""
    read_by: int | None = None
    """Of another one, the first row that read what arrived."""


def collectives_between(view: StreamView, start: int, last: int) -> dict[Key, list[CollectiveCall]] | None:
    """The collectives of rows ``start`` to ``last``, by what they are counted by; None where the rows are too many, or
    cannot be read."""
    if not 0 <= last - start <= MAX_SCANNED:
        return None
    calls: list[CollectiveCall] = []
    incoming: list[int | None] = []
    names = [_name(op) for op in view.process.tables["ops"].payloads]
    try:
        for at in range(start, last + 1, CHUNK_ROWS):
            _add_collectives(calls, view.read(at, min(at + CHUNK_ROWS, last + 1)), names, incoming)
    except HoleError:
        return None
    return grouped((call.key, call) for call in calls)


def _add_collectives(
    calls: list[CollectiveCall], stretch: RowRange, names: list[str], incoming: list[int | None]
) -> None:
    """Add the collectives of a range. ``incoming``: one entry per receiving row so far, its place among ``calls``; None
    where it has none, or waited, or was read."""
    view, rows = stretch.view, stretch.rows
    places = _rows_of(rows, [name.startswith(("c10d.", "_c10d_functional.")) for name in names])
    readers = _readers(rows)
    at = 0
    for i in [*places.tolist(), len(rows)]:
        while at < len(readers[0]) and readers[0][at] <= i:
            back = int(readers[1][at])
            if 0 < back <= len(incoming) and (number := incoming[-back]) is not None:
                calls[number] = replace(calls[number], read_by=rows.first + int(readers[0][at]))
                incoming[-back] = None
            at += 1
        if i == len(rows):
            break
        name = names[int(rows.columns[i, Column.OP])]
        call = collective_at(view, rows, i, name)
        calls += [] if call is None else [call]
        if arrives(view, rows, i, name):
            incoming.append(None if call is None or call.synchronous else len(calls) - 1)


def _readers(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of rows that read received data, and how many receiving rows back its collective is."""
    slots = (rows.links >> 2) & SLOT_UNKNOWN
    sent = np.flatnonzero((rows.links & 1 != 0) & np.isin(rows.links >> 12, RECEIVED) & (slots < SLOT_UNKNOWN))
    return np.searchsorted(rows.link_offsets, sent, side="right") - 1, slots[sent]


# --- one row --------------------------------------------------------------------------------------------------------


def collective_at(view: StreamView, rows: Rows, i: int, name: str) -> CollectiveCall | None:
    """The collective of a row; None where the row does not record its participants."""
    words = view.skeleton(rows, i)
    group_of = next(filter(None, map(_group, words)), None)
    if group_of is None or name in UNORDERED:
        return None
    group, own, ranks = group_of
    everyone = frozenset(ranks)
    synchronous = name.startswith("c10d.") and any(word is False for word in words)
    peer = _peer(rows, i, ranks)
    if name in BETWEEN_TWO:
        if peer is None:
            return None
        sender, receiver = (own, peer) if BETWEEN_TWO[name] else (peer, own)
        key: Key = (group, sender, receiver)
        return CollectiveCall(
            rows.first + i, "", ranks, own, key, frozenset({sender}), frozenset({receiver}), synchronous
        )
    one = frozenset() if peer is None else frozenset({peer})
    senders = one if name in FROM_ONE else everyone
    receivers = one if name in TO_ONE else everyone
    return CollectiveCall(rows.first + i, name, ranks, own, (group,), senders, receivers, synchronous)


def arrives(view: StreamView, rows: Rows, i: int, name: str) -> bool:
    """Whether the row receives data, and so is counted by links."""
    if name in IN_FLIGHT:
        return True
    words = view.skeleton(rows, i) if name in ARRIVING else []
    return bool(words) and _holds_tensor(words[0])


def receiving_collective(row: RowAt, link: Link) -> RowAt | None:
    """The collective that an input was received from; None: it was not received, or that is not recorded."""
    if link.distance not in RECEIVED or link.slot is None or link.digest is None:
        return None
    names = [_name(op) for op in row.view.process.tables["ops"].payloads]
    left, stop = link.slot, row.index
    try:
        while stop > max(0, row.index - MAX_SCANNED):
            rows = row.view.read(max(0, stop - CHUNK_ROWS), stop).rows
            for i in _rows_of(rows, [name in ARRIVING or name in IN_FLIGHT for name in names])[::-1].tolist():
                left -= arrives(row.view, rows, i, names[int(rows.columns[i, Column.OP])])
                if not left:
                    return row_at(row.view, rows.first + i)
            stop = rows.first
    except HoleError:
        return None
    return None


def own_rank(process: ProcessTrace) -> int | None:
    """The rank of a process, as its collectives recorded it; None: there are none."""
    for payload in process.tables["scalars"].payloads:
        for word in payload if isinstance(payload, list) else ():
            if (group := _group(word)) is not None:
                return group[1]
    return None


def ranks_of(row: RowAt) -> tuple[int, ...]:
    """Ranks of the participants of a collective; empty: not known."""
    call = collective_at(row.view, row.rows, row.place, _name(row.op))
    return call.ranks if call is not None else ()


def _rows_of(rows: Rows, selected: list[bool]) -> NDArray[np.int64]:
    """Places of the rows of operators that are ``selected``, by id."""
    if not any(selected):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.array(selected)[rows.column(Column.OP)] & (rows.column(Column.KIND) == Kind.OP))


def _peer(rows: Rows, i: int, ranks: tuple[int, ...]) -> int | None:
    """Rank of the process that a row names by its first number, a rank within the group; None: not known."""
    at, end = rows.integer_offsets[i : i + 2].tolist()
    number = int(rows.integers[at]) if at < end else -1
    return ranks[number] if 0 <= number < len(ranks) else None


def _group(word: object) -> tuple[str, int, tuple[int, ...]] | None:
    """(name, own rank, ranks of all members in the order of their ranks within the group); None: not a group."""
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
