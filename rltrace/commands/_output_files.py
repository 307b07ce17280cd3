"""Files that a verb makes: written whole or not at all, and never over something that is there unless asked."""

from __future__ import annotations

import os
from pathlib import Path

from rltrace.errors import UsageError


def check_output(output: Path, force: bool) -> None:
    """Say so before anything is read where the file cannot be put there. Raises UsageError."""
    if output.is_dir():
        raise UsageError(f"{output} is a folder; give the name of a file")
    if output.is_file() and not force:
        raise UsageError(f"{output} exists already; choose another name, or replace it with --force")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}")


def write_output(output: Path, text: str) -> None:
    """Beside it first, so that an error leaves what was there; devices and pipes are written to as they are."""
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
