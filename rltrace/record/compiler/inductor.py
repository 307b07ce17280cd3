"""What the code that Inductor generates says of itself: its kernels in launch order, whether it draws, a fingerprint.

Owns the reading of that text, and for which instructions it was made. What cannot be found in it is left out; nothing
here raises on a text that looks otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import torch
from xxhash import xxh3_64_hexdigest

_CALLED = re.compile(
    r"^\s+(?:\w+ = )?"
    r"((?:extern_kernels|aten|torch\.ops|inductor_ops|_quantized)(?:\.\w+)+|(?:cpp|triton)_\w+?)(?:\.run)?\(",
    re.MULTILINE,
)
_DEFINED = re.compile(r"\b((?:cpp|triton)_(?:\w+_)?fused\w*)\b")
_OPERATOR = re.compile(r"\b(?:torch\.ops\.)?(\w+)\.(\w+)\.(\w+)\(")
_SHIM = re.compile(r"\baoti_torch_\w*?(rand|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|dropout)")


def kernels(source: str) -> list[str]:
    """Names of the kernels that a graph's code calls, in order, each as often as it stands there."""
    called = _CALLED.findall(_body(source))
    return called or list(dict.fromkeys(_DEFINED.findall(source)))


def vectors(names: Sequence[str]) -> str | None:
    """The instruction set that its C++ kernels were made for (``avx512``); None without any, or where it did not ask.

    It chooses by the processor and by ``ATEN_CPU_CAPABILITY``, and compiles a program for each set that it asks about:
    so it is asked only once it has done that itself, as it has wherever it has loaded such a kernel.
    """
    chosen: Any = sys.modules.get("torch._inductor.cpu_vec_isa")
    if chosen is None or not any(name.startswith("cpp_") for name in names):
        return None
    try:
        return str(chosen.pick_vec_isa()) or None if chosen.valid_vec_isa_list.cache_info().currsize else None
    except Exception:  # nothing that a recording could be without: another version's has another shape
        return None


def fingerprint(source: str) -> str:
    """Of the code that computes. Comments and paths differ though the code is the same."""
    lines = [line.strip() for line in source.splitlines()]
    kept = [line for line in lines if not line.startswith(("#", "//")) or line.startswith("#pragma")]
    return xxh3_64_hexdigest("\n".join(kept).encode())


def draws(source: str) -> bool:
    """Whether it calls an operator that draws from a generator."""
    return _SHIM.search(source) is not None or any(map(_draws, set(_OPERATOR.findall(source))))


def _draws(names: tuple[str, str, str]) -> bool:
    found: Any = torch.ops
    for name in names:
        found = getattr(found, name, None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())


def _body(source: str) -> str:
    """Where the kernels are called, past their definitions."""
    found = re.search(r"^(?:class Runner\b|def call\()", source, re.MULTILINE)
    return source[found.start() :] if found is not None else ""
