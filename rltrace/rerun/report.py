"""Outcomes of the injections of a replay: those that were made, and those that were not, with reasons.

Owns the journal record ``replay`` of each process, and their sum. An injection without a record was not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rltrace.json import JsonError, from_json, to_json
from rltrace.rerun.op_kinds import OtherKind, merged
from rltrace.rerun.plan import Injection, InjectionPlan
from rltrace.trace.format.journal import Record
from rltrace.trace.read.reader import Trace

MAX_MISSED = 1_000
"""Injections that were not made and are listed; the others are only counted."""

NOT_REACHED = "the program did not reach it"
NO_STEP = "the program did not reach this step"
NO_STREAM = "the program has no such stream of ops"
RAISED = "the op raised an error"
NO_REPORT = "its process ended without a report on its injections"


@dataclass(frozen=True)
class MissedInjection:
    """An injection that was not made."""

    stream: str
    row: int
    """In A."""
    step: int
    op: str
    occurrence: int
    why: str


@dataclass(frozen=True)
class Account:
    """Outcomes of all injections of a replay, or of one of its processes."""

    selected: int
    """Number of requested injections."""
    injected: int
    """Number of injections made, with the shape, dtype and device type of A."""
    missed: tuple[MissedInjection, ...]
    """Injections that were not made, at most MAX_MISSED."""
    other: tuple[OtherKind, ...] = ()
    """Kinds of op at which B had other values. With all earlier values injected, each is an origin."""
    propagated: int = 0
    """Number of injections skipped because the inputs of the op differed from those in A (origins only)."""

    @property
    def complete(self) -> bool:
        """Whether every injection was made or skipped; otherwise the replay proves nothing."""
        return self.injected + self.propagated == self.selected


def missed_injection(injection: Injection, reason: str) -> MissedInjection:
    op, _, nth = injection.place
    return MissedInjection(injection.stream, injection.row, injection.step, op, nth, reason)


def record_of(account: Account) -> Record:
    """The journal record of one process."""
    return {"type": "replay", **to_json(replace(account, missed=account.missed[:MAX_MISSED]))}


def add_up(plans: Mapping[str, InjectionPlan], replay: Trace) -> Account:
    """The account of a whole replay, from the plans and the journal of its trace."""
    accounts = {process.name: _parse(process.journal.records) for process in replay.processes}
    injected = propagated = 0
    found: list[MissedInjection] = []
    other: list[OtherKind] = []
    for name, plan in plans.items():
        account = accounts.get(name)
        if account is None:
            reason = NO_REPORT if name in accounts else NO_STREAM
            found += [missed_injection(injection, reason) for injection in plan]
        else:
            injected += account.injected
            propagated += account.propagated
            found += account.missed
            other += account.other
    return Account(sum(map(len, plans.values())), injected, tuple(found[:MAX_MISSED]), merged(other), propagated)


def _parse(records: Sequence[Record]) -> Account | None:
    """The account in the records of a process; None: it has none."""
    record = next((record for record in records if record["type"] == "replay"), None)
    return None if record is None else parse_account(record)


def parse_account(found: Mapping[str, Any]) -> Account | None:
    """The account in a journal record or in a file of ``rltrace replay --result``; None: invalid."""
    try:
        return from_json(Account, found)
    except JsonError:
        return None


def by_reason(entries: Iterable[MissedInjection]) -> list[tuple[MissedInjection, int]]:
    """The first of each operator and reason, and how many there are."""
    found: dict[tuple[str, str], tuple[MissedInjection, int]] = {}
    for entry in entries:
        first, count = found.get((entry.op, entry.why), (entry, 0))
        found[entry.op, entry.why] = first, count + 1
    return list(found.values())
