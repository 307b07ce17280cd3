"""What was requested of a run that is given recorded values, and what of that was done.

Owns the journal record ``injection`` of each process, and the sum of several. Without a record nothing was done. No
torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from rltrace.json import JsonError, from_json, to_json
from rltrace.rerun.op_kinds import OtherKind, merged
from rltrace.rerun.plan import Injection, InjectionPlan
from rltrace.trace.format.journal import Record
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

MAX_MISSED: Final = 1_000
"""Injections that were not made and are listed; the others are only counted."""

NOT_REACHED = "the program made no such call in this step"
NO_STEP = "the program did not reach this step"
NO_STREAM = "the program has no such stream of ops"
RAISED = "the op raised an error"
NO_REPORT = "its process ended without a report on its injections"

T = TypeVar("T")


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
    """What was requested, of a whole run or of one of its processes, and what of that was done."""

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
    def lacking(self) -> int:
        """Number of injections that were neither made nor skipped."""
        return self.selected - self.injected - self.propagated

    @property
    def complete(self) -> bool:
        """Whether every injection was made or skipped; otherwise the replay proves nothing."""
        return not self.lacking


def missed_injection(injection: Injection, reason: str) -> MissedInjection:
    op, _, nth = injection.place
    return MissedInjection(injection.stream, injection.row, injection.step, op, nth, reason)


def record_of(provider: str, account: Any) -> Record:
    """The journal record of one process; ``account``: a dataclass of the provider."""
    if isinstance(account, Account):
        account = replace(account, missed=account.missed[:MAX_MISSED])
    return {"type": "injection", "provider": provider, **to_json(account)}


def account_in(process: ProcessTrace, provider: str, kind: type[T]) -> T | None:
    """The last account of a provider in the journal of a process; None: it has none, or an invalid one."""
    for record in reversed(process.journal.records):
        if record["type"] == "injection" and record["provider"] == provider:
            return parse_account(record, kind)
    return None


def parse_account(found: Mapping[str, Any], kind: type[T]) -> T | None:
    """The account in a journal record or in a file of ``rltrace replay --result``; None: invalid."""
    try:
        return from_json(kind, found)
    except JsonError:
        return None


def add_up(plans: Mapping[str, InjectionPlan], replay: Trace) -> Account:
    """The account of a whole replay with values, from the plans and the journals of its trace."""
    accounts = {process.name: account_in(process, "values", Account) for process in replay.processes}
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


def by_reason(entries: Iterable[MissedInjection]) -> list[tuple[MissedInjection, int]]:
    """The first of each operator and reason, and how many there are."""
    found: dict[tuple[str, str], tuple[MissedInjection, int]] = {}
    for entry in entries:
        first, count = found.get((entry.op, entry.why), (entry, 0))
        found[entry.op, entry.why] = first, count + 1
    return list(found.values())
