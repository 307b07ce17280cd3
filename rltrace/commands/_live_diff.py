"""``rltrace record --against``: the options of the run, what is said while it runs, and the report at its end."""

import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic, thread_time
from typing import Final

from rltrace.commands.console import ExitCode, narrate, write_json
from rltrace.diff.base.model import Finding
from rltrace.errors import UsageError
from rltrace.live_diff.follower import Follower, LiveOutcome, Reach, may_grow, word_of
from rltrace.recorder.base.options import ALL_STEPS, COMMIT_SECONDS, RecordOptions
from rltrace.rerun.plan import window_of
from rltrace.trace.format.arming import EndRequest, write_end_request
from rltrace.trace.format.location import Location, TraceURL
from rltrace.wording import counted


def live_options(options: RecordOptions, a: Location, *, as_in_a: bool) -> RecordOptions:
    """The options of a run that the launcher compares with ``a``; ``as_in_a``: with its level and steps, where it has
    ended. Raises UsageError."""
    if not isinstance(a, TraceURL) and os.path.realpath(a) == os.path.realpath(options.trace):
        raise UsageError(f"{a} is the trace to compare with; give the recording another name")
    location = str(a if isinstance(a, TraceURL) else a.absolute())
    has_ended = not isinstance(a, TraceURL) and not may_grow(a)
    if has_ended and as_in_a:
        from rltrace.trace.read.reader import open_trace

        trace = open_trace(a)
        level, steps = window_of(trace) if trace.has_rows else (trace.level, ALL_STEPS)
        options = replace(options, level=level, steps=steps)
    return replace(options, against=location)


LOOK_SECONDS: Final = 1.0
"""Between two looks at traces in folders."""

REMOTE_SECONDS: Final = 5.0
"""The same where a trace is at a URL, as each look is some requests."""

SHARE: Final = 20
"""Looks take one part in so many of a processor's time, about: those between two commits cost next to nothing."""

AHEAD_SECONDS: Final = 10.0
"""Several processes end after one common step, that they reach so much later; commits and looks are some seconds
behind."""


class LiveComparison:
    """Compares the run with a trace that may still grow, in the launcher."""

    def __init__(self, a: Location, trace: Path, *, stop: bool, quiet: bool) -> None:
        self._a, self._trace = str(a), trace
        self._stop, self._quiet = stop, quiet
        self._follower = Follower(a, trace)
        self._pause = REMOTE_SECONDS if isinstance(a, TraceURL) else LOOK_SECONDS
        self._began = monotonic()
        self._reach: Reach | None = None
        self._said: Finding | None = None
        self._failure = ""

    def run(self, has_ended: Event) -> None:
        """Look until the run has ended, or differs; called by a thread beside it."""
        pause = 0.0
        while not has_ended.wait(pause) and self._follower.finding is None:
            began = thread_time()
            try:
                self._follower.look()
                self._say()
            except Exception as error:  # the command must not notice
                self._failure = f"{type(error).__name__}: {error}"
                return
            pause = max(self._pause, SHARE * (thread_time() - began) - COMMIT_SECONDS)

    def report(self, result: Path | None) -> bool:
        """Report the result, the run being over; a difference is no failure."""
        from rltrace.report.live_diff import LiveReport, against_lines, commands

        follower = self._follower
        if not self._failure:
            follower.conclude()
        found, reach = follower.result(), follower.reach
        trouble = self._failure or follower.trouble
        if not self._quiet:
            said = follower.finding is not None and follower.finding == self._said
            why = trouble or follower.undecided
            lines = against_lines(found, self._a, str(self._trace), reach.value, why, said=said)
            hints = commands(found, self._a, str(self._trace), reach.value)
            narrate("\n".join(lines), hint="\n        ".join(hints))
        if result is not None:
            outcome = word_of(list(found))
            write_json(result, LiveReport(outcome, self._a, str(self._trace), reach.value, tuple(found)))
        return not self._failure

    def status(self, ended: int) -> int:
        """The exit status of ``--exit-code``: 0 the same as A, 1 not, 125 not known: for ``git bisect run``.

        ``ended``: the status of the recording. It is not known where A goes on.
        """
        follower = self._follower
        found = follower.result()
        has_all = follower.reach is Reach.ENDED and word_of(found) is not LiveOutcome.NOTHING
        agrees = follower.is_equal if follower.finding is not None or has_all else None
        if agrees is False:
            return ExitCode.DIVERGED
        return ExitCode.IDENTICAL if agrees and ended == 0 else ExitCode.RLTRACE_FAILED

    def _say(self) -> None:
        """Narrate what is new: how far A is, and the first difference."""
        follower = self._follower
        before, self._reach = self._reach, follower.reach
        if follower.finding is not None:
            self._end()
        if self._quiet:
            return
        if follower.finding is not None:
            from rltrace.report.live_diff import against_lines

            self._said = follower.finding
            narrate("\n".join(against_lines(follower.result(), self._a, str(self._trace), self._reach.value, "")))
        elif self._reach is not before:
            step = f"; the first {counted(follower.equal_steps, 'step')} are equal" if follower.equal_steps > 1 else ""
            match self._reach:
                case Reach.MISSING:
                    narrate(f"{self._a} does not exist yet: the run is compared with it as soon as it does")
                case Reach.GROWING:
                    narrate(f"{self._a} is being recorded: what has come of it is compared")
                case Reach.ENDED if before is Reach.GROWING:
                    narrate(f"{self._a} has ended ({follower.ending}){step}; this run goes on")
                case Reach.KILLED if before is not None:
                    narrate(f"{self._a} was killed{step}; this run goes on")

    def _end(self) -> None:
        """Request the end of all processes of the run."""
        found, follower = self._follower.finding, self._follower
        if not self._stop or found is None:
            return
        several = follower.b is not None and len(follower.b.processes) > 1
        rate = (follower.step + 1) / max(monotonic() - self._began, 1.0)
        step = follower.step + 1 + int(rate * AHEAD_SECONDS) if several else 0
        why = f"--stop ended it, as it differs from {Path(self._a).name} in step {found.step}"
        write_end_request(self._trace, EndRequest(step, why))
