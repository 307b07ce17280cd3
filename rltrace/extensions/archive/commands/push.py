"""``rltrace push``: a trace, uploaded to an object store."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from rltrace.commands._option_types import TraceLocation, argument, verb
from rltrace.commands.console import narrate, progress_visible, readable_size
from rltrace.trace.format.location import Location
from rltrace.wording import counted


@dataclass(frozen=True, kw_only=True)
class PushArguments:
    trace: Path = argument(type=TraceLocation(only_folder=True))
    url: Location = argument()


@verb(PushArguments)
def command(arguments: PushArguments) -> None:
    """Upload TRACE to URL (s3://…, gs://…, az://…): its chunks, then the journals that name them.

    What is there already is not sent again, so a push that was interrupted is finished by the same command, and one of
    a program that still runs is repeated when it has ended. The trace here is not changed.

    \b
      rltrace push a.zarr s3://bucket/runs/a.zarr
    """
    from rltrace.errors import UsageError
    from rltrace.extensions.archive.push import push
    from rltrace.trace.format.location import TraceURL

    trace, url = arguments.trace, arguments.url
    if not isinstance(url, TraceURL):
        raise UsageError(f"{url} is a folder: give a URL, as in s3://bucket/{trace.name}, or copy the trace with cp -r")
    pushed = push(trace, url, _progress if progress_visible() else None)
    there = f", {pushed.present:,} were there" if pushed.present else ""
    narrate(f"{url}: {counted(pushed.files, 'file')}, {readable_size(pushed.bytes)}{there}")
    if pushed.running:
        narrate("the program is still being recorded; push again when it has ended")


def _progress(done: int, total: int) -> None:
    """One line that overwrites itself, gone at the end."""
    text = f"\r{done:,} of {total:,} files" if done < total else "\r\x1b[K"
    click.echo(text, nl=False, err=True, file=sys.stderr)
