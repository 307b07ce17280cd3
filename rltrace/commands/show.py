"""``rltrace show``: one trace in the terminal interface."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.commands._option_types import argument, form_option, is_given, no_tui_option, verb
from rltrace.commands.console import emit_report
from rltrace.trace.format.location import Location


@dataclass(frozen=True, kw_only=True)
class ShowArguments:
    trace: Location = argument()
    form: str = form_option()
    no_tui: bool = no_tui_option()


@verb(ShowArguments)
def command(arguments: ShowArguments) -> None:
    """Browse TRACE: what was recorded and where, its steps and curves, and its ops one by one.

    In a terminal it opens in the terminal interface; with --format or --no-tui, or where the output is redirected, it
    prints what rltrace info prints.

    \b
      rltrace show a.zarr
    """
    from rltrace.commands._terminal import can_open, show_trace
    from rltrace.report.info import describe, info_document
    from rltrace.trace.read.reader import open_trace

    if can_open() and not (arguments.no_tui or is_given("form")):
        show_trace(arguments.trace)
        return
    info = describe(open_trace(arguments.trace))
    emit_report(arguments.form, info, lambda: info_document(info))
