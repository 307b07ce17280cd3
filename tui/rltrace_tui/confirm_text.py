"""The outcome of an experiment in lines of text.

Owns glyphs and layout within a width. Pure functions; no widget, nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

from textual.content import Content

from rltrace.command_lines import line
from rltrace.experiment.confirm.saved_outcome import find_outcome
from rltrace.experiment.outcome import ArmState, ExperimentResult, OriginClass, OutcomeError, outcome_path
from rltrace.report.confirm import COLORS, RELEVANCE, arm_name, outcome_headline, outcome_section
from rltrace.report.confirm import STATES as REPORTED
from rltrace.report.phrases import counted
from rltrace_tui.diff_text import COLORS as VERDICT_COLORS
from rltrace_tui.diff_text import Lines, labelled, plain, section_lines

STATES = {
    ArmState.NOT_RUN: ("·", "$text-muted"),
    ArmState.RUNNING: ("…", "$text-accent"),
    ArmState.AS_EXPECTED: ("✓", "$text-success"),
    ArmState.OTHERWISE: ("✗", "$text-error"),
    ArmState.FAILED: ("!", "$text-warning"),
}
NAME = 5

WHY = (
    "A first difference is a suspicion. An experiment injects A's values into a new run of B where it begins to "
    "differ, and checks whether it becomes equal to A, bit for bit. Its outcome is shown here."
)


def headline(outcome: ExperimentResult | None) -> tuple[str, str]:
    """The word, and its colour."""
    if outcome is None:
        return "NO EXPERIMENT", "$text-muted"
    return outcome_headline(outcome), "$text-accent" if outcome.word is None else VERDICT_COLORS[COLORS[outcome.word]]


def arm_lines(outcome: ExperimentResult, width: int) -> Lines:
    """A line for each arm as it finishes, then the word and what it rests on."""
    lines: Lines = []
    column = min(max([len(arm.what) for arm in outcome.arms], default=0), max(20, width // 2 - NAME - 4))
    for arm in outcome.arms:
        glyph, style = STATES[arm.state]
        name = arm_name(arm)
        result = arm.result or REPORTED[arm.state]
        if len(arm.what) <= column and NAME + 4 + column + len(result) <= width:
            lines.append(Content.assemble((f"{glyph} ", style), (f"{name:<{NAME}}", "bold"), f"{arm.what:<{column}}  ",
                                          (result, style)))  # fmt: skip
            continue
        lines.append(Content.assemble((f"{glyph} ", style), (f"{name:<{NAME}}", "bold"), arm.what[: width - NAME - 2]))
        lines.append(Content.assemble(" " * (NAME + 2), (result[: width - NAME - 2], style)))
    word, style = headline(outcome)
    lines += [Content(""), Content.assemble((word, f"bold {style}"))]
    lines += section_lines(outcome_section(outcome), width)
    for command in outcome.advice:
        lines += labelled("next", command, width, "$text-accent")
    return lines


def class_lines(outcome: ExperimentResult) -> list[str]:
    """A line for each kind of op: whether it matters, its share, op, place, kernels, distance."""
    return [_class_line(kind) for kind in outcome.classes]


def _class_line(kind: OriginClass) -> str:
    place = f"{kind.site.file.rpartition('/')[2]}:{kind.site.line}" if kind.site is not None else ""
    kernels = [kernel for kernel in (kind.kernel.a, kind.kernel.b) if kernel]
    ulp = "" if kind.max_ulp is None else f"max {kind.max_ulp:,} ULP"
    share = f"{kind.share:5.1%}"
    told = [
        f"{share:>6}",
        f"{RELEVANCE[kind.matters]:<19}",
        kind.op,
        place,
        counted(kind.count, "op"),
        ulp,
        " against ".join(dict.fromkeys(kernels)),
    ]
    return "  ".join(part for part in told if part)


def how_lines(commands: Sequence[str], file: str, width: int) -> Lines:
    """What is said where there is no outcome: what would make one, and where it is looked for."""
    lines: Lines = [
        plain("No experiment has been run on these two traces."),
        Content(""),
    ]
    lines += [plain(line) for line in wrap(WHY, width)]
    lines.append(Content(""))
    for command in commands:
        lines += labelled("run", command, width, "$text-accent")
    if not commands:
        lines += labelled("note", "this version of rltrace runs no experiments; it shows the outcome of one", width)
    return [*lines, *labelled("file", file, width), *labelled("", "(or the one that --confirm names)", width)]


# --- outcomes ---------------------------------------------------------------------------------------------------------
#
# Where the outcome of an experiment on two traces is looked for, and what is said where there is none.
#
# Owns the file that is read. Knows no widget.


class Outcomes:
    """The file of one pair of traces."""

    def __init__(self, a: Path, b: Path, named: Path | None = None) -> None:
        self._a, self._b = a, b
        self._named = named
        """What ``--confirm`` names; None: the one beside trace B."""

    @property
    def path(self) -> Path:
        return self._named or outcome_path(self._a, self._b)

    def read(self) -> ExperimentResult | None:
        """None: there is no such file. Raises OutcomeError where it holds none, or one of other traces."""
        told = find_outcome(self._a, self._b, self._named)
        if told is not None and told.outcome is None:
            raise OutcomeError(told.trouble)
        return None if told is None else told.outcome

    def how(self) -> tuple[str, ...]:
        """What to run to get an outcome that is found here, ready to paste; nothing where this rltrace runs none."""
        if find_spec("rltrace.commands.confirm") is None:
            return ()
        return (line("confirm", self._a, self._b, "-o", self.path),)
