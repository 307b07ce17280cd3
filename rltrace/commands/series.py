"""``rltrace series``: logged numbers over time, and how those of two runs diverge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.command_lines import line
from rltrace.commands._option_types import argument, color_option, form_option, option, tolerance_option, verb
from rltrace.commands._output_files import check_output, write_output
from rltrace.commands.console import ExitCode, emit, emit_json, narrate, readable_size, use_color
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location, local_folder
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.diff.metrics.scalers import Scaler, ScalerDivergence
    from rltrace.diff.metrics.series import Series
    from rltrace.report.series import PairSeries, TraceSeries
    from rltrace.report.series_svg import SeriesChart
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True, kw_only=True)
class SeriesArguments:
    traces: tuple[Location, ...] = argument(nargs=-1, required=True, metavar="TRACE…")
    names: tuple[str, ...] = option("--name", metavar="GLOB", help="Only such series or places; repeatable.")
    form: str = form_option()
    svg: Path | None = option(metavar="FILE", help="Also draw them into FILE.")
    tolerance: float = tolerance_option()
    every: bool = option("--all", help="Read every op, of long traces too, not in places.")
    force: bool = option(help="Replace an existing drawing.")
    color: str = color_option()


@verb(SeriesArguments)
def command(arguments: SeriesArguments) -> int:
    """Show the series of TRACE: watched scalars (rltrace.watch), learning rates, the scale of each GradScaler, and
    scalars read with .item(). Scalers of one trace that diverge are listed with the step and the cause.

    Of several traces: how each series of the others diverges from that of the first.

    Instead of traces: folders with event files of TensorBoard, of runs without a recording. Their scalars are compared
    tag by tag.

    Ends with 0 whatever it shows, as info does; with 2 where a trace cannot be read.

    \b
      rltrace series a.zarr
      rltrace series a.zarr b.zarr --name 'return*' --svg returns.svg
      rltrace series runs/a runs/b
    """
    from rltrace.diff.metrics.series import MAX_SEGMENTS
    from rltrace.trace.read.reader import open_trace

    traces, names, svg = arguments.traces, arguments.names, arguments.svg
    if svg is not None:
        if len(traces) > 2:
            raise UsageError("--svg draws one trace, or two: give only those")
        check_output(svg, arguments.force)
    opened = [None if _is_logged(path) else open_trace(path) for path in traces]
    if len({trace is None for trace in opened}) > 1:
        raise UsageError("a trace and a folder of event files have no series in common: give traces, or such folders")
    segments = 1 << 40 if arguments.every else MAX_SEGMENTS
    loaded = [
        _of_event_files(local_folder(path, "rltrace series"), names)
        if trace is None
        else _of_trace(path, trace, opened[0], names, segments)
        for path, trace in zip(traces, opened, strict=True)
    ]
    if names and not any(one.series for one in loaded):
        narrate(f"no series matches {' or '.join(names)}", hint=f"{line('series', traces[0])} lists all of them")
    rest = zip(loaded[1:], opened[1:], strict=True)
    pairs = [_of_pair(loaded[0], opened[0], other, trace, arguments.tolerance) for other, trace in rest]
    if arguments.form == "json":
        from rltrace.report.series import SeriesReport

        emit_json(SeriesReport(tuple(loaded), tuple(pairs)))
    else:
        colored = use_color(arguments.color)
        emit(_text(loaded, pairs, colored), color=colored)
    if svg is not None:
        _draw(svg, loaded, pairs)
    return ExitCode.IDENTICAL


def _is_logged(path: Location) -> bool:
    """Whether a path holds event files of TensorBoard, and no trace."""
    from rltrace.diff.metrics.event_files import event_files
    from rltrace.trace.format.root import is_trace

    return isinstance(path, Path) and path.exists() and not is_trace(path) and bool(event_files(path))


def _of_event_files(path: Path, names: tuple[str, ...]) -> TraceSeries:
    from rltrace.diff.metrics.event_files import logged_scalars
    from rltrace.diff.metrics.series import matches
    from rltrace.report.series import TraceSeries

    found = logged_scalars(path)
    chosen = tuple(one for one in found.series if not names or matches(one, names))
    return TraceSeries(str(path), chosen, (), (), found.holes)


def _of_trace(path: Location, trace: Trace, first: Trace | None, names: tuple[str, ...], segments: int) -> TraceSeries:
    from rltrace.diff.metrics.scalers import scaler_divergences, scalers_of
    from rltrace.diff.metrics.series import all_series, matches
    from rltrace.report.series import TraceSeries

    series = all_series(trace, segments=segments, renames_of=None if trace is first else first)
    chosen = tuple(one for one in series if not names or matches(one, names))
    scalers: list[Scaler] = []
    divergences: list[ScalerDivergence] = []
    for process in trace.processes:
        if any(one.kind == "scaler" for one in chosen):
            scalers += scalers_of(process, series)
            divergences += scaler_divergences(process.name, series)
    return TraceSeries(str(path), chosen, tuple(scalers), tuple(divergences), tuple(hole.why for hole in trace.holes))


def _of_pair(
    a: TraceSeries, trace_a: Trace | None, b: TraceSeries, trace_b: Trace | None, tolerance: float
) -> PairSeries:
    from rltrace.diff.metrics.curves import compare_series, matching_processes
    from rltrace.report.series import PairSeries

    processes = [] if trace_a is None or trace_b is None else matching_processes(trace_a, trace_b)
    found = compare_series(a.series, b.series, processes, tolerance)
    return PairSeries(a.path, b.path, *found)


def _by_key(trace: TraceSeries) -> dict[tuple[object, ...], Series]:
    return {series.key: series for series in trace.series}


def _both(a: TraceSeries, b: TraceSeries) -> list[tuple[Series, Series]]:
    own, others = _by_key(a), _by_key(b)
    return [(series, others[key]) for key, series in own.items() if key in others]


def _text(loaded: list[TraceSeries], pairs: list[PairSeries], color: bool) -> str:
    from rltrace.report.series import pair_document, trace_document
    from rltrace.report.text import document_text

    shown = zip(pairs, loaded[1:], strict=True)
    documents = [pair_document(pair, _both(loaded[0], other)) for pair, other in shown] or [trace_document(loaded[0])]
    return "\n\n".join(document_text(document, color=color) for document in documents)


def _draw(path: Path, loaded: list[TraceSeries], pairs: list[PairSeries]) -> None:
    from rltrace.report.series_svg import MAX_CHARTS, series_svg

    drawn = _drawn_pair(loaded, pairs[0]) if pairs else _drawn_trace(loaded[0])
    text = series_svg(drawn, " and ".join(one.path for one in loaded))
    write_output(path, text)
    narrate(f"{path}: {counted(min(len(drawn), MAX_CHARTS), 'chart')}, {readable_size(len(text.encode()))}")


def _drawn_pair(loaded: list[TraceSeries], pair: PairSeries) -> list[SeriesChart]:
    """A chart of every series that both have, those that differ first."""
    from rltrace.report.series_svg import SeriesChart

    drifts = {(d.kind, d.name, d.stream, d.place): d for d in pair.drift}
    found = []
    for a, b in _both(loaded[0], loaded[1]):
        drift = drifts.get((a.kind, a.name, a.stream, a.place))
        point = None if drift is None else drift.exceeds or drift.first
        found.append(SeriesChart(a, b, None if point is None else point.step))
    return sorted(found, key=lambda one: one.mark is None)


def _drawn_trace(trace: TraceSeries) -> list[SeriesChart]:
    """The scales of scalers that diverge, one over the other, then a chart of each series."""
    from rltrace.report.series_svg import SeriesChart

    own = {(series.stream, series.name): series for series in trace.series}
    found = []
    for divergence in trace.divergences:
        numbers = [side.scalers[0] for side in divergence.sides[:2]]
        scales = [own.get((divergence.process, f"scaler:{number}/scale")) for number in numbers]
        if scales[0] is not None:
            mark = min(side.step for side in divergence.sides)
            found.append(SeriesChart(scales[0], scales[1], mark, (f"scaler {numbers[0]}", f"scaler {numbers[1]}")))
    return [*found, *(SeriesChart(series) for series in trace.series)]
