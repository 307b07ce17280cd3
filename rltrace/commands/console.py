"""Exit statuses, narration, colour, and files that a verb writes: completely or not at all.

Standard output is data, standard error is narration. No other module writes to stderr or defines an exit status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import click

from rltrace.errors import RltraceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rltrace.report.brief import Brief
    from rltrace.report.document import Document


class ExitCode(IntEnum):
    """Every exit status of rltrace; ``record`` and ``replay`` otherwise end with the command's own."""

    IDENTICAL = 0
    DIVERGED = 1
    TROUBLE = 2
    """A usage error, a trace that cannot be read, or a failure of rltrace itself."""
    UNDECIDED = 3
    RLTRACE_FAILED = 125
    """``record``: rltrace failed, or nothing was recorded though the command ended with 0; as env(1) has it."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """The reader of standard output closed it: 128 + SIGPIPE, as other tools end."""


def narrate(text: str, *, hint: str = "") -> None:
    """A line on standard error, and an indented hint."""
    lines = [f"rltrace: {text}"]
    if hint:
        lines.append(f"  hint: {hint}")
    try:
        click.echo("\n".join(lines), err=True)
    except OSError:  # standard error is closed: narration must not fail a command
        return


def complain(text: str, *, hint: str = "") -> None:
    """An error on standard error, and an indented hint."""
    narrate(f"error: {text}", hint=hint)


@contextmanager
def output_errors() -> Iterator[None]:
    """Raise RltraceError for a failed write to standard output, except for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RltraceError(f"standard output cannot be written: {error.strerror or error}") from error


def emit(text: str, *, color: bool | None = None) -> None:
    """Write data to standard output, with a newline; ``color``: whether colour is kept, None: click decides.

    Characters that standard output cannot encode are escaped with backslashes.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with output_errors():
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), color=color)


def emit_json(value: object) -> None:
    """Write an object to standard output as JSON."""
    emit(_json(value))


def _json(value: object, indent: int = 2) -> str:
    import json

    from rltrace.json import to_json

    return json.dumps(to_json(value), indent=indent, allow_nan=False)


def emit_report(
    form: str, result: object, document: Callable[[], Document], color: str = "never", output: Path | None = None
) -> None:
    """Write a result as JSON or, ``document`` drawn, as text, to ``output`` instead of standard output if given."""
    from rltrace.report.text import document_text

    colored = use_color(color) and output is None
    text = _json(result) if form == "json" else document_text(document(), color=colored)
    if output is None:
        emit(text, color=colored)  # click strips colour off a pipe
    else:
        write_output(output, f"{text}\n")


class FormatArguments(Protocol):
    """Arguments of a verb that has the options of a format; it may have ``--color``, too."""

    @property
    def form(self) -> str: ...

    @property
    def brief(self) -> bool: ...


def emit_result(
    arguments: FormatArguments, result: object, document: Callable[[], Document], brief: Callable[[], Brief]
) -> None:
    """Write a result as these arguments ask for."""
    if arguments.brief:
        emit_json(brief())
        return
    emit_report(arguments.form, result, document, getattr(arguments, "color", "never"))
    if arguments.form == "github":
        from rltrace.report.brief import annotation

        emit(annotation(brief()))


def write_json(path: Path, value: object) -> None:
    """Write an object to a file as JSON."""
    path.write_text(_json(value, indent=1) + "\n", encoding="utf-8")


def use_color(choice: str = "auto") -> bool:
    """Whether to colour standard output: ``--color`` comes before ``NO_COLOR``, and that before isatty."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def progress_visible() -> bool:
    """Whether to show progress: only on a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def run_counter(runs: int, *, at_least: bool = False) -> Callable[[], str]:
    """A function that counts one more run as ended, and says so on a terminal; elsewhere its text is "".

    The text is `` (2 of 6 runs, 14 s, about 28 s more)``.
    """
    from rltrace.experiment.runner import clock_text

    ended, begun = count(1), monotonic()
    if not progress_visible():
        return lambda: ""
    return lambda: f" ({clock_text(next(ended), runs, monotonic() - begun, at_least=at_least)})"


class Progress:
    """Progress of a comparison, on one line that is rewritten a few times a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, stream: str, done: int, total: int) -> None:
        now = monotonic()
        if now >= self._next:
            self._next = now + 0.2
            click.echo(f"\r\x1b[K{stream}: {done:,} of {total:,} ops", nl=False, err=True)

    def clear(self) -> None:
        click.echo("\r\x1b[K", nl=False, err=True)


def readable_size(size: int) -> str:
    """Bytes in decimal units, as file managers show them: ``1.2 MB``."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"


def check_output(output: Path, force: bool) -> None:
    """Refuse an output that could not be written, before anything is read. Raises UsageError."""
    if output.is_dir():
        raise UsageError(f"{output} is a folder; give the name of a file")
    if output.is_file() and not force:
        raise UsageError(f"{output} exists already; choose another name, or replace it with --force")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}")


def write_output(output: Path, text: str) -> None:
    """Replace the file atomically, so an error leaves the old one; devices and pipes are written directly. Raises
    UsageError where it cannot be written."""
    data = text.encode("utf-8", "backslashreplace")
    if output.exists() and not output.is_file():
        output.write_bytes(data)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(output)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise UsageError(f"{output} cannot be written: {error.strerror or error}") from error
