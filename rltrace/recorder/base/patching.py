"""Patches: functions of other libraries that are replaced while a process is recorded, once they are imported.

Owns the rule for all of them: a function is restored only where the recorder's replacement is still in place. Where
another library has replaced it since, that replacement stays, and its calls of the recorder's function go to the
original.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OnImport = Callable[[ModuleType], None]

FindCallback = Callable[[ModuleSpec], OnImport | None]
"""The callback for the import of a module that was not named; None: there is none."""


class ImportHook:
    """Calls back once for each awaited module: at ``install`` where it is loaded already, else after its import."""

    def __init__(
        self, awaited: Mapping[str, OnImport], fail: Callable[[Exception], None], find: FindCallback | None = None
    ) -> None:
        """``find``: asked for every module that is imported from now on."""
        self._awaited = dict(awaited)
        self._fail = fail
        self._find = find

    def install(self) -> None:
        for name in list(self._awaited):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is not None and getattr(spec, "_initializing", False):
                self._await(name, spec)
            elif module is not None:
                self._notify(name)
        if self._awaited or self._find is not None:
            sys.meta_path.insert(0, self)  # a finder needs no more than find_spec

    def uninstall(self) -> None:
        self._awaited.clear()
        self._find = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if (name not in self._awaited and self._find is None) or target is not None:
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 if self in finders else 0 :]:  # those before have not found it
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._add_found(name, spec)
                if name in self._awaited:
                    self._await(name, spec)
                return spec
        return None

    def _add_found(self, name: str, spec: ModuleSpec) -> None:
        try:
            callback = None if self._find is None or name in self._awaited else self._find(spec)
        except Exception as error:
            self._fail(error)
        else:
            if callback is not None:
                self._awaited[name] = callback

    def _notify(self, name: str) -> None:
        callback, module = self._awaited.pop(name, None), sys.modules.get(name)
        if callback is None or module is None:
            return
        try:
            callback(module)
        except Exception as error:  # another version of the library: must not end the program
            self._fail(error)

    def _await(self, name: str, spec: Any) -> None:
        plain, notify = type(spec), self._notify

        def get(self: Any) -> bool:
            return bool(self.__dict__.get("_initializing", False))

        def set_(self: Any, importing: bool) -> None:
            if importing:
                self.__dict__["_initializing"] = True
            else:
                self.__class__ = plain
                self._initializing = False  # another hook may await the same module
                notify(name)

        try:
            spec.__class__ = type(plain.__name__, (plain,), {"_initializing": property(get, set_)})
        except TypeError:  # the class of this spec cannot be replaced
            return
        if "_initializing" not in spec.__dict__:
            spec.__dict__["_initializing"] = False


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

    def wrap_often_called(self, holder: Any, name: str, make: Callable[[Any, Sequence[object]], Any]) -> None:
        """Replace ``holder.name`` with what ``make`` returns, without a call between: for functions that pay for each.

        ``make`` gets the original, and a sequence; once that is empty what it returns must only call the original.
        """
        original = getattr(holder, name, None)
        if original is not None:
            self.replace(holder, name, functools.wraps(original)(make(original, self._undo)))

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
