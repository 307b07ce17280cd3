"""Whether what ran an op was something else on the other side. Owns the comparison of kernel evidence."""

from __future__ import annotations

from rltrace.trace.evidence import Evidence, kernel_text

__all__ = ["Evidence", "kernel_differences", "kernel_text"]


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
