"""Traces that are kept and moved: verified, cut to a window, uploaded to an object store, and read there."""

from __future__ import annotations

from typing import Final

from rltrace.extension import Extension, Verb

GROUP: Final = "Keep and move"
COMMANDS: Final = "rltrace.extensions.archive.commands"

EXTENSION: Final = Extension(
    {
        "verify": Verb(GROUP, "Check every byte of a trace.", f"{COMMANDS}.verify"),
        "slice": Verb(GROUP, "Cut a window out of a trace, to copy elsewhere.", f"{COMMANDS}.slice"),
        "push": Verb(GROUP, "Upload a trace to an object store.", f"{COMMANDS}.push"),
    },
    remote_traces="rltrace.extensions.archive.object_store",
)
