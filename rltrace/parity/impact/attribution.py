"""How much of a gap each module brings: what is left of it with the generator's rows in place of the trainer's.

Owns the arithmetic of such runs, and what it may be said to show; the runs are made elsewhere
(``rltrace.parity.attribution_runs``).

A module's rows carry what came in from the modules before it. So its rows put in alone take away more than the module's
own part, and those parts need not add up to what all of them take away together. Put in on top of the rows of all
modules before it, in the order in which they run, what each takes away is its own (with what runs between the two), and
adds up by construction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

FEW = 3
"""Modules that are too few to tell where a gap comes from, if there are more of them further down."""
TOLERANCE = 0.05
"""Of what all modules together take away: how far the single parts may miss it and still add up."""


@dataclass(frozen=True)
class PatchTrial:
    """One run of the trainer with rows of the generator put in."""

    gap: float | None
    """Mean absolute difference of the log-probabilities that is left; None: the run failed."""
    largest: float | None = None
    """Largest absolute difference that is left."""
    why: str = ""
    """One sentence where it failed."""


@dataclass(frozen=True)
class Share:
    """One module's part."""

    module: str
    """In B."""
    single: PatchTrial
    """Its rows alone put in."""
    in_turn: PatchTrial
    """Its rows and those of all modules before it in the list."""


@dataclass(frozen=True)
class Routed:
    """Runs in which the routers choose as those of A did, and nothing else is A's."""

    experts: PatchTrial
    """The experts and their order; their weights are what B's own scores make them."""
    weights: PatchTrial
    """Their weights as well."""


@dataclass(frozen=True)
class Contributions:
    """What each module contributes to the gap."""

    COMPUTED: ClassVar = ("repeats", "removed_single", "add_up")

    command: tuple[str, ...]
    recorded: float | None
    """The gap of the two traces: mean absolute difference of log-probabilities."""
    control: PatchTrial
    """The trainer once more with nothing put in: what it must come out at for the rest to mean anything."""
    shares: tuple[Share, ...]
    """In the order in which the modules run."""
    together: PatchTrial
    """The rows of all of them put in."""
    routing: Routed | None = None
    """With what the routers of A chose; None: no router chose otherwise, or that cannot be put in."""
    left_out: tuple[str, ...] = ()
    """Modules that differ and were not tried; what is listed stands for them, or there were too many."""
    step: int | None = None
    """All gaps are of this step alone: rows that are put in change the gradients, and with them the weights of every
    step after it. None: there is one step."""

    @property
    def repeats(self) -> bool | None:
        """Whether the trainer, run again, shows the gap of the recorded run; None: that run told nothing."""
        return None if self.control.gap is None or self.recorded is None else self.control.gap == self.recorded

    @property
    def removed_together(self) -> float | None:
        """What all of them take away of the gap."""
        return self.removed(self.together)

    @property
    def removed_single(self) -> float | None:
        """Sum of what each takes away alone."""
        parts = [self.removed(share.single) for share in self.shares]
        return None if not parts or None in parts else sum(part for part in parts if part is not None)

    @property
    def add_up(self) -> bool | None:
        """Whether that sum is what all take away together, within the tolerance; None: a run told nothing."""
        together, alone = self.removed_together, self.removed_single
        if together is None or alone is None:
            return None
        return abs(alone - together) <= TOLERANCE * max(abs(together), abs(alone))

    def removed(self, trial: PatchTrial) -> float | None:
        """What this run took away of the gap; negative where it added to it."""
        return None if trial.gap is None or self.control.gap is None else self.control.gap - trial.gap

    def own(self, number: int) -> float | None:
        """What module ``number`` takes away beyond what those before it did."""
        before = self.control if number == 0 else self.shares[number - 1].in_turn
        after = self.shares[number].in_turn
        return None if before.gap is None or after.gap is None else before.gap - after.gap


# --- which modules ----------------------------------------------------------------------------------------------------


def chosen(
    differing: Sequence[str], first: str | None, most: int, working: Collection[str] = frozenset()
) -> tuple[str, ...]:
    """The modules whose parts are measured, of those that differ, in the order in which they run.

    They are those of one level of the tree of modules, and of those around them the ones in ``working``, which do
    something themselves with what their modules gave. The level is that of ``first``, which parts by itself, or the
    next one above at which these are no more than ``most``. Where that would leave fewer than ``FEW``, those around
    them are left out, for a level further down; and where that has too many, ``most`` of it are taken, evenly spread,
    ``first`` or what holds it among them.
    """
    depths = _depths(differing)
    top = depths.get(first or "", max(depths.values(), default=0))
    levels = [_level(differing, depths, depth) for depth in range(top + 1)]
    whole = [_with_those_around(differing, level, working) for level in levels]
    fitting = next((found for found in reversed(whole) if len(found) <= most), ())
    if len(fitting) >= FEW:
        return fitting
    alone = next((level for level in reversed(levels) if len(level) <= most), ())
    if len(levels[-1]) > most and len(alone) < min(FEW, most):
        return _spread(next(level for level in levels if len(level) > most), first, most)
    return max(fitting, alone, key=lambda found: (len(found), found is alone))


def _with_those_around(paths: Sequence[str], level: Sequence[str], working: Collection[str]) -> tuple[str, ...]:
    holding = {path[:at] for path in level for at, character in enumerate(path) if character == "."}
    return tuple(path for path in paths if path in level or (path in holding and path in working))


def related(path: str, other: str) -> bool:
    """Whether one of them is the other, or lies in it."""
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _depths(paths: Sequence[str]) -> dict[str, int]:
    """How many of the others each lies in."""
    known = set(paths)
    return {path: sum(path[:at] in known for at, character in enumerate(path) if character == ".") for path in paths}


def _level(paths: Sequence[str], depths: dict[str, int], depth: int) -> tuple[str, ...]:
    """Those of this depth, and those above it that hold no other."""
    holding = {path[:at] for path in paths for at, character in enumerate(path) if character == "."}
    return tuple(p for p in paths if depths[p] == depth or (depths[p] < depth and p not in holding))


def _spread(level: Sequence[str], first: str | None, most: int) -> tuple[str, ...]:
    ends = {len(level) - 1} | {i for i, p in enumerate(level) if first is not None and f"{first}.".startswith(f"{p}.")}
    even = [round(i * (len(level) - 1) / max(1, most - 1)) for i in range(most)]
    wanted = list(dict.fromkeys([*sorted(ends), *even]))[:most]
    return tuple(level[i] for i in sorted(wanted))
