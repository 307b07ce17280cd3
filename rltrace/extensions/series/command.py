"""``rltrace series``: logged numbers over time, and how those of two runs diverge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.command_lines import line
from rltrace.commands._option_types import argument, color_option, form_option, option, tolerance_option, verb
from rltrace.commands.console import ExitCode, emit, emit_json, narrate, use_color
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.extensions.series.report import PairSeries, TraceSeries
    from rltrace.extensions.series.scalers import Scaler, ScalerDivergence
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True, kw_only=True)
class SeriesArguments:
    traces: tuple[Location, ...] = argument(nargs=-1, required=True, metavar="TRACE…")
    names: tuple[str, ...] = option("--name", metavar="GLOB", help="Only such series or places; repeatable.")
    form: str = form_option()
    tolerance: float = tolerance_option()
    every: bool = option("--all", help="Read every op, of long traces too, not in places.")
    color: str = color_option()


@verb(SeriesArguments)
def command(arguments: SeriesArguments) -> int:
    """Show the series of TRACE: watched scalars (rltrace.watch), learning rates, the scale of each GradScaler, and
    scalars read with .item(). Scalers of one trace that diverge are listed with the step and the cause.

    Of several traces: how each series of the others diverges from that of the first.

    Ends with 0 whatever it shows, as info does; with 2 where a trace cannot be read.

    \b
      rltrace series a.zarr
      rltrace series a.zarr b.zarr --name 'return*'
    """
    from rltrace.diff.metrics.curves import compare_series, matching_processes
    from rltrace.diff.metrics.series import MAX_SEGMENTS
    from rltrace.extensions.series.report import PairSeries, SeriesReport
    from rltrace.trace.read.reader import open_trace

    traces, names = arguments.traces, arguments.names
    opened = [open_trace(path) for path in traces]
    segments = 1 << 40 if arguments.every else MAX_SEGMENTS
    given = zip(traces, opened, strict=True)
    loaded = [_of_trace(path, trace, opened[0], names, segments) for path, trace in given]
    if names and not any(one.series for one in loaded):
        narrate(f"no series matches {' or '.join(names)}", hint=f"{line('series', traces[0])} lists all of them")
    pairs = []
    for other, trace in zip(loaded[1:], opened[1:], strict=True):
        processes = matching_processes(opened[0], trace)
        found = compare_series(loaded[0].series, other.series, processes, arguments.tolerance)
        pairs.append(PairSeries(loaded[0].path, other.path, *found))
    if arguments.form == "json":
        emit_json(SeriesReport(tuple(loaded), tuple(pairs)))
    else:
        colored = use_color(arguments.color)
        emit(_text(loaded, pairs, colored), color=colored)
    return ExitCode.IDENTICAL


def _of_trace(path: Location, trace: Trace, first: Trace, names: tuple[str, ...], segments: int) -> TraceSeries:
    from rltrace.diff.metrics.series import all_series, matches
    from rltrace.extensions.series.report import TraceSeries
    from rltrace.extensions.series.scalers import scaler_divergences, scalers_of

    series = all_series(trace, segments=segments, renames_of=None if trace is first else first)
    chosen = tuple(one for one in series if not names or matches(one, names))
    scalers: list[Scaler] = []
    divergences: list[ScalerDivergence] = []
    for process in trace.processes:
        if any(one.kind == "scaler" for one in chosen):
            scalers += scalers_of(process, series)
            divergences += scaler_divergences(process.name, series)
    return TraceSeries(str(path), chosen, tuple(scalers), tuple(divergences), tuple(hole.why for hole in trace.holes))


def _text(loaded: list[TraceSeries], pairs: list[PairSeries], color: bool) -> str:
    from rltrace.extensions.series.report import pair_document, trace_document
    from rltrace.report.text import document_text

    documents = []
    for pair, other in zip(pairs, loaded[1:], strict=True):
        known = {series.key: series for series in other.series}
        both = [(series, known[series.key]) for series in loaded[0].series if series.key in known]
        documents.append(pair_document(pair, both))
    return "\n\n".join(document_text(one, color=color) for one in documents or [trace_document(loaded[0])])
