"""The whole name of a GPU kernel, as C++ writes it. Owns that a mangled one is put into words where it is recorded.

Whether Kineto hands out mangled names depends on its version and on where they come from (CUPTI has them mangled); a
reader of traces has no torch that could tell.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_DESCRIPTORS = (" [clone .kd]", ".kd")
"""Endings of ROCm: the symbol of a kernel's descriptor, which is not the kernel's."""


@lru_cache(maxsize=4096)
def whole_name(name: str) -> str:
    """``void at::native::…<…>(…)`` of ``_ZN2at6native…``; any other name as it is."""
    for ending in _DESCRIPTORS:
        name = name.removesuffix(ending)
    if not name.startswith("_Z"):
        return name
    demangled: str = torch._C._demangle(name)
    return demangled or name
