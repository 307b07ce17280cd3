"""Colour for text reports, where it is requested. Never the only carrier of meaning."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.base.model import Verdict

COLORS = {Verdict.IDENTICAL: "32", Verdict.SAME_VALUES: "32", Verdict.DIVERGED: "31", Verdict.UNKNOWN: "33"}


@dataclass(frozen=True)
class Style:
    """Terminal escape sequences, or plain text."""

    color: bool

    def bold(self, text: str) -> str:
        return self._escape(text, "1")

    def verdict(self, text: str, verdict: Verdict) -> str:
        return self._escape(text, f"1;{COLORS[verdict]}")

    def paint(self, text: str, color: str) -> str:
        """``color``: the number of an escape sequence."""
        return self._escape(text, f"1;{color}")

    def _escape(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text
