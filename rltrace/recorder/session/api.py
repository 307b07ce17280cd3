"""Recording as a library: a ``with`` block instead of a launched command.

Owns the creation and the end of such a trace; the session records, as under the launcher.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rltrace.errors import RecordError, UsageError
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.recorder.base.isolation import EAGER
from rltrace.recorder.base.options import ENGINES, RecordOptions, check_axes
from rltrace.recorder.capture.captures import Extend
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.engine_choice import choose_library
from rltrace.selectors import parse_selectors
from rltrace.trace.format.checkpoint import read_entries, write_entries
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace, end_launch


@contextmanager
def record_block(
    path: str | os.PathLike[str],
    *,
    level: str,
    steps: tuple[int, int | None] | None,
    verify_inputs: bool,
    check_links: bool,
    engine: str,
    values: str | Iterable[str],
    values_inputs: bool,
    rerunnable: str | Iterable[str],
    checkpoint: str | os.PathLike[str] | None,
    values_limit: int,
    rows: str | Iterable[str],
    row_axes: Iterable[int] | None,
    rows_limit: int,
    kernels: tuple[int, int | None] | None,
    compile: str | None,
    force: bool,
) -> Iterator[None]:
    """Implements ``rltrace.record``."""
    if sessions.current.session is not None:
        raise UsageError("this process is already being recorded; recordings cannot be nested")
    if level not in ("op", "step"):
        raise UsageError(f'level {level!r} is neither "op" nor "step"')
    if verify_inputs and (steps is None or level != "op"):
        raise UsageError("verify_inputs digests every input of the ops of a window: give its steps, at level op")
    if check_links and level != "op":
        raise UsageError("check_links compares memory between ops: it needs level op")
    if engine == "native" and level != "op":
        raise UsageError("the native engine records ops: it needs level op")
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is none of {', '.join(ENGINES)}")
    if compile not in (None, EAGER):
        raise UsageError(f"compile {compile!r} is neither None nor {EAGER!r}")
    selectors = (values,) if isinstance(values, str) else tuple(values)
    parse_selectors(selectors)
    if selectors and level != "op":
        raise UsageError("values are of ops: they need level op")
    again = (rerunnable,) if isinstance(rerunnable, str) else tuple(rerunnable)
    parse_selectors(again)
    if again and level != "op":
        raise UsageError("ops that can be run again are rows: they need level op")
    if checkpoint is not None and not again:
        raise UsageError("a checkpoint is for ops that are to be run again: give selectors of them (rerunnable)")
    row_selectors = (rows,) if isinstance(rows, str) else tuple(rows)
    parse_selectors(row_selectors)
    if row_selectors and level != "op":
        raise UsageError("activation rows are of ops and modules: they need level op")
    if kernels is not None and level != "op":
        raise UsageError("kernels are recorded op by op: they need level op")
    axes = None if row_axes is None else check_axes(row_axes)
    first, end = steps or (0, None)
    trace = Path(path).absolute()
    options = RecordOptions(
        str(trace),
        level,
        first,
        end,
        verify_inputs=verify_inputs,
        check_links=check_links,
        engine=engine,
        values=selectors,
        values_inputs=values_inputs,
        rerunnable=again,
        checkpoint="" if checkpoint is None else os.path.abspath(checkpoint),  # noqa: PTH100
        values_limit=values_limit,
        rows=row_selectors,
        row_axes=axes,
        rows_limit=rows_limit,
        kernels=kernels,
        compile=compile,
    )
    if engine == "native":
        choose_library(options)  # raises before anything is written
    with recording(options, force=force):
        yield


@contextmanager
def recording(options: RecordOptions, *, force: bool, extend: Extend | None = None) -> Iterator[None]:
    """Record the block's ops into a new trace. Raises RecordError where the recording failed."""
    trace = Path(options.trace)
    entries = read_entries(Path(options.checkpoint)) if options.checkpoint else {}
    create_trace(trace, _launch(options), force=force)
    if entries:
        write_entries(trace, entries)
    started, owner = time.monotonic(), os.getpid()
    token = write_start(trace, {"argv": masked_arguments(sys.argv), "pid": os.getpid()})
    session = sessions.start(options, token, extend)
    failure = None
    is_finalizing = sys.is_finalizing
    try:
        yield
    finally:
        if is_finalizing():  # never left: the session has ended at exit, and this module has lost its globals
            return  # noqa: B012  what ends here is the generator
        session.recording.finish()
        if os.getpid() != owner:  # a forked child that leaves the block does not end the launch
            sessions.end()
        else:
            try:
                end_launch(trace, {"status": 0, "seconds": time.monotonic() - started, "library": True})
            except (RecordError, OSError) as error:  # an exception of the block comes first
                failure = str(error)
    failure = session.recording.failure or failure
    if failure is not None:
        raise RecordError(f"the recording in {trace} failed: {failure}")


def _launch(options: RecordOptions) -> dict[str, object]:
    return {
        "command": [home_as_tilde(sys.executable), *masked_arguments(sys.argv)],
        "cwd": home_as_tilde(os.fspath(Path.cwd())),
        "host": socket.gethostname(),
        "library": True,
        "options": {
            "level": options.level,
            "steps": [options.first_step, options.end_step],
            "verify_inputs": options.verify_inputs,
            **options.extras(),
        },
    }
