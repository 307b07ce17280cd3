"""What ran for each kind of call: asked of oneDNN and MKL, and recorded by torch's profiler on a GPU."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "kernels": Verb(
            "Look", "What ran for each kind of call; of one run or two.", "rltrace.extensions.kernels.command"
        )
    },
    profiler="rltrace.extensions.kernels.profiler.cycles:Cycles",
    after_recording="rltrace.extensions.kernels.command:query_recorded",
)
