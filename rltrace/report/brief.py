"""A result in at most 2 kB of JSON (``rltrace.brief/1``), for programs that read it: a coding agent, CI.

Owns what is kept of each verb's result, and its form as a workflow command of GitHub Actions: the escapes, and which
line of the checkout a recorded call site is. Computes nothing, never prints.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
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
MAX_TEXT, MAX_NAME = 280, 90
"""Bytes of JSON of a sentence or a source line, and of a name."""


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
    finding = brief_finding(comparison.shown if comparison.agrees is not True else None)
    advice = next_commands(comparison.advice)
    return fitted(Brief("diff", comparison.verdict, status, comparison.why, finding, next=advice))


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
        _cut_name(finding.op),
        finding.stream if row is None else f"{finding.stream}:{row}",
        finding.step,
        finding.phase,
        _cut_name(finding.module),
        None if site is None else _cut(f"{site.file}:{site.line} in {site.function}: {site.source}", MAX_TEXT),
        Pair(_cut_name(finding.kernel.a), _cut_name(finding.kernel.b)),
        "; ".join(_cut(text, MAX_TEXT) for text in (finding.explanation, advice_text(finding)) if text),
        finding.stack,
    )


def _cut_name(text: str | None) -> str | None:
    return None if text is None else _cut(text, MAX_NAME)


def _cut(text: str, size: int) -> str:
    """At most ``size`` bytes of JSON, which has six of them for a character beyond ASCII."""
    shorter = cut(text, size)
    while len(json.dumps(shorter)) > size + 2:
        shorter = cut(shorter, len(shorter) - 1)
    return shorter


def next_commands(advice: Sequence[str]) -> tuple[NextCommand, ...]:
    """Suggested lines as words."""
    return tuple(map(parse_line, advice))


def fitted(brief: Brief) -> Brief:
    """With as many commands, and then groups, as fit."""
    brief = replace(brief, why=_cut(brief.why, MAX_TEXT))
    while _size(brief) > MAX_BYTES and (brief.next or brief.groups):
        shorter = replace(brief, groups=brief.groups[:-1]) if brief.groups else replace(brief, next=brief.next[:-1])
        brief = replace(shorter, left_out=brief.left_out + 1)
    return brief


def _size(brief: Brief) -> int:
    return len(json.dumps(to_json(brief), indent=2).encode())


# --- annotation of GitHub Actions -------------------------------------------------------------------------------------


LEVELS = {0: "notice", 1: "error"}
"""By exit status; any other one is a warning."""


def annotation(brief: Brief, folder: Path | None = None, checkout: Path | None = None) -> str:
    """``::error file=train.py,line=12,title=…::…``, without a newline at the end.

    The line is that of the innermost call site in a file of ``checkout`` (default: ``GITHUB_WORKSPACE``, or
    ``folder``); where there is none, no line is named. ``folder``: where the runs ran; default: the current one.
    """
    folder = (folder or Path.cwd()).resolve()
    checkout = (checkout or Path(os.environ.get("GITHUB_WORKSPACE") or folder)).resolve()
    found = brief.finding
    title = f"rltrace: {brief.verdict}" + ("" if found is None else f", cause {found.cause}")
    place = None if found is None else _place(found.stack, folder, checkout)
    properties = {"title": title} if place is None else {"file": str(place[0]), "line": str(place[1]), "title": title}
    named = ",".join(f"{name}={_escaped(text, '%', chr(13), chr(10), ':', ',')}" for name, text in properties.items())
    message = brief.why if found is None else found.explanation
    return f"::{LEVELS.get(brief.status, 'warning')} {named}::{_escaped(message, '%', chr(13), chr(10))}"


def _escaped(text: str, *characters: str) -> str:
    """With these characters as %XX; the first of them is %."""
    for character in characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _place(stack: Sequence[Site], folder: Path, checkout: Path) -> tuple[Path, int] | None:
    for site in stack:
        for file in _candidates(site.path, folder, checkout):
            if _has_line(file, site):
                return file.relative_to(checkout), site.line
    return None


def _candidates(path: str, folder: Path, checkout: Path) -> Iterator[Path]:
    """Files of the checkout that may be a recorded one, the likeliest first.

    A run may have worked in a copy of the folder, or on another machine, so its path need not exist: the longest ending
    of it that does is taken.
    """
    parts = PurePosixPath(path).parts
    if "site-packages" in parts:  # a library; a virtual environment may lie in the checkout
        return
    for start in range(len(parts)):
        ending = PurePosixPath(*parts[start:])
        for file in ((root / ending).resolve() for root in (folder, checkout)):
            if file.is_relative_to(checkout) and file.is_file():
                yield file


def _has_line(file: Path, site: Site) -> bool:
    """Whether the file has the recorded text at this line: it may be another file, or edited since."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return bool(site.source) and [line.strip() for line in lines[site.line - 1 : site.line]] == [site.source]
