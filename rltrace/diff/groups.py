"""Groups of runs of one program that computed the same, and the ops at which they diverge.

Owns the tree of divergences. Runs are compared by ``compare`` only; a run with an unknown verdict is in no group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from time import monotonic
from typing import Generic, TypeVar

from rltrace.diff.base.model import Cause, Comparison, Finding
from rltrace.diff.causes.classify import NOT_RERUN
from rltrace.diff.compare import CompareOptions, compare
from rltrace.trace.format.location import Location

Place = TypeVar("Place", bound=Location)
WORTH = 5.0
"""Seconds of comparisons that are worth starting processes for, each of which imports this package."""


@dataclass(frozen=True)
class Group:
    """Runs that computed the same; each was compared with the first of them."""

    runs: tuple[int, ...]
    """Places among the traces, in order."""


@dataclass(frozen=True)
class GroupSplit:
    """Runs that were equal up to an op and diverge there."""

    finding: Finding
    """At that op; A is the first run of the first branch, B the first of the second."""
    branches: tuple[Node, ...]
    """Two or more; the first one has the first run."""

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(sorted(run for branch in self.branches for run in branch.runs))


Node = Group | GroupSplit


@dataclass(frozen=True)
class Undecided:
    """A run whose group is not known."""

    run: int
    against: int
    """The run it was compared with."""
    why: str


@dataclass(frozen=True)
class Grouping:
    """The groups of several runs."""

    tree: Node
    undecided: tuple[Undecided, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The largest first; among equally large ones, that with the earliest run."""
        return tuple(sorted(_leaves(self.tree), key=lambda group: (-len(group.runs), group.runs)))

    @property
    def agrees(self) -> bool | None:
        """True: all runs computed the same; False: some did not; None: not known."""
        if isinstance(self.tree, GroupSplit):
            return False
        return None if self.undecided else True


def group(
    traces: Sequence[Place],
    *,
    strict: bool = False,
    jobs: int | None = None,
    compare_all: Callable[[Sequence[tuple[Place, Place]]], Iterable[Comparison]] | None = None,
) -> Grouping:
    """Group the runs of ``traces`` (at least one). Raises what ``compare`` does.

    Every run is compared with the first one; those that diverge from it at the same op are then grouped among
    themselves. That takes one comparison per run at each level of the tree; ``compare_all`` makes those of a level, by
    default ``compare_pairs``, in up to ``jobs`` processes.
    """
    found = _Grouping(traces, compare_all or partial(compare_pairs, strict=strict, jobs=jobs))
    tree = found.node(tuple(range(len(traces))))
    return Grouping(tree, tuple(found.undecided))


def compare_pairs(
    pairs: Sequence[tuple[Place, Place]], *, strict: bool = False, jobs: int | None = None, worth: float = WORTH
) -> Iterator[Comparison]:
    """Compare each pair, in this order: one after the other, and once ``worth`` seconds more are to be expected, in up
    to ``jobs`` processes; None: as many as this process may use processors.
    """
    jobs, options = jobs or len(os.sched_getaffinity(0)), CompareOptions(strict=strict)
    began = monotonic()
    for done, (a, b) in enumerate(pairs):
        left = len(pairs) - done
        if min(jobs, left) > 1 and done and (monotonic() - began) / done * left > worth:
            with ProcessPoolExecutor(min(jobs, left), get_context("spawn")) as pool:
                yield from pool.map(partial(compare, options=options), *zip(*pairs[done:], strict=True))
            return
        yield compare(a, b, options)


def mark_nondeterministic(node: Node) -> Node:
    """The tree of unchanged runs, with an op at which they diverge under one kernel marked as nondeterministic."""
    if isinstance(node, Group):
        return node
    finding = node.finding
    if finding.cause is Cause.SAME_KERNEL:
        why = finding.explanation.replace(NOT_RERUN, "it is nondeterministic from run to run")
        finding = replace(finding, repeats=False, explanation=why)
    return GroupSplit(finding, tuple(mark_nondeterministic(branch) for branch in node.branches))


class _Grouping(Generic[Place]):
    def __init__(
        self, traces: Sequence[Place], compare_all: Callable[[Sequence[tuple[Place, Place]]], Iterable[Comparison]]
    ) -> None:
        self.undecided: list[Undecided] = []
        self._traces = traces
        self._compare_all = compare_all
        self._known: dict[tuple[int, int], Comparison] = {}

    def node(self, runs: tuple[int, ...]) -> Node:
        first, same, diverged = runs[0], [runs[0]], []
        for run, comparison in self._compare(first, runs[1:]):
            finding = comparison.decisive or comparison.first
            if comparison.agrees is None:
                self.undecided.append(Undecided(run, first, comparison.why))
            elif comparison.agrees or finding is None:
                same.append(run)
            else:
                diverged.append((run, finding))
        if not diverged:
            return Group(tuple(same))
        # Runs that leave the first run at its earliest divergence differ from all others there; the others stay with it
        earliest = min((finding for _, finding in diverged), key=_position)
        leaving = tuple(run for run, finding in diverged if _position(finding) == _position(earliest))
        staying = tuple(sorted({*same, *(run for run, _ in diverged)} - {*leaving}))
        at = next(finding for run, finding in diverged if run == leaving[0])
        rest = self.node(leaving)
        branches = rest.branches if isinstance(rest, GroupSplit) and _same_op(at, rest.finding) else (rest,)
        return GroupSplit(at, (self.node(staying), *branches))

    def _compare(self, first: int, others: Sequence[int]) -> Iterator[tuple[int, Comparison]]:
        """Each of the others, with its comparison with the first."""
        new = [run for run in others if (first, run) not in self._known]
        found = self._compare_all([(self._traces[first], self._traces[run]) for run in new])
        self._known.update(((first, run), comparison) for run, comparison in zip(new, found, strict=True))
        return ((run, self._known[first, run]) for run in others)


def _position(finding: Finding) -> tuple[int, str, int]:
    """Place of a finding in A. Streams of a process are ordered by their steps; within a step nothing orders them."""
    row = finding.a_index if finding.a_index is not None else finding.identical_before
    return (-1 if finding.step is None else finding.step), finding.stream, row


def _same_op(at: Finding, below: Finding) -> bool:
    """Whether ``below``, of runs that left at ``at``, is at that same op: a split into three or more."""
    return (at.stream, at.op, at.site, at.b_index) == (below.stream, below.op, below.site, below.a_index)


def findings_of(node: Node) -> Iterator[Finding]:
    """Findings at which runs diverge, the first one first."""
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
