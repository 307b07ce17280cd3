"""Recordings with all rows, and what a comparison of their programs by row finds."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import rltrace
from rltrace.extensions.parity.compare import Compared, ParityOptions, compare
from rltrace.extensions.parity.inputs import open_ranges, parse_given


def record(path: Path, rows: Any = "all", values: Any = "module=*") -> AbstractContextManager[Any]:
    return rltrace.record(path, rows=rows, values=values)  # type: ignore[return-value]


def recorded(path: Path, program: Callable[[], object], **what: Any) -> Path:
    """The trace of a program."""
    with record(path, **what):
        program()
    return path


def compared(a: Path, b: Path | None = None, asked: ParityOptions | None = None) -> Compared:
    """Two programs' traces, or one with both programs."""
    return compare(*open_ranges(parse_given(str(a), [], "a"), parse_given(str(b or a), [], "b")), asked)
