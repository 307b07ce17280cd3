"""The journal: an append-only log of framed records, chained by digest.

Owns the frame, ``b"RLJ1" | uint32 length | payload | uint64 digest``, where the digest is XXH3-64 over the previous
frame's digest (8 bytes, little endian; 0 before the first) and the payload. A torn tail, as a killed writer leaves it,
is not damage. After damage, reading resumes at the next frame that the chain confirms.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from rltrace.trace.format.files import ValueBudget, close, has_control, open_for_writing, write_all
from rltrace.trace.format.process_start import STARTS

MAGIC: Final = b"RLJ1"
HEAD: Final = 8
TAIL: Final = 8
MAX_PAYLOAD_BYTES: Final = 1 << 26
MAX_JOURNAL_BYTES: Final = 1 << 30
"""Of all journals of a trace together. A billion ops need 30 MB in long steps, and 150 MB in steps of 640."""
MAX_HASHED_BYTES: Final = 1 << 28
"""Bytes hashed to find where a damaged journal continues, beside sixteen times its length."""

Record = dict[str, Any]


def chain(previous: int, payload: bytes) -> int:
    """Digest of a frame after one with digest ``previous``."""
    return xxh3_64_intdigest(previous.to_bytes(8, "little") + payload)


def frame(previous: int, record: Mapping[str, object]) -> tuple[bytes, int]:
    """One record as a frame, and its digest."""
    payload = json.dumps(record, separators=(",", ":"), default=str).encode()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a record of {len(payload)} bytes is longer than the limit of a journal ({MAX_PAYLOAD_BYTES})"
        )
    digest = chain(previous, payload)
    return MAGIC + len(payload).to_bytes(4, "little") + payload + digest.to_bytes(8, "little"), digest


class JournalWriter:
    """Appends to a journal. Not thread-safe; the owner locks.

    Keeps no file open in between: a program may close every descriptor (daemons do), and the next file that it opens
    would get the journal's number.
    """

    def __init__(self, path: str, *, resume: int | None = None, size: int = 0) -> None:
        """Create a journal, or continue one whose last good frame has digest ``resume`` and ends at ``size``."""
        self._path = path
        self._digest = resume or 0
        self._size = size
        descriptor = open_for_writing(path, os.O_CREAT | os.O_EXCL if resume is None else 0)
        try:
            self._file = _identity(descriptor)
            if resume is not None:
                os.ftruncate(descriptor, size)
        finally:
            close(descriptor)

    def append(self, records: Sequence[Mapping[str, object]]) -> None:
        """Append all records, or none. Raises OSError."""
        digest, frames = self._digest, []
        for record in records:
            data, digest = frame(digest, record)
            frames.append(data)
        data = b"".join(frames)
        descriptor = open_for_writing(self._path)
        try:
            if _identity(descriptor) != self._file:
                raise OSError(errno.ESTALE, "another file has replaced the journal")
            self._write(descriptor, data)
        finally:
            close(descriptor)
        self._digest = digest
        self._size += len(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        if os.fstat(descriptor).st_size > self._size:  # what an append left that failed as its file was closed
            os.ftruncate(descriptor, self._size)
        try:
            os.lseek(descriptor, self._size, os.SEEK_SET)
            write_all(descriptor, data)
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


@dataclass
class Journal:
    """The readable records of a journal, and its damage."""

    records: list[Record] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """A sentence for each damaged place."""
    damaged_before: list[int] = field(default_factory=list)
    """For each damage: the number of good records before it."""
    unreadable: str | None = None
    """Why the file cannot be read at all; None: it can."""
    torn: str | None = None
    """A sentence on an incomplete last frame; None: the last frame is whole."""
    digest: int = 0
    """Of the last good frame."""
    size: int = 0
    """Where the last good frame ends."""
    unprintable: bool = False
    """Whether a record holds control characters."""
    alive: bool = False
    """Whether its process was running when it was read, as far as is known; more may have been written since."""
    length: int = 0
    """Bytes of the file when it was read."""
    ends: dict[int, int] = field(default_factory=dict)
    """End of each good frame to its digest."""


def parse_journal(data: bytes) -> Journal:
    """Read all frames of a journal; never raises."""
    journal = Journal(length=len(data))
    budget, hash_budget = ValueBudget(), [MAX_HASHED_BYTES + 16 * len(data)]
    at, previous = 0, 0
    while at < len(data):
        end = _frame_end(data, at)
        if end is not None and _digest_at(data, end) == chain(previous, data[at + HEAD : end - TAIL]):
            previous = _digest_at(data, end)
            _add_record(journal, budget, data[at + HEAD : end - TAIL], at)
            at = journal.size = end
            journal.digest = journal.ends[end] = previous
            continue
        following = _resume(data, at, previous, hash_budget)
        if following is None:
            _name_tail(journal, data, at, end)
            return journal
        _add_damage(journal, f"the journal is damaged from byte {at} to byte {following[0]}")
        at, previous = following
    return journal


def first_digest(path: str) -> int | None:
    """Digest of the first frame of a journal; None: it has no whole frame. Does not read the others."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (runs in the recorded program)
            head = file.read(HEAD)
            data = head + file.read(min(int.from_bytes(head[4:], "little"), MAX_PAYLOAD_BYTES) + TAIL)
    except OSError:
        return None
    return next(iter(parse_journal(data).ends.values()), None)


def _add_record(journal: Journal, budget: ValueBudget, payload: bytes, at: int) -> None:
    reason = "is not a record"
    try:
        record = budget.load(payload)
    except ValueError as error:
        record = None
        reason = f"{reason}: it {error}" if type(error) is ValueError else reason
    if isinstance(record, dict) and isinstance(record.get("type"), str):
        journal.records.append(record)
        journal.unprintable = journal.unprintable or has_control(payload)
    else:
        _add_damage(journal, f"the journal's record at byte {at} {reason}")


def _add_damage(journal: Journal, text: str) -> None:
    journal.damage.append(text)
    journal.damaged_before.append(len(journal.records))


def _frame_end(data: bytes, at: int) -> int | None:
    """End of the frame at ``at``; None: no whole frame is there."""
    if data[at : at + 4] != MAGIC:
        return None
    length = int.from_bytes(data[at + 4 : at + HEAD], "little")
    end = at + HEAD + length + TAIL
    return end if length <= MAX_PAYLOAD_BYTES and end <= len(data) else None


def _digest_at(data: bytes, end: int) -> int:
    return int.from_bytes(data[end - TAIL : end], "little")


def _resume(data: bytes, bad: int, previous: int, hash_budget: list[int]) -> tuple[int, int] | None:
    """The next frame that the chain confirms, and the digest before it; None: none, or ``hash_budget`` is used up.

    The 8 bytes before that frame are the damaged frame's digest. Where these are damaged, the digest computed from the
    damaged frame's payload confirms it.
    """
    at = data.find(MAGIC, bad + 1)
    while at >= 0:
        end = _frame_end(data, at)
        if end is not None and at >= bad + TAIL:
            hash_budget[0] -= end - bad
            if hash_budget[0] < 0:
                return None
            payload, digest = data[at + HEAD : end - TAIL], _digest_at(data, end)
            for before in (_digest_at(data, at), chain(previous, data[bad + HEAD : at - TAIL])):
                if chain(before, payload) == digest:
                    return at, before
        at = data.find(MAGIC, at + 1)
    return None


def _name_tail(journal: Journal, data: bytes, at: int, end: int | None) -> None:
    rest = data[at : at + HEAD]
    begun = rest.startswith(MAGIC) if len(rest) >= 4 else MAGIC.startswith(rest)
    declared = int.from_bytes(rest[4:HEAD], "little") if len(rest) >= HEAD else 0
    if (begun and end is None and declared <= MAX_PAYLOAD_BYTES) or data.count(b"\0", at) == len(data) - at:
        journal.torn = f"the journal's last record, at byte {at}, is incomplete"
    else:
        _add_damage(journal, f"the journal is damaged from byte {at} to its end")


# --- heads ------------------------------------------------------------------------------------------------------------
#
# The record ``journals`` of the launch's journal: the last frame of every process's journal when the launch ended. A
# journal that was rolled back, cut between two records or copied from another trace is valid in itself.


class Head(NamedTuple):
    """The last whole frame of one journal."""

    process: int
    size: int
    """End of the frame; 0: the journal had no frame."""
    digest: int


def heads_record(processes: Path, journal: str) -> Record:
    """The record of the journals at ``processes/N/journal``, and of the process starts beside. Raises OSError."""
    numbers = sorted(int(folder.name) for folder in processes.iterdir() if is_number(folder.name))
    heads = []
    for number in numbers:
        try:
            head = parse_journal((processes / str(number) / journal).read_bytes())
        except FileNotFoundError:
            head = Journal()
        heads.append([number, head.size, f"{head.digest:016x}"])
    starts = processes.parent / STARTS
    names = sorted(file.name for file in starts.iterdir()) if starts.is_dir() else []
    return {"type": "journals", "heads": heads, "starts": names}


def parse_heads(record: Record) -> dict[int, Head]:
    """The heads by process number. Raises ValueError, KeyError or TypeError."""
    heads = [Head(number, size, int(digest, 16)) for number, size, digest in record["heads"]]
    if not all(type(number) is int and type(size) is int and number >= 0 <= size for number, size, _ in heads):
        raise ValueError("a process or a length is not a number")
    return {head.process: head for head in heads}


def is_number(name: str) -> bool:
    """Whether the name of a folder is a process number in canonical form."""
    return name.isascii() and name.isdigit() and name == str(int(name))


def is_another(head: Head, journal: Journal) -> bool:
    """Whether a whole and long enough journal is not the one that had this head."""
    return 0 < head.size <= journal.size and journal.ends.get(head.size) != head.digest and not journal.damage


def lost_records(head: Head, journal: Journal) -> str | None:
    """A sentence on the records lost since the journal had this head; None: none are."""
    if journal.size >= head.size:
        return None
    return f"ends at byte {journal.size}, before byte {head.size} that it had reached at the end of the launch"


def start_record_of(journal: Journal) -> Record:
    """The first record of a process's journal; empty where it has none."""
    return next((record for record in journal.records if record["type"] == "start"), {})
