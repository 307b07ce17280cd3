"""What selects kernels in a process, and what may give other bits in a second run, or on another machine."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "doctor": Verb(
            "Look", "What selects kernels here, and sources of nondeterminism.", "rltrace.extensions.doctor.command"
        )
    }
)
