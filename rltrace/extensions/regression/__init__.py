"""Results that are kept: a program against the lock of an earlier run of it, and tests whose runs have to agree."""

from __future__ import annotations

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "lock": Verb(
            "Compare",
            "Write a run's step digests to commit; compare later runs.",
            "rltrace.extensions.regression.command",
        )
    },
    pytest_plugin="rltrace.extensions.regression.pytest_plugin",
)
