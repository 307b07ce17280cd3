"""A verdict as a workflow command of GitHub Actions, which shows it at a source line of the checkout.

Owns the escapes, and which line of the checkout a recorded call site is. Never prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from rltrace.report.brief import Brief
from rltrace.trace.read.names import Site

LEVELS = {0: "notice", 1: "error"}
"""By exit status; any other one is a warning."""


def annotation(brief: Brief, folder: Path | None = None, checkout: Path | None = None) -> str:
    """``::error file=train.py,line=12,title=…::…``, without a newline at the end.

    The line is that of the innermost call site in a file of ``checkout`` (default: ``GITHUB_WORKSPACE``, or
    ``folder``); where there is none, no line is named. ``folder``: where the runs ran; default: the current one.
    """
    folder = (folder or Path.cwd()).resolve()
    checkout = (checkout or Path(os.environ.get("GITHUB_WORKSPACE") or folder)).resolve()
    found = brief.finding
    title = f"rltrace: {brief.verdict}" + ("" if found is None else f", cause {found.cause}")
    place = None if found is None else _place(found.stack, folder, checkout)
    properties = {"title": title} if place is None else {"file": str(place[0]), "line": str(place[1]), "title": title}
    named = ",".join(f"{name}={_escaped(text, '%', chr(13), chr(10), ':', ',')}" for name, text in properties.items())
    message = brief.why if found is None else found.explanation
    return f"::{LEVELS.get(brief.status, 'warning')} {named}::{_escaped(message, '%', chr(13), chr(10))}"


def _escaped(text: str, *characters: str) -> str:
    """With these characters as %XX; the first of them is %."""
    for character in characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _place(stack: Sequence[Site], folder: Path, checkout: Path) -> tuple[Path, int] | None:
    for site in stack:
        for file in _candidates(site.path, folder, checkout):
            if _has_line(file, site):
                return file.relative_to(checkout), site.line
    return None


def _candidates(path: str, folder: Path, checkout: Path) -> Iterator[Path]:
    """Files of the checkout that may be a recorded one, the likeliest first.

    A run may have worked in a copy of the folder, or on another machine, so its path need not exist: the longest ending
    of it that does is taken.
    """
    parts = PurePosixPath(path).parts
    if "site-packages" in parts:  # a library; a virtual environment may lie in the checkout
        return
    for start in range(len(parts)):
        ending = PurePosixPath(*parts[start:])
        for file in ((root / ending).resolve() for root in (folder, checkout)):
            if file.is_relative_to(checkout) and file.is_file():
                yield file


def _has_line(file: Path, site: Site) -> bool:
    """Whether the file has the recorded text at this line: it may be another file, or edited since."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return bool(site.source) and [line.strip() for line in lines[site.line - 1 : site.line]] == [site.source]
