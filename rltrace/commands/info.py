"""``rltrace info``: the content of a trace, without its ops."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.commands._option_types import argument, form_option, verb
from rltrace.commands.console import emit_report
from rltrace.trace.format.location import Location


@dataclass(frozen=True, kw_only=True)
class InfoArguments:
    trace: Location = argument()
    form: str = form_option()


@verb(InfoArguments)
def command(arguments: InfoArguments) -> None:
    """Show what TRACE holds: command, host, hardware, versions, settings, sources, streams, steps, states, size."""
    from rltrace.report.info import describe, info_document
    from rltrace.trace.read.reader import open_trace

    info = describe(open_trace(arguments.trace))
    emit_report(arguments.form, info, lambda: info_document(info))
