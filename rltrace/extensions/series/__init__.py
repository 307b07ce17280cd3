"""Logged numbers over time, of one run or several, and gradient scalers that diverge within one."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "series": Verb(
            "Look", "Logged scalars, learning rates, scalers; of one run or two.", "rltrace.extensions.series.command"
        )
    }
)
