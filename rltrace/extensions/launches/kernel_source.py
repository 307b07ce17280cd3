"""The source of a Triton kernel, in place of a schema: a fingerprint, and the parameters that it may write.

Owns the analysis: which parameters reach the address of a store or of an atomic operation, whatever is executed. A
parameter that is passed to something unknown may be written; where a store's address comes from no parameter, or there
is no source, any may be. Imports neither Triton nor the program.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

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
