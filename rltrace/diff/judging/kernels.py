"""Whether what ran an op was something else on the other side. Owns the comparison of kernel evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rltrace.trace.evidence import (
    ATEN,
    GUESSED,
    LAUNCHES,
    REPORTED,
    SAID,
    SILENT,
    Evidence,
    geometry_text,
    kernel_text,
    launches,
    listed,
    whole_names,
)
from rltrace.trace.kernel_names import in_words

__all__ = [
    "Evidence",
    "is_another_grid",
    "kernel_differences",
    "kernel_text",
    "said_differences",
    "seen_alike",
    "tells_what_ran",
]


def kernel_differences(a: Evidence, b: Evidence) -> list[str]:
    """``isa AVX2 against AVX512`` for everything in which two pieces of evidence differ; what ran comes first."""
    skip = (*SAID, *GUESSED) if _is_said(a) and _is_said(b) else SAID
    others = [key for key in dict.fromkeys([*a, *b]) if key not in skip and a.get(key) != b.get(key)]
    return [
        *said_differences(a, b),
        *(f"{_word(key)} {_value(a.get(key))} against {_value(b.get(key))}" for key in others),
    ]


def is_another_grid(a: Evidence, b: Evidence) -> bool:
    """Whether all that differs is on how many blocks and threads the same kernels were launched."""
    return whole_names(a) == whole_names(b) and len(kernel_differences(a, b)) == len(list(_grids(a, b))) == 1


def tells_what_ran(evidence: Evidence) -> bool:
    """Whether it is known what ran, and not only where."""
    return bool(evidence.keys() - {"device"})


def seen_alike(a: Evidence, b: Evidence) -> bool:
    """Whether a profiler looked on both sides, and saw the same launches of the same kernels."""
    return LAUNCHES in a and LAUNCHES in b and not kernel_differences(a, b)


def _is_said(evidence: Evidence) -> bool:
    """Whether a library's word takes the place of what the operator's name let guess."""
    return REPORTED in evidence and (bool(evidence.get("names")) or evidence.get("library") != ATEN)


def said_differences(a: Evidence, b: Evidence) -> Iterator[str]:
    """In what differs what ran, by name; nothing where one side's libraries were not asked, or nobody looked."""
    if (REPORTED in a) != (REPORTED in b) or (whole_names(a) is None) != (whole_names(b) is None):
        return
    if a.get("names") != b.get("names"):
        yield f"kernels {' against '.join(_names(a, b))}"
        return
    lines = zip(_lines(a), _lines(b), strict=False)
    found = next(((x, y) for x, y in lines if x != y), None)
    if found is not None:  # the same implementation, called otherwise
        yield f"{found[0]} against {found[1]}"
    yield from _grids(a, b)


def _grids(a: Evidence, b: Evidence) -> Iterator[str]:
    """Of the same kernels, the first that was launched on another grid, or in other blocks."""
    on_a, on_b = launches(a), launches(b)
    if on_a is None or on_b is None or whole_names(a) != whole_names(b):
        return
    words = in_words(whole_names(a) or ())
    found = [(word, x, y) for word, x, y in zip(words, on_a, on_b, strict=True) if x != y]
    if found:
        word, x, y = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"{word} in {geometry_text(x)} against {geometry_text(y)}{more}"


def _names(a: Evidence, b: Evidence) -> list[str]:
    """What ran on each side, in as few words as tell one from the other, from where to where they differ."""
    known = [whole_names(side) or () for side in (a, b)]
    words = dict(zip(chain(*known), in_words(list(chain(*known))), strict=True))
    nobody = f"({SILENT})" if REPORTED in a else "nothing"
    return [listed([words[name] for name in side], " + ") or nobody for side in _apart(*known)]


def _apart(a: Sequence[str], b: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Where two lists differ; both as they are where one of them has nothing else."""
    shorter = min(len(a), len(b))
    first = next((k for k in range(shorter) if a[k] != b[k]), shorter)
    last = next((k for k in range(shorter - first) if a[-1 - k] != b[-1 - k]), shorter - first)
    left = a[first : len(a) - last], b[first : len(b) - last]
    return left if all(left) else (a, b)


def _lines(evidence: Evidence) -> list[str]:
    lines = evidence.get(REPORTED)
    return list(map(str, lines)) if isinstance(lines, list) else []


def _word(key: str) -> str:
    return {"isa": "instruction set", "vectors": "Inductor's instruction set"}.get(key, key)


def _value(value: object) -> str:
    return "nothing" if value is None else str(value)
