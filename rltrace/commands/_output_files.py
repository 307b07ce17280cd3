"""Files that a verb writes: completely or not at all; existing ones are replaced on request only."""

from __future__ import annotations

import os
from pathlib import Path

from rltrace.errors import UsageError


def check_output(output: Path, force: bool) -> None:
    """Refuse an output that could not be written, before anything is read. Raises UsageError."""
    if output.is_dir():
        raise UsageError(f"{output} is a folder; give the name of a file")
    if output.is_file() and not force:
        raise UsageError(f"{output} exists already; choose another name, or replace it with --force")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}")


def write_output(output: Path, text: str) -> None:
    """Replace the file atomically, so an error leaves the old one; devices and pipes are written directly."""
    data = text.encode("utf-8", "backslashreplace")
    if output.exists() and not output.is_file():
        output.write_bytes(data)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(output)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
