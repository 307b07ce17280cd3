"""Which ``nn.Module`` an op belongs to: in forward by its call, in backward by the autograd node's sequence number.

Owns module names and the forward stack of one thread. A name is the path from the outermost module that a constructor
registered it under, with that module's class in front: ``ActorCriticPolicy.mlp_extractor.policy_net.0``. A direct call
of ``module.forward(...)`` is not seen, so its ops belong to the enclosing module.
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

_MAX_BREAKS: Final = 100_000
"""Past so many changes of module the older half is dropped, and backward ops of those graphs have no module."""
_MAX_UNNAMED: Final = 10_000
"""Modules of one class without a name; of more than that, none of them called, the oldest are forgotten."""

UNKNOWN_MODULES: Final = "modules.unknown"
"""A fact: classes of modules that could not be followed, each with the error."""

_sequence_number = torch._C._autograd._get_sequence_nr


_Reference = Callable[[], torch.nn.Module | None]
_NOTHING: tuple[_Reference, _Reference] = (lambda: None), (lambda: None)


class ModuleNames:
    """Names of all modules of the process."""

    def __init__(self, tables: Tables, missing: Callable[[str], None] = lambda what: None) -> None:
        """``missing``: called with each module that cannot be followed; recording goes on."""
        self._tables = tables
        self._report_missing = missing
        self._parents: WeakIdDict[torch.nn.Module, tuple[weakref.ref[torch.nn.Module], str]] = WeakIdDict()
        self._roots: WeakIdDict[torch.nn.Module, str] = WeakIdDict()
        self._counts: dict[str, int] = {}
        """Outermost modules named so far, by class name."""
        self._unnamed: dict[str, list[weakref.ref[torch.nn.Module]]] = {}
        """Modules without a name, by class name, in the order of creation."""
        self._seen: WeakIdDict[torch.nn.Module, bool] = WeakIdDict()
        self._refs: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._outer: dict[int, tuple[_Reference, _Reference]] = {}
        """By ``id`` of a module, it and the outermost one that holds it."""
        self.known: dict[int, int] = {}
        """Id in table "modules" by ``id(module)``; an entry goes when its module dies."""

    def inherit(self, other: ModuleNames) -> None:
        """Take over the modules of the parent, in a forked process."""
        self._parents, self._roots, self._counts = other._parents, other._roots, other._counts
        self._unnamed, self._seen = other._unnamed, other._seen

    def created(self, module: torch.nn.Module, *_: object) -> None:
        """Something is registered with ``module`` (torch's registration hooks): the first time, it is being created."""
        if module not in self._seen:
            self._seen[module] = True
            unnamed = self._unnamed.setdefault(type(module).__name__, [])
            unnamed.append(weakref.ref(module))
            if len(unnamed) >= _MAX_UNNAMED:
                unnamed[:] = [reference for reference in unnamed if reference() is not None][-_MAX_UNNAMED // 2 :]

    def registered(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """``child`` becomes a submodule of ``parent`` (torch's registration hook).

        A module that is still at its first place keeps it: ``self.layers[:n]`` registers the same layers with a
        temporary list.
        """
        self.created(parent)
        if child is not None and child is not parent and not self._has_place(child):
            self._parents[child] = (weakref.ref(parent), name)
            self._refs.clear()
            self._outer.clear()
            self.known.clear()

    def _has_place(self, module: torch.nn.Module) -> bool:
        """Whether the parent it was registered under is alive and still has it under that name."""
        up = self._parents.get(module)
        parent = up[0]() if up is not None else None
        return up is not None and parent is not None and dict(members(parent, "_modules")).get(up[1]) is module

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        """The outermost modules that were called or have submodules, with their names, sorted by name."""
        roots: dict[str, torch.nn.Module] = {}
        for module in [*self._parents, *self._roots]:
            try:
                root, _ = self._outermost(module)
                roots[self._root(root)] = root
            except Exception as error:
                self.failed(module, error)
        return sorted(roots.items())

    def of(self, module: torch.nn.Module) -> int | None:
        """Id of the module's path; None where it cannot be determined."""
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
        self._report_missing(f"{vars(type)['__name__'].__get__(type(module))} ({type(error).__name__})")

    def path(self, module: torch.nn.Module) -> str:
        root, names = self._outermost(module)
        return ".".join([self._root(root), *names])

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        """Path of the innermost module that holds all of ``parameters``, for display; "" where none is known."""
        known = [*self._parents, *self._roots]
        owners = {id(parameter): module for module in known for _, parameter in members(module, "_parameters")}
        modules = [owners.get(id(parameter)) for parameter in parameters]
        paths = [self._display_path(module) for module in modules if module is not None]
        if not paths or len(paths) < len(modules):
            return ""
        first, last = min(paths), max(paths)  # the common prefix of these two is that of all
        shared = next(
            (k for k, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), min(len(first), len(last))
        )
        return ".".join(first[:shared])

    def _display_path(self, module: torch.nn.Module) -> list[str]:
        """The names on a module's path, without numbering a module that has no name yet."""
        root, names = self._outermost(module)
        return [self._roots.get(root) or type(root).__name__, *names]

    def root_of(self, module: torch.nn.Module) -> torch.nn.Module:
        """The outermost module that holds ``module``, which may be this one."""
        of, found = self._outer.get(id(module), _NOTHING)
        root = found() if of() is module else None
        if root is None:
            root = self._outermost(module)[0]
            self._outer[id(module)] = weakref.ref(module), weakref.ref(root)
        return root

    def _outermost(self, module: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
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
        """Class name; from the second of a class on with a number in the order of creation: ``QNetwork#2``.

        Not in the order of calls: a program that iterates over a set calls its agents' networks in another order in
        every run. A module whose creation was not seen (a copy, or one from before recording) is numbered at its call.
        """
        name = self._roots.get(module)
        if name is None:
            for reference in self._unnamed.pop(type(module).__name__, ()):
                unnamed = reference()
                if unnamed is not None and unnamed not in self._roots and self._outermost(unnamed)[0] is unnamed:
                    self._number(unnamed)
            name = self._roots.get(module) or self._number(module)
        return name

    def _number(self, module: torch.nn.Module) -> str:
        kind = type(module).__name__
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = self._roots[module] = kind if count == 1 else f"{kind}#{count}"
        self._adopt(module)
        return name

    def _adopt(self, root: torch.nn.Module) -> None:
        """Register modules below without a place: created before recording, copied, unpickled, or their parent died.

        Without ``modules()`` or ``children()``, which the program may override and which hash modules.
        """
        seen = {id(root)}
        below = [root]
        while below:
            parent = below.pop()
            inside = [(name, child) for name, child in members(parent, "_modules") if child is not None]
            for name, child in inside:
                self.registered(parent, name, child)
            below += [child for _, child in reversed(inside) if id(child) not in seen]
            seen.update(id(child) for _, child in inside)


def members(module: torch.nn.Module, kind: str) -> list[tuple[str, Any]]:
    """A module's members of one kind (``_modules``, ``_parameters``, ``_buffers``), by name.

    Runs no code of the program, whose classes may define these names. A module loaded by torch.jit has containers of
    torch, not dictionaries.
    """
    container = object.__getattribute__(module, "__dict__").get(kind)
    if issubclass(type(container), dict):
        return list(dict.items(container))
    return list(container.items()) if issubclass(type(container), OrderedDictWrapper) else []


def tensors_of(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, of a module and all below it, each once, with torch's names."""
    modules = list(_named_modules(root))
    for kind in ("_parameters", "_buffers"):
        seen: set[int] = set()
        for prefix, module in modules:
            for name, tensor in members(module, kind):
                if issubclass(type(tensor), torch.Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}{name}", tensor


def _named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and all below it, each once, with the prefix of its members' names."""
    seen: set[int] = set()
    below = [("", root)]
    while below:
        prefix, module = below.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield prefix, module
            inside = [(f"{prefix}{name}.", child) for name, child in members(module, "_modules")]
            below += [(path, child) for path, child in reversed(inside) if issubclass(type(child), torch.nn.Module)]


def _forget(known: dict[int, int], number: int) -> Any:
    return lambda _: known.pop(number, None)


class CallHook(Protocol):
    """Called for every call of a module in one thread. Must not raise."""

    def begins(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> Any:
        """``module`` is about to be called, within ``depth - 1`` other calls. Returns the state for this call."""

    def ended(self, call: Any, result: Any) -> None:
        """The call for which ``begins`` returned ``call`` has returned ``result``."""

    def raised(self, call: Any) -> None:
        """The call has raised."""


class ModuleStack:
    """The modules that one thread is in, and the module of each autograd sequence number."""

    def __init__(self, names: ModuleNames, anchors: list[Anchor]) -> None:
        self._names = names
        self.anchors = anchors
        """Of the stream: frames above which ops share a walk of the stack."""
        self._outer: list[tuple[int, int]] = []
        self.current = 0
        """Id in table "modules" of the innermost module being called; 0: none."""
        self.on_outermost: Callable[[FrameType], None] | None = None
        """Called at each call of a module within no other one, with the calling frame."""
        self.call_hooks: list[CallHook] = []
        """Called in this order with the inputs and outputs of modules; only ``with_hooks`` (``ModuleCalls``)."""
        self.autograd_call_hooks: list[CallHook] = []
        """The same for calls in threads of autograd that work for this one, which have no stack of modules."""
        self._starts: list[int] = []
        self._modules: list[int] = []

    def enter(self, module: torch.nn.Module, frame: FrameType) -> None:
        """``module`` is being called; ``frame`` runs until that call ends."""
        outer, anchors = self.current, self.anchors
        depth, walks = len(self._outer), len(anchors)
        try:
            if not depth and self.on_outermost is not None and frame.f_back is not None:
                self.on_outermost(frame.f_back)
            self._outer.append((outer, walks))
            anchors.append(Anchor(frame))
            found = self._names.known.get(id(module)) or self._names.of(module)
            self.current = outer if found is None else found
            if self.current != outer:
                self._add_break()
        except BaseException:
            self.current = outer
            del self._outer[depth:], anchors[walks:]
            raise

    def root_of(self, module: torch.nn.Module) -> torch.nn.Module:
        return self._names.root_of(module)

    @property
    def depth(self) -> int:
        """Number of open calls and backward passes."""
        return len(self._outer)

    def begin_backward(self, frame: FrameType) -> None:
        """A backward pass begins: its ops belong to modules by their nodes, but for forwards that are recomputed."""
        self._outer.append((self.current, len(self.anchors)))
        self.anchors.append(Anchor(frame))
        self.current = 0

    def leave(self) -> None:
        inner = self.current
        self.current, anchors = self._outer.pop()
        del self.anchors[anchors:]
        if self.current != inner:
            self._add_break()

    def _add_break(self) -> None:
        """Assign autograd nodes to the current module, from the next one on."""
        number = _sequence_number()
        starts = self._starts
        if starts and starts[-1] == number:
            self._modules[-1] = self.current
            return
        starts.append(number)
        self._modules.append(self.current)
        if len(starts) > _MAX_BREAKS:
            del starts[: _MAX_BREAKS // 2], self._modules[: _MAX_BREAKS // 2]

    def of_node(self, number: int) -> int:
        """Id of the module whose forward made the autograd node with this sequence number."""
        at = bisect_right(self._starts, number) - 1
        return self._modules[at] if at >= 0 and number < 1 << 63 else 0


# --- module hooks -----------------------------------------------------------------------------------------------------
#
# torch's registration hooks: two functions, the same for all recordings. torch's compiler traces them where a compiled
# function creates modules: they must break no graph and add nothing to it.


_listeners: list[ModuleNames] = []


def _registered(parent: torch.nn.Module, name: str, child: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _listeners:
            try:
                listener.registered(parent, name, child)
            except Exception as error:
                listener.failed(parent, error)


def _created(module: torch.nn.Module, _name: str, _value: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _listeners:
            try:
                listener.created(module)
            except Exception as error:
                listener.failed(module, error)


def add_listener(listener: ModuleNames) -> Callable[[], None]:
    """Have ``listener`` called from now on, until the returned function is called."""
    _listeners.append(listener)
    hooks = [
        torch_module.register_module_module_registration_hook(_registered),
        torch_module.register_module_parameter_registration_hook(_created),
        torch_module.register_module_buffer_registration_hook(_created),
    ]

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        for hook in hooks:
            hook.remove()

    return stop


# --- module calls -----------------------------------------------------------------------------------------------------
#
# Two patches of ``nn.Module.__call__``, used while ops are recorded: one maintains each thread's stack of modules, the
# other also calls hooks with inputs and outputs.


class ModuleCalls:
    """Follows which module each thread is calling, from ``install`` to ``uninstall``.

    Patches ``nn.Module.__call__``. torch's global hooks would make every call take its slow path (5 µs a call against
    1.5), and would leave the stack unchanged when a forward raises.
    """

    def __init__(
        self,
        names: ModuleNames,
        stack_of_thread: Callable[[], ModuleStack | None],
        *,
        with_hooks: bool = False,
        library: Any = None,
    ) -> None:
        """``with_hooks``: call the call hooks of each stack, too. ``library``: of the native engine."""
        self._names = names
        self._stack_of_thread = stack_of_thread
        self._wrapper: Callable[[Any], Any] = _hook_wrapper if with_hooks else _stack_wrapper
        if library is not None:
            self._wrapper = functools.partial(self._wrapper, enter=library.enter_module, leave=library.leave_module)
        self._stop_hooks = add_listener(names)
        self._patches = Patches()

    def roots(self) -> list[tuple[str, torch.nn.Module]]:
        return self._names.roots()

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        return self._names.owner_of(parameters)

    def install(self) -> None:
        if not self._patches:
            _call_state.stack_of_thread, _call_state.failed = self._stack_of_thread, self._names.failed
            self._patches.replace(torch.nn.Module, "__call__", self._wrapper(torch.nn.Module.__call__))

    def uninstall(self) -> None:
        if self._patches:
            self._patches.undo_all()
            _call_state.stack_of_thread = _call_state.failed = _after_recording  # keeps no recording alive

    def remove(self) -> None:
        self.uninstall()
        self._stop_hooks()


class _CallState:
    """State of the patched ``__call__``. Not in its closure: the compiler traces that, and does not support methods."""

    stack_of_thread: Callable[[], ModuleStack | None]
    failed: Callable[[torch.nn.Module, Exception], None]


def _after_recording(*_: object) -> None:
    """Where a program holds the patched function and calls it after the recording."""


_call_state = _CallState()
_get_frame = sys._getframe
_is_traced = torch.compiler.is_dynamo_compiling


def _stack_wrapper(
    call: Any, enter: Callable[[torch.nn.Module], bool] = lambda _: False, leave: Callable[[], None] = lambda: None
) -> Any:
    """``enter`` and ``leave``: of the library of the native engine, which follows the usual call itself."""

    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_traced():  # the compiler traces this function as the program's, and does not support frames
            return call(self, *args, **kwargs)
        end = leave
        if not enter(self):
            stack = _call_state.stack_of_thread()
            if stack is None:
                return call(self, *args, **kwargs)
            try:
                stack.enter(self, _get_frame())
            except Exception as error:  # of the recorder: must not reach the program
                _call_state.failed(self, error)
                return call(self, *args, **kwargs)
            end = stack.leave
        try:
            return call(self, *args, **kwargs)
        finally:
            end()

    return __call__


def _hook_wrapper(
    call: Any, enter: Callable[[torch.nn.Module], bool] = lambda _: False, leave: Callable[[], None] = lambda: None
) -> Any:
    """As ``_stack_wrapper``, for a recording of inputs and outputs of modules."""

    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_traced():
            return call(self, *args, **kwargs)
        stack = _call_state.stack_of_thread()
        if stack is None:
            hooks = _hooks_of_autograd()
            return _with_hooks(hooks, 0, call, self, args, kwargs) if hooks else call(self, *args, **kwargs)
        end = leave
        if not enter(self):
            try:
                stack.enter(self, _get_frame())
            except Exception as error:
                _call_state.failed(self, error)
                return call(self, *args, **kwargs)
            end = stack.leave
        try:
            if not stack.call_hooks:
                return call(self, *args, **kwargs)
            return _with_hooks(stack.call_hooks, stack.depth, call, self, args, kwargs)
        finally:
            end()

    return __call__


def _with_hooks(
    hooks: list[CallHook], depth: int, call: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module with hooks."""
    with torch_function_disabled():
        begun = [(hook, hook.begins(module, args, kwargs, depth)) for hook in hooks]
    try:
        result = call(module, *args, **kwargs)
    except BaseException:
        with torch_function_disabled():
            for hook, state in begun:
                hook.raised(state)
        raise
    with torch_function_disabled():
        for hook, state in begun:
            hook.ended(state, result)
    return result


def _hooks_of_autograd() -> list[CallHook]:
    """Hooks of the stream that the calling thread works for, where it is a thread of autograd; else none.

    Activation checkpointing on a device recomputes modules there.
    """
    if torch._C._current_autograd_node() is None:
        return []
    observer = current_observer()
    stack = getattr(getattr(observer, "stream", observer), "modules", None)
    return stack.autograd_call_hooks if isinstance(stack, ModuleStack) else []
