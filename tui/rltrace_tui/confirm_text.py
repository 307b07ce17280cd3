"""The outcome of an experiment as lines of text, and the file that it is read from.

Owns glyphs and layout within a width. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

from textual.content import Content

from rltrace.command_lines import line
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.experiment.outcome import ArmState, ExperimentResult, OriginClass, OutcomeError, find_outcome, outcome_path
from rltrace.report.confirm import RELEVANCE, arm_name, outcome_document
from rltrace.report.confirm import STATES as STATE_TEXTS
from rltrace.report.document import Section
from rltrace.trace.format.location import Location
from rltrace.wording import counted
from rltrace_tui.diff_text import COLORS, Lines, labelled, plain, section_lines

STATES = {
    ArmState.NOT_RUN: ("·", "$text-muted"),
    ArmState.RUNNING: ("…", "$text-accent"),
    ArmState.AS_EXPECTED: ("✓", "$text-success"),
    ArmState.OTHERWISE: ("✗", "$text-error"),
    ArmState.FAILED: ("!", "$text-warning"),
}
NAME_WIDTH = 5

WHY = (
    "A first difference is a suspicion. An experiment injects A's values into a new run of B where it begins to "
    "differ, and checks whether it becomes equal to A, bit for bit. Its outcome is shown here."
)


def headline(outcome: ExperimentResult | None) -> tuple[str, str]:
    """The outcome, and its colour."""
    if outcome is None:
        return "NO EXPERIMENT", "$text-muted"
    document = outcome_document(outcome)
    return document.headline, "$text-accent" if document.verdict is None else COLORS[document.verdict]


def arm_lines(outcome: ExperimentResult, width: int) -> Lines:
    """A line for each arm, then the outcome and its facts."""
    lines: Lines = []
    column = min(max([len(arm.what) for arm in outcome.arms], default=0), max(20, width // 2 - NAME_WIDTH - 4))
    for arm in outcome.arms:
        glyph, style = STATES[arm.state]
        head = Content.assemble((f"{glyph} ", style), (f"{arm_name(arm):<{NAME_WIDTH}}", "bold"))
        result, space = arm.result or STATE_TEXTS[arm.state], width - NAME_WIDTH - 2
        if len(arm.what) <= column and column + 2 + len(result) <= space:
            lines.append(Content.assemble(head, f"{arm.what:<{column}}  ", (result, style)))
        else:
            lines.append(Content.assemble(head, arm.what[:space]))
            lines.append(Content.assemble(" " * (NAME_WIDTH + 2), (result[:space], style)))
    title, style = headline(outcome)
    lines += [Content(""), Content.assemble((title, f"bold {style}"))]
    document = outcome_document(outcome)
    lines += section_lines(Section("", "", document.lead, document.facts), width)
    for command in outcome.advice:
        lines += labelled("next", command, width, "$text-accent")
    return lines


def class_lines(outcome: ExperimentResult) -> list[str]:
    """A line for each kind of op: its share, relevance, op, place, count, distance, kernels."""
    return [_class_line(kind) for kind in outcome.classes]


def _class_line(kind: OriginClass) -> str:
    place = f"{kind.site.file.rpartition('/')[2]}:{kind.site.line}" if kind.site is not None else ""
    kernels = [kernel for kernel in (kind.kernel.a, kind.kernel.b) if kernel]
    ulp = "" if kind.max_ulp is None or kind.max_ulp > MOST_ULP else f"max {kind.max_ulp:,} ULP"
    share = f"{kind.share:5.1%}"
    columns = [
        f"{share:>6}",
        f"{RELEVANCE[kind.matters]:<19}",
        kind.op,
        place,
        counted(kind.count, "op"),
        ulp,
        " against ".join(dict.fromkeys(kernels)),
    ]
    return "  ".join(column for column in columns if column)


def missing_lines(commands: Sequence[str], file: str, width: int) -> Lines:
    """Shown without an outcome: commands that make one, and its file."""
    lines: Lines = [plain("No experiment has been run on these two traces."), Content("")]
    lines += [plain(line) for line in wrap(WHY, width)]
    lines.append(Content(""))
    for command in commands:
        lines += labelled("run", command, width, "$text-accent")
    if not commands:
        lines += labelled("note", "this version of rltrace runs no experiments; it shows the outcome of one", width)
    return [*lines, *labelled("file", file, width), *labelled("", "(or the one that --confirm names)", width)]


# --- outcomes ---------------------------------------------------------------------------------------------------------


class Outcomes:
    """The file with the outcome of one pair of traces."""

    def __init__(self, a: Location, b: Location, file: Path | None = None) -> None:
        """``file``: that of ``--confirm``; None: the default file next to trace B."""
        self._a, self._b, self._file = a, b, file

    @property
    def path(self) -> Path:
        return self._file or outcome_path(self._a, self._b)

    def read(self) -> ExperimentResult | None:
        """The outcome; None if the file does not exist. Raises OutcomeError if it is invalid or of other traces."""
        saved = find_outcome(self._a, self._b, self._file)
        if saved is not None and saved.outcome is None:
            raise OutcomeError(saved.trouble)
        return None if saved is None else saved.outcome

    def commands(self) -> tuple[str, ...]:
        """Commands that make the outcome; none if this version of rltrace runs no experiments."""
        if find_spec("rltrace.commands.confirm") is None:
            return ()
        return (line("confirm", self._a, self._b, "-o", self.path),)
