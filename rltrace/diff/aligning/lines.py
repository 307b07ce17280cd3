"""Which line of B is which line of A, though it has another name or another text: renamed functions, edited lines.

A site that both sides have is itself. Of the others, those whose lines say the same are one, whatever the functions and
files around are called; that much the tables of two processes tell. Which line an edited line was is learned from ops
that are proven to be one: from then on, every stack that the line is in is known. Owns these names; proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from rltrace.diff.aligning.sequences import Tokens
from rltrace.trace.reader import ProcessTrace

Frame = tuple[str, str, str]
"""File, function, text of the line."""

Stack = tuple[Frame, ...]

LARGEST = 1 << 16
"""Sites that one side alone has; where there are more, it is another program."""


class SiteNames:
    """Sites of B by the names that A knows them by."""

    def __init__(self, a: ProcessTrace, b: ProcessTrace) -> None:
        self._own_a, self._own_b = a.tables["sites"].keys, b.tables["sites"].keys
        self.keys: Tokens = self._own_b.copy()
        """Keys of B's sites, those of A in place of the ones that have another name."""
        alone_a, alone_b = _only(a, self._own_b), _only(b, self._own_a)
        if not len(alone_a) or not len(alone_b) or max(len(alone_a), len(alone_b)) > LARGEST:
            alone_a = alone_b = []
        self.any = False
        """Whether any site has another name."""
        self._a, self._b = _stacks(a, alone_a), _stacks(b, alone_b)
        self._frames: dict[Frame, Frame] = {}
        """Frames of B to what they are in A."""
        for says in (_in_another_file, _under_another_name):
            self._take(_one_to_one(self._a, self._b, says))

    def learn(self, a: int, b: int) -> bool:
        """Take site ``a`` of A and ``b`` of B for one; False where that is no news, or cannot be.

        Stacks of one depth that differ in one frame tell which line was edited; others are no edited line.
        """
        if a not in self._a or b not in self._b:
            return False
        stack_a, stack_b = self._a[a], self._b[b]
        apart = [(x, y) for x, y in zip(stack_a, stack_b, strict=False) if x != self._frames.get(y, y)]
        if len(stack_a) != len(stack_b) or len(apart) != 1:
            return False
        if apart[0][1] in self._frames or apart[0][0] in self._frames.values():
            return False
        self._frames.update((y, x) for x, y in apart)
        by_stack = {stack: site for site, stack in self._a.items()}
        found = [(by_stack.get(self._translated(stack)), site) for site, stack in self._b.items()]
        self._take((i, j) for i, j in found if i is not None)
        return True

    def _translated(self, stack: Stack) -> Stack:
        return tuple(self._frames.get(frame, frame) for frame in stack)

    def _take(self, pairs: Iterable[tuple[int, int]]) -> None:
        for i, j in pairs:
            if i in self._a and j in self._b:
                self.keys[j], self.any = self._own_a[i], True
                self._frames.update((y, x) for x, y in zip(self._a.pop(i), self._b.pop(j), strict=True) if x != y)


def _only(process: ProcessTrace, others: Tokens) -> list[int]:
    """Ids of the readable sites whose keys the other side lacks."""
    sites = process.tables["sites"]
    found: list[int] = np.flatnonzero(sites.present & ~np.isin(sites.keys, others)).tolist()
    return found


def _stacks(process: ProcessTrace, sites: list[int]) -> dict[int, Stack]:
    """The frames outside torch of each of these sites."""
    if not sites:
        return {}
    frames = [_frame(payload) for payload in process.tables["frames"].payloads]
    payloads = process.tables["sites"].payloads
    stacks = {i: [frames[n] for n in payload] for i in sites if isinstance(payload := payloads[i], list)}
    return {i: tuple(frame for frame in stack if frame is not None) for i, stack in stacks.items()}


def _frame(payload: object) -> Frame | None:
    if not isinstance(payload, dict) or payload.get("internal"):
        return None
    return str(payload.get("file", "")), str(payload.get("function", "")), str(payload.get("source", "")).strip()


Says = Callable[[Frame], tuple[str, ...]]
"""What is left of a frame where something about it may have changed. A line whose text is not known keeps its place."""


def _in_another_file(frame: Frame) -> tuple[str, ...]:
    return frame[1:] if frame[2] else frame


def _under_another_name(frame: Frame) -> tuple[str, ...]:
    return frame[2:] if frame[2] else frame


def _one_to_one(a: dict[int, Stack], b: dict[int, Stack], says: Says) -> list[tuple[int, int]]:
    """Sites of which there is one alone on either side that says the same."""
    told_a, told_b = _by_words(a, says), _by_words(b, says)
    return [
        (found[0], told_b[words][0])
        for words, found in told_a.items()
        if words and len(found) == 1 and len(told_b.get(words, ())) == 1
    ]


def _by_words(stacks: dict[int, Stack], says: Says) -> dict[tuple[tuple[str, ...], ...], list[int]]:
    found: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for site, stack in stacks.items():
        found.setdefault(tuple(map(says, stack)), []).append(site)
    return found
