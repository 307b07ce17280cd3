"""Masking of secrets in command lines and environment variables before they are written to a trace.

Owns which values look like secrets, and ``~`` for the home folder. Standard library only. Masking errs on the side of
hiding; a secret in an argument with an ordinary name may still be recorded.
"""

import os
import re
from collections.abc import Iterable
from itertools import pairwise

MASK = "***"

_WORDS = re.compile(r"[a-z]+")
_SECRET_WORDS = {"token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "apikey", "auth"}
_SECRET_PAIRS = {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key")}
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_\-]{12,}")
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]+):[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
_NUMBER = re.compile(r"[+-]?[0-9.]{1,12}(?:e[+-]?[0-9]+)?", re.IGNORECASE)
_LONG = 20


def secret_name(name: str) -> bool:
    """Whether an option, variable or key of this name holds a secret: ``--api-key``, ``WANDB_API_KEY``."""
    words = _WORDS.findall(name.lower())
    pairs = pairwise(words)
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in pairs)


def masked_value(name: str, value: str) -> str:
    """``value`` of the option or variable ``name``, masked where it looks like a secret."""
    if _NUMBER.fullmatch(value):
        return value
    if secret_name(name):
        return MASK
    if "key" in _WORDS.findall(name.lower()) and _looks_random(value):
        return MASK
    return masked_text(value)


def masked_text(text: str) -> str:
    """``text`` without passwords in URLs and tokens of known services, and with ``~`` for the home folder."""
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    return home_as_tilde(_KNOWN_TOKEN.sub(MASK, text))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command line, secrets masked."""
    shown: list[str] = []
    option = ""
    for argument in arguments:
        name, assigned, value = argument.partition("=")
        if assigned and not any(c.isspace() for c in name):
            shown.append(f"{home_as_tilde(name)}={masked_value(name, value)}")
        elif option and not argument.startswith("-"):
            shown.append(masked_value(option, argument))
        else:
            shown.append(masked_text(argument))
        option = argument if argument.startswith("-") and not assigned else ""
    return shown


def home_as_tilde(text: str, home: str | None = None) -> str:
    """``text`` with the home folder written as ``~`` wherever a path under it begins."""
    home = (os.path.expanduser("~") if home is None else home).rstrip("/")  # noqa: PTH111  a string, not a path
    if len(home) < 2 or home not in text:
        return text
    return re.sub(rf"(?<![\w./~\-]){re.escape(home)}(?![\w.\-])", "~", text)


def _looks_random(value: str) -> bool:
    """Whether a value is long, without spaces or path separators, and of many characters, as generated keys are."""
    if len(value) < _LONG or any(c.isspace() or c in "/\\" for c in value):
        return False
    return len(set(value)) >= 10 and any(c.isdigit() for c in value)
