"""The options of a replay with A's activation rows, which are those of A, and its provider in each process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rltrace.errors import UsageError
from rltrace.extensions.parity.module_names import read_map
from rltrace.extensions.parity.patching.recorder import RowInjector
from rltrace.extensions.parity.patching.source import read_table
from rltrace.extensions.parity.patching.tally import PROVIDER
from rltrace.recorder.base.options import RecordOptions
from rltrace.rerun.plan import compile_of, window_of
from rltrace.selectors import parse_selectors
from rltrace.trace.format.location import local_folder
from rltrace.trace.read.reader import Trace, open_trace

WEIGHTS, NAMES = "weights", "names"
"""Options of the provider: whether values of ops that choose are injected as well, path of a map of modules."""


def options_of(
    trace: Trace,
    path: str,
    inject: tuple[str, ...],
    until: int | None = None,
    *,
    weights: bool,
    names: str | Path | None = None,
) -> RecordOptions:
    """The options of a replay into ``path`` with rows of ``trace``: those of the trace."""
    kept = next((p.activations.request for p in trace.processes if p.activations.request is not None), None)
    if kept is None:
        raise UsageError(f"{trace.path} holds no activation rows")  # ``read_table`` has the remedy
    level, steps = window_of(trace)
    given = {WEIGHTS: "yes"} if weights else {}
    given |= {} if names is None else {NAMES: str(Path(names).absolute())}
    options = RecordOptions(
        path,
        level=level,
        steps=steps,
        until=until,
        rows=kept.selectors,
        row_axes=kept.axes,
        rows_limit=kept.limit,
        compile=compile_of(trace),
        replay=str(local_folder(trace.path, "replay").absolute()),
        inject=inject,
        provider=PROVIDER,
        provider_options=given,
    )
    asked = next((p.values.request for p in trace.processes if p.values), None)
    if asked is None:
        return options
    return replace(options, values=asked.selectors, values_inputs=asked.inputs, values_limit=asked.limit)


def rows_provider(options: RecordOptions) -> Callable[[str], RowInjector]:
    """What makes the provider of a process of that name."""
    given = options.provider_options
    weights = WEIGHTS in given
    table = read_table(open_trace(options.replay), parse_selectors(options.inject), options.inject, weights=weights)
    lines = read_map(given[NAMES]) if NAMES in given else ()
    return lambda name: RowInjector(table, lines)
