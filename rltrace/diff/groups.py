"""Many runs of one program: which of them computed the same, and where those that did not parted.

Owns the tree of partings. Two runs are compared by ``compare``, and by nothing else; a run that cannot be decided is
put into no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace.diff.base.model import Cause, Comparison, Finding
from rltrace.diff.causes.classify import NOT_RERUN
from rltrace.diff.compare import compare

Compare = Callable[[Path, Path], Comparison]


@dataclass(frozen=True)
class Group:
    """Runs that computed the same, as far as each was compared with the first of them."""

    runs: tuple[int, ...]
    """Places among the traces, in order."""


@dataclass(frozen=True)
class GroupSplit:
    """Runs that were one until an op, and went different ways there."""

    finding: Finding
    """At that op: the first run of the first branch is A, the first of the second is B."""
    branches: tuple[Node, ...]
    """Two or more; that of the first run is the first."""

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(sorted(run for branch in self.branches for run in branch.runs))


Node = Group | GroupSplit


@dataclass(frozen=True)
class Undecided:
    """A run that may belong to a group or not."""

    run: int
    against: int
    """The run it was compared with."""
    why: str


@dataclass(frozen=True)
class Grouping:
    """What became of several runs."""

    tree: Node
    undecided: tuple[Undecided, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The largest first; of equal ones that with the earliest run."""
        return tuple(sorted(_leaves(self.tree), key=lambda group: (-len(group.runs), group.runs)))

    @property
    def agrees(self) -> bool | None:
        """True: all runs computed the same; False: some did not; None: that cannot be said."""
        if isinstance(self.tree, GroupSplit):
            return False
        return None if self.undecided else True


def group(traces: Sequence[Path], *, strict: bool = False, comparing: Compare | None = None) -> Grouping:
    """Group the runs that ``traces`` (at least one) recorded. Raises what ``compare`` does.

    Every run is compared with the first one; those that part from it at the same op are then grouped among
    themselves. That takes as many comparisons as there are runs, once for each parting below another.
    """
    found = _Grouping(traces, comparing or (lambda a, b: compare(a, b, strict=strict)))
    tree = found.node(tuple(range(len(traces))))
    return Grouping(tree, tuple(found.undecided))


def seen_not_to_repeat(node: Node) -> Node:
    """The tree of runs between which nothing was changed: an op at which they part under one kernel does not repeat."""
    if isinstance(node, Group):
        return node
    finding = node.finding
    if finding.cause is Cause.SAME_KERNEL:
        why = finding.because.replace(NOT_RERUN, "it is nondeterministic from run to run")
        finding = replace(finding, repeats=False, because=why)
    return GroupSplit(finding, tuple(seen_not_to_repeat(branch) for branch in node.branches))


class _Grouping:
    def __init__(self, traces: Sequence[Path], comparing: Compare) -> None:
        self.undecided: list[Undecided] = []
        self._traces = traces
        self._comparing = comparing
        self._known: dict[tuple[int, int], Comparison] = {}

    def node(self, runs: tuple[int, ...]) -> Node:
        first, same, parted = runs[0], [runs[0]], []
        for run in runs[1:]:
            comparison = self._compare(first, run)
            finding = comparison.decisive or comparison.first
            if comparison.agrees is None:
                self.undecided.append(Undecided(run, first, comparison.why))
            elif comparison.agrees or finding is None:
                same.append(run)
            else:
                parted.append((run, finding))
        if not parted:
            return Group(tuple(same))
        # Those that leave the first run at its earliest parting differ from all others there; the others go on with it.
        earliest = min((finding for _, finding in parted), key=_position)
        leaving = tuple(run for run, finding in parted if _position(finding) == _position(earliest))
        staying = tuple(sorted({*same, *(run for run, _ in parted)} - {*leaving}))
        at = next(finding for run, finding in parted if run == leaving[0])
        rest = self.node(leaving)
        there = rest.branches if isinstance(rest, GroupSplit) and _same_op(at, rest.finding) else (rest,)
        return GroupSplit(at, (self.node(staying), *there))

    def _compare(self, a: int, b: int) -> Comparison:
        if (a, b) not in self._known:
            self._known[a, b] = self._comparing(self._traces[a], self._traces[b])
        return self._known[a, b]


def _position(finding: Finding) -> tuple[int, str, int]:
    """Where in A a finding lies. Streams of a process are ordered by their steps; within a step nothing orders them."""
    row = finding.a_index if finding.a_index is not None else finding.identical_before
    return (-1 if finding.step is None else finding.step), finding.stream, row


def _same_op(at: Finding, below: Finding) -> bool:
    """Whether ``below``, of runs that left at ``at``, is at that same op: three ways at one place."""
    return (at.stream, at.op, at.site, at.b_index) == (below.stream, below.op, below.site, below.a_index)


def findings_of(node: Node) -> Iterator[Finding]:
    """Where runs part, from the first parting down."""
    if isinstance(node, GroupSplit):
        yield node.finding
        for branch in node.branches:
            yield from findings_of(branch)


def _leaves(node: Node) -> Iterator[Group]:
    if isinstance(node, Group):
        yield node
    else:
        for branch in node.branches:
            yield from _leaves(branch)
