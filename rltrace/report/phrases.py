"""Text that all reports share: headlines, counts, sentences. Pure functions."""

from __future__ import annotations

from rltrace.diff.base.model import Comparison, Finding, Verdict

HEADLINES = {
    Verdict.IDENTICAL: "IDENTICAL",
    Verdict.SAME_VALUES: "SAME VALUES",
    Verdict.DIVERGED: "DIVERGED",
    Verdict.UNKNOWN: "UNKNOWN",
}


def shown_finding(comparison: Comparison) -> Finding | None:
    """The finding that the verdict rests on, or else the most informative one."""
    return comparison.decisive or comparison.first_value or comparison.first


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 op``, ``12,345 ops``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ordinal(n: int) -> str:
    """``1st``, ``2nd``, ``11th``, ``2,001st``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def cut(text: str, width: int) -> str:
    """At most ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
