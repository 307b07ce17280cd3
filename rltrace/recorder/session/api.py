"""Recording as a library: a ``with`` block instead of a launched command.

Owns the creation and the end of such a trace; the session records, as under the launcher.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rltrace.errors import RecordError, UsageError
from rltrace.extension import check_installed
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.recorder.base.options import RecordOptions, check_axes, check_options, value_of
from rltrace.recorder.capture.captures import Attach
from rltrace.recorder.core.native_engine import choose_library
from rltrace.recorder.session import session as sessions
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace, end_launch


@contextmanager
def record_block(path: str | os.PathLike[str], given: Mapping[str, Any], *, force: bool) -> Iterator[None]:
    """Implements ``rltrace.record``, for the options that are given."""
    if sessions.current.session is not None:
        raise UsageError("this process is already being recorded; recordings cannot be nested")
    values = {name: value_of(name, value, name) for name, value in given.items()}
    if values.get("row_axes") is not None:
        values["row_axes"] = check_axes(values["row_axes"])
    options = RecordOptions(str(Path(path).absolute()), **values)
    check_options(options, {name: name for name in given if values[name] is not None})
    check_installed(options)
    if options.engine == "native":
        choose_library(options)  # raises before anything is written
    with recording(options, force=force):
        yield


@contextmanager
def recording(options: RecordOptions, *, force: bool, attach: Attach | None = None) -> Iterator[None]:
    """Record the block's ops into a new trace. Raises RecordError where the recording failed."""
    trace = Path(options.trace)
    create_trace(trace, _launch(options), force=force)
    started, owner = time.monotonic(), os.getpid()
    token = write_start(trace, {"argv": masked_arguments(sys.argv), "pid": os.getpid()})
    session = sessions.start(options, token, attach)
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
