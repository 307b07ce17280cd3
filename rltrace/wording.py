"""Counts, lists and sentences in English. Pure functions, which every layer may use."""

from collections.abc import Iterable


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 op``, ``12,345 ops``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ordinal(n: int) -> str:
    """``1st``, ``2nd``, ``11th``, ``2,001st``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def joined(words: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``; there is at least one."""
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def sentences(*texts: str) -> tuple[str, ...]:
    """A sentence for each text that is not empty."""
    return tuple(sentence(text) for text in texts if text)


def cut(text: str, width: int) -> str:
    """At most ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
