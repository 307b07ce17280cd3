"""Which ``nn.Module`` an op belongs to: in forward by its call, in backward by the autograd node's sequence number.

Owns module names and the forward stack of one thread. A name is the path from the outermost module that a constructor
registered it under, with that module's class in front: ``ActorCriticPolicy.mlp_extractor.policy_net.0``. Calling
``module.forward(...)`` directly goes unseen, so such ops count to the module around it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Final, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.jit._script import OrderedDictWrapper
from torch.nn.modules import module as torch_module

from rltrace.portable_keys import portable_key
from rltrace.recorder.base.dispatch_mode import current_observer
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.call_sites import Anchor

_KEPT: Final = 100_000
"""Breakpoints kept at most; older graphs' backward ops then have no module. Counted, so equal in every run."""
_MOST_BORN: Final = 10_000
"""Modules of one class that wait for a name; a program that makes more without calling one has the oldest forgotten."""


UNKNOWN_MODULES: Final = "modules.unknown"
"""A fact: classes of modules that could not be followed, each with the error."""

_sequence_number = torch._C._autograd._get_sequence_nr


class ModuleNames:
    """Names of all modules of the process."""

    def __init__(self, tables: Tables, missing: Callable[[str], None] = lambda what: None) -> None:
        """``missing`` is told of modules that cannot be followed. What fails there ends nothing."""
        self._tables = tables
        self._missing = missing
        self._parents: WeakIdDict[torch.nn.Module, tuple[weakref.ref[torch.nn.Module], str]] = WeakIdDict()
        self._roots: WeakIdDict[torch.nn.Module, str] = WeakIdDict()
        self._counts: dict[str, int] = {}
        """Outermost modules named so far, by class name."""
        self._born: dict[str, list[weakref.ref[torch.nn.Module]]] = {}
        """By class name, in the order of their birth: modules that have no name yet."""
        self._seen: WeakIdDict[torch.nn.Module, bool] = WeakIdDict()
        self._refs: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.known: dict[int, int] = {}
        """Id in table "modules" by ``id(module)``; an entry goes when its module dies."""

    def inherit(self, other: ModuleNames) -> None:
        """Know the modules of a process of which this one is a fork."""
        self._parents, self._roots, self._counts = other._parents, other._roots, other._counts
        self._born, self._seen = other._born, other._seen

    def born(self, module: torch.nn.Module, *_: object) -> None:
        """Something is registered with ``module`` (torch's registration hooks): the first time, it is being made."""
        if module not in self._seen:
            self._seen[module] = True
            born = self._born.setdefault(type(module).__name__, [])
            born.append(weakref.ref(module))
            if len(born) >= _MOST_BORN:
                born[:] = [reference for reference in born if reference() is not None][-_MOST_BORN // 2 :]

    def registered(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """``child`` becomes a submodule of ``parent`` (torch's registration hook).

        A module keeps the place it has while it stays there: ``self.layers[:n]`` puts the same layers into a list that
        lives for one loop.
        """
        self.born(parent)
        if child is not None and child is not parent and not self._has_place(child):
            self._parents[child] = (weakref.ref(parent), name)
            self._refs.clear()
            self.known.clear()

    def _has_place(self, module: torch.nn.Module) -> bool:
        """Whether the parent it was registered under lives, and still has it under that name."""
        up = self._parents.get(module)
        parent = up[0]() if up is not None else None
        return up is not None and parent is not None and dict(members(parent, "_modules")).get(up[1]) is module

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        """The outermost modules that have been called or registered into, with their names, in order of their names."""
        found: dict[str, torch.nn.Module] = {}
        for module in [*self._parents, *self._roots]:
            try:
                top, _ = self._top(module)
                found[self._root(top)] = top
            except Exception as error:
                self.failed(module, error)
        return sorted(found.items())

    def of(self, module: torch.nn.Module) -> int | None:
        """Id of the module's path; None where it cannot be found out."""
        found = self.known.get(id(module))
        if found is None:
            try:
                path = self.path(module)
                reference = weakref.ref(module, _forget(self.known, id(module)))
                found = self.known[id(module)] = self._tables.intern("modules", portable_key("modules", path), path)
                self._refs[id(module)] = reference
            except Exception as error:
                self.failed(module, error)
        return found

    def failed(self, module: torch.nn.Module, error: Exception) -> None:
        """A module could not be followed."""
        self._missing(f"{vars(type)['__name__'].__get__(type(module))} ({type(error).__name__})")

    def path(self, module: torch.nn.Module) -> str:
        top, names = self._top(module)
        return ".".join([self._root(top), *names])

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        """Path of the innermost module that holds all of ``parameters``, for display; "" where none is known to."""
        known = [*self._parents, *self._roots]
        owners = {id(held): module for module in known for _, held in members(module, "_parameters")}
        modules = [owners.get(id(parameter)) for parameter in parameters]
        paths = [self._shown(module) for module in modules if module is not None]
        if not paths or len(paths) < len(modules):
            return ""
        first, last = min(paths), max(paths)  # what these two begin with, all do
        shared = next(
            (k for k, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), min(len(first), len(last))
        )
        return ".".join(first[:shared])

    def _shown(self, module: torch.nn.Module) -> list[str]:
        """The parts of a module's path, without naming a module that has not been named yet."""
        top, names = self._top(module)
        return [self._roots.get(top) or type(top).__name__, *names]

    def _top(self, module: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
        """The outermost module above ``module``, and the names from there down."""
        names: list[str] = []
        seen = {id(module)}
        while (up := self._parents.get(module)) is not None:
            parent = up[0]()
            if parent is None or id(parent) in seen:
                break
            names.append(up[1])
            seen.add(id(parent))
            module = parent
        return module, names[::-1]

    def _root(self, module: torch.nn.Module) -> str:
        """Class name; from the second of a class on, in the order of their birth, ``QNetwork#2``.

        Not in the order of their calls: a program that walks a set calls its agents' networks in another order in
        every run. One whose birth was not seen (a copy, or one made before recording) is numbered when it is called.
        """
        name = self._roots.get(module)
        if name is None:
            for reference in self._born.pop(type(module).__name__, ()):
                born = reference()
                if born is not None and born not in self._roots and self._top(born)[0] is born:
                    self._number(born)
            name = self._roots.get(module) or self._number(module)
        return name

    def _number(self, module: torch.nn.Module) -> str:
        kind = type(module).__name__
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = self._roots[module] = kind if count == 1 else f"{kind}#{count}"
        self._adopt(module)
        return name

    def _adopt(self, root: torch.nn.Module) -> None:
        """Modules without a place: made before recording began, copied, unpickled, left by a parent that died.

        Not by ``modules()`` or ``children()``, which may be the program's own and hash modules.
        """
        met = {id(root)}
        below = [root]
        while below:
            parent = below.pop()
            inside = [(name, child) for name, child in members(parent, "_modules") if child is not None]
            for name, child in inside:
                self.registered(parent, name, child)
            below += [child for _, child in reversed(inside) if id(child) not in met]
            met.update(id(child) for _, child in inside)


def members(module: torch.nn.Module, kind: str) -> list[tuple[str, Any]]:
    """What a module has of one kind (``_modules``, ``_parameters``, ``_buffers``), by name.

    Nothing of the program's own runs: its classes may have methods and attributes of these names. Of a module that
    torch.jit has loaded the containers are torch's own, and no dictionaries.
    """
    held = object.__getattribute__(module, "__dict__").get(kind)
    if issubclass(type(held), dict):
        return list(dict.items(held))
    return list(held.items()) if issubclass(type(held), OrderedDictWrapper) else []


def tensors_of(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, of a module and all below it, each once and by the name that torch gives it."""
    modules = list(_named_modules(root))
    for kind in ("_parameters", "_buffers"):
        met: set[int] = set()
        for prefix, module in modules:
            for name, tensor in members(module, kind):
                if issubclass(type(tensor), torch.Tensor) and id(tensor) not in met:
                    met.add(id(tensor))
                    yield f"{prefix}{name}", tensor


def _named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and all below it, each once, by what its members' names begin with."""
    met: set[int] = set()
    below = [("", root)]
    while below:
        prefix, module = below.pop()
        if id(module) not in met:
            met.add(id(module))
            yield prefix, module
            inside = [(f"{prefix}{name}.", child) for name, child in members(module, "_modules")]
            below += [(path, child) for path, child in reversed(inside) if issubclass(type(child), torch.nn.Module)]


def _forget(known: dict[int, int], number: int) -> Any:
    return lambda _: known.pop(number, None)


class CallHook(Protocol):
    """Called for every call of a module in one thread. None of this may raise an error of its own."""

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> Any:
        """``module`` is about to be called, within ``depth - 1`` other calls. Returns what to remember of the call."""

    def ended(self, call: Any, result: Any) -> None:
        """The call for which ``begins`` returned ``call`` has returned ``result``."""

    def raised(self, call: Any) -> None:
        """It has raised."""


class ModuleStack:
    """The modules that one thread is inside of, and which sequence numbers belong to which."""

    def __init__(self, names: ModuleNames, anchors: list[Anchor]) -> None:
        self._names = names
        self._anchors = anchors
        self._outer: list[tuple[int, int]] = []
        self.current = 0
        """Id in table "modules" of the innermost module being called; 0: none."""
        self.on_outermost: Callable[[FrameType], None] | None = None
        """Told of the call of a module within no other one, by the frame that called it."""
        self.call_hooks: list[CallHook] = []
        """Called with what modules take and return, in this order, where calls are followed closely."""
        self.autograd_call_hooks: list[CallHook] = []
        """The same where a thread of autograd works for this one: it has no stack of modules."""
        self._starts: list[int] = []
        self._modules: list[int] = []

    def enter(self, module: torch.nn.Module, frame: FrameType) -> None:
        """``module`` is being called; ``frame`` runs until that call ends."""
        outer, anchors = self.current, self._anchors
        depth, walks = len(self._outer), len(anchors)
        try:
            if not depth and self.on_outermost is not None and frame.f_back is not None:
                self.on_outermost(frame.f_back)
            self._outer.append((outer, walks))
            anchors.append(Anchor(frame))
            found = self._names.known.get(id(module)) or self._names.of(module)
            self.current = outer if found is None else found
            if self.current != outer:
                self._break()
        except BaseException:
            self.current = outer
            del self._outer[depth:], anchors[walks:]
            raise

    @property
    def depth(self) -> int:
        """Calls that are under way, and backward passes."""
        return len(self._outer)

    def begin_backward(self, frame: FrameType) -> None:
        """A backward pass begins: its ops belong to modules by their nodes, unless a forward is computed anew in it."""
        self._outer.append((self.current, len(self._anchors)))
        self._anchors.append(Anchor(frame))
        self.current = 0

    def leave(self) -> None:
        inner = self.current
        self.current, anchors = self._outer.pop()
        del self._anchors[anchors:]
        if self.current != inner:
            self._break()

    def _break(self) -> None:
        """From the next autograd node on, nodes belong to the current module."""
        number = _sequence_number()
        starts = self._starts
        if starts and starts[-1] == number:
            self._modules[-1] = self.current
            return
        starts.append(number)
        self._modules.append(self.current)
        if len(starts) > _KEPT:
            del starts[: _KEPT // 2], self._modules[: _KEPT // 2]

    def of_node(self, number: int) -> int:
        """Id of the module whose forward made the autograd node with this sequence number."""
        at = bisect_right(self._starts, number) - 1
        return self._modules[at] if at >= 0 and number < 1 << 63 else 0


# --- module hooks -----------------------------------------------------------------------------------------------------
#
# What torch calls when something is registered with a module: two functions, the same for all recordings.
#
# Owns them. torch's compiler reads them where a compiled function makes modules: they hold nothing that it could
# stumble over, and what it reads in them adds nothing to what it makes.


class RegistrationListener(Protocol):
    """Who is told."""

    def registered(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """``child`` becomes a submodule of ``parent``."""

    def born(self, module: torch.nn.Module) -> None:
        """A parameter or a buffer is registered with ``module``."""

    def failed(self, module: torch.nn.Module, error: Exception) -> None:
        """One of these has raised; the program does not notice."""


_listeners: list[RegistrationListener] = []


def _registered(parent: torch.nn.Module, name: str, child: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _listeners:
            try:
                listener.registered(parent, name, child)
            except Exception as error:
                listener.failed(parent, error)


def _born(module: torch.nn.Module, _name: str, _value: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _listeners:
            try:
                listener.born(module)
            except Exception as error:
                listener.failed(module, error)


def tell(listener: RegistrationListener) -> Callable[[], None]:
    """From now on tell ``listener``; what is returned ends that. One is told at a time: a process has one recording."""
    _listeners.append(listener)
    hooks = [
        torch_module.register_module_module_registration_hook(_registered),
        torch_module.register_module_parameter_registration_hook(_born),
        torch_module.register_module_buffer_registration_hook(_born),
    ]

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        for hook in hooks:
            hook.remove()

    return stop


# --- module calls -----------------------------------------------------------------------------------------------------
#
# The stand-in for ``nn.Module.__call__`` while ops are recorded, by which each thread's stack of modules is kept.
#
# Owns both stand-ins: the one that only follows which module is called, and the one that also tells what it is called
# with and what it returns. Knows neither names nor rows.


class ModuleCalls:
    """Follows which module each thread is calling, from ``install`` to ``uninstall``.

    Stands in for ``nn.Module.__call__`` meanwhile. torch's global hooks would do, but make every call of every module
    take its slow way (measured: 5 µs a call against 1.5), and leave the stack as it is when a forward raises.
    """

    def __init__(
        self,
        names: ModuleNames,
        stack_of_thread: Callable[[], ModuleStack | None],
        *,
        closely: bool = False,
    ) -> None:
        """``closely``: the call hooks of each stack are called, too."""
        self._names = names
        self._stack_of_thread = stack_of_thread
        self._stand_in = _watched_closely if closely else _watched
        self._stop_hooks = tell(names)
        self._patches = Patches()

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        return self._names.roots()

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        return self._names.owner_of(parameters)

    def install(self) -> None:
        if not self._patches:
            _watching.stack_of_thread, _watching.failed = self._stack_of_thread, self._names.failed
            self._patches.replace(torch.nn.Module, "__call__", self._stand_in(torch.nn.Module.__call__))

    def uninstall(self) -> None:
        if self._patches:
            self._patches.undo_all()
            _watching.stack_of_thread, _watching.failed = _no_stack, _no_failure  # keeps no recording alive

    def remove(self) -> None:
        self.uninstall()
        self._stop_hooks()


class _Watching:
    """What the stand-in for a module's call works with. Not its own: the compiler looks at all that a function holds,
    and does not know what to make of a method."""

    stack_of_thread: Callable[[], ModuleStack | None]
    failed: Callable[[torch.nn.Module, Exception], None]


def _no_stack() -> None:
    """Where a program has kept the stand-in and calls it after the recording."""


def _no_failure(_module: torch.nn.Module, _error: Exception) -> None:
    """Nobody is to be told any more."""


_watching = _Watching()
_get_frame = sys._getframe
_is_traced = torch.compiler.is_dynamo_compiling


def _watched(call: Any) -> Any:
    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_traced():  # the compiler reads this function as the program's own, and would stumble over frames
            return call(self, *args, **kwargs)
        stack = _watching.stack_of_thread()
        if stack is None:
            return call(self, *args, **kwargs)
        try:
            stack.enter(self, _get_frame())
        except Exception as error:  # the recorder's own: the program must not notice
            _watching.failed(self, error)
            return call(self, *args, **kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            stack.leave()

    return __call__


def _watched_closely(call: Any) -> Any:
    """As ``_watched``, for a recording that keeps what modules are called with and what they return."""

    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_traced():
            return call(self, *args, **kwargs)
        stack = _watching.stack_of_thread()
        if stack is None:
            hooks = _hooks_of_autograd()
            return _with_hooks(hooks, 0, call, self, args, kwargs) if hooks else call(self, *args, **kwargs)
        try:
            stack.enter(self, _get_frame())
        except Exception as error:
            _watching.failed(self, error)
            return call(self, *args, **kwargs)
        try:
            if not stack.call_hooks:
                return call(self, *args, **kwargs)
            return _with_hooks(stack.call_hooks, stack.depth, call, self, args, kwargs)
        finally:
            stack.leave()

    return __call__


def _with_hooks(
    hooks: list[CallHook], depth: int, call: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module with hooks."""
    with torch_function_disabled():
        begun = [hook.begins(module, args, kwargs, depth) for hook in hooks]
    try:
        result = call(module, *args, **kwargs)
    except BaseException:
        with torch_function_disabled():
            for hook, own in zip(hooks, begun, strict=True):
                hook.raised(own)
        raise
    with torch_function_disabled():
        for hook, own in zip(hooks, begun, strict=True):
            hook.ended(own, result)
    return result


def _hooks_of_autograd() -> list[CallHook]:
    """Hooks of the stream that the calling thread works for, where it is one of autograd's own.

    On a device, what activation checkpointing computes anew is called there.
    """
    if torch._C._current_autograd_node() is None:
        return []
    observer = current_observer()
    stack = getattr(getattr(observer, "stream", observer), "modules", None)
    return stack.autograd_call_hooks if isinstance(stack, ModuleStack) else []
