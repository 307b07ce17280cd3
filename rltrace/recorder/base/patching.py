"""Functions of other libraries that are replaced while a process is recorded.

Owns the one rule for all of them: a function is put back only where the recorder's own still stands. Whoever has
replaced it since has something of its own there, which stays; where that calls the recorder's function, the call is
passed on to the original and to nobody else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

Around = Callable[..., Any]
"""Called in place of a function, with the original before the arguments of the call."""


class Patches:
    """Functions that are replaced together, and put back together. True while any is."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def wrap(self, holder: Any, name: str, around: Around) -> None:
        """Have ``around`` called in place of ``holder.name``; nothing where this version of a library has none."""
        original = getattr(holder, name, None)
        if original is not None:
            self.replace(holder, name, self._wrapper(original, around))

    def wrap_all(self, holders: Sequence[Any], name: str, around: Around) -> None:
        """The same for one function that several modules have by that name, the first of them certainly."""
        original = getattr(holders[0], name)
        wrapper = self._wrapper(original, around)
        for holder in holders:
            if getattr(holder, name, None) is original:
                self.replace(holder, name, wrapper)

    def _wrapper(self, original: Any, around: Around) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._undo:  # put back, and yet called: by what has replaced it in turn
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        return wrapper

    def replace(self, holder: Any, name: str, function: Any) -> None:
        """Put ``function`` there, which passes calls on by itself once this is over."""
        own, original = name in vars(holder), getattr(holder, name)
        setattr(holder, name, function)

        def undo() -> None:
            if getattr(holder, name, None) is not function:
                return
            if own:
                setattr(holder, name, original)
            else:  # inherited
                delattr(holder, name)

        self._undo.append(undo)

    def undo_all(self) -> None:
        """Put back what is still the recorder's, the last one first."""
        while self._undo:
            self._undo.pop()()
