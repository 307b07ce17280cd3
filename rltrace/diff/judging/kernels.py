"""Whether what ran an op was something else on the other side. Owns the comparison of kernel evidence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from rltrace.trace.evidence import ATEN, GUESSED, REPORTED, SAID, SILENT, Evidence, kernel_text
from rltrace.trace.kernel_names import in_words

__all__ = ["Evidence", "kernel_differences", "kernel_text", "said_differences"]


def kernel_differences(a: Evidence, b: Evidence) -> list[str]:
    """``isa AVX2 against AVX512`` for everything in which two pieces of evidence differ; what ran comes first."""
    skip = (*SAID, *GUESSED) if _is_said(a) and _is_said(b) else SAID
    others = [key for key in dict.fromkeys([*a, *b]) if key not in skip and a.get(key) != b.get(key)]
    return [
        *said_differences(a, b),
        *(f"{_word(key)} {_value(a.get(key))} against {_value(b.get(key))}" for key in others),
    ]


def _is_said(evidence: Evidence) -> bool:
    """Whether a library's word takes the place of what the operator's name let guess."""
    return REPORTED in evidence and (bool(evidence.get("names")) or evidence.get("library") != ATEN)


def said_differences(a: Evidence, b: Evidence) -> Iterator[str]:
    """In what differs what ran, by name; nothing where one side's libraries were not asked."""
    if (REPORTED in a) != (REPORTED in b):
        return
    if a.get("names") != b.get("names"):
        yield f"kernels {' against '.join(_names(a, b))}"
        return
    lines = zip(_lines(a), _lines(b), strict=False)
    found = next(((x, y) for x, y in lines if x != y), None)
    if found is not None:  # the same implementation, called otherwise
        yield f"{found[0]} against {found[1]}"


def _names(a: Evidence, b: Evidence) -> list[str]:
    """What ran on each side, in as few words as tell one from the other."""
    sides: list[Any] = [side.get("names") for side in (a, b)]
    known = [list(map(str, side)) for side in sides if isinstance(side, list)]
    words = dict(zip(chain(*known), in_words(list(chain(*known))), strict=True))
    nobody = f"({SILENT})" if REPORTED in a else "nothing"
    return [" + ".join(words[str(name)] for name in side or ()) or nobody for side in sides]


def _lines(evidence: Evidence) -> list[str]:
    lines = evidence.get(REPORTED)
    return list(map(str, lines)) if isinstance(lines, list) else []


def _word(key: str) -> str:
    return {"isa": "instruction set"}.get(key, key)


def _value(value: object) -> str:
    return "nothing" if value is None else str(value)
