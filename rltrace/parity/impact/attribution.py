"""The contribution of each module to a gap: what remains of it with the generator's rows in place of the trainer's.

Owns the arithmetic of such runs; ``rltrace.parity.attribution_runs`` makes them.

A module's rows depend on the modules before it. So injecting them alone removes more of the gap than the module adds,
and these reductions need not add up to that of all modules together. Injected on top of the rows of all modules before
it, in execution order, each removes its own contribution (and that of what runs between), which add up by construction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

MIN_MODULES = 3
"""A level with fewer modules is replaced by a deeper one."""
TOLERANCE = 0.05
"""Relative difference up to which the single reductions add up to that of all modules together."""


@dataclass(frozen=True)
class PatchTrial:
    """One run of the trainer with rows of the generator injected."""

    gap: float | None
    """Mean absolute difference of the log-probabilities that is left; None: the run failed."""
    largest: float | None = None
    """Largest absolute difference that is left."""
    why: str = ""
    """One sentence where it failed."""


@dataclass(frozen=True)
class Share:
    """One module's contribution."""

    module: str
    """In B."""
    single: PatchTrial
    """With only its rows injected."""
    in_turn: PatchTrial
    """With its rows and those of all modules before it in the list."""


@dataclass(frozen=True)
class Routed:
    """Runs with only the routing decisions of A injected."""

    experts: PatchTrial
    """The experts and their order, with weights from B's scores."""
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
    """The trainer with nothing injected: it must have the recorded gap."""
    shares: tuple[Share, ...]
    """In the order in which the modules run."""
    together: PatchTrial
    """With the rows of all of them injected."""
    routing: Routed | None = None
    """With A's routing decisions; None: none differ, or they cannot be injected."""
    left_out: tuple[str, ...] = ()
    """Modules that differ and were not tried: related ones were, or there were too many."""
    step: int | None = None
    """All gaps are of this step: injected rows change the gradients, and so the weights of later steps. None: there is
    one step."""

    @property
    def repeats(self) -> bool | None:
        """Whether the control has the recorded gap; None: it failed."""
        return None if self.control.gap is None or self.recorded is None else self.control.gap == self.recorded

    @property
    def removed_together(self) -> float | None:
        """The reduction of the gap by all of them."""
        return self.removed(self.together)

    @property
    def removed_single(self) -> float | None:
        """Sum of the reductions of each alone."""
        parts = [self.removed(share.single) for share in self.shares]
        return None if not parts or None in parts else sum(part for part in parts if part is not None)

    @property
    def add_up(self) -> bool | None:
        """Whether that sum is the reduction by all together, within the tolerance; None: a run failed."""
        together, single = self.removed_together, self.removed_single
        if together is None or single is None:
            return None
        return abs(single - together) <= TOLERANCE * max(abs(together), abs(single))

    def removed(self, trial: PatchTrial) -> float | None:
        """The reduction of the gap by this run; negative where the gap is larger."""
        return None if trial.gap is None or self.control.gap is None else self.control.gap - trial.gap

    def own(self, number: int) -> float | None:
        """The reduction by module ``number`` on top of those before it."""
        before = self.control if number == 0 else self.shares[number - 1].in_turn
        after = self.shares[number].in_turn
        return None if before.gap is None or after.gap is None else before.gap - after.gap


# --- which modules ----------------------------------------------------------------------------------------------------


def choose_modules(
    differing: Sequence[str], first: str | None, most: int, working: Collection[str] = frozenset()
) -> tuple[str, ...]:
    """The modules whose contributions are measured, of those that differ, in execution order.

    They are those of one level of the module tree, and those around them in ``working``, which compute with what their
    submodules return. The level is that of ``first``, the origin, or the next one above with at most ``most`` of them.
    Where these are fewer than ``MIN_MODULES``, it is a deeper level without those around it; where that has too many,
    ``most`` of it, evenly spread, including ``first`` or a module around it.
    """
    depths = _depths(differing)
    top = depths.get(first or "", max(depths.values(), default=0))
    levels = [_level(differing, depths, depth) for depth in range(top + 1)]
    whole = [_add_enclosing(differing, level, working) for level in levels]
    fitting = next((found for found in reversed(whole) if len(found) <= most), ())
    if len(fitting) >= MIN_MODULES:
        return fitting
    alone = next((level for level in reversed(levels) if len(level) <= most), ())
    if len(levels[-1]) > most and len(alone) < min(MIN_MODULES, most):
        return _spread(next(level for level in levels if len(level) > most), first, most)
    return max(fitting, alone, key=lambda found: (len(found), found is alone))


def _add_enclosing(paths: Sequence[str], level: Sequence[str], working: Collection[str]) -> tuple[str, ...]:
    holding = {path[:at] for path in level for at, character in enumerate(path) if character == "."}
    return tuple(path for path in paths if path in level or (path in holding and path in working))


def related(path: str, other: str) -> bool:
    """Whether one of them is the other, or is within it."""
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _depths(paths: Sequence[str]) -> dict[str, int]:
    """For each path, the number of others around it."""
    known = set(paths)
    return {path: sum(path[:at] in known for at, character in enumerate(path) if character == ".") for path in paths}


def _level(paths: Sequence[str], depths: dict[str, int], depth: int) -> tuple[str, ...]:
    """Those of this depth, and those above it with no other within."""
    holding = {path[:at] for path in paths for at, character in enumerate(path) if character == "."}
    return tuple(p for p in paths if depths[p] == depth or (depths[p] < depth and p not in holding))


def _spread(level: Sequence[str], first: str | None, most: int) -> tuple[str, ...]:
    ends = {len(level) - 1} | {i for i, p in enumerate(level) if first is not None and f"{first}.".startswith(f"{p}.")}
    even = [round(i * (len(level) - 1) / max(1, most - 1)) for i in range(most)]
    wanted = list(dict.fromkeys([*sorted(ends), *even]))[:most]
    return tuple(level[i] for i in sorted(wanted))
