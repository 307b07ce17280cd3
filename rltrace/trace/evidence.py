"""Kernel evidence (table "kernels") in words. Owns how an entry reads, for people and for ``kernel=`` selectors."""

from __future__ import annotations

from collections.abc import Mapping

Evidence = Mapping[str, object]

KNOWN = ("library", "isa", "device")

REPORTED = "reported"
"""What the libraries said in full, a line for each of "names"; where it is there, they were asked."""

SAID = ("names", REPORTED)

GUESSED = ("library", "isa")
"""What is taken from an operator's name and from settings, where no library was asked."""

SILENT = "neither oneDNN nor MKL says a word"
ATEN = "ATen"
REORDER = "oneDNN reorder "


def kernel_text(evidence: Evidence) -> str | None:
    """``oneDNN AVX2, 4 threads``; what the libraries said, or CUDA kernel names, in order; None without evidence."""
    if not evidence:
        return None
    names = evidence.get("names")
    if REPORTED in evidence and (names or evidence.get("library") != ATEN):
        ran = telling(list(map(str, names))) if isinstance(names, list) and names else [SILENT]
        return f"{', '.join(ran)}, {_threads(evidence.get('threads'))}"
    if isinstance(names, list) and names:
        from rltrace.trace.kernel_names import in_words  # fifteen patterns, which a recorder needs none of

        return ", ".join(in_words(list(map(str, names))))
    words = " ".join(str(evidence[key]) for key in ("library", "isa", "device") if evidence.get(key) is not None)
    rest = [_threads(v) if k == "threads" else f"{k} {v}" for k, v in evidence.items() if k not in (*KNOWN, *SAID)]
    return ", ".join(filter(None, [words, *rest]))


def whole_names(evidence: Evidence) -> tuple[str, ...] | None:
    """Every name in full, in order; None: nothing is known by name."""
    names = evidence.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else None


def kernel_names(evidence: Evidence) -> list[str]:
    """What a ``kernel=`` selector is matched against."""
    names = evidence.get("names")
    return [str(name) for name in names] if isinstance(names, list) and names else [kernel_text(evidence) or ""]


def telling(names: list[str]) -> list[str]:
    """Each once, without the copies into another layout that oneDNN makes on the way, if anything else ran."""
    return [name for name in dict.fromkeys(names) if not name.startswith(REORDER)] or names[:1]


def _threads(count: object) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
