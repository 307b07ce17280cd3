"""The recorder with A's rows at its side: how a process of a replay by rows starts.

Owns the extension of such a recording, and what the replay itself keeps: what A kept, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rltrace.errors import UsageError
from rltrace.parity.module_names import MapLine, read_map
from rltrace.parity.patching.recorder import PatchingHook, RowPutter
from rltrace.parity.patching.row_table import RowTable
from rltrace.parity.patching.source import read_table
from rltrace.parity.patching.tally import RowAccount, account_in, record_of
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.api import recording
from rltrace.recorder.session.session import Session
from rltrace.replay.plan import compile_of, window_of
from rltrace.selectors import parse_selectors
from rltrace.trace.read.reader import Trace, open_trace


class PatchExtension:
    """Goes along with the recording of one process and puts A's rows in."""

    def __init__(self, table: RowTable, lines: Sequence[MapLine] = ()) -> None:
        self._putter = RowPutter(table, lines)

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        """A's rows are put in before the captures see an op's results."""
        return replace(captures, hooks=(lambda stream: PatchingHook(stream, self._putter), *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return [record_of(self._putter.account())]


def options_of(
    trace: Trace,
    path: str,
    inject: tuple[str, ...],
    until: int | None = None,
    *,
    weights: bool,
    names: str | Path | None = None,
) -> RecordOptions:
    """How a replay into ``path`` with rows of ``trace`` is recorded: as the trace was."""
    kept = next((p.kept_rows.asked for p in trace.processes if p.kept_rows.asked is not None), None)
    if kept is None:
        raise UsageError(f"{trace.path} holds no activation rows")  # ``read_table`` says what to do about it
    options = RecordOptions(
        path,
        *window_of(trace),
        until,
        rows=kept.selectors,
        row_axes=kept.axes,
        rows_limit=kept.limit,
        compile=compile_of(trace),
        replay=str(Path(trace.path).absolute()),
        inject=inject,
        by_rows=True,
        weights=weights,
        names="" if names is None else str(Path(names).absolute()),
    )
    asked = next((p.values.asked for p in trace.processes if p.values), None)
    if asked is None:
        return options
    return options._replace(values=asked.selectors, values_inputs=asked.inputs, values_limit=asked.limit)


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process as part of a replay by rows; called once, by the bootstrap."""
    trace = open_trace(options.replay)
    table = read_table(trace, parse_selectors(options.inject), options.inject, weights=options.weights)
    lines = read_map(options.names) if options.names else ()
    return sessions.start(options, token, lambda _: PatchExtension(table, lines))


@dataclass
class RowReplay:
    """A replay within this process; ``account`` is there when its block has ended."""

    account: RowAccount | None = None


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
    """Record the block's ops into a new trace at ``path``, with the rows of ``a`` put in that ``inject`` finds.

    ``weights``: of ops that choose (``topk``), what goes with the choice too, else the program's own. ``names``: a file
    of lines that say which modules of ``a`` are which here, where their names do not.

    Raises UsageError, HoleError where there is nothing to put in; RecordError where the recording broke off.
    """
    if current_session() is not None:
        raise UsageError("this process is already being recorded; a replay needs a process that is not")
    trace = open_trace(a)
    selectors = (inject,) if isinstance(inject, str) else tuple(inject)
    table = read_table(trace, parse_selectors(selectors), selectors, weights=weights)
    options = options_of(trace, str(Path(path).absolute()), selectors, weights=weights, names=names)
    lines = () if names is None else read_map(names)
    made = RowReplay()
    with recording(options, force=force, extend=lambda _: PatchExtension(table, lines)):
        yield made
    made.account = account_in(open_trace(path), table)
