"""Code outside torch that computes with tensors: kernels of Triton, C functions, functions of extension modules."""

from typing import Final

from rltrace.extension import Extension

EXTENSION: Final = Extension(
    {},
    patches=(
        "rltrace.extensions.launches.triton_launches:TritonLaunches",
        "rltrace.extensions.launches.foreign_calls:ForeignCalls",
    ),
)
