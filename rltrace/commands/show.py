"""``rltrace show``: one trace in the terminal interface."""

from __future__ import annotations

import click
from click.core import ParameterSource

from rltrace.commands._option_types import TraceLocation
from rltrace.commands.console import emit, emit_json
from rltrace.trace.format.location import Location


@click.command(name="show")
@click.argument("trace", type=TraceLocation())
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--no-tui", is_flag=True, help="Print what info prints even where the terminal interface would open.")
@click.pass_context
def command(ctx: click.Context, trace: Location, form: str, no_tui: bool) -> None:
    """Browse TRACE: what was recorded and where, its steps and curves, and its ops one by one.

    In a terminal it opens in the terminal interface; with --format or --no-tui, or where the output is redirected, it
    prints what rltrace info prints.

    \b
      rltrace show a.zarr
    """
    from rltrace.commands._terminal import can_open, show_trace
    from rltrace.report.info import describe, info_text
    from rltrace.trace.read.reader import open_trace

    has_form = ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if can_open() and not (no_tui or has_form):
        show_trace(trace)
        return
    info = describe(open_trace(trace))
    emit(info_text(info)) if form == "text" else emit_json(info)
