"""What ``record --rows`` and ``--state`` add to the captures of a process: activation rows, and shards.

No module of this package is imported where no option requests them, but by adapters and by what injects rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions
    from rltrace.recorder.capture.captures import CapturedProcess, Captures


def add_captures(captures: Captures, options: RecordOptions, process: CapturedProcess) -> Captures:
    """The captures of a process, with those that these options request."""
    if options.rows:
        from rltrace.extensions.parity.capture.activations import add_rows

        captures = add_rows(captures, options, process.state)
    if options.state is not None:
        from rltrace.extensions.parity.capture.shards import ShardCapture

        assert captures.values is not None
        captures = captures._replace(attempts=ShardCapture(options.state, process, captures.values))
    return captures
