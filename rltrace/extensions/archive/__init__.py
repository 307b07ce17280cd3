"""Traces that are kept and moved: verified, cut to a window, and read at URLs."""

from __future__ import annotations

from typing import Final

from rltrace.extension import Extension, Verb

GROUP: Final = "Keep and move"
COMMANDS: Final = "rltrace.extensions.archive.commands"

EXTENSION: Final = Extension(
    {
        "verify": Verb(GROUP, "Check every byte of a trace.", f"{COMMANDS}.verify"),
        "slice": Verb(GROUP, "Cut a window out of a trace, to copy elsewhere.", f"{COMMANDS}.slice"),
    },
    remote_traces="rltrace.extensions.archive.object_store",
)
