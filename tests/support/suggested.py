"""Commands of rltrace as their verbs read them, wherever the traces that they name are."""

import shlex
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import patch

import click

from rltrace.commands.main import VERBS


def command_of(verb: str) -> click.Command:
    """The click command of a verb."""
    found = import_module(VERBS[verb].module).command
    assert isinstance(found, click.Command)
    return found


@cache
def parse(words: tuple[str, ...]) -> None:
    """Let the verb parse its words, as if every path existed. Raises click.UsageError."""
    name, verb, *rest = words
    assert name == "rltrace"
    with patch.object(click.Path, "convert", lambda self, value, param, context: value):
        command_of(verb).make_context(verb, rest)


def _join(words: list[str]) -> str:
    parse(tuple(words))
    return shlex.join(words)


PARSING = SimpleNamespace(join=_join, quote=shlex.quote, split=shlex.split)
"""In place of ``shlex`` in the module that makes commands: each is parsed first."""
