"""Starts a command under the recorder, waits for it, and returns how it ended.

Owns that the command gets the same arguments, standard streams, open files and signals as unrecorded, and its exit
status. The launcher ends after the command and never because of it.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIG_BLOCK, SIG_SETMASK, Signals, pthread_sigmask, valid_signals
from typing import Final

from rltrace.errors import RecordError
from rltrace.fingerprint import Fact
from rltrace.launch.command import child_environment
from rltrace.launch.signals import Relay, ignore_children, waiting_for_children
from rltrace.launch.stopped_processes import StoppedProcesses
from rltrace.launch.summary import RecordingSummary, recorded
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.journal import first_digest
from rltrace.trace.format.root import JOURNAL, end_launch


class CannotStartError(RecordError):
    """The command could not be started; ``not_found``: status 127, else 126."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program} cannot be run: {error.strerror or error}")
        self.not_found = error.errno in (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True)
class Ending:
    """How a recorded command ended."""

    status: int | None
    """Exit status; None: a signal ended it."""
    signal: int | None
    """Number of the signal that ended it; None: it exited."""
    seconds: float
    recorded: RecordingSummary
    failure: str | None
    """Why the trace's last record could not be written; None: it was."""
    stopped: StoppedProcesses
    """Those that the launcher had to end."""

    @property
    def how(self) -> str:
        """``ended with status 3``, ``was ended by SIGTERM``."""
        return f"ended with status {self.status}" if self.signal is None else f"was ended by {signal_name(self.signal)}"


Work = Callable[[threading.Event], None]
"""What the launcher does while the command runs; the event is set when it has ended."""


def run(
    command: Sequence[str], options: RecordOptions, facts: Mapping[str, Fact], meanwhile: Work | None = None
) -> Ending:
    """Run ``command`` to its end, recorded into the trace that ``options`` names, which exists.

    ``facts`` are those that only the launcher can find out; every process records them with its own. ``meanwhile`` runs
    in a thread, and returns when its event is set. Raises CannotStartError where the system refuses to start the
    command.
    """
    with waiting_for_children() as ignored, Relay() as relay:
        began, launch = time.monotonic(), first_digest(os.fspath(Path(options.trace, JOURNAL)))
        try:
            # open files that the shell passed on (<(...), a jobserver) are the command's too
            child = subprocess.Popen(
                list(command),
                env=child_environment(options, facts),
                close_fds=False,
                preexec_fn=partial(_before_exec, relay, ignored),
            )
        except OSError as error:
            raise CannotStartError(command[0], error) from error
        relay.to(child)
        stopped = StoppedProcesses(Path(options.trace))
        with _beside(stopped.watch if options.may_stop else None), _beside(meanwhile):
            code = child.wait()
        seconds = time.monotonic() - began
        status, signal = (code, None) if code >= 0 else (None, -code)
        failure = _write_ending(Path(options.trace), launch, status, signal, seconds)
        return Ending(status, signal, seconds, recorded(Path(options.trace)), failure, stopped)


@contextmanager
def _beside(work: Work | None) -> Iterator[None]:
    """Run ``work`` in a thread until the block has ended. It takes no signals, and yields the processor to all else."""
    if work is None:
        yield
        return
    has_ended = threading.Event()

    def run_last() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        work(has_ended)

    mask = pthread_sigmask(SIG_BLOCK, valid_signals())
    try:
        thread = threading.Thread(target=run_last, name="rltrace-launcher")
        thread.start()
    finally:
        pthread_sigmask(SIG_SETMASK, mask)
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


NICENESS: Final = 19
"""Of the launcher's thread beside the command: the lowest priority."""


def _before_exec(relay: Relay, ignored: bool) -> None:
    """In the child: set signals and the handling of children's statuses as they would be without a launcher."""
    if ignored:
        ignore_children()
    relay.in_child()


def signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _write_ending(
    trace: Path, launch: int | None, status: int | None, signal: int | None, seconds: float
) -> str | None:
    name = None if signal is None else signal_name(signal)
    try:
        end_launch(trace, {"status": status, "signal": name, "seconds": round(seconds, 3)}, launch)
    except RecordError as error:
        return str(error)
    return None
