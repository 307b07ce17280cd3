"""Standing in for a method of every class below one, while a process is recorded.

Owns the exchange and its undoing. A class of the program's must not notice: looked up on the class the method is the
original function, so that ``super()``, ``inspect``, comparisons and pickling by value (cloudpickle hands classes of
``__main__`` to child processes so) see what they would see anyway. Only a lookup on an instance finds the stand-in.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

Method = Callable[..., Any]
Around = Callable[[Method], Method]
"""From a method to what stands in for it."""

HOOK = "__init_subclass__"


class CallDepth(threading.local):
    """How deep the calling thread is in calls that are stood in for."""

    depth = 0
    seen = 0
    """Calls so far that were events within another."""


class MethodPatch:
    """A descriptor in place of a function in a class. In calls ``deepest`` deep and more the original is found: a stack
    of wrappers looks its methods up at every step, and its outermost call is the one that counts."""

    __slots__ = ("_bind", "_bind_stand_in", "_deepest", "_home", "_meet", "_name", "_within", "original")

    def __init__(
        self,
        home: type,
        name: str,
        original: FunctionType,
        around: Around,
        meet: Callable[[type], None],
        within: CallDepth,
        deepest: int,
    ) -> None:
        self.original = original
        self._home = id(home)
        """Of the class that has it: as long as this is asked, that class lives."""
        self._name = name
        self._bind = original.__get__
        stand_in: Any = functools.wraps(original)(around(original))
        self._bind_stand_in = stand_in.__get__
        self._meet = meet
        self._within = within
        self._deepest = deepest

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        if self._within.depth >= self._deepest:
            return self._bind(instance)
        if id(owner) == self._home:
            return self._bind_stand_in(instance)
        try:
            called = getattr(owner, self._name, None)
            if owner is not None and called is not self.original and isinstance(called, FunctionType):
                self._meet(owner)  # ``super().step``: what overrides it is the call that counts
                return self._bind(instance)
        except Exception:  # of a metaclass's own: whatever it is, the method is what was asked for
            return self._bind(instance)
        return self._bind_stand_in(instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its class it is the original, wherever it is read back."""
        return copy.copy, (self.original,)


class Subclasses:
    """Methods of a class and of all below it, those that are yet to be defined too."""

    def __init__(
        self,
        root: type,
        methods: Mapping[str, Around],
        fail: Callable[[Exception], None],
        within: CallDepth,
        deepest: int,
    ) -> None:
        self._root = root
        self._methods = methods
        self._within = within
        self._deepest = deepest
        self._fail = fail
        self._changed: list[tuple[weakref.ref[type], str, MethodPatch]] = []
        self._met: dict[int, weakref.ref[type]] = {}
        """Classes whose methods have been looked at since they were complete."""
        self._hook: Any = None
        self._original_hook: Any = None

    def install(self) -> None:
        for cls in _below(self._root):
            self._exchange(cls)
        self._hook, self._original_hook = self._make_hook(), vars(self._root).get(HOOK)
        setattr(self._root, HOOK, self._hook)

    def uninstall(self) -> None:
        while self._changed:
            reference, name, stand_in = self._changed.pop()
            cls = reference()
            if cls is not None and vars(cls).get(name) is stand_in:  # else the program has put in something of its own
                setattr(cls, name, stand_in.original)
        if self._hook is not None and vars(self._root).get(HOOK) is self._hook:
            if self._original_hook is None:
                delattr(self._root, HOOK)
            else:
                setattr(self._root, HOOK, self._original_hook)
        self._hook = None

    def _exchange(self, cls: type) -> None:
        for name, around in self._methods.items():
            original = vars(cls).get(name)
            if isinstance(original, FunctionType):
                stand_in = MethodPatch(cls, name, original, around, self._meet, self._within, self._deepest)
                try:
                    setattr(cls, name, stand_in)
                except (AttributeError, TypeError):  # a metaclass that allows no change: its calls go unseen
                    return
                self._changed.append((weakref.ref(cls), name, stand_in))

    def _meet(self, cls: type) -> None:
        """An instance of ``cls`` is at work. A class that was pickled by value gets its methods after it was made."""
        known = self._met.get(id(cls))
        if known is not None and known() is cls:
            return
        self._met[id(cls)] = weakref.ref(cls)
        for base in cls.__mro__:
            if base is not self._root and issubclass(base, self._root):
                self._exchange(base)

    def _make_hook(self) -> Any:
        root: Any = self._root
        own = vars(root).get(HOOK)

        def hook(cls: Any, /, **keywords: Any) -> None:
            if own is None:
                super(root, cls).__init_subclass__(**keywords)
            else:
                own.__get__(None, cls)(**keywords)
            try:
                self._exchange(cls)
            except Exception as error:
                self._fail(error)

        return classmethod(hook)


def _below(root: type) -> Iterator[type]:
    """``root`` and every class that derives from it, each once."""
    seen: set[type] = set()
    open_ = [root]
    while open_:
        cls = open_.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            open_ += cls.__subclasses__()
