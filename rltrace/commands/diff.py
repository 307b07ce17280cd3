"""``rltrace diff``: the first difference of two traces, and its cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import (
    COUNT,
    StartArguments,
    annotated_form_option,
    argument,
    brief_option,
    color_option,
    is_given,
    no_tui_option,
    option,
    strict_option,
    tolerance_option,
    verb,
)
from rltrace.commands.console import ExitCode, Progress, emit_result, progress_visible
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.diff import Comparison
    from rltrace.diff.groups import Grouping
    from rltrace.experiment.outcome import SavedOutcome
    from rltrace.report.document import Document


@dataclass(frozen=True, kw_only=True)
class DiffArguments(StartArguments):
    traces: tuple[Location, ...] = argument(nargs=-1, required=True, metavar="A B …")
    form: str = annotated_form_option()
    brief: bool = brief_option()
    strict: bool = strict_option()
    tolerance: float = tolerance_option()
    jobs: int | None = option(type=COUNT, metavar="N", help="Of several traces: comparisons at a time.")
    color: str = color_option()
    no_tui: bool = no_tui_option()
    confirm: Path | None = option(metavar="FILE", help="Outcome of confirm; default: the one beside B.")


@verb(DiffArguments)
def command(arguments: DiffArguments) -> int:
    """Compare traces A and B: the first op where they differ, what kind of difference it is, and what to do next.
    Of more than two traces: which of them computed the same, and where the others diverge.

    Ends with 0 if the two computed the same (with --strict: ran the same ops in the same order, too), 1 if they
    diverged, 2 if they cannot be compared, 3 if it is undecided: a trace is unfinished or damaged.

    In a terminal, the result opens in the terminal interface; with --format, --confirm or --no-tui, or where the output
    is redirected, it is printed. A run that was resumed from a checkpoint of the other is recognized by the parameters
    it begins with; else name its step.

    \b
      rltrace diff a.zarr b.zarr
      rltrace diff a.zarr b.zarr --format json | jq .first_value.op
    """
    traces = arguments.traces
    if len(traces) < 2:
        raise UsageError(f"Missing argument: give a second trace to compare {traces[0]} with, or several")
    if len(traces) > 2:
        if arguments.starts is not None:
            raise UsageError("--a-starts-at and --b-starts-at are of two traces; more were given")
        return _print_groups(arguments)
    if arguments.jobs is not None:
        raise UsageError("--jobs is of the pairs of more than two traces; two were given")
    from rltrace.commands._terminal import can_open, show_diff

    a, b = traces
    is_printed = arguments.no_tui or arguments.brief or arguments.confirm is not None or is_given("form")
    if can_open() and not is_printed:
        comparison = show_diff(a, b, strict=arguments.strict, starts=arguments.starts)
        return ExitCode.INTERRUPTED if comparison is None else status_of(comparison)
    return _print(a, b, arguments)


def _print(a: Location, b: Location, arguments: DiffArguments) -> int:
    from rltrace.diff import CompareOptions, compare
    from rltrace.experiment.outcome import find_outcome
    from rltrace.report.brief import brief_comparison

    options = CompareOptions(strict=arguments.strict, tolerance=arguments.tolerance)
    saved = find_outcome(a, b, arguments.confirm)
    progress = Progress() if progress_visible() else None
    try:
        comparison = compare(a, b, options, starts=arguments.starts, progress=progress)
    finally:
        if progress:
            progress.clear()
    status = status_of(comparison)
    document = partial(_document, comparison, saved)
    emit_result(arguments, comparison, document, lambda: brief_comparison(comparison, status))
    return status


def _document(comparison: Comparison, saved: SavedOutcome | None) -> Document:
    """The report, and the outcome of the experiment on both, if any."""
    from rltrace.report.diff import verdict_document

    document = verdict_document(comparison)
    if saved is None:
        return document
    from rltrace.report.confirm import saved_section

    return replace(document, sections=(*document.sections, saved_section(saved)))


def _print_groups(arguments: DiffArguments) -> int:
    from rltrace.diff.groups import group
    from rltrace.report.brief import brief_groups
    from rltrace.report.groups import CheckRun, groups_document, run_groups

    traces = arguments.traces
    grouping = group(traces, strict=arguments.strict, jobs=arguments.jobs)
    found = run_groups(grouping, [CheckRun(number, path) for number, path in enumerate(traces, 1)])
    status = status_of(grouping)
    emit_result(arguments, found, lambda: groups_document(found), lambda: brief_groups("diff", found, status))
    return status


def status_of(result: Comparison | Grouping) -> ExitCode:
    """0, 1 or 3."""
    if result.agrees is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if result.agrees else ExitCode.DIVERGED
