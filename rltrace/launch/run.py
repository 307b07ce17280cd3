"""Starts a command under the recorder, waits for it, and returns how it ended.

Owns that the command gets the same arguments, standard streams, open files and signals as unrecorded, and its exit
status. The launcher ends after the command and never because of it.

It ends the processes that the recorder has stopped and that do not end themselves, with their descendants: a program
that is interrupted may wait forever at its exit, for workers that it has not closed, or for a thread. Where a worker
has been stopped, the others may wait forever for what it would have sent.
"""

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIG_BLOCK, SIG_SETMASK, Signals, pthread_sigmask, valid_signals
from time import monotonic, sleep
from typing import Final

from rltrace.errors import RecordError
from rltrace.fingerprint import Fact
from rltrace.launch.command import child_environment
from rltrace.launch.signals import Relay, ignore_children, waiting_for_children
from rltrace.launch.summary import RecordingSummary, recorded
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.processes.exits import request_commit
from rltrace.trace.format.journal import first_digest
from rltrace.trace.format.process_start import STARTS, STOPPED_ENDING, is_alive, parse_start, start_ticks
from rltrace.trace.format.root import JOURNAL, end_launch
from rltrace.wording import counted

GRACE_SECONDS = 10.0
"""That a stopped process has to end itself."""
SIGNAL_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
LOOK_SECONDS: Final = 0.25
IDLE_SHARE: Final = 0.01
"""Processor time of processes that wait, of the time that passes."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Clock ticks in a second."""

Ticks = int | None
"""Start time of a process, as ``start_ticks`` returns it: with its pid it names one process."""


class StoppedProcesses:
    """Ends the stopped processes of a trace that still run after GRACE_SECONDS, and those that wait for them."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self.ended = 0
        """Stopped processes that were ended."""
        self.descendants = 0
        """Processes that these had started, and that were ended with them."""
        self.waited = 0
        """Processes that were ended as they waited, after another one had been stopped."""
        self._idle_since = 0.0
        self._ticks = 0
        """Of the processes of the trace that still ran, then."""

    def watch(self, has_ended: threading.Event) -> None:
        """Until the command has ended: end what is due."""
        since: dict[Path, float] = {}
        while not has_ended.wait(LOOK_SECONDS):
            for note in self._trace.glob(f"{STARTS}/*.{STOPPED_ENDING}"):
                if monotonic() - since.setdefault(note, monotonic()) >= GRACE_SECONDS:
                    since[note] = float("inf")
                    with suppress(OSError):
                        self._end(parse_start(note.read_bytes()) or {})
            if since:
                with suppress(OSError):
                    self._end_idle()

    def said(self) -> str:
        """``the program still ran 10 s after it was stopped: it and 2 processes that it had started were ended``."""
        if not self.ended:
            waited = counted(self.waited, "process was", "processes were")
            idle = f"a process was stopped, and the others did nothing for {GRACE_SECONDS:g} s: {waited} ended"
            return idle * bool(self.waited)
        started = f" and {counted(self.descendants, 'process', 'processes')} that it had started" * bool(
            self.descendants
        )
        verb = "were" if started else "was"
        return f"the program still ran {GRACE_SECONDS:g} s after it was stopped: it{started} {verb} ended"

    def _end(self, process: Mapping[str, object]) -> None:
        pid = process.get("pid")
        if not isinstance(pid, int) or not is_alive(process):
            return
        tree = {pid: start_ticks(pid), **descendants(pid)}
        self.ended += 1
        self.descendants += len(tree) - 1
        self._end_all(tree)

    def _end_idle(self) -> None:
        """End all processes that have done nothing for GRACE_SECONDS, as one that was stopped no longer answers."""
        starts = (parse_start(path.read_bytes()) or {} for path in self._trace.glob(f"{STARTS}/*.json"))
        known = [int(str(start["pid"])) for start in starts if is_alive(start)]
        found = {pid: start_ticks(pid) for pid in known} | {k: v for pid in known for k, v in descendants(pid).items()}
        tree = {pid: started for pid, started in found.items() if started is not None}
        ticks, now = sum(map(processor_ticks, tree)), monotonic()
        if not self._idle_since or abs(ticks - self._ticks) > IDLE_SHARE * GRACE_SECONDS * TICKS:
            self._ticks, self._idle_since = ticks, now
        elif tree and now - self._idle_since >= GRACE_SECONDS:
            self.waited += len(tree)
            self._end_all(tree)

    def _end_all(self, tree: Mapping[int, Ticks]) -> None:
        for each in tree:
            request_commit(str(self._trace), str(each))
        _send(signal.SIGTERM, tree)
        until = monotonic() + SIGNAL_SECONDS
        while monotonic() < until and any(_runs(each, ticks) for each, ticks in tree.items()):
            sleep(0.02)
        _send(signal.SIGKILL, {**tree, **{child: t for each in tree for child, t in descendants(each).items()}})
        self._idle_since = 0.0  # the others have time to notice


def descendants(pid: int) -> dict[int, Ticks]:
    """The processes that this one has started, those they have started, and so on."""
    found: dict[int, Ticks] = {}
    for child in _children(pid):
        found |= {child: start_ticks(child), **descendants(child)}
    return found


def processor_ticks(pid: int) -> int:
    """The processor time of a process so far, in clock ticks; 0: it no longer runs."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _runs(pid: int, ticks: Ticks) -> bool:
    return ticks is not None and start_ticks(pid) == ticks


def _send(number: signal.Signals, processes: Mapping[int, Ticks]) -> None:
    """Send a signal to those that still run."""
    for pid, ticks in processes.items():
        with suppress(OSError):
            if _runs(pid, ticks):
                os.kill(pid, number)


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
        began, launch = monotonic(), first_digest(os.fspath(Path(options.trace, JOURNAL)))
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
        seconds = monotonic() - began
        status, signal = (code, None) if code >= 0 else (None, -code)
        name, failure = None if signal is None else signal_name(signal), None
        try:
            ended = {"status": status, "signal": name, "seconds": round(seconds, 3)}
            end_launch(Path(options.trace), ended, launch)
        except RecordError as error:
            failure = str(error)
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
