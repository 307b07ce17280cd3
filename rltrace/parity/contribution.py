"""How much of a gap each module brings: what is left of it with the generator's rows in place of the trainer's.

Owns the arithmetic of such runs, and what it may be said to show; the runs are made elsewhere
(``rltrace.experiment.contributions``).

A module's rows carry what came in from the modules before it. So its rows put in alone take away more than the module's
own part, and those parts need not add up to what all of them take away together. Put in on top of the rows of all
modules before it, in the order in which they run, what each takes away is its own, and adds up by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.05
"""Of what all modules together take away: how far the single parts may miss it and still add up."""


@dataclass(frozen=True)
class Trial:
    """One run of the trainer with rows of the generator put in."""

    gap: float | None
    """Mean absolute difference of the log-probabilities that is left; None: the run told nothing."""
    largest: float | None = None
    """Largest absolute difference that is left."""
    why: str = ""
    """One sentence where it told nothing."""


@dataclass(frozen=True)
class Share:
    """One module's part."""

    module: str
    """In B."""
    alone: Trial
    """Its rows alone put in."""
    in_turn: Trial
    """Its rows and those of all modules before it in the list."""


@dataclass(frozen=True)
class Contributions:
    """What each module contributes to the gap."""

    command: tuple[str, ...]
    recorded: float
    """The gap of the two traces: mean absolute difference of log-probabilities."""
    control: Trial
    """The trainer once more with nothing put in: what it must come out at for the rest to mean anything."""
    shares: tuple[Share, ...]
    """In the order in which the modules run."""
    together: Trial
    """The rows of all of them put in."""
    left_out: tuple[str, ...] = ()
    """Modules that differ and were not tried; what is listed stands for them, or there were too many."""

    @property
    def repeats(self) -> bool | None:
        """Whether the trainer, run again, shows the gap of the recorded run; None: that run told nothing."""
        return None if self.control.gap is None else self.control.gap == self.recorded

    @property
    def removed_together(self) -> float | None:
        """What all of them take away of the gap."""
        return self.removed(self.together)

    @property
    def removed_alone(self) -> float | None:
        """Sum of what each takes away alone."""
        parts = [self.removed(share.alone) for share in self.shares]
        return None if not parts or None in parts else sum(part for part in parts if part is not None)

    @property
    def add_up(self) -> bool | None:
        """Whether that sum is what all take away together, within the tolerance; None: a run told nothing."""
        together, alone = self.removed_together, self.removed_alone
        if together is None or alone is None:
            return None
        return abs(alone - together) <= TOLERANCE * max(abs(together), abs(alone))

    def removed(self, trial: Trial) -> float | None:
        """What this run took away of the gap; negative where it added to it."""
        return None if trial.gap is None or self.control.gap is None else self.control.gap - trial.gap

    def own(self, number: int) -> float | None:
        """What module ``number`` takes away beyond what those before it did."""
        before = self.control if number == 0 else self.shares[number - 1].in_turn
        after = self.shares[number].in_turn
        return None if before.gap is None or after.gap is None else before.gap - after.gap
