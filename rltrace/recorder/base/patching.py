"""Patches: functions of other libraries that are replaced while a process is recorded.

Owns the rule for all of them: a function is restored only where the recorder's replacement is still in place. Where
another library has replaced it since, that replacement stays, and its calls of the recorder's function go to the
original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rltrace.recorder.base.import_hook import FindCallback, ImportHook, OnImport

Around = Callable[..., Any]
"""Called in place of a function, with the original before the arguments of the call."""


class Patches:
    """Functions that are replaced together and restored together. True while any is replaced."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def wrap(self, holder: Any, name: str, around: Around) -> None:
        """Have ``around`` called in place of ``holder.name``; nothing where this version of a library lacks it."""
        original = getattr(holder, name, None)
        if original is not None:
            self.replace(holder, name, self._wrapper(original, around))

    def wrap_all(self, holders: Sequence[Any], name: str, around: Around) -> None:
        """The same for a function that several modules import under that name, at least the first of them."""
        original = getattr(holders[0], name)
        wrapper = self._wrapper(original, around)
        for holder in holders:
            if getattr(holder, name, None) is original:
                self.replace(holder, name, wrapper)

    def _wrapper(self, original: Any, around: Around) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._undo:  # undone, and still called by a later replacement
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        return wrapper

    def replace(self, holder: Any, name: str, function: Any) -> None:
        """Set ``holder.name`` to ``function``, which must call the original by itself once this is undone."""
        own = name in vars(holder)
        original = vars(holder)[name] if own else None  # as it is there: in a class, a descriptor
        setattr(holder, name, function)

        def undo() -> None:
            if vars(holder).get(name) is not function:
                return
            if own:
                setattr(holder, name, original)
            else:  # inherited
                delattr(holder, name)

        self._undo.append(undo)

    def on_import(
        self, awaited: Mapping[str, OnImport], fail: Callable[[Exception], None], find: FindCallback | None = None
    ) -> None:
        """Have modules patched once they are imported, until ``undo_all``. The arguments are those of ImportHook."""
        hook = ImportHook(awaited, fail, find)
        self._undo.append(hook.uninstall)
        hook.install()

    def undo_all(self) -> None:
        """Restore every function that is still the recorder's, the last one first."""
        while self._undo:
            self._undo.pop()()
