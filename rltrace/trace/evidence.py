"""Kernel evidence (table "kernels") in words. Owns how an entry reads, for people and for ``kernel=`` selectors."""

from __future__ import annotations

from collections.abc import Mapping

Evidence = Mapping[str, object]

KNOWN = ("library", "isa", "device")


def kernel_text(evidence: Evidence) -> str | None:
    """``oneDNN AVX2, 4 threads``; CUDA kernel names in launch order; None without evidence."""
    if not evidence:
        return None
    names = evidence.get("names")
    if isinstance(names, list):
        return ", ".join(map(str, names))
    words = " ".join(str(evidence[key]) for key in ("library", "isa", "device") if evidence.get(key) is not None)
    rest = [_threads(v) if k == "threads" else f"{k} {v}" for k, v in evidence.items() if k not in KNOWN]
    return ", ".join(filter(None, [words, *rest]))


def kernel_names(evidence: Evidence) -> list[str]:
    """What a ``kernel=`` selector is matched against."""
    names = evidence.get("names")
    return [str(name) for name in names] if isinstance(names, list) and names else [kernel_text(evidence) or ""]


def _threads(count: object) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
