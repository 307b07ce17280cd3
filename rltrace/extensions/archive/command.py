"""``rltrace verify``: whether a trace is undamaged."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from rltrace.commands._option_types import argument, form_option, verb
from rltrace.commands.console import ExitCode, emit_report, progress_visible
from rltrace.trace.format.location import Location


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    trace: Location = argument()
    form: str = form_option()


@verb(VerifyArguments)
def command(arguments: VerifyArguments) -> int:
    """Read the whole of TRACE and check every chunk and digest. Ends with 0 if it is sound, 1 if it is damaged.

    The trace of a killed program is sound: what was committed is there, and nothing else is promised.
    """
    from rltrace.errors import DamagedTraceError
    from rltrace.extensions.archive.report import verification_document
    from rltrace.extensions.archive.verify import Verification, verify

    try:
        found = verify(arguments.trace, _progress if progress_visible() else None)
    except DamagedTraceError as error:
        found = Verification(str(arguments.trace), (), 0, 0, (str(error),), ())
    emit_report(arguments.form, found, lambda: verification_document(found))
    return ExitCode.IDENTICAL if found.sound else ExitCode.DIVERGED


def _progress(done: int, total: int) -> None:
    """One line that overwrites itself, gone at the end."""
    text = f"\r{done:,} of {total:,} segments" if done < total else "\r\x1b[K"
    click.echo(text, nl=False, err=True, file=sys.stderr)
