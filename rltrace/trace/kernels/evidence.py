"""Kernel evidence (table "kernels") as text, for people and for ``kernel=`` selectors.

For an op on a GPU whose kernels a profiler saw, an entry is ``{"device": "cuda", "names": [full name, …], "launches":
[[grid, block], …]}``: a pair of lists of three numbers for each name, empty lists for copies and memsets.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

Evidence = Mapping[str, object]
Geometry = tuple[tuple[int, ...], tuple[int, ...]]
"""Grid and block of one launch."""

KNOWN = ("library", "isa", "device")

REPORTED = "reported"
"""Key: the output of the libraries, a line for each of "names"; only where they were queried."""

LAUNCHES = "launches"
"""Key: grid and block of each of "names"; only where a profiler was active."""

WITHIN = "within"
"""Key: of a row of JAX that others are within, its op with their key, and how many: ``jit.train.before@8b1f… 21``."""

DETAILS = ("names", REPORTED, LAUNCHES, WITHIN)

INFERRED = ("library", "isa")
"""Keys inferred from the operator's name and from settings, where no library was queried."""

TRITON = "Triton"
"""Library of a launch row; the other keys are its configuration, its grid, and "code", a fingerprint of its source."""

CODE = "code"

LAUNCH_ROWS = ("triton.", "ctypes.", "extension.")
"""Starts of the operator names of launch rows: calls of code outside torch's dispatcher."""

SILENT = "neither oneDNN nor MKL reports anything"
NOTHING = "no kernel was launched"
ATEN = "ATen"
REORDER = "oneDNN reorder "


def kernel_text(evidence: Evidence, words: Mapping[str, str] | None = None) -> str | None:
    """``oneDNN AVX2, 4 threads``, or the names that libraries or a profiler reported, in order; None: no evidence.

    ``words``: how names are shown that a profiler reported; others so that those of this evidence are distinct.
    """
    if not evidence:
        return None
    names = evidence.get("names")
    if REPORTED in evidence and (names or evidence.get("library") != ATEN):
        ran = without_reorders(list(map(str, names))) if isinstance(names, list) and names else [SILENT]
        return f"{', '.join(ran)}, {_threads(evidence.get('threads'))}"
    if isinstance(names, list) and names:
        from rltrace.trace.kernels.names import distinct_names  # many patterns, which a recorder does not need

        made_for, full = evidence.get("vectors"), list(map(str, names))
        shown = [words[name] for name in full] if words and words.keys() >= {*full} else distinct_names(full)
        return joined(shown) + (f", made for {made_for}" if made_for else "")
    head = " ".join(str(evidence[key]) for key in ("library", "isa", "device") if evidence.get(key) is not None)
    unlisted = (*KNOWN, *DETAILS, CODE)
    rest = [_threads(v) if k == "threads" else f"{k} {v}" for k, v in evidence.items() if k not in unlisted]
    return ", ".join(filter(None, [head, *rest, NOTHING if LAUNCHES in evidence else ""]))


def kernel_texts(a: Evidence, b: Evidence) -> tuple[str | None, str | None]:
    """The texts of both sides of a comparison; longer, or with grids, where they differ and short texts do not."""
    texts = kernel_text(a), kernel_text(b)
    names = whole_names(a), whole_names(b)
    if texts[0] != texts[1] or not names[0] or not names[1] or REPORTED in a:
        return texts
    if names[0] != names[1]:
        from rltrace.trace.kernels.names import distinct_names

        words = distinct_names([*names[0], *names[1]])
        return joined(words[: len(names[0])]), joined(words[len(names[0]) :])
    on_a, on_b = launches(a), launches(b)
    if on_a is not None and on_b is not None and on_a != on_b:
        from rltrace.trace.kernels.names import distinct_names

        words = distinct_names(names[0])
        return _on_grids(words, on_a), _on_grids(words, on_b)
    return texts


def _on_grids(words: Sequence[str], geometries: Sequence[Geometry]) -> str:
    return joined([f"{word} in {geometry_text(one)}" for word, one in zip(words, geometries, strict=True)])


def launches(evidence: Evidence) -> tuple[Geometry, ...] | None:
    """Grid and block of each of the names; None: not known."""
    names, found = evidence.get("names"), evidence.get(LAUNCHES)
    if not isinstance(names, list) or not isinstance(found, list) or len(found) != len(names):
        return None
    try:
        return tuple((tuple(map(int, grid)), tuple(map(int, block))) for grid, block in found)
    except (ValueError, TypeError):
        return None


def geometry_text(geometry: Geometry) -> str:
    """``160 blocks of 256 threads``, ``32×8 blocks of 64×4 threads``; trailing sides of 1 are left out."""
    grid, block = (_product(sides) for sides in geometry)
    return f"{grid} {'block' if grid == '1' else 'blocks'} of {block} {'thread' if block == '1' else 'threads'}"


def _product(sides: Sequence[int]) -> str:
    """``32×8`` of 32, 8 and 1."""
    last = max((k for k, side in enumerate(sides) if side != 1), default=0)
    return "×".join(map(str, sides[: last + 1])) or "?"


def whole_names(evidence: Evidence) -> tuple[str, ...] | None:
    """The full names, in order; None: no names are known."""
    names = evidence.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else None


def kernel_names(evidence: Evidence) -> list[str]:
    """The names that a ``kernel=`` selector matches."""
    names = evidence.get("names")
    return [str(name) for name in names] if isinstance(names, list) and names else [kernel_text(evidence) or ""]


def without_reorders(names: list[str]) -> list[str]:
    """The distinct names, without oneDNN's copies into another layout if anything else ran."""
    return [name for name in dict.fromkeys(names) if not name.startswith(REORDER)] or names[:1]


def joined(words: Sequence[str], between: str = ", ") -> str:
    """The words with ``between`` between them, repetitions counted: ``add ×3, mul``."""
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    return between.join(word if count == 1 else f"{word} ×{count}" for word, count in runs)


def _threads(count: object) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
