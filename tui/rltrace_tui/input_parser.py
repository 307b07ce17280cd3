"""What somebody typed, as what is looked for, shown or gone to.

Pure functions; what cannot be read raises a SelectorError that points at the character.
"""

from __future__ import annotations

import re

from rltrace.errors import SelectorError
from rltrace.selectors import Selector, escape, parse_selectors

SELECTORS = "op=*addmm, module=critic*, site=train.py:*, phase=backward, kernel=*gemm*, step=3:5"
"""Examples."""


def as_selector(text: str) -> str:
    """A bare word is part of an operator's name."""
    return text if "=" in text or text.strip() == "all" else f"op=*{escape(text.strip())}*"


def asked_for(text: str) -> Selector:
    """Raises SelectorError, which points at a character of ``text``."""
    return parse_selectors([as_selector(text)])


def place_asked(text: str) -> tuple[str, int]:
    """("a" or "b", row) or ("s", step). Raises SelectorError."""
    asked = re.fullmatch(r"\s*(s|step|a|b)?\s*([0-9][0-9,_]*)\s*", text, re.IGNORECASE)
    if asked is None:
        raise SelectorError("a row (184213, b184214) or a step (s37) is wanted")
    return (asked[1] or "a").lower()[0], int(re.sub("[,_]", "", asked[2]))
