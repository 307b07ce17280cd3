"""Comparisons with a shortcut switched off: the same JSON, except for how much was read."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rltrace.diff import Comparison, compare
from rltrace.diff.base.view import Shortcuts
from rltrace.json import to_json

NAMES = tuple(field.name for field in fields(Shortcuts))

EACH = tuple((name,) for name in NAMES)
ALL_AT_ONCE = (NAMES,)


def again(a: Path, b: Path) -> Callable[[Shortcuts], Comparison]:
    """Compares two traces with these shortcuts."""
    return lambda shortcuts: compare(a, b, shortcuts=shortcuts)


def compare_checked(a: Path, b: Path, without: Iterable[tuple[str, ...]] = ALL_AT_ONCE) -> Comparison:
    """The comparison of two traces, once it has the same result without these shortcuts."""
    found = compare(a, b)
    assert unlike(found, again(a, b), without) == {}
    return found


def result(comparison: Comparison) -> dict[str, Any]:
    """The JSON, without the search, and without counts of only those rows that happened to be read."""
    found: dict[str, Any] = to_json(comparison)
    del found["search"]
    for name in ("marked", "events"):
        if not found[name]["whole"]:
            del found[name]
    return found


def unlike(
    plain: Comparison, again: Callable[[Shortcuts], Comparison], without: Iterable[tuple[str, ...]] = EACH
) -> dict[tuple[str, ...], list[str]]:
    """Shortcuts without which a comparison that is made ``again`` has another result, with the keys that differ.

    ``without``: which are switched off together, each of these in turn. A pair of which rows are missing, or are found
    damaged where they are read, is left out: digests prove rows equal without reading them.
    """
    if plain.holes or any(plain.unfinished):
        return {}
    wanted, found = result(plain), {}
    for names in without:
        with pytest.MonkeyPatch.context() as patch:
            if "caches" in names:
                patch.setattr("rltrace.trace.read.stream.CACHED_SEGMENTS", 0)
                patch.setattr("rltrace.diff.base.context.MAX_CACHED_STEPS", 1)
            compared = again(replace(Shortcuts(), **dict.fromkeys(names, False)))
        if compared.holes:
            continue
        other = result(compared)
        differing = [key for key in {*wanted, *other} if wanted.get(key) != other.get(key)]
        if differing:
            found[names] = sorted(differing)
    return found
