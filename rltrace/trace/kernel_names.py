"""Names of GPU kernels, read: library, architecture, tile and precision where the name tells, and short enough to show.

Owns what a name is for a reader. What libraries call their kernels is known in ``kernel_forms``, what is left of a
template in ``kernel_shorts``. Pure; a name of nobody's is left as it is. What a name does not say is not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rltrace.trace.kernel_forms import FORMS
from rltrace.trace.kernel_shorts import LONGEST, shortened

__all__ = ["LONGEST", "KernelName", "in_words", "read_name"]


@dataclass(frozen=True)
class KernelName:
    """What one name says; what it does not is ""."""

    full: str
    short: str
    """Without return type, arguments, namespaces and most of what stands in template brackets."""
    library: str = ""
    """cutlass, cuBLAS, cuDNN, ATen, Inductor, NCCL …"""
    architecture: str = ""
    """``sm80``, ``ampere``, ``gfx942``."""
    tile: str = ""
    """``128×64``: rows and columns of the output that a block of threads computes."""
    precision: str = ""
    """What is multiplied, and summed in where that is said: ``tf32``, ``bf16``, ``fp16 summed in fp16``."""

    @property
    def words(self) -> str:
        """``cutlass 128×128 tf32`` where the name tells so much; else the short name."""
        if not (self.library and (self.tile or self.precision)):
            return self.short
        return " ".join(filter(None, [self.library, self.tile, self.precision]))


@lru_cache(maxsize=4096)
def read_name(full: str) -> KernelName:
    """What a (demangled) name tells."""
    for pattern, read in FORMS:
        found = pattern.search(full)
        if found is not None:
            return KernelName(full, shortened(full), *read(full, found))
    return KernelName(full, shortened(full))


def in_words(names: Sequence[str]) -> list[str]:
    """Each in as few words as tell it from the others: its words, or the short name, or all of it."""
    read = [read_name(name) for name in names]
    for told in ([name.words for name in read], [name.short for name in read]):
        if len(set(told)) == len(set(names)):
            return told
    return list(names)
