"""What a recording keeps beside its rows, tensors' values and rows of tensors, and the kind of stream that has them.

Owns that nothing of it is loaded, and nothing of it runs, where it was not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rltrace.record.options import RecordOptions
from rltrace.record.process import ProcessState
from rltrace.record.stream import StreamRecorder

if TYPE_CHECKING:
    from rltrace.record.rows.keeper import RowKeeper
    from rltrace.record.values.keeper import Keeper


class Keepers(NamedTuple):
    """Those of one process."""

    make_stream: Callable[..., StreamRecorder]
    values: Keeper | None = None
    rows: RowKeeper | None = None

    def stop(self) -> None:
        """Take nothing more in: the recording is over, or another process's."""
        if self.rows is not None:
            self.rows.stop()


def make_keepers(options: RecordOptions, process: ProcessState) -> Keepers:
    """What takes in that which the options ask for."""
    if not options.values and not options.rows:
        return Keepers(StreamRecorder)
    from rltrace.record.values.keeper import Keeper
    from rltrace.record.values.keeping import KeepingStream
    from rltrace.record.values.wanted import NAMED
    from rltrace.select import Selector, parse_selectors
    from rltrace.trace.valuerecords import Asked

    process.tables.remember(*NAMED)
    values = Keeper(Asked(options.values, options.values_inputs, options.values_limit))
    selector = parse_selectors(options.values) if options.values else Selector(())
    own: dict[str, Any] = {"keeper": values, "selector": selector} if options.values else {}
    if not options.rows:
        return Keepers(partial(KeepingStream, **own), values)
    from rltrace.record.rows.keeper import RowKeeper
    from rltrace.record.rows.stream import KeepingWithRows, RowPlan, WithRows
    from rltrace.record.rows.walk import ForwardNames
    from rltrace.trace.keptrecords import AskedRows

    rows = RowKeeper(AskedRows(options.rows, options.row_axes, options.rows_limit))
    plan = RowPlan(rows, parse_selectors(options.rows), values, selector, ForwardNames())
    kind = KeepingWithRows if options.values else WithRows
    return Keepers(partial(kind, row_plan=plan, **own), values, rows)
