"""Outcomes of the injections of a replay: those that were made, and those that were not, with reasons.

Owns the journal record ``replay`` of each process, and their sum. An injection without a record was not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rltrace.replay.op_kinds import OtherKind, merged, parse_kind
from rltrace.replay.plan import Injection, InjectionPlan
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
    nth: int
    why: str


@dataclass(frozen=True)
class Account:
    """Outcomes of all injections of a replay, or of one of its processes."""

    asked: int
    """Number of requested injections."""
    done: int
    """Number of injections made, with the shape, dtype and device type of A."""
    missed: tuple[MissedInjection, ...]
    """Injections that were not made, at most MAX_MISSED."""
    other: tuple[OtherKind, ...] = ()
    """Kinds of op at which B had other values. With all earlier values injected, each is an origin."""
    received: int = 0
    """Number of injections skipped because the inputs of the op differed from those in A (origins only)."""

    @property
    def complete(self) -> bool:
        """Whether every injection was made or skipped; otherwise the replay proves nothing."""
        return self.done + self.received == self.asked


def missed_injection(injection: Injection, reason: str) -> MissedInjection:
    op, _, nth = injection.place
    return MissedInjection(injection.stream, injection.row, injection.step, op, nth, reason)


def record_of(account: Account) -> Record:
    """The journal record of one process."""
    return {
        "type": "replay",
        "asked": account.asked,
        "done": account.done,
        "missed": [asdict(entry) for entry in account.missed[:MAX_MISSED]],
        "other": [asdict(kind) for kind in account.other],
        "received": account.received,
    }


def add_up(plans: Mapping[str, InjectionPlan], replay: Trace) -> Account:
    """The account of a whole replay, from its plans and the journals of its trace."""
    accounts = {process.name: _parse(process.journal.records) for process in replay.processes}
    done = received = 0
    found: list[MissedInjection] = []
    other: list[OtherKind] = []
    for name, plan in plans.items():
        account = accounts.get(name)
        if account is None:
            reason = NO_REPORT if name in accounts else NO_STREAM
            found += [missed_injection(injection, reason) for injection in plan]
        else:
            done += account.done
            received += account.received
            found += account.missed
            other += account.other
    return Account(sum(map(len, plans.values())), done, tuple(found[:MAX_MISSED]), merged(other), received)


def _parse(records: Sequence[Record]) -> Account | None:
    """The account in the records of a process; None: it has none."""
    record = next((record for record in records if record["type"] == "replay"), None)
    return None if record is None else parse_account(record)


def parse_account(found: Mapping[str, Any]) -> Account | None:
    """The account in a journal record or in a file of ``rltrace replay --result``; None: invalid."""
    try:
        entries = tuple(_missed(entry) for entry in found["missed"])
        other = tuple(parse_kind(entry) for entry in found["other"])
        return Account(int(found["asked"]), int(found["done"]), entries, other, int(found["received"]))
    except (KeyError, TypeError, ValueError):
        return None


def _missed(entry: Mapping[str, Any]) -> MissedInjection:
    row, step, nth = (int(entry[name]) for name in ("row", "step", "nth"))
    return MissedInjection(str(entry["stream"]), row, step, str(entry["op"]), nth, str(entry["why"]))


def by_reason(entries: Iterable[MissedInjection]) -> list[tuple[MissedInjection, int]]:
    """The first injection of each operator and reason, and their count."""
    found: dict[tuple[str, str], tuple[MissedInjection, int]] = {}
    for entry in entries:
        first, count = found.get((entry.op, entry.why), (entry, 0))
        found[entry.op, entry.why] = first, count + 1
    return list(found.values())
