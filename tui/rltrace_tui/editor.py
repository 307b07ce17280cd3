"""A source line in the user's editor.

Owns which of the recorded places is tried. The application is suspended meanwhile.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from textual.app import App, SuspendNotSupported

from rltrace.trace.read.names import Site


def edit(app: App[object], stack: Sequence[Site], paths: Sequence[str]) -> None:
    """Open the innermost frame whose file is on this machine; says so where there is none, or no editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        app.notify("set $EDITOR to open source lines", severity="warning")
        return
    found = next(((f, p) for f, path in zip(stack, paths, strict=False) if (p := _here(path, f.file))), None)
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


def _here(path: str, file: str) -> Path | None:
    """Where a recorded file is now: at its own place, or under the current folder."""
    places = [Path(place).expanduser() for place in (path, file) if place]
    return next((place for place in places if place.is_file()), None)
