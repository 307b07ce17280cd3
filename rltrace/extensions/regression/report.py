"""The document of a run that was compared with its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.diff.base.model import NamedDifference, Pair, Verdict
from rltrace.diff.system_facts import selects_kernels
from rltrace.report.diff import headline
from rltrace.report.document import Code, Document, Fact, Form, Section
from rltrace.wording import counted, sentences

if TYPE_CHECKING:
    from rltrace.extensions.regression.lock_check import LockCheck


def lock_document(checked: LockCheck) -> Document:
    """Where the run diverges from its lock, what differs, and the reason as far as it is known."""
    found, first = checked.comparison, checked.comparison.first
    where = "" if first is None else f"step {first.step:,} of {first.process} ({first.optimizer}), "
    moved = (f"{checked.lock} was written anew, with {counted(len(found.system), 'fact')} that moved.",)
    commands = f"the commands differ, A being the lock's: {found.commands}"
    sections = (
        _system(checked),
        Section("reason", "Reason", sentences(checked.explanation)),
        Section("next", "Next", commands=checked.advice),
    )
    return Document(
        headline(found.verdict),
        found.verdict,
        scope=f"{where}against {checked.lock}",
        lead=(*sentences(found.why, commands if found.commands else ""), *(moved if checked.updated else ())),
        sections=tuple(filter(None, sections)),
    )


def _system(checked: LockCheck) -> Section:
    """What the lock has and what there is now; what selects kernels first."""
    nothing = ", and changed nothing" if checked.comparison.verdict is Verdict.IDENTICAL else ""
    return Section(
        "system",
        f"What differs from the lock{nothing} (lock | now)",
        ("This is another machine than the lock's.",) if checked.machine else (),
        tuple(map(_fact, checked.comparison.system)),
        Form.TABLE,
        ("fact", "lock", "now"),
    )


def _fact(fact: NamedDifference) -> Fact:
    label = (Code(fact.name), " (selects kernels)") if selects_kernels(fact.name) else Code(fact.name)
    return Fact(label, Pair(fact.a, fact.b))
