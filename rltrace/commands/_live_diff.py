"""``rltrace record --against``: what the option means, and what is told when the run is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rltrace.commands.console import narrate, write_json
from rltrace.errors import UsageError
from rltrace.recorder.base.options import RecordOptions


def held_against(options: RecordOptions, a: Path, *, stop: bool) -> RecordOptions:
    """The options of a run that is held against ``a``: it records the steps that A has. Raises UsageError."""
    from rltrace.replay.plan import window_of
    from rltrace.trace.read.reader import open_trace

    trace_a = open_trace(a)
    level, first, end = window_of(trace_a)
    path = os.path.abspath(a)  # noqa: PTH100  links stay
    if os.path.realpath(path) == os.path.realpath(options.trace):
        raise UsageError(f"{a} is the trace to compare with; give the recording another name")
    return options._replace(level=level, first_step=first, end_step=end, against=path, stop=stop)


def teller(a: Path, trace: Path, result: Path | None, *, quiet: bool) -> Callable[[], bool]:
    """What says, when the run is over, how it compared; a difference is no failure."""

    def tell() -> bool:
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

    return tell
