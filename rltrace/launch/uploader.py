"""Upload of a trace to a bucket while it is recorded, by a process beside the program.

Owns that process, what it does when the network fails, and how long a recording waits for it in the end. Nothing of it
runs in the program, or in the launcher while the program runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rltrace.errors import RltraceError, UnreachableError, UsageError
from rltrace.launch.signals import waiting_for_children
from rltrace.trace.format.location import TraceURL

if TYPE_CHECKING:
    from rltrace.trace.tools.push import Upload

BEGIN_SECONDS: Final = 20.0
"""Time in which the store has to answer before the program starts; if it does not, the network is taken to be gone."""

LAST_SECONDS: Final = 600.0
"""Time that the end of a recording waits for the rest, at most."""

STALLED_SECONDS: Final = 60.0
"""Time after which it waits no longer, if no file arrived."""

ROUND_SECONDS: Final = 5.0
"""Time between two uploads of what is new; as long as between two commits of a recorder."""

SIGN_SECONDS: Final = 30.0
"""Time between two notes at the URL that the recording goes on."""

MAX_PAUSE: Final = 60.0
"""The longest pause after failures."""

AT_ONCE: Final = 4
"""Files uploaded at a time; one, after a failure."""

RETRIES: Final[Mapping[str, Any]] = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""Of one request; what has failed then is uploaded in a later round."""

TIMEOUTS: Final = {"TIMEOUT": "120s", "CONNECT_TIMEOUT": "10s"}
"""Of one request, for obstore: a chunk of 3 MB arrives in time at 25 kB/s."""

PREFIXES: Final = ("AWS", "AZURE", "GOOGLE")


# --- in the launcher --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UploadEnding:
    """How an upload ended."""

    why: str
    """Why something is missing at the URL; "": nothing is, of what had been recorded."""
    files: int = 0
    bytes: int = 0
    running: bool = False
    """Whether a process is still recording: what it writes from now on is not there."""


class Uploader:
    """The process that uploads the trace in a folder. The launcher starts it before the program, and ends it."""

    def __init__(self, path: Path, url: TraceURL, nodes: int = 1) -> None:
        """``nodes``: machines that record one run to this URL, each with its own launcher."""
        self.url = url
        """The place of this trace, once it is taken: of several machines, each has one below the URL."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RLTRACE_")}
        for name, value in TIMEOUTS.items():
            for prefix in PREFIXES:
                environment.setdefault(f"{prefix}_{name}", value)
        self._read = b""
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        with waiting_for_children():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # no signal of the terminal: Ctrl-C is meant for the program
            )
        # not in the command line, which others see: a URL may hold credentials
        self._send({"path": os.fspath(path.absolute()), "url": url.address, "nodes": nodes})

    def begin(self) -> str:
        """Take the place at the URL. Returns why it could not be reached; "": it could.

        Raises UsageError where no upload can succeed: access is denied, there is no bucket, something is there.
        """
        found = self._next(BEGIN_SECONDS)
        if found is None:
            return f"{self.url}: the server gives no answer in time"
        if found["for_good"]:
            self.stop()
            raise UsageError(found["why"])
        self._take_place(found)
        return str(found["why"])

    def finish(self, waiting: Callable[[], object]) -> UploadEnding:
        """Upload the rest, and end, also after Ctrl-C. ``waiting`` is called once, if that takes a second."""
        self._send("end")
        ending = UploadEnding(f"{self.url}: no file arrived in {STALLED_SECONDS:g} s")
        begin = last = monotonic()
        with _interruptible():
            try:
                while monotonic() < min(begin + LAST_SECONDS, last + STALLED_SECONDS):
                    found = self._next(1.0)
                    if found is None and self._process.poll() is not None:
                        ending = replace(ending, why=f"{self.url}: the upload failed")
                        break
                    if found is None:
                        waiting()
                        waiting = _nothing
                        continue
                    self._take_place(found)
                    if found.pop("news"):
                        last = monotonic()
                    for_good = found.pop("for_good")
                    ending = UploadEnding(**found)
                    if for_good:
                        break
            except KeyboardInterrupt:
                ending = replace(ending, why=f"{self.url}: the upload was interrupted")
            self.stop()
        return ending

    def _take_place(self, found: dict[str, Any]) -> None:
        if (place := found.pop("place")) is not None:
            self.url = TraceURL(place)

    def discard(self) -> None:
        """Remove what was uploaded, and end."""
        self._send("discard")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(BEGIN_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _send(self, what: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which the reading end sees
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next thing that it says; None: nothing, in this time or for good."""
        assert self._process.stdout is not None
        end = monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._process.stdout], [], [], max(end - monotonic(), 0))
            new = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not new:
                if ready:
                    self._process.wait()
                return None
            self._read += new
        line, _, self._read = self._read.partition(b"\n")
        return dict(json.loads(line))


def _nothing() -> None:
    pass


@contextmanager
def _interruptible() -> Iterator[None]:
    """Signals that would end the launcher raise KeyboardInterrupt, as Ctrl-C does: the program's status is kept."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- in the process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Upload until the launcher says that the program has ended, and then the rest."""
    with suppress(OSError):
        os.nice(19)  # the program comes first
    launcher = _Launcher()
    request = launcher.hear(BEGIN_SECONDS)
    if request is not None:
        _Rounds(Path(request["path"]), TraceURL(request["url"]), request["nodes"], launcher).run()
    os._exit(0)  # whatever requests are under way


class _Launcher:
    """Messages from the launcher, and reports to it."""

    def __init__(self) -> None:
        self._read = b""
        self.gone = False

    def hear(self, seconds: float) -> Any:
        """The next thing that it says within this time; None: nothing, or it is gone."""
        end = monotonic() + seconds
        while b"\n" not in self._read and not self.gone:
            if not select.select([0], [], [], max(end - monotonic(), 0))[0]:
                return None
            new = os.read(0, 1 << 16)
            self._read += new
            self.gone = not new
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line) if line else None

    def report(self, ending: UploadEnding, place: str | None, *, for_good: bool = False, news: bool = False) -> None:
        found = {**asdict(ending), "place": place, "for_good": for_good, "news": news}
        with suppress(OSError):
            os.write(1, json.dumps(found).encode() + b"\n")


class _Rounds:
    """One upload of what is new after the other."""

    def __init__(self, path: Path, url: TraceURL, nodes: int, launcher: _Launcher) -> None:
        self._path = path
        self._url = url
        self._nodes = nodes
        self._launcher = launcher
        self._upload: Upload | None = None
        """None: its place at the URL is not taken yet."""
        self._failures = 0
        """In a row."""
        self._word: str | None = None
        """What the launcher wants: "end", "discard"; None: that this goes on."""
        self._reported = 0
        self._signed = -SIGN_SECONDS

    def run(self) -> None:
        why, certain = self._tried(self._claim)
        self._report(why, for_good=certain)
        if certain:
            return
        while not self._heard(self._pause()) and not self._launcher.gone:
            self._round(growing=True)
        if self._word == "discard":
            if self._upload is not None:
                self._tried(self._upload.discard)
        elif self._word == "end":
            self._finish()
        elif self._upload is not None:  # the launcher was killed, and the program may record on
            while self._upload.running(may_begin=True):
                sleep(self._pause())
                self._round(growing=True)
            self._round()

    def _finish(self) -> None:
        """Upload until all is there; the launcher decides for how long."""
        certain, self._failures = False, min(self._failures, 1)
        while not certain and not self._launcher.gone:
            running = self._upload is not None and self._upload.running()
            why, certain = self._round()
            if not why and not running:
                why, certain = self._tried(self._check)
            self._report(why, running=running, for_good=certain or not why)
            if not why:
                return
            self._heard(self._pause())

    def _round(self, *, growing: bool = False) -> tuple[str, bool]:
        """Upload what is new. Returns why that failed ("": it did not), and whether it will fail again."""
        at_once = 1 if self._failures else AT_ONCE
        if self._upload is None:
            found = self._tried(self._claim)
            if found[0]:
                return found
        upload = self._upload
        assert upload is not None
        if growing and monotonic() > self._signed + SIGN_SECONDS:
            found = self._tried(upload.sign)
            if found[0]:
                return found
            self._signed = monotonic()
        return self._tried(lambda: upload.send(self._progress, at_once=at_once, growing=growing))

    def _claim(self) -> None:
        from rltrace.trace.tools.push import claim

        self._upload = claim(self._path, self._url, self._nodes, RETRIES)

    def _check(self) -> None:
        assert self._upload is not None
        if not self._upload.is_whole():
            raise UnreachableError(f"{self._url} lacks files that were uploaded")
        self._upload.sign_off()

    def _tried(self, do: Callable[[], object]) -> tuple[str, bool]:
        """Why it failed ("": it did not), and whether it will fail again."""
        try:
            do()
        except UnreachableError as error:
            self._failures += 1
            return str(error), False
        except RltraceError as error:
            self._failures += 1
            return str(error), self._upload is None  # later, access may be denied for a time only
        self._failures = 0
        return "", False

    def _pause(self) -> float:
        """Seconds to the next round."""
        return min(2.0 ** (self._failures - 1), MAX_PAUSE) if self._failures else ROUND_SECONDS

    def _heard(self, seconds: float) -> bool:
        """Whether the launcher wants something else, now or within this time."""
        if self._word is None:
            self._word = self._launcher.hear(seconds)
        else:
            self._launcher.hear(seconds)
        return self._word is not None

    def _progress(self, *_: int) -> None:
        if self._heard(0):  # it is not read before
            self._report("not everything was uploaded in time")

    def _report(self, why: str, *, running: bool = False, for_good: bool = False) -> None:
        files, size = (self._upload.files, self._upload.bytes) if self._upload is not None else (0, 0)
        news, self._reported = files > self._reported, files
        why = why if not why or why.startswith(str(self._url)) else f"{self._url}: {why}"
        place = None if self._upload is None else self._upload.url.address
        self._launcher.report(UploadEnding(why, files, size, running), place, for_good=for_good, news=news)


if __name__ == "__main__":
    main()
