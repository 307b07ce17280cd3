"""What a recording keeps beside its rows, tensors' values and rows of tensors, and the kind of stream that has them.

Owns that nothing of it is loaded, and nothing of it runs, where it was not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState

if TYPE_CHECKING:
    from rltrace.recorder.capture.activation_tensors import ActivationQueue
    from rltrace.recorder.capture.values import ValueQueue


class Captures(NamedTuple):
    """Those of one process."""

    make_stream: Callable[..., OpRecorder]
    values: ValueQueue | None = None
    rows: ActivationQueue | None = None

    def stop(self) -> None:
        """Take nothing more in: the recording is over, or another process's."""
        if self.rows is not None:
            self.rows.stop()


def make_captures(options: RecordOptions, process: ProcessState) -> Captures:
    """What takes in that which the options ask for."""
    if not options.values and not options.rows:
        return Captures(OpRecorder)
    from rltrace.recorder.capture.selection import NAMED
    from rltrace.recorder.capture.values import ValueQueue, ValueRecorder
    from rltrace.selectors import Selector, parse_selectors
    from rltrace.trace.format.records import ValueRequest

    process.tables.remember(*NAMED)
    values = ValueQueue(ValueRequest(options.values, options.values_inputs, options.values_limit))
    selector = parse_selectors(options.values) if options.values else Selector(())
    own: dict[str, Any] = {"keeper": values, "selector": selector} if options.values else {}
    if not options.rows:
        return Captures(partial(ValueRecorder, **own), values)
    from rltrace.recorder.capture.activation_tensors import ActivationQueue, ForwardNames
    from rltrace.recorder.capture.activations import ActivationPlan, ActivationRecorder, ValueActivationRecorder
    from rltrace.trace.format.records import ActivationRequest

    rows = ActivationQueue(ActivationRequest(options.rows, options.row_axes, options.rows_limit))
    plan = ActivationPlan(rows, parse_selectors(options.rows), values, selector, ForwardNames())
    kind = ValueActivationRecorder if options.values else ActivationRecorder
    return Captures(partial(kind, row_plan=plan, **own), values, rows)


class RecordingExtension(Protocol):
    """What goes along with the recording of a process: has streams of its own kind, and something to say at the end."""

    def joined(self, keepers: Captures) -> Captures:
        """What the recording keeps, and the kind of stream that has it, with what is the companion's."""

    def records(self) -> list[dict[str, Any]]:
        """Records for the process's journal, asked for when it ends."""
