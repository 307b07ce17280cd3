"""Traces that are kept and moved: verified, and read at URLs."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "verify": Verb("Keep and move", "Check every byte of a trace.", "rltrace.extensions.archive.command"),
    },
    remote_traces="rltrace.extensions.archive.object_store",
)
