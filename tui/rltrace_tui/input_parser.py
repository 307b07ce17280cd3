"""Parses what the user typed: selectors, rows and steps.

Pure functions; invalid input raises a SelectorError that points at the character.
"""

import re

from rltrace.errors import SelectorError
from rltrace.selectors import Selector, escape, parse_selectors

EXAMPLES = "op=*addmm, module=critic*, site=train.py:*, phase=backward, kernel=*gemm*, step=3:5"


def expand_selector(text: str) -> str:
    """``text`` as a selector; a bare word matches any part of an operator's name."""
    return text if "=" in text or text.strip() == "all" else f"op=*{escape(text.strip())}*"


def parse_selector(text: str) -> Selector:
    """Raises SelectorError, which points at a character of ``text``."""
    return parse_selectors([expand_selector(text)])


def parse_place(text: str) -> tuple[str, int]:
    """("a" or "b", row) or ("s", step). Raises SelectorError."""
    match = re.fullmatch(r"\s*(s|step|a|b)?\s*([0-9][0-9,_]*)\s*", text, re.IGNORECASE)
    if match is None:
        raise SelectorError("a row (184213, b184214) or a step (s37) is wanted")
    return (match[1] or "a").lower()[0], int(re.sub("[,_]", "", match[2]))
