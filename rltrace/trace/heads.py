"""How far every process's journal had come when the launch ended.

Owns the record ``journals`` of the launch's journal, which ties the journals of a trace together: one that was rolled
back, cut between two records or taken from another trace is valid in itself, and would read as of a killed process.
Cheap to import: no NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rltrace.trace.journal import Journal, Record, parse_journal


class Head(NamedTuple):
    """The last whole frame of one journal."""

    process: int
    size: int
    """Where the frame ends; 0: there was none."""
    digest: int


def heads_record(processes: Path, journal: str) -> Record:
    """The record for all folders in ``processes``, each with its journal at ``journal``. Raises OSError."""
    numbers = sorted(int(folder.name) for folder in processes.iterdir() if is_number(folder.name))
    found = []
    for number in numbers:
        try:
            head = parse_journal((processes / str(number) / journal).read_bytes())
        except FileNotFoundError:
            head = Journal()
        found.append([number, head.size, f"{head.digest:016x}"])
    return {"type": "journals", "heads": found}


def parse_heads(record: Record) -> dict[int, Head]:
    """The heads by process number. Raises ValueError, KeyError or TypeError where the record makes no sense."""
    heads = [Head(number, size, int(digest, 16)) for number, size, digest in record["heads"]]
    if not all(type(number) is int and type(size) is int and number >= 0 <= size for number, size, _ in heads):
        raise ValueError("a process or a length is not a number")
    return {head.process: head for head in heads}


def is_number(name: str) -> bool:
    """Whether a folder's name is a process's number, as it is written."""
    return name.isascii() and name.isdigit() and name == str(int(name))


def is_another(head: Head, journal: Journal) -> bool:
    """Whether this is not the journal that had come so far, though it is whole and long enough."""
    return 0 < head.size <= journal.size and journal.ends.get(head.size) != head.digest and not journal.damage


def lost_records(head: Head, journal: Journal) -> str | None:
    """What is wrong with a journal that had come so far; None: nothing of it is lost."""
    if journal.size >= head.size:
        return None
    return f"ends at byte {journal.size}, before byte {head.size} that it had reached at the end of the launch"


def birth_of(journal: Journal) -> Record:
    """The birth record of a process's journal; empty where there is none."""
    return next((record for record in journal.records if record["type"] == "birth"), {})
