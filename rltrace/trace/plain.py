"""JSON from a trace, which anybody may have written: as much as fits, and nothing that a terminal would act on.

Owns how many values are taken out of one text and out of all texts of a process, and how they are rid of control
characters, so that whoever shows a name shows a name.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

MOST_AT_ONCE: Final = 1 << 20
"""Values in one text: a journal's record, a line of a table, a birth record."""

MOST: Final = 1 << 24
"""Values in all texts of one process. An empty list, the least of them, takes 3 bytes on disk and 64 in memory."""

_CONTROL = re.compile(rb"\\u00[0189][0-9a-f]|\\u007f|\\[bfr]|\x7f|\xc2[\x80-\x9f]", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Budget:
    """How many values may still be taken."""

    def __init__(self, most: int = MOST) -> None:
        self._left = most

    def load(self, text: bytes) -> Any:
        """What a text holds. Raises ValueError where it is no JSON, or more than is taken."""
        values = text.count(b",") + text.count(b"[") + text.count(b"{") + 1
        if values > MOST_AT_ONCE:
            raise ValueError(f"holds more than {MOST_AT_ONCE:,} values")
        self._left -= values
        if self._left < 0:
            raise ValueError("exceeds the limit of a reader for one process")
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("is nested too deep") from None


def has_control(text: bytes) -> bool:
    """Whether a JSON text holds control characters, so that what it says is to be made ``printable``."""
    return _CONTROL.search(text) is not None


def printable(found: Any) -> Any:
    """The same without control characters, tabs and line ends aside."""
    if isinstance(found, str):
        return _UNPRINTABLE.sub("\ufffd", found)
    if isinstance(found, list):
        return [printable(item) for item in found]
    if isinstance(found, dict):
        return {printable(key): printable(value) for key, value in found.items()}
    return found
