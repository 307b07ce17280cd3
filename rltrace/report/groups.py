"""Several runs in groups: what is printed as JSON, and its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rltrace.diff.base.model import Finding, Verdict
from rltrace.diff.causes.nondeterminism import advice_text
from rltrace.diff.groups import Group, Grouping, Node, Undecided, findings_of
from rltrace.report.document import ALL, Code, Document, Fact, Section
from rltrace.trace.format.location import Location
from rltrace.wording import counted, sentence, sentences

MAX_NAMES = 12

VERDICTS = {True: Verdict.IDENTICAL, False: Verdict.DIVERGED, None: Verdict.UNKNOWN}
WORDS = {True: "agree", False: "diverged", None: "unknown"}


@dataclass(frozen=True)
class CheckRun:
    """One of several runs that are compared."""

    number: int
    """From 1."""
    trace: Location | None
    """None: it computed the same as run ``same_as``, and its trace was removed."""
    output: Path | None = None
    """The file with what it printed; None, as ``status``: its trace existed already."""
    status: int | None = None
    """Exit status; negative: number of the signal that ended it."""
    same_as: int | None = None

    @property
    def name(self) -> str:
        return f"run {self.number}" if self.output is not None else str(self.trace)


@dataclass(frozen=True)
class StepLevelRun:
    """The run at level step, and its group."""

    run: CheckRun
    group: int | None
    """Number of the group that it agrees with, from 1; None: with none, or not known."""
    why: str
    """One sentence."""


@dataclass(frozen=True)
class RunTree:
    """Runs that are equal up to an op, and diverge there."""

    runs: tuple[int, ...]
    """Numbers of runs."""
    finding: Finding | None
    """Where they diverge: A is the first run of the first branch, B the first of the second; None: they are a group."""
    branches: tuple[RunTree, ...]


@dataclass(frozen=True)
class RunGroups:
    """Runs, and which of them computed the same; runs and groups are numbered from 1."""

    SCHEMA: ClassVar = "rltrace.check/1"

    verdict: str
    """``agree``, ``diverged`` or ``unknown``."""
    agrees: bool | None
    """True: exit status 0, False: 1, None: 3."""
    runs: tuple[CheckRun, ...]
    groups: tuple[tuple[int, ...], ...]
    """Numbers of runs, the largest group first."""
    tree: RunTree
    advice: tuple[str, ...]
    """What PyTorch documents of the ops at which runs diverge, a sentence each."""
    undecided: tuple[Undecided, ...]
    control: StepLevelRun | None = None
    """None: left out."""


def run_groups(grouping: Grouping, runs: Sequence[CheckRun], control: StepLevelRun | None = None) -> RunGroups:
    """The groups of ``runs``, of traces that existed or as they were made."""
    advice = (advice_text(finding) for finding in findings_of(grouping.tree))
    return RunGroups(
        WORDS[grouping.agrees],
        grouping.agrees,
        tuple(runs),
        tuple(_numbers(group.runs) for group in grouping.groups),
        _tree(grouping.tree),
        tuple(dict.fromkeys(text for text in advice if text is not None)),
        tuple(Undecided(one.run + 1, one.against + 1, one.why) for one in grouping.undecided),
        control,
    )


def _tree(node: Node) -> RunTree:
    if isinstance(node, Group):
        return RunTree(_numbers(node.runs), None, ())
    return RunTree(_numbers(node.runs), node.finding, tuple(map(_tree, node.branches)))


def _numbers(places: Sequence[int]) -> tuple[int, ...]:
    return tuple(place + 1 for place in places)


# --- document ---------------------------------------------------------------------------------------------------------


def groups_document(found: RunGroups) -> Document:
    """The groups, where they diverge, and what is known of it; then how the runs of a check ended."""
    names = {run.number: run.name for run in found.runs}
    own = [run for run in found.runs if run.output is not None]
    tree = (_branch(found.tree, names, found.groups),)
    failed = any(run.status for run in own)
    endings = (Fact(run.name, f"ended with {_ending(run.status)}; it printed {run.output}") for run in own if failed)
    kept = (Fact(run.name, Code(str(run.trace))) for run in own if run.trace is not None)
    undecided = (Fact(names[one.run], f"compared with {names[one.against]}: {one.why}") for one in found.undecided)
    sections = (
        Section("tree", "Where they diverge", parts=tree if found.tree.branches else ()),
        Section("advice", "Known about these ops", sentences(*found.advice)),
        Section("undecided", "In no group", facts=tuple(undecided), limit=ALL),
        Section("endings", "How they ended", facts=tuple(endings), limit=ALL),
        Section("control", "Without the op recorder", () if found.control is None else sentences(found.control.why)),
        Section("traces", "Traces", facts=tuple(kept), limit=ALL),
    )
    return Document(
        found.verdict.upper(),
        VERDICTS[found.agrees],
        scope=_scope(found),
        facts=tuple(_group(number, runs, names) for number, runs in enumerate(found.groups, 1)),
        sections=tuple(filter(None, sections)),
    )


def _scope(found: RunGroups) -> str:
    if found.agrees is False:
        return f"{len(found.groups)} groups of {len(found.tree.runs)} runs"
    undecided = f"; {len(found.undecided)} undecided" if found.agrees is None else ""
    return f"{len(found.tree.runs)} runs computed the same{undecided}"


def _group(number: int, runs: Sequence[int], names: Mapping[int, str]) -> Fact:
    shown = ", ".join(names[run] for run in runs[:MAX_NAMES])
    more = f" and {len(runs) - MAX_NAMES} more" if len(runs) > MAX_NAMES else ""
    return Fact(f"group {number}", f"{counted(len(runs), 'run')}: {shown}{more}")


def _branch(tree: RunTree, names: Mapping[int, str], groups: Sequence[tuple[int, ...]]) -> Section:
    count, finding = counted(len(tree.runs), "run"), tree.finding
    if finding is None:
        return Section("", f"{count}: group {groups.index(tree.runs) + 1}")
    sizes = " against ".join(str(len(branch.runs)) for branch in tree.branches)
    a, b = (names[branch.runs[0]] for branch in tree.branches[:2])
    return Section(
        "",
        f"{count}, {sizes}, at {_place(finding)}",
        (f"{sentence(finding.explanation)} (A: {a}, B: {b})",),
        tuple(_facts(finding)),
        parts=tuple(_branch(branch, names, groups) for branch in tree.branches),
        limit=ALL,
    )


def _place(finding: Finding) -> str:
    row = finding.a_index if finding.a_index is not None else finding.b_index
    step = "" if finding.step is None else f"step {finding.step:,}"
    at = "" if row is None else f"op {row:,} of {finding.stream}"
    return ", ".join(filter(None, [step, at])) or finding.stream


def _facts(finding: Finding) -> Iterator[Fact]:
    if finding.op is not None:
        yield Fact("op", Code(finding.op))
        yield Fact("cause", finding.cause.value)
    if finding.site is not None:
        yield Fact("site", finding.site)


def _ending(status: int | None) -> str:
    return f"status {status}" if status is None or status >= 0 else f"signal {-status}"
