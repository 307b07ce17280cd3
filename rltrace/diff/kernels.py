"""What ran an op, in words, and whether it was something else on the other side.

Owns the reading of kernel evidence (table "kernels").
"""

from __future__ import annotations

from collections.abc import Mapping

Evidence = Mapping[str, object]


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


KNOWN = ("library", "isa", "device")


def _threads(count: object) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def kernel_differences(a: Evidence, b: Evidence) -> list[str]:
    """``isa AVX2 against AVX512`` for everything in which two pieces of evidence differ."""
    return [
        f"{_word(key)} {_value(a.get(key))} against {_value(b.get(key))}"
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    ]


def _word(key: str) -> str:
    return {"names": "kernels", "isa": "instruction set"}.get(key, key)


def _value(value: object) -> str:
    if value is None:
        return "nothing"
    return " + ".join(map(str, value)) if isinstance(value, list) else str(value)
