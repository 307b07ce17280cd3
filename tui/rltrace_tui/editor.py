"""Opens a source line in the user's editor, with the application suspended.

Owns which recorded path is tried.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from textual.app import App, SuspendNotSupported

from rltrace.trace.read.names import Site


def edit(app: App[object], stack: Sequence[Site], paths: Sequence[str]) -> None:
    """Open the innermost frame whose file is on this machine; notify if there is none, or no editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        app.notify("set $EDITOR to open source lines", severity="warning")
        return
    found = next(((f, p) for f, path in zip(stack, paths, strict=False) if (p := _local_path(path, f.file))), None)
    if found is None:
        app.notify("the source files of this op are not on this machine", severity="warning")
        return
    frame, path = found
    try:
        with app.suspend():
            subprocess.run([*shlex.split(editor), f"+{frame.line}", str(path)], check=False)
    except SuspendNotSupported:
        app.notify("this terminal cannot run an editor", severity="warning")
    except OSError as error:
        app.notify(f"{editor}: {error.strerror}", severity="error")


def _local_path(path: str, file: str) -> Path | None:
    """The recorded file on this machine: at the same path, or below the current folder."""
    candidates = [Path(name).expanduser() for name in (path, file) if name]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
