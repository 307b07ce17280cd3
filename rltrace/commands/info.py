"""``rltrace info``: the content of a trace, without its ops."""

from __future__ import annotations

import click

from rltrace.commands._option_types import TraceLocation
from rltrace.commands.console import emit, emit_json
from rltrace.trace.format.location import Location


@click.command(name="info")
@click.argument("trace", type=TraceLocation())
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(trace: Location, form: str) -> None:
    """Show what TRACE holds: command, host, hardware, versions, settings, sources, streams, steps, states, size."""
    from rltrace.report.info import describe, info_text
    from rltrace.trace.read.reader import open_trace

    info = describe(open_trace(trace))
    emit(info_text(info)) if form == "text" else emit_json(info)
