"""What became of the injections of a replay: which happened, and which did not and why.

Owns the journal record ``replay`` in which each process of a replay leaves its part, and the whole that they add up to.
An injection that no process tells of has not happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rltrace.json import JsonError, from_json, to_json
from rltrace.replay.op_kinds import OtherKind, merged
from rltrace.replay.plan import Injection, InjectionPlan
from rltrace.trace.format.journal import Record
from rltrace.trace.read.reader import Trace

MOST = 1_000
"""Injections that did not happen and are told one by one; of the others, how many there were."""

NOT_REACHED = "the program did not reach it"
NO_STEP = "the program did not reach this step"
NO_STREAM = "the program has no such stream of ops"
RAISED = "the op raised an error"
NO_WORD = "its process ended without a report on its injections"


@dataclass(frozen=True)
class Missed:
    """An injection that did not happen."""

    stream: str
    row: int
    """In A."""
    step: int
    op: str
    occurrence: int
    why: str


@dataclass(frozen=True)
class Account:
    """All injections of a replay, or of one of its processes."""

    selected: int
    """Injections."""
    injected: int
    """How many of these happened: A's values are in, with the shape, dtype and kind of device that A had."""
    missed: tuple[Missed, ...]
    """Those that did not happen, the first 1,000."""
    other: tuple[OtherKind, ...] = ()
    """Where B had other values. In a replay in which everything before is A's too, a difference begins at each."""
    propagated: int = 0
    """Injections that were meant for origins only, and found an op that was given other values than in A."""

    @property
    def complete(self) -> bool:
        """Whether every injection happened; if not, the replay proves nothing."""
        return self.injected + self.propagated == self.selected


def missed(injection: Injection, why: str) -> Missed:
    op, _, nth = injection.place
    return Missed(injection.stream, injection.row, injection.step, op, nth, why)


def record_of(account: Account) -> Record:
    """The journal record of one process's part."""
    return {"type": "replay", **to_json(replace(account, missed=account.missed[:MOST]))}


def add_up(plans: Mapping[str, InjectionPlan], replay: Trace) -> Account:
    """The account of a whole replay, from what was asked for and what its trace tells."""
    told = {process.name: _parse(process.journal.records) for process in replay.processes}
    injected = propagated = 0
    found: list[Missed] = []
    other: list[OtherKind] = []
    for name, plan in plans.items():
        account = told.get(name)
        if account is None:
            why = NO_WORD if name in told else NO_STREAM
            found += [missed(injection, why) for injection in plan]
        else:
            injected += account.injected
            propagated += account.propagated
            found += account.missed
            other += account.other
    return Account(sum(map(len, plans.values())), injected, tuple(found[:MOST]), merged(other), propagated)


def _parse(records: Sequence[Record]) -> Account | None:
    """The account that a process left; None: it left none."""
    record = next((record for record in records if record["type"] == "replay"), None)
    return None if record is None else parse_account(record)


def parse_account(found: Mapping[str, Any]) -> Account | None:
    """The account in a journal record or in a file of ``rltrace replay --result``; None: it is none."""
    try:
        return from_json(Account, found)
    except JsonError:
        return None


def by_reason(entries: Iterable[Missed]) -> list[tuple[Missed, int]]:
    """The first of each operator and reason, and how many there are."""
    found: dict[tuple[str, str], tuple[Missed, int]] = {}
    for entry in entries:
        first, count = found.get((entry.op, entry.why), (entry, 0))
        found[entry.op, entry.why] = first, count + 1
    return list(found.values())
