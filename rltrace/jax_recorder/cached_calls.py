"""Calls whose executables JAX's C++ cache keeps, each of which the recorder still sees.

A compiled function of the program is given to it as one for which that cache has no executable, so that each call
comes here. From here a second function is called, whose cache has them. The tree of its results is a node of the
recorder's: it says which executable has run, and so which program.

Owns that node and the two functions, which are made as ``pickle`` would copy one, and what all calls of one executable
have in common. A function is unpickled as an ordinary one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

import jax
from jax._src import traceback_util, tree_util

from rltrace.jax_recorder.programs import ArrayLayout, is_near, layout_here
from rltrace.jax_recorder.rows import Operand, RowColumns

INNER, OUTER = "rltrace.inner", "rltrace.outer"
"""Added to the keys of JAX's cache, which other functions share."""


class CachedCall(NamedTuple):
    """What all calls have in common for which JAX keeps one executable."""

    common: RowColumns
    """Of their rows."""
    arguments: tuple[ArrayLayout, ...]
    """The constants come last."""
    avals: tuple[Any, ...]
    """Of the same, as the program is traced."""
    constants: tuple[Any, ...]
    """Arrays that the function closes over."""
    executable: Any
    weight: int
    """Bytes of the results, 1 KiB at least."""


MakeCommon = Callable[[tuple[ArrayLayout, ...], tuple[ArrayLayout, ...]], RowColumns]
"""From the layouts of what a call takes and returns to what its rows have in common."""


class CallRecorder(Protocol):
    """Records calls of one process."""

    @property
    def is_over(self) -> bool:
        """Whether no call will be recorded anymore."""

    def take_cached(self) -> CachedCall | None:
        """What is known of the call that has just been recorded and compiled, once; None: it cannot be cached."""

    def add_cached(self, call: CachedCall, arguments: Sequence[Any], results: Sequence[Any], frame: FrameType) -> None:
        """A call from this frame has returned."""


class _Returned(tuple[Any, ...]):
    """(_Shape, results): what a call of a cached executable returns."""


class _Shape(NamedTuple):
    """How the arguments and the results of a call are flattened."""

    call: CachedCall
    tree: Any
    """Of the results."""
    is_flat: bool
    """Whether the positional arguments are the arrays."""


class _Node:
    """The node of the tree that JAX makes of results."""

    def __init__(self, shape: _Shape, count: int) -> None:
        self.shape, self.leaves = shape, [0] * count


tree_util.register_pytree_node(
    _Node, lambda node: (node.leaves, node.shape), lambda shape, results: _Returned((shape, results))
)


class _Miss:
    """Called for what the inner function's cache lacks: as JAX's own, with the recorder's node around the results."""

    def __init__(self, original: Callable[..., Any], recorder: CallRecorder) -> None:
        self.original, self._recorder = original, recorder

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        returned, data, rebuild = self.original(*args, **kwargs)
        if self._recorder.is_over:
            return returned, data, rebuild
        call = self._recorder.take_cached()
        if data is None or call is None or data.xla_executable is not call.executable:
            return returned, None, rebuild
        is_flat = not kwargs and len(args) + len(call.constants) == len(call.avals) and all(map(_is_leaf, args))
        node = _Node(_Shape(call, data.out_pytree_def, is_flat), len(data.out_avals))
        tree = tree_util.dispatch_registry.flatten(node, None)[1]
        return returned, data._replace(out_pytree_def=tree), rebuild


class SeenFunction:
    """Called for each call of a compiled function: calls the inner one, and records what the cache has served."""

    def __init__(self, function: Any, recorder: CallRecorder) -> None:
        state = function.__getstate__()
        self._miss = _Miss(state["cache_miss"], recorder)
        self.inner = _copy(function, state, self._miss, INNER)
        self._static = frozenset(state["static_argnums"]), frozenset(state["static_argnames"])
        self._recorder = recorder

    @traceback_util.api_boundary  # type: ignore[untyped-decorator]  # leaves these frames out of the program's errors
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        returned = self.inner(*args, **kwargs) if kwargs else self.inner(*args)
        if type(returned) is _Returned:
            (call, tree, is_flat), results = returned
            arguments = args if is_flat else self._leaves(args, kwargs)
            self._recorder.add_cached(call, arguments, results, sys._getframe(2))
            returned = tree.unflatten(results)
        return returned, None, False

    def _leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        numbers, names = self._static
        if numbers or names:
            places = {number % len(args) for number in numbers if -len(args) <= number < len(args)}
            args = tuple([arg for i, arg in enumerate(args) if i not in places])
            kwargs = {name: arg for name, arg in kwargs.items() if name not in names}
        leaves: list[Any] = tree_util.tree_leaves((args, kwargs))
        return leaves

    def __reduce__(self) -> Any:
        return _as_it_is, (self._miss.original,)


def seen_function(function: Any, recorder: CallRecorder) -> Any:
    """A compiled function in place of one that JAX has made, each call of which ``recorder`` sees."""
    seen = _copy(function, function.__getstate__(), SeenFunction(function, recorder), OUTER)
    vars(seen).update(vars(function))
    return seen


def clear(function: Any) -> None:
    """Forget the executables of a compiled function."""
    if isinstance(function._cache_miss, SeenFunction):
        function._cache_miss.inner._clear_cache()


def cached_call(
    common: MakeCommon, closed: Any, compiled: Any, inputs: Sequence[Operand], results: Sequence[Any]
) -> CachedCall | None:
    """What is common to the calls of a function with these results; None where each has to be seen by Python.

    Where a call runs callbacks, it may change an argument; where it is not on one CPU, its results are copied to be
    digested; random keys are made of arrays; what a reference holds changes.
    """
    avals = *closed.in_avals, *closed.consts
    if getattr(getattr(compiled, "unsafe_call", None), "has_host_callbacks", True):
        return None
    if not all(isinstance(aval, (jax.core.ShapedArray, jax.Array)) for aval in avals):
        return None
    if any(jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended) for a in (*avals, *results)):
        return None
    if not all(map(is_near, (*results, *closed.consts))):
        return None
    read = tuple(operand.layout for operand in inputs)
    written = tuple(map(layout_here, results))
    weight = max(sum(layout.size for layout in written), 1_024)
    executable = getattr(compiled, "xla_executable", None)
    return CachedCall(common(read, written), read, avals, tuple(closed.consts), executable, weight)


MISS = _Miss.__call__.__code__
"""Of the frame from which JAX fills the cache of a function that is seen."""

FRAMES = frozenset((MISS, inspect.unwrap(SeenFunction.__call__).__code__))
"""Of the frames of a function that is seen."""


def _copy(function: Any, state: dict[str, Any], miss: Callable[..., Any], key: str) -> Any:
    kind: Any = type(function)
    made = kind.__new__(kind)
    made.__setstate__({**state, "cache_miss": miss, "global_cache_key": (state["global_cache_key"], key)})
    return made


def _is_leaf(argument: Any) -> bool:
    return bool(tree_util.all_leaves([argument]))


def _as_it_is(miss: Callable[..., Any]) -> Callable[..., Any]:
    return miss
