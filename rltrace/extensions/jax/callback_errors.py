"""The error of a callback of the program, as the program sees it unrecorded.

XLA puts the stack of the thread into the error's text, with the recorder's frames. A call that JAX's C++ cache serves
raises a ValueError, any other a JaxRuntimeError; a recorded one of a function with callbacks is never served.
"""

import dis
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import jax
from jax._src import callback, pjit, stages

FRAME = re.compile(r'  File "(.*)", line \d+, in (\S+)')
OWN, JAX = f"{Path(__file__).parents[2]}/", f"{Path(jax.__file__).parent}/"
"""Folders of the recorder and of JAX."""

INNER = ("_pjit_call_impl", "call_impl_cache_miss")
"""Functions of JAX that call an inner function, as the recorder calls some."""


class ServedCalls:
    """Which calls of a function JAX's C++ cache would serve: those of a kind of which the first one has returned."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[Any, ...], bool] = {}

    def note(self, args: Sequence[Any], *, returned: bool) -> bool:
        """A call has returned, or raised; returns whether calls of its kind are served."""
        kind = tuple((type(a), getattr(a, "sharding", None), getattr(a, "_committed", None)) for a in args)
        return self._kinds.setdefault(kind, returned)


def as_unrecorded(error: Exception, original: Callable[..., Any], *, is_served: bool) -> Exception:
    """The error that a call raises unrecorded; another one than a callback's as it is.

    ``original``: JAX's function that executes a compiled one. ``is_served``: whether JAX's C++ cache would serve it.
    """
    lines = str(error).split("\n")
    files = [found[1] if (found := FRAME.match(line)) else "" for line in lines]
    if callback.__file__ not in files:
        return error
    end = start = files.index(callback.__file__)
    while start and files[start - 1].startswith((OWN, JAX)):
        start -= 1
    called = [] if is_served else _executing(lines[start:end], files[start:end], getattr(original, "__code__", None))
    within = [line for line, file in zip(lines[end:], files[end:], strict=True) if not file.startswith(OWN)]
    text = "\n".join([*lines[:start], *called, *within])
    kind = ValueError if is_served else type(error)
    return kind(text).with_traceback(error.__traceback__)


def _executing(lines: Sequence[str], files: Sequence[str], code: CodeType | None) -> list[str]:
    """JAX's frames from the call of a compiled function to its execution, of those of a recorded call."""
    kept = [(line, file) for line, file in zip(lines, files, strict=True) if not file.startswith(OWN)]
    if any(line.endswith(" in cache_miss") for line, _ in kept):
        kept = [(line, file) for line, file in kept if not line.endswith(INNER)]
    at = next((i for i, (_, file) in enumerate(kept) if file == stages.__file__), None)
    if at is not None and code is not None:  # a part of a function: its own execution is that of a whole one
        numbers = [i.positions.lineno for i in dis.get_instructions(code) if i.argval == "unsafe_call" and i.positions]
        line = [f'  File "{pjit.__file__}", line {number}, in {code.co_name}' for number in numbers[:1]]
        return [*(line for line, _ in kept[:at]), *line, *(line for line, _ in kept[-2:])]
    return [line for line, _ in kept]
