"""``rltrace record --against``: the options of the run, and the report at its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rltrace.commands.console import ExitCode, narrate, write_json
from rltrace.errors import RltraceError, UsageError
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.location import Location


def live_options(options: RecordOptions, a: Path, *, stop: bool) -> RecordOptions:
    """The options of a run that is compared with ``a`` and records the same steps. Raises UsageError."""
    from rltrace.replay.plan import window_of
    from rltrace.trace.read.reader import open_trace

    trace_a = open_trace(a)
    level, first, end = window_of(trace_a)
    path = os.path.abspath(a)  # noqa: PTH100  links stay
    if os.path.realpath(path) == os.path.realpath(options.trace):
        raise UsageError(f"{a} is the trace to compare with; give the recording another name")
    return options._replace(level=level, first_step=first, end_step=end, against=path, stop=stop)


def live_report(a: Path, trace: Path, result: Path | None, *, quiet: bool) -> Callable[[], bool]:
    """A function that reports the result when the run is over; a difference is no failure."""

    def report() -> bool:
        from rltrace.live_diff.result import read_results
        from rltrace.report.live_diff import against_json, against_lines, commands
        from rltrace.trace.read.reader import open_trace

        found = read_results(open_trace(trace))
        if not quiet:
            lines = "\n".join(against_lines(found, str(a), str(trace)))
            narrate(lines, hint="\n        ".join(commands(found, str(a), str(trace))))
        if result is not None:
            write_json(result, against_json(found, {"a": str(a), "trace": str(trace)}))
        return True

    return report


def live_status(a: Path, trace: Location, ended: int) -> int:
    """The exit status of ``--exit-code``: 0 the same as A, 1 not, 125 not known: for ``git bisect run``.

    ``ended``: the status of the recording.
    Where ops ran on one side only, it takes a comparison of the whole traces to say.
    """
    from rltrace.diff.compare import compare
    from rltrace.live_diff.result import LiveOutcome, read_results, word_of
    from rltrace.trace.read.reader import open_trace

    try:
        word = word_of(read_results(open_trace(trace)))
        agrees = (
            compare(a, trace).agrees
            if word is LiveOutcome.ONE_SIDED
            else {LiveOutcome.DIFFERS: False, LiveOutcome.EQUAL: True}.get(word)
        )
    except RltraceError:
        return ExitCode.RLTRACE_FAILED
    if agrees is False:
        return ExitCode.DIVERGED
    return ExitCode.IDENTICAL if agrees and ended == 0 else ExitCode.RLTRACE_FAILED
