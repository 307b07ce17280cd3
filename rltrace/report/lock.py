"""Text of ``rltrace check --against``: a run compared with its lock. Computes nothing, never prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rltrace.diff.base.model import NamedDifference, Verdict
from rltrace.diff.system_facts import selects_kernels
from rltrace.report.diff_text import WIDTH, render_comparison, wrapped
from rltrace.report.phrases import HEADLINES
from rltrace.report.style import Style
from rltrace.wording import counted, sentence

if TYPE_CHECKING:
    from rltrace.experiment.lock_check import LockCheck

MAX_FACTS = 20
"""Facts that are shown; the JSON has all."""


def render_lock_check(checked: LockCheck, *, color: bool) -> str:
    """The report, without a newline at the end."""
    style = Style(color)
    sections = (_head(checked, style), _system(checked, style), _reason(checked, style), _ops(checked, style, color))
    return "\n\n".join(text for section in (*sections, _next(checked, style)) if (text := "\n".join(section)))


def _head(checked: LockCheck, style: Style) -> Iterator[str]:
    found, first = checked.comparison, checked.comparison.first
    where = "" if first is None else f"step {first.step:,} of {first.process} ({first.optimizer}), "
    yield f"{style.verdict(HEADLINES[found.verdict], found.verdict)}  {where}against {checked.lock}"
    yield from wrapped(sentence(found.why))
    if found.commands:
        yield from wrapped(sentence(f"the commands differ, A being the lock's: {found.commands}"))
    if checked.updated:
        yield from wrapped(f"{checked.lock} was written anew, with {counted(len(found.system), 'fact')} that moved.")


def _system(checked: LockCheck, style: Style) -> Iterator[str]:
    """What the lock has and what there is now; what selects kernels first."""
    found = checked.comparison
    if found.system:
        nothing = ", and changed nothing" if found.verdict is Verdict.IDENTICAL else ""
        yield style.bold(f"What differs from the lock{nothing} (lock | now)")
    if checked.machine:
        yield "  This is another machine than the lock's."
    for fact in found.system[:MAX_FACTS]:
        yield from _fact(fact)
    if len(found.system) > MAX_FACTS:
        yield f"  … and {len(found.system) - MAX_FACTS:,} more (--format json has them all)"


def _fact(fact: NamedDifference) -> Iterator[str]:
    name = f"{fact.name} (selects kernels)" if selects_kernels(fact.name) else fact.name
    a, b = fact.a or "(unset)", fact.b or "(unset)"
    if len(text := f"  {name}  {a} | {b}") <= WIDTH:
        yield text
        return
    yield f"  {name}"
    for side, value in (("lock", a), ("now ", b)):
        yield from wrapped(value, " " * 10, f"    {side}  ")


def _reason(checked: LockCheck, style: Style) -> Iterator[str]:
    if checked.explanation:
        yield style.bold("Reason")
        yield from wrapped(sentence(checked.explanation))


def _ops(checked: LockCheck, style: Style, color: bool) -> Iterator[str]:
    if checked.ops is not None:
        yield style.bold("The op: A ran as it was locked, B as it is now")
        yield render_comparison(checked.ops, color=color)


def _next(checked: LockCheck, style: Style) -> Iterator[str]:
    if checked.advice:
        yield style.bold("Next")
    for command in checked.advice:
        yield f"  {command}"
