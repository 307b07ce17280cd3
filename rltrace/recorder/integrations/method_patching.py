"""Patches of a method in a class and all of its subclasses, while a process is recorded.

Owns the patching and its undoing. The program's classes must not notice: looked up on the class the method is the
original function, so that ``super()``, ``inspect``, comparisons and pickling by value (cloudpickle hands classes of
``__main__`` to child processes so) find what they would find unrecorded. Only a lookup on an instance finds the
replacement.
"""

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

Method = Callable[..., Any]
MethodDecorator = Callable[[Method], Method]
"""From a method to its replacement."""

HOOK = "__init_subclass__"


class CallDepth(threading.local):
    """How many patched calls are open in the calling thread."""

    depth = 0
    nested_events = 0
    """Calls so far that were events within another call."""


class MethodPatch:
    """A descriptor in place of a function in a class. In calls ``max_depth`` deep and more the original is found: a
    stack of wrappers looks its methods up at every step, and only its outermost call is an event."""

    __slots__ = (
        "_bind",
        "_bind_replacement",
        "_call_depth",
        "_max_depth",
        "_name",
        "_owner",
        "_patch",
        "is_inherited",
        "original",
    )

    def __init__(
        self,
        owner: type,
        name: str,
        original: FunctionType,
        decorate: MethodDecorator,
        patch: Callable[[type], None],
        call_depth: CallDepth,
        max_depth: int,
    ) -> None:
        self.original = original
        self.is_inherited = False
        """Whether the class has the method from a mixin, which is none of the patched classes."""
        self._owner = id(owner)
        """Of the class that has the method: that class lives as long as its descriptor is called."""
        self._name = name
        self._bind = original.__get__
        replacement: Any = functools.wraps(original)(decorate(original))
        self._bind_replacement = replacement.__get__
        self._patch = patch
        self._call_depth = call_depth
        self._max_depth = max_depth

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.original
        if self._call_depth.depth >= self._max_depth:
            return self._bind(instance)
        if id(owner) == self._owner:
            return self._bind_replacement(instance)
        try:
            called = getattr(owner, self._name, None)
            if owner is not None and called is not self.original and isinstance(called, FunctionType):
                self._patch(owner)  # ``super().step``: the method that overrides this one is the event
                return self._bind(instance)
        except Exception:  # raised by a metaclass: the lookup itself must succeed
            return self._bind(instance)
        return self._bind_replacement(instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its class it is the original, wherever it is unpickled."""
        return copy.copy, (self.original,)


class SubclassPatches:
    """Patches of methods of a class and all of its subclasses, those defined later included."""

    def __init__(
        self,
        root: type,
        methods: Mapping[str, MethodDecorator],
        fail: Callable[[Exception], None],
        call_depth: CallDepth,
        max_depth: int,
    ) -> None:
        self._root = root
        self._methods = methods
        self._call_depth = call_depth
        self._max_depth = max_depth
        self._fail = fail
        self._patches: list[tuple[weakref.ref[type], str, MethodPatch]] = []
        self._complete: dict[int, weakref.ref[type]] = {}
        """By id, classes that were patched after all of their methods were defined."""
        self._hook: Any = None
        self._original_hook: Any = None

    def install(self) -> None:
        for cls in _subclasses(self._root):
            self._patch(cls)
        self._hook, self._original_hook = self._make_hook(), vars(self._root).get(HOOK)
        setattr(self._root, HOOK, self._hook)

    def uninstall(self) -> None:
        while self._patches:
            reference, name, patch = self._patches.pop()
            cls = reference()
            if cls is not None and vars(cls).get(name) is patch:  # else the program has replaced it since
                if patch.is_inherited:
                    delattr(cls, name)
                else:
                    setattr(cls, name, patch.original)
        if self._hook is not None and vars(self._root).get(HOOK) is self._hook:
            if self._original_hook is None:
                delattr(self._root, HOOK)
            else:
                setattr(self._root, HOOK, self._original_hook)
        self._hook = None

    def _patch(self, cls: type) -> None:
        for name, decorate in self._methods.items():
            owner = next((base for base in cls.__mro__ if name in vars(base)), None)
            if owner is None or (owner is not cls and issubclass(owner, self._root)):
                continue  # it is patched there
            original = vars(owner)[name]
            if isinstance(original, FunctionType):
                patch = MethodPatch(
                    cls, name, original, decorate, self._patch_complete, self._call_depth, self._max_depth
                )
                patch.is_inherited = owner is not cls
                try:
                    setattr(cls, name, patch)
                except (AttributeError, TypeError):  # a metaclass that allows no change: its calls are not recorded
                    return
                self._patches.append((weakref.ref(cls), name, patch))

    def _patch_complete(self, cls: type) -> None:
        """Patch a class that has an instance. A class pickled by value gets its methods after it was made."""
        known = self._complete.get(id(cls))
        if known is not None and known() is cls:
            return
        self._complete[id(cls)] = weakref.ref(cls)
        for base in cls.__mro__:
            if base is not self._root and issubclass(base, self._root):
                self._patch(base)

    def _make_hook(self) -> Any:
        root: Any = self._root
        own = vars(root).get(HOOK)

        def hook(cls: Any, /, **keywords: Any) -> None:
            if own is None:
                super(root, cls).__init_subclass__(**keywords)
            else:
                own.__get__(None, cls)(**keywords)
            try:
                self._patch(cls)
            except Exception as error:
                self._fail(error)

        return classmethod(hook)


def _subclasses(root: type) -> Iterator[type]:
    """``root`` and every class that derives from it, each once."""
    seen: set[type] = set()
    pending = [root]
    while pending:
        cls = pending.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            pending += cls.__subclasses__()
