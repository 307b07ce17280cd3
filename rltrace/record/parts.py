"""What the sides of a session share: the parts that it is put together from, and what it says when one fails.

Owns their names and types alone; ``session.py`` makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.record.boundaries.watch import Boundaries
from rltrace.record.commit import Committer
from rltrace.record.instruments import Instruments
from rltrace.record.module_calls import ModuleCalls
from rltrace.record.options import RecordOptions
from rltrace.record.process import ProcessState
from rltrace.record.scalers import Scalers
from rltrace.record.series import Series
from rltrace.record.steps import StepCounter
from rltrace.record.stream import StreamRecorder
from rltrace.record.streams import Streams
from rltrace.trace.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.record.kernels.cycles import Cycles


class Parts:
    """Those of one process."""

    options: RecordOptions
    _writer: ProcessWriter
    _process: ProcessState
    _committer: Committer
    _streams: Streams
    _instruments: Instruments
    _modules: ModuleCalls
    _steps: StepCounter
    _boundaries: Boundaries
    _series: Series
    _scalers: Scalers
    _cycles: Cycles | None
    """The profiler that looks at what is launched; None: nobody asked for it."""
    _recording: bool
    """Whether ops are rows now."""
    _stopped: bool
    """The program is being ended because that was asked for."""

    @property
    def _over(self) -> bool:
        """Whether nothing is recorded any more: it has ended, or failed."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """An error of the recorder's own."""
        raise NotImplementedError

    def _write_facts(self) -> None:
        """What can only be asked once the program has run ops of its own."""
        raise NotImplementedError

    def stream_here(self) -> StreamRecorder | None:
        """The stream of the calling thread, where its ops are rows."""
        return self._streams.here() if self._recording else None
