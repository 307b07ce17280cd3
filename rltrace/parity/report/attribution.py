"""The contribution of each module to a gap, as text. Owns the wording; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.parity.impact.attribution import Contributions, PatchTrial
from rltrace.report.diff_text import wrapped
from rltrace.report.style import Style
from rltrace.wording import cut, sentence

LONGEST = 400
"""Characters of the reason of a failed run."""
NAME = 36
"""Columns of a module's name."""


def contribution_lines(found: Contributions, style: Style) -> Iterator[str]:
    """The section of the text report."""
    yield style.bold("Contribution of each module (mean absolute difference, A's rows injected)")
    yield f"    {'':<{NAME}}{'alone':>10} {'removes':>9} {'in turn':>10} {'removes':>9}"
    yield f"    {'nothing injected':<{NAME}}{_gap(found.control):>10}"
    for number, share in enumerate(found.shares):
        alone = _part(found.removed(share.single), found)
        own = _part(found.own(number), found)
        name = _tail(_short(share.module))
        yield f"    {name:<{NAME}}{_gap(share.single):>10} {alone:>9} {_gap(share.in_turn):>10} {own:>9}"
    if found.routing is not None:
        for name, trial in (("routing: experts only", found.routing.experts), ("with weights", found.routing.weights)):
            yield f"    {name:<{NAME}}{_gap(trial):>10} {_part(found.removed(trial), found):>9}"
    yield from wrapped(
        "alone: rows of this module only. in turn: with those of all modules above it, so that the reduction is "
        "that of this module and of what runs between the two"
    )
    yield from wrapped(sentence(_sum(found)))
    for doubt in _doubts(found):
        yield from wrapped(sentence(doubt))


def _sum(found: Contributions) -> str:
    together, alone = found.removed_together, found.removed_single
    if together is None:
        return f"what all of them remove together is unknown: {found.together.why or found.control.why}"
    text = f"together they remove {_part(together, found)} of the gap"
    if alone is None:
        return text
    if found.add_up:
        return f"{text}; the shares alone add up to {_part(alone, found)}, the same"
    more = "more: the rows of one module include what came in from those before it" if alone > together else "less"
    return (
        f"{text}; the shares alone add up to {_part(alone, found)}, {more}. They interact: only the shares in turn "
        "add up"
    )


def _doubts(found: Contributions) -> Iterator[str]:
    """Sentences on the limits of these numbers."""
    if found.repeats is False:
        yield (
            f"run again with nothing injected, the trainer gives {_gap(found.control)}, not the "
            f"{found.recorded:.2e} of the compared trace: it is not deterministic, or was not run in the same way; "
            "all shares refer to this run"
        )
    if found.step is not None:
        yield (
            f"all of this is for optimizer step {found.step} only: injected rows change the gradients, so later "
            "steps have other weights than the generator had"
        )
    if found.control.why:
        yield f"run again with nothing injected: {found.control.why}"
    trials = [(share.module, trial) for share in found.shares for trial in (share.single, share.in_turn)]
    if found.routing is not None:
        trials += [("routing", found.routing.experts), ("routing", found.routing.weights)]
    for module, why in dict.fromkeys((module, trial.why) for module, trial in trials if trial.why):
        yield cut(f"{module}: {' '.join(why.split())}", LONGEST)
    if found.left_out:
        rest = f" and {len(found.left_out) - 3} more" if len(found.left_out) > 3 else ""
        names = ", ".join(map(_short, found.left_out[:3]))
        yield (
            f"not tried (--most): {names}{rest}; their contribution counts, in turn, for the next module that was tried"
        )


def _gap(trial: PatchTrial) -> str:
    return "?" if trial.gap is None else f"{trial.gap:.2e}"


def _part(removed: float | None, found: Contributions) -> str:
    """A reduction in percent of the gap."""
    if removed is None or not found.control.gap:
        return "?"
    share = round(removed / found.control.gap, 2)
    return f"{share or 0.0:.0%}"  # no -0%


def _short(path: str) -> str:
    """A path without the outermost module."""
    return path.partition(".")[2] or path


def _tail(name: str) -> str:
    return name if len(name) < NAME else "…" + name[-(NAME - 2) :]
