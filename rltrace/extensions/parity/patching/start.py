"""The start of a replay with A's activation rows in one process.

Owns the extension of the recorder, and the options of the replay's own trace, which are those of A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.extensions.parity.module_names import MapLine, read_map
from rltrace.extensions.parity.patching.recorder import PatchingHook, RowInjector
from rltrace.extensions.parity.patching.row_table import RowTable
from rltrace.extensions.parity.patching.source import read_table
from rltrace.extensions.parity.patching.tally import RowAccount, account_in, record_of
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures, RecordingExtension
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.rerun.plan import compile_of, window_of
from rltrace.selectors import parse_selectors
from rltrace.trace.format.location import local_folder
from rltrace.trace.read.reader import Trace, open_trace


class PatchExtension(RecordingExtension):
    """Extends the recording of one process by the injection of A's rows."""

    def __init__(self, table: RowTable, lines: Sequence[MapLine] = ()) -> None:
        self._injector = RowInjector(table, lines)

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        """A's rows are injected before the captures see an op's results."""
        return captures._replace(hooks=(lambda stream: PatchingHook(stream, self._injector), *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._injector.account())]


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
    level, first, end = window_of(trace)
    options = RecordOptions(
        path,
        level=level,
        steps=(first, end),
        until=until,
        rows=kept.selectors,
        row_axes=kept.axes,
        rows_limit=kept.limit,
        compile=compile_of(trace),
        replay=str(local_folder(trace.path, "replay").absolute()),
        inject=inject,
        by_rows=True,
        weights=weights,
        names="" if names is None else str(Path(names).absolute()),
    )
    asked = next((p.values.request for p in trace.processes if p.values), None)
    if asked is None:
        return options
    return replace(options, values=asked.selectors, values_inputs=asked.inputs, values_limit=asked.limit)


def start(options: RecordOptions, token: str) -> Session:
    """Start the recording of this process of a replay; called once, by the bootstrap."""
    trace = open_trace(options.replay)
    table = read_table(trace, parse_selectors(options.inject), options.inject, weights=options.weights)
    lines = read_map(options.names) if options.names else ()
    return sessions.start(options, token, lambda _: PatchExtension(table, lines))


@dataclass
class RowReplay:
    """A replay within this process."""

    account: RowAccount | None = None
    """None until its block has ended."""


@contextmanager
def rows_block(
    a: str | Path,
    inject: str | tuple[str, ...],
    path: str | Path,
    *,
    weights: bool = False,
    names: str | Path | None = None,
    force: bool = False,
) -> Iterator[RowReplay]:
    """Record the block's ops into a new trace at ``path``, with the rows of ``a`` that ``inject`` selects.

    ``weights``: inject the values of ops that choose (``topk``) too, not only their indices. ``names``: a map file of
    partners of modules whose names differ.

    Raises UsageError or HoleError where there is nothing to inject; RecordError where the recording broke off.
    """
    if current_session() is not None:
        raise UsageError("this process is already being recorded; a replay needs a process that is not")
    trace = open_trace(a)
    selectors = (inject,) if isinstance(inject, str) else tuple(inject)
    table = read_table(trace, parse_selectors(selectors), selectors, weights=weights)
    options = options_of(trace, str(Path(path).absolute()), selectors, weights=weights, names=names)
    lines = () if names is None else read_map(names)
    replay = RowReplay()
    with recording(options, force=force, extend=lambda _: PatchExtension(table, lines)):
        yield replay
    replay.account = account_in(open_trace(path), table)
