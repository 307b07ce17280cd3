"""Launch rows of Triton's kernels.

Owns the patches of Triton, and what a kernel's source shows in place of a schema: a fingerprint, and the parameters
that may reach the address of a store or of an atomic operation, whatever is executed. A parameter that is passed to
something unknown may be written; where a store's address comes from no parameter, or there is no source, any may be.
Nothing is imported that the program does not import, and a call gets the arguments that the program passed.
"""

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from xxhash import xxh3_64_hexdigest

from rltrace.recorder.base.dispatch_mode import current_observer, popped_modes, pushed_modes
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.kernel_launches import UNSEEN, KernelLaunch, without_address
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionName
from rltrace.recorder.core.storages import address_of
from rltrace.trace.kernels.evidence import TRITON

STORES: Final = ("store", "atomic_", "descriptor_store", "store_tensor_descriptor", "_experimental_descriptor_store")
"""Starts of the names of Triton's functions and methods that write to their first argument, or to their object."""

LOADS: Final = ("load", "gather", "descriptor_load", "load_tensor_descriptor", "_experimental_descriptor_load")
"""Those that return data, and no address."""

ESCAPES: Final = ("inline_asm", "call")
"""Starts of the names of those that may do anything with what they get."""

Names = frozenset[str]
_NONE: Final[Names] = frozenset()


@dataclass(frozen=True)
class KernelSource:
    """What is known of a kernel from its source."""

    written: Names
    """Parameters that it may write."""
    fingerprint: str
    """Of its syntax and that of the device functions that it calls; empty: there is no source."""


def read_source(function: FunctionType) -> KernelSource:
    """The source of a kernel's Python function."""
    parameters = _parameters(function)
    reader = _Reader()
    try:
        written = reader.written(function)
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):  # made by ``exec``, or of another kind
        return KernelSource(frozenset(parameters), "")
    text = "\n".join(reader.sources.values())
    return KernelSource(frozenset(parameters) if written is None else written, xxh3_64_hexdigest(text.encode()))


def _parameters(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


class _Reader:
    """Reads a kernel and the device functions that it calls, each once."""

    def __init__(self) -> None:
        self.sources: dict[int, str] = {}
        self._written: dict[int, Names | None] = {}

    def written(self, function: FunctionType) -> Names | None:
        """The parameters of a function that it may write; None: any memory."""
        known = self._written.get(id(function.__code__), _NONE)
        if id(function.__code__) in self._written:
            return known
        self._written[id(function.__code__)] = frozenset(_parameters(function))  # a function that calls itself
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise ValueError("no function")
        tree.decorator_list = []  # configurations to choose from
        self.sources[id(function.__code__)] = ast.dump(tree)
        found = _Body(self, function).written(tree)
        self._written[id(function.__code__)] = found
        return found


class _Body:
    """The body of one function: which of its parameters each variable may point into."""

    def __init__(self, reader: _Reader, function: FunctionType) -> None:
        self._reader = reader
        self._names = _globals(function)
        self._pointers: dict[str, Names] = {name: frozenset((name,)) for name in _parameters(function)}
        self._written: set[str] = set()
        self._writes_anything = False

    def written(self, tree: ast.FunctionDef) -> Names | None:
        before = -1
        while before != (before := sum(map(len, self._pointers.values()))):  # until a loop adds nothing more
            for node in ast.walk(tree):
                self._read(node)
        return None if self._writes_anything else frozenset(self._written)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.For(target=target, iter=value):
                self._assign(target, value)
            case ast.Call():
                self._of(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        pointers = self._of(value)
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and not pointers <= self._pointers.get(node.id, _NONE):
                self._pointers[node.id] = self._pointers.get(node.id, _NONE) | pointers

    def _of(self, node: ast.AST) -> Names:
        """The parameters that an expression may point into."""
        if isinstance(node, ast.Name):
            return self._pointers.get(node.id, _NONE)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return frozenset().union(*map(self._of, ast.iter_child_nodes(node)))

    def _of_call(self, node: ast.Call) -> Names:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        pointers = [self._of(argument) for argument in arguments]
        together: Names = frozenset().union(*pointers)
        called = self._resolve(node.func)
        device_function = _device_function(called)
        if device_function is not None:
            self._call(device_function, node, pointers)
            return together
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(called, "__name__", "")
        object_ = self._of(node.func.value) if isinstance(node.func, ast.Attribute) else _NONE
        if called is None and object_:  # a method of a descriptor or a pointer
            address = object_
        elif _is_triton(called) and not name.startswith(ESCAPES):
            address = pointers[0] if node.args else together
        else:
            if together and called not in _HARMLESS:
                self._written |= together
            return together
        if name.startswith(STORES):
            self._written |= address
            self._writes_anything |= not address
            return _NONE
        return _NONE if name in LOADS else together | object_

    def _call(self, function: FunctionType, node: ast.Call, pointers: list[Names]) -> None:
        written = self._reader.written(function)
        if written is None or any(isinstance(argument, ast.Starred) for argument in node.args):
            self._writes_anything = True
            return
        parameters = _parameters(function)
        given = [*parameters[: len(node.args)], *(keyword.arg for keyword in node.keywords)]
        for name, into in zip(given, pointers, strict=False):
            if name is None or name in written:
                self._written |= into

    def _resolve(self, node: ast.expr) -> Any:
        """What a name, or an attribute of a module, is; None: not known."""
        if isinstance(node, ast.Name):
            return None if node.id in self._pointers else self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            module = self._resolve(node.value)
            return getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        return None


_HARMLESS: Final = (min, max, range, len, abs, float, int, bool, sum, print, tuple, isinstance)


def _globals(function: FunctionType) -> Mapping[str, Any]:
    found = inspect.getclosurevars(function)
    return {**found.builtins, **function.__globals__, **found.nonlocals}


def _is_triton(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("triton.")


def _device_function(value: Any) -> FunctionType | None:
    """The Python function of a function that the program has decorated with ``triton.jit``."""
    found = getattr(value, "fn", None) if _is_triton(type(value)) else None
    return found if isinstance(found, FunctionType) and not _is_triton(found) else None


# --- launches ---------------------------------------------------------------------------------------------------------


JIT: Final = "triton.runtime.jit"
INTERPRETER: Final = "triton.runtime.interpreter"
AUTOTUNER: Final = "triton.runtime.autotuner"


class _Kernel(NamedTuple):
    """What is known of a kernel before it is launched."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    source: KernelSource


class TritonLaunches:
    """The patches of Triton, from ``install`` to ``uninstall``.

    A launch is a call of ``JITFunction.run``, or of the interpreter's, to which an autotuner has added what it chose.
    The launches with which it chooses are no rows: how many there are depends on timing.
    """

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._storages = process.storages
        self._fail = process.fail
        self._patches = Patches()
        self._kernels: WeakIdDict[Any, _Kernel] = WeakIdDict()
        self._launches: dict[tuple[object, ...], KernelLaunch] = {}
        self._tuning = threading.local()

    def install(self) -> None:
        if not self._patches:
            awaited = {JIT: self._patch("JITFunction"), INTERPRETER: self._patch("InterpretedFunction")}
            self._patches.on_import({**awaited, AUTOTUNER: self._patch_autotuner}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _patch(self, name: str) -> Callable[[Any], None]:
        return lambda module: self._patches.wrap(getattr(module, name), "run", self._run)

    def _patch_autotuner(self, module: Any) -> None:
        self._patches.wrap(module.Autotuner, "run", self._tuned)
        self._patches.wrap(module.Autotuner, "_bench", self._benchmark)

    def _run(self, original: Any, jit: Any, /, *args: Any, **kwargs: Any) -> Any:
        """In place of ``JITFunction.run(*args, grid=…, warmup=…, **kwargs)``."""
        if kwargs.get("warmup") or "grid" not in kwargs or current_observer() is None:
            return original(jit, *args, **kwargs)
        try:
            kernel = self._kernels.get(jit) or self._read(jit)
            bound = _bound(kernel, args, kwargs)
        except Exception as error:  # another version of Triton
            return self._unseen(error, jit, original, args, kwargs)
        if callable(kwargs["grid"]):
            kwargs["grid"] = kwargs["grid"](bound)  # once, as Triton would; it is part of the row
        try:
            launch, arguments = self._launch(jit, kernel, bound, kwargs)
        except Exception as error:  # an invalid call, which is Triton's to refuse, or another version
            return self._unseen(error, jit, original, args, kwargs)
        return launch.run(lambda: original(jit, *args, **kwargs), (), arguments)

    def _unseen(self, error: Exception, jit: Any, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The launch without a row, which is reported where it is valid."""
        result = original(jit, *args, **kwargs)
        self._process.report_missing(UNSEEN, f"triton.{getattr(jit, '__name__', '?')} ({type(error).__name__})")
        return result

    def _read(self, jit: Any) -> _Kernel:
        function = jit.fn
        while not hasattr(function, "__code__"):
            function = function.fn
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        with_default = zip(names[len(names) - len(defaults) :], defaults, strict=True)
        found = _Kernel(function.__name__, names, dict(with_default), read_source(function))
        self._kernels[jit] = found
        return found

    def _launch(
        self, jit: Any, kernel: _Kernel, bound: dict[str, Any], kwargs: dict[str, Any]
    ) -> tuple[KernelLaunch, dict[str, Any]]:
        chosen = self._chosen(kernel, jit)
        options = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup", *kernel.parameters)}
        configuration = {name: _plain(bound[name]) for name in kernel.parameters if name in chosen}
        configuration |= {name: _plain(value) for name, value in options.items() if value is not None}
        configuration["grid"] = "×".join(str(int(side)) for side in kwargs["grid"])
        arguments = {name: _plain(value) for name, value in bound.items() if name not in configuration}
        key = id(jit), *configuration.items()
        launch = self._launches.get(key)
        if launch is None:
            evidence = {"library": TRITON, **configuration, "code": kernel.source.fingerprint}
            launch = self._launches[key] = KernelLaunch(
                RegionName(f"triton.{kernel.name}", evidence, ()),
                dict.fromkeys([name for name in arguments if name in kernel.source.written], False),
                self._storages,
            )
        return launch, arguments

    # --- autotuners -------------------------------------------------------------------------------------------------

    def _tuned(self, original: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer = getattr(self._tuning, "tuner", None)
        self._tuning.tuner = tuner
        try:
            return original(tuner, *args, **kwargs)
        finally:
            self._tuning.tuner = outer

    def _benchmark(self, original: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Trial launches in one configuration: no rows, though they may write."""
        if current_observer() is None:
            return original(tuner, *args, **kwargs)
        try:
            with popped_modes() as others, pushed_modes(others):
                return original(tuner, *args, **kwargs)
        finally:
            try:
                self._storages.record_unseen_write(map(address_of, self._written(tuner, args, kwargs)))
            except Exception as error:
                self._fail(error)

    def _written(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors that trials with these arguments may have written; a hook of the program may write any."""
        jit = tuner.fn
        while not hasattr(jit.fn, "__code__"):
            jit = jit.fn
        kernel = self._kernels.get(jit) or self._read(jit)
        hooked = getattr(tuner, "user_defined_pre_hook", True)
        bound = _bound(kernel, args, kwargs).items()
        return op_tensors([_plain(v) for name, v in bound if hooked or name in kernel.source.written], None)

    def _chosen(self, kernel: _Kernel, jit: Any) -> frozenset[str]:
        """The parameters that an autotuner, and not the program, has set for this launch."""
        tuner = getattr(self._tuning, "tuner", None)
        config = getattr(tuner, "best_config", None)
        if config is None or getattr(tuner, "base_fn", None) is not getattr(jit, "fn", None):
            return frozenset()
        return frozenset(config.kwargs).intersection(kernel.parameters)


def _bound(kernel: _Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch by name, in the kernel's order; an invalid call is Triton's to refuse."""
    given = {**kernel.defaults, **dict(zip(kernel.parameters, args, strict=False)), **kwargs}
    return {name: given[name] for name in kernel.parameters if name in given}


def _plain(value: Any) -> Any:
    """An argument as a row has it: tensors, numbers, text, and lists of these."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return without_address(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "base") and isinstance(value.base, torch.Tensor):  # a descriptor, or another dtype
        return value.base
    if hasattr(value, "value"):  # tl.constexpr
        return _plain(value.value)
    if isinstance(value, torch.dtype) or type(value).__name__ == "dtype":
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else value
