"""``rltrace diff``: the first difference of two traces, and its cause."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rltrace.commands._option_types import TraceLocation, on_cluster, on_option, start_options, starts_of
from rltrace.commands.console import (
    ExitCode,
    Progress,
    annotated_format_options,
    color_option,
    emit_result,
    narrate,
    progress_visible,
)
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.diff import Comparison
    from rltrace.diff.base.model import Pair
    from rltrace.experiment.confirm.saved_outcome import SavedOutcome


@click.command(name="diff")
@click.argument("traces", nargs=-1, required=True, type=TraceLocation(), metavar="A B …")
@annotated_format_options
@click.option("--strict", is_flag=True, help="Added, removed or reordered ops count as a difference too.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="Threshold of a curve: |A - B| as a share of its range.",
)
@start_options
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Of more than two traces: comparisons at a time.  [default: processors]"
)
@on_option
@color_option
@click.option("--no-tui", is_flag=True, help="Print the report even where the terminal interface would open.")
@click.option(
    "--confirm",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Outcome of an experiment on A and B, shown after the verdict.  [default: the one beside B, if any]",
)
@click.pass_context
def command(
    ctx: click.Context,
    traces: tuple[Location, ...],
    form: str,
    brief: bool,
    strict: bool,
    tolerance: float,
    a_starts_at: int | None,
    b_starts_at: int | None,
    jobs: int | None,
    place: str | None,
    color: str,
    no_tui: bool,
    confirm: Path | None,
) -> int:
    """Compare traces A and B: the first op where they differ, what kind of difference it is, and what to do next.
    Of more than two traces: which of them computed the same, and where the others diverge. They are compared in several
    processes where that is quicker, or with --on ray on a cluster, whose nodes have to see the traces: at URLs, or in a
    folder that they share.

    Ends with 0 if the two computed the same (with --strict: ran the same ops in the same order, too), 1 if they
    diverged, 2 if they cannot be compared, 3 if it is undecided: a trace is unfinished or damaged.

    In a terminal, the result opens in the terminal interface, which shows both runs op by op; with --format or
    --no-tui, or where the output is redirected, it is printed.

    A run that was resumed from a checkpoint of the other is compared with it from that step on. It is recognized by the
    parameters it begins with; where those do not decide, name the step with --b-starts-at or --a-starts-at.

    \b
      rltrace diff a.zarr b.zarr
      rltrace diff a.zarr b.zarr --format json | jq .first_value.op
    """
    if len(traces) < 2:
        raise UsageError(f"Missing argument: give a second trace to compare {traces[0]} with, or several")
    starts = starts_of(a_starts_at, b_starts_at)
    if len(traces) > 2:
        if starts is not None:
            raise UsageError("--a-starts-at and --b-starts-at are of two traces; more were given")
        return _print_groups(traces, form, strict, jobs, place, color, brief=brief)
    if jobs is not None or place is not None:
        raise UsageError("--jobs and --on are of the pairs of more than two traces; two were given")
    from rltrace.commands._terminal import can_open, show_diff

    a, b = traces
    has_form = brief or ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if can_open() and not (no_tui or has_form):
        comparison = show_diff(a, b, strict=strict, starts=starts, confirm=confirm)
        return ExitCode.INTERRUPTED if comparison is None else _status(comparison)
    return _print(a, b, form, strict, tolerance, starts, color, confirm, brief=brief)


def _print(
    a: Location,
    b: Location,
    form: str,
    strict: bool,
    tolerance: float,
    starts: Pair[int] | None,
    color: str,
    confirm: Path | None,
    *,
    brief: bool,
) -> int:
    from rltrace.diff import compare
    from rltrace.experiment.confirm.saved_outcome import find_outcome
    from rltrace.report.brief import brief_comparison

    saved = find_outcome(a, b, confirm)
    progress = Progress() if progress_visible() else None
    try:
        comparison = compare(a, b, strict=strict, tolerance=tolerance, starts=starts, progress=progress)
    finally:
        if progress:
            progress.clear()
    status = _status(comparison)
    emit_result(
        form,
        brief,
        comparison,
        lambda colored: "\n".join(_text(comparison, saved, colored)),
        lambda: brief_comparison(comparison, status),
        color,
    )
    return status


def _text(comparison: Comparison, saved: SavedOutcome | None, colored: bool) -> Iterator[str]:
    """The report, and the outcome of the experiment on both, if any."""
    from rltrace.report.confirm import saved_outcome_lines
    from rltrace.report.diff_text import render_comparison

    yield render_comparison(comparison, color=colored)
    if saved is not None:
        yield ""
        yield from saved_outcome_lines(saved, color=colored)


def _print_groups(
    traces: tuple[Location, ...],
    form: str,
    strict: bool,
    jobs: int | None,
    place: str | None,
    color: str,
    *,
    brief: bool,
) -> int:
    from rltrace.commands.check import status_of
    from rltrace.diff.groups import compare_pairs, group
    from rltrace.report.brief import brief_grouping
    from rltrace.report.groups import groups_json, render_groups

    with on_cluster(place, 1.0, 0.0, jobs, narrate) as cluster:
        compare_here = partial(compare_pairs, strict=strict, jobs=jobs)
        there = None if cluster is None else partial(cluster.compare_pairs, strict=strict)
        grouping = group(traces, compare_all=there or compare_here)
    names = [str(path) for path in traces]
    status = status_of(grouping)
    emit_result(
        form,
        brief,
        groups_json(grouping, names),
        lambda colored: render_groups(grouping, names, color=colored),
        lambda: brief_grouping("diff", grouping, names, status),
        color,
    )
    return status


def _status(comparison: Comparison) -> int:
    if comparison.agrees is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if comparison.agrees else ExitCode.DIVERGED
