"""Several runs in groups, as text and as one plain object (``rltrace.check/1``, docs/reference/json.md).

Owns the order and the wording of both. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrace.diff.base.model import Finding, Verdict
from rltrace.diff.causes.nondeterminism import advice_text
from rltrace.diff.groups import Group, Grouping, GroupSplit, Node, findings_of
from rltrace.report.diff_text import WIDTH, wrapped
from rltrace.report.style import Style
from rltrace.wording import counted, cut, sentence

if TYPE_CHECKING:
    from rltrace.experiment.check import CheckResult, CheckRun, StepLevelRun

SCHEMA = "rltrace.check/1"
MAX_NAMES = 12

_VERDICTS = {True: Verdict.IDENTICAL, False: Verdict.DIVERGED, None: Verdict.UNKNOWN}
WORDS = {True: "agree", False: "diverged", None: "unknown"}


def render_groups(grouping: Grouping, names: Sequence[str], *, color: bool) -> str:
    """The report on runs that are called ``names``, without a newline at the end."""
    style = Style(color)
    sections = (
        _head(grouping, style),
        _groups(grouping, names),
        _tree(grouping, names, style),
        _known_issues(grouping, style),
        _undecided(grouping, names),
    )
    return "\n\n".join(text for section in sections if (text := "\n".join(section)))


def render_check(checked: CheckResult, *, color: bool) -> str:
    """The report of ``rltrace check``, with how its runs ended."""
    names = [f"run {run.number}" for run in checked.runs]
    sections = (
        [render_groups(checked.grouping, names, color=color)],
        _endings(checked.runs, names),
        _lost(checked.runs, names),
        _control(checked.control),
        _traces(checked.runs),
    )
    return "\n\n".join(text for section in sections if (text := "\n".join(section)))


def groups_json(grouping: Grouping, traces: Sequence[str]) -> dict[str, Any]:
    """``grouping`` of existing traces; runs are numbered from 1."""
    runs = [
        {"number": n, "trace": trace, "output": None, "status": None, "same_as": None}
        for n, trace in enumerate(traces, 1)
    ]
    return _object(grouping, runs, None)


def check_json(checked: CheckResult) -> dict[str, Any]:
    """The JSON of ``rltrace check``."""
    return _object(checked.grouping, checked.runs, checked.control)


# --- text -----------------------------------------------------------------------------------------------------------


def _head(grouping: Grouping, style: Style) -> Iterator[str]:
    verdict = _VERDICTS[grouping.agrees]
    groups, runs = grouping.groups, len(grouping.tree.runs)
    if grouping.agrees is False:
        yield style.verdict("DIVERGED", verdict) + f"  {len(groups)} groups of {runs} runs"
    elif grouping.agrees:
        yield style.verdict("AGREE", verdict) + f"  {runs} runs computed the same"
    else:
        yield (
            style.verdict("UNKNOWN", verdict) + f"  {runs} runs computed the same; {len(grouping.undecided)} undecided"
        )


def _groups(grouping: Grouping, names: Sequence[str]) -> Iterator[str]:
    for number, group in enumerate(grouping.groups, 1):
        shown = [names[run] for run in group.runs[:MAX_NAMES]]
        if len(group.runs) > MAX_NAMES:
            shown.append(f"… and {len(group.runs) - MAX_NAMES} more")
        yield from wrapped(
            ", ".join(shown), " " * 21, f"  {f'group {number}':<10} {counted(len(group.runs), 'run'):<8}"
        )


def _tree(grouping: Grouping, names: Sequence[str], style: Style) -> Iterator[str]:
    if isinstance(grouping.tree, GroupSplit):
        labels = _Names(names, {group: number for number, group in enumerate(grouping.groups, 1)})
        yield style.bold("Where they diverge")
        yield from _node(grouping.tree, labels, "  ", "  ")


@dataclass(frozen=True)
class _Names:
    runs: Sequence[str]
    groups: Mapping[Group, int]


def _node(node: Node, names: _Names, first: str, rest: str) -> Iterator[str]:
    """Lines of a branch: ``first`` is the prefix of the first one, ``rest`` of the others."""
    if isinstance(node, Group):
        yield f"{first}{counted(len(node.runs), 'run')}: group {names.groups[node]}"
        return
    finding = node.finding
    sizes = " against ".join(str(len(branch.runs)) for branch in node.branches)
    yield f"{first}{counted(len(node.runs), 'run')}, {sizes}, at {_place(finding)}"
    for text in _details(finding):
        yield f"{rest}│ {cut(text, WIDTH - len(rest) - 2)}"
    a, b = (names.runs[branch.runs[0]] for branch in node.branches[:2])
    yield from wrapped(f"{sentence(finding.explanation)} (A: {a}, B: {b})", f"{rest}│ ")
    for branch in node.branches[:-1]:
        yield from _node(branch, names, f"{rest}├─ ", f"{rest}│  ")
    yield from _node(node.branches[-1], names, f"{rest}└─ ", f"{rest}   ")


def _place(finding: Finding) -> str:
    row = finding.a_index if finding.a_index is not None else finding.b_index
    step = "" if finding.step is None else f"step {finding.step:,}"
    at = "" if row is None else f"op {row:,} of {finding.stream}"
    return ", ".join(filter(None, [step, at])) or finding.stream


def _details(finding: Finding) -> Iterator[str]:
    if finding.op is not None:
        yield f"{finding.op}, cause: {finding.cause.value}"
    if finding.site is not None:
        yield f"{finding.site.file}:{finding.site.line} in {finding.site.function}"
        if finding.site.source:
            yield f"  {finding.site.source}"


def _known_issues(grouping: Grouping, style: Style) -> Iterator[str]:
    """What PyTorch documents of the ops at which runs diverge."""
    advice = _advice(grouping)
    if advice:
        yield style.bold("Known about these ops")
    for text in advice:
        yield from wrapped(sentence(text))


def _advice(grouping: Grouping) -> list[str]:
    texts = (advice_text(finding) for finding in findings_of(grouping.tree))
    return list(dict.fromkeys(text for text in texts if text is not None))


def _undecided(grouping: Grouping, names: Sequence[str]) -> Iterator[str]:
    if grouping.undecided:
        yield "In no group"
    for undecided in grouping.undecided:
        text = f"compared with {names[undecided.against]}: {undecided.why}"
        yield from wrapped(text, "    ", f"  {names[undecided.run]} ")


def _endings(runs: Sequence[CheckRun], names: Sequence[str]) -> Iterator[str]:
    """How the runs ended, unless all ended with 0."""
    if any(run.status for run in runs):
        for run, name in zip(runs, names, strict=True):
            how = f"status {run.status}" if run.status >= 0 else f"signal {-run.status}"
            yield f"  {name} ended with {how}; it printed {run.output}"


def _lost(runs: Sequence[CheckRun], names: Sequence[str]) -> Iterator[str]:
    """Runs that were made again on another worker of a cluster."""
    if any(run.lost for run in runs):
        yield "Made again"
    for run, name in zip(runs, names, strict=True):
        if run.lost:
            yield from wrapped("; ".join(run.lost), "    ", f"  {name} ")


def _control(control: StepLevelRun | None) -> Iterator[str]:
    if control is not None:
        yield "Without the op recorder"
        yield from wrapped(sentence(control.why))


def _traces(runs: Sequence[CheckRun]) -> Iterator[str]:
    yield "Traces"
    for run in runs:
        if run.trace is not None:
            yield f"  {run.trace}"


# --- JSON -----------------------------------------------------------------------------------------------------------


def _object(grouping: Grouping, runs: Sequence[object], control: StepLevelRun | None) -> dict[str, Any]:
    """Runs and groups are numbered from 1."""
    return {
        "schema": SCHEMA,
        "verdict": WORDS[grouping.agrees],
        "agrees": grouping.agrees,
        "runs": runs,
        "groups": [_numbers(group.runs) for group in grouping.groups],
        "tree": _tree_json(grouping.tree),
        "advice": _advice(grouping),
        "undecided": [{"run": u.run + 1, "against": u.against + 1, "why": u.why} for u in grouping.undecided],
        "control": None
        if control is None
        else {"group": None if control.group is None else control.group + 1, "why": control.why, "run": control.run},
    }


def _tree_json(node: Node) -> dict[str, Any]:
    finding, branches = (None, ()) if isinstance(node, Group) else (node.finding, node.branches)
    return {"runs": _numbers(node.runs), "finding": finding, "branches": [_tree_json(branch) for branch in branches]}


def _numbers(places: Sequence[int]) -> list[int]:
    return [place + 1 for place in places]
