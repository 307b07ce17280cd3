"""A result in at most 2 kB of JSON (``rltrace.brief/1``), for programs that read it: a coding agent, CI.

Owns what is kept of each verb's result. Computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rltrace.command_lines import NextCommand, parse_line
from rltrace.diff.base.model import Comparison, Finding, Pair
from rltrace.diff.causes.nondeterminism import advice_text
from rltrace.experiment.outcome import ExperimentResult
from rltrace.json import to_json
from rltrace.report.groups import RunGroups
from rltrace.trace.read.names import Site
from rltrace.wording import counted, cut

MAX_BYTES = 2_000
MAX_TEXT = 300
"""Characters of a sentence, a name or a source line."""


@dataclass(frozen=True)
class BriefFinding:
    """The place where two runs diverge."""

    KEYS: ClassVar = ("cause", "op", "at", "step", "phase", "module", "site", "kernel", "explanation")

    cause: str
    op: str | None
    """Operator and overload, or an event; None where only step digests were compared."""
    at: str
    """``rank0/main:123``, which ``--at`` takes; the stream alone where no row is known."""
    step: int | None
    phase: str
    module: str | None
    site: str | None
    """``train.py:12 in update: loss.backward()``."""
    kernel: Pair[str]
    explanation: str
    stack: tuple[Site, ...] = ()
    """The whole recorded stack, innermost first; not in the JSON, which is small."""


@dataclass(frozen=True)
class Brief:
    """The result of a verb, without the details."""

    SCHEMA: ClassVar = "rltrace.brief/1"

    verb: str
    verdict: str
    """``identical``, ``same-values``, ``diverged`` or ``unknown``; of ``check`` and of more than two traces ``agree``,
    ``diverged`` or ``unknown``; of ``confirm`` its outcome, or ``unfinished``; of ``explain`` ``explained``,
    ``unexplained`` or ``failed``."""
    status: int
    """The exit status."""
    why: str
    finding: BriefFinding | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    """Runs that computed the same, numbered from 1."""
    next: tuple[NextCommand, ...] = ()
    """Commands to run next, the most useful first."""
    left_out: int = 0
    """Commands and groups that did not fit."""


def brief_comparison(comparison: Comparison, status: int) -> Brief:
    """Of ``diff`` on two traces."""
    finding = comparison.shown if comparison.agrees is not True else None
    return fitted(
        Brief(
            "diff",
            comparison.verdict,
            status,
            comparison.why,
            brief_finding(finding),
            next=next_commands(comparison.advice),
        )
    )


def brief_groups(verb: str, found: RunGroups, status: int) -> Brief:
    """Of ``check``, and of ``diff`` on more than two traces."""
    why = f"{len(found.tree.runs)} runs in {counted(len(found.groups), 'group')}"
    if found.undecided:
        why += f", {len(found.undecided)} undecided: {found.undecided[0].why}"
    runs = [str(found.runs[branch.runs[0] - 1].trace or "") for branch in found.tree.branches[:2]]
    pair = (NextCommand(("rltrace", "diff", *runs)),) if runs else ()
    return fitted(Brief(verb, found.verdict, status, why, brief_finding(found.tree.finding), found.groups, pair))


def brief_outcome(outcome: ExperimentResult, status: int) -> Brief:
    """Of ``confirm``."""
    word = "unfinished" if outcome.word is None else outcome.word.value
    return fitted(Brief("confirm", word, status, outcome.explanation, next=next_commands(outcome.advice)))


def brief_finding(finding: Finding | None) -> BriefFinding | None:
    """The place of a finding; None: there is none."""
    if finding is None:
        return None
    row = finding.a_index if finding.a_index is not None else finding.b_index
    site = finding.site
    return BriefFinding(
        finding.cause,
        _cut(finding.op),
        finding.stream if row is None else f"{finding.stream}:{row}",
        finding.step,
        finding.phase,
        _cut(finding.module),
        None if site is None else cut(f"{site.file}:{site.line} in {site.function}: {site.source}", MAX_TEXT),
        Pair(_cut(finding.kernel.a), _cut(finding.kernel.b)),
        "; ".join(cut(text, MAX_TEXT) for text in (finding.explanation, advice_text(finding)) if text),
        finding.stack,
    )


def _cut(text: str | None) -> str | None:
    return None if text is None else cut(text, MAX_TEXT // 3)


def next_commands(advice: Sequence[str]) -> tuple[NextCommand, ...]:
    """Suggested lines as words."""
    return tuple(map(parse_line, advice))


def fitted(brief: Brief) -> Brief:
    """With as many commands, and then groups, as fit."""
    brief = replace(brief, why=cut(brief.why, MAX_TEXT))
    while _size(brief) > MAX_BYTES and (brief.next or brief.groups):
        shorter = replace(brief, groups=brief.groups[:-1]) if brief.groups else replace(brief, next=brief.next[:-1])
        brief = replace(shorter, left_out=brief.left_out + 1)
    return brief


def _size(brief: Brief) -> int:
    return len(json.dumps(to_json(brief), indent=2).encode())
