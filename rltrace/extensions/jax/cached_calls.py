"""Calls whose executables JAX's C++ cache keeps, each of which the recorder still sees.

JAX calls a function for each call that its cache has served (the post hook, with which it looks for NaNs). The tree of
the results is a node of the recorder's: it says which executable has run, and so which program. What the cache lacks
passes through Python, in a function of JAX whose closure has the recorder's in place of JAX's own. Donated arrays are
deleted by the time of the hook: a function that donates has no cache, and calls another that has one.

Owns that node, the hook and the place in the closure, and what all calls of one executable have in common. A function
is unpickled as an ordinary one.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax._src import api, pjit, tree_util
from jax._src.lib import _jax

from rltrace.digest import PAGE_BYTES
from rltrace.extensions.jax.programs import ArrayLayout, is_near, layout_here
from rltrace.extensions.jax.rows import Operand, RowColumns, slot_of
from rltrace.recorder.base.patching import Patches

LEAST = 4_096
"""Bytes for which a result counts at least: with what JAX keeps of it, and to be in the processor's cache when read."""

EVICT = "jit_evict_fn"
"""Of ``jax._src.pjit``: clear the cache of one function."""

HOOK_STATE = "_post_hook_state"
"""Of ``jax._src.api``: holds the function that JAX calls for each call that its cache has served."""


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
    results: tuple[tuple[int, ArrayLayout], ...]
    """Of each what it adds to links, and its layout."""
    seeds: tuple[int, ...]
    """Of their digests, where each is of one page; empty: not each is."""
    weight: int
    """Bytes of the results, of each LEAST at least."""
    update: str
    """What the steps are called that such calls end; "": they end none."""


MakeCommon = Callable[[tuple[ArrayLayout, ...], int], RowColumns]
"""From the layouts of what a call takes, and how many arrays it returns, to what its rows have in common."""


class CallRecorder(Protocol):
    """Records calls of one process."""

    @property
    def is_over(self) -> bool:
        """Whether no call will be recorded anymore."""

    def take_cached(self) -> CachedCall | None:
        """What is known of the call that has just been recorded, once; None: it cannot be cached.

        So where others have been recorded since: the program's nodes make them, of results that are not known yet when
        JAX's cache has them.
        """

    def digest_donated(self, given: Sequence[Any]) -> None:
        """Arrays are about to be donated, in trees."""

    def add_cached(self, call: CachedCall, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """A call has returned."""


Static = tuple[frozenset[int], frozenset[str]]
"""Numbers and names of the arguments of a function that are no arrays."""


class _Shape(NamedTuple):
    """How the arguments and the results of a call are flattened."""

    call: CachedCall
    tree: Any
    """Of the results; None: it is one array, or a tuple of arrays."""
    is_one: bool
    places: tuple[int, ...] | None
    """Of the positional arguments that are the arrays, in their order; empty: all; None: others have arrays, too."""
    static: Static


class _Node:
    """The node of the tree that JAX makes of results."""

    def __init__(self, shape: _Shape, count: int) -> None:
        self.shape, self.leaves = shape, [0] * count


class _Served(threading.local):
    """What JAX's cache serves to the calling thread."""

    now: tuple[_Shape, list[Any]] | None = None
    """The results of the call that has just been served."""
    is_forming = False
    """Whether classes of the program are being made of results, whose call is not recorded yet."""


_served = _Served()


def _returned(shape: _Shape, results: tuple[Any, ...]) -> Any:
    """What a call returns. Last, as the program's own nodes may call compiled functions, it notes the call."""
    served, (_, tree, is_one, _, _) = _served, shape
    if tree is None:
        returned = results[0] if is_one else results
    else:
        before, served.is_forming = served.is_forming, True
        try:
            returned = tree.unflatten(results)
        finally:
            served.is_forming = before
    served.now = shape, [*results]
    return returned


def is_forming() -> bool:
    """Whether arrays of which nothing is known may be results of a call that is not recorded yet."""
    return _served.is_forming


tree_util.register_pytree_node(_Node, lambda node: (node.leaves, node.shape), _returned)


class _Miss:
    """Called for what a function's cache lacks: as JAX's own, with the recorder's node around the results."""

    def __init__(self, original: Callable[..., Any], function: Any, recorder: CallRecorder) -> None:
        self.original, self._recorder = original, recorder
        state = function.__getstate__()
        self._static = frozenset(state["static_argnums"]), frozenset(state["static_argnames"])

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        returned, data, rebuild = self.original(*args, **kwargs)
        if self._recorder.is_over:
            return returned, data, rebuild
        call = self._recorder.take_cached()
        if data is None or call is None or data.xla_executable is not call.executable:
            return returned, None, rebuild
        dynamic, arrays = _dynamic(args, self._static), len(call.avals) - len(call.constants)
        is_flat = len(dynamic) == arrays and tree_util.all_leaves([args[place] for place in dynamic])
        places = None if not is_flat else () if arrays == len(args) else dynamic
        tree, count = data.out_pytree_def, len(data.out_avals)
        is_one, is_tuple = (tree == tree_util.tree_structure(each) for each in (0, (0,) * count))
        shape = _Shape(call, None if is_one or is_tuple else tree, is_one, places, self._static)
        tree = tree_util.dispatch_registry.flatten(_Node(shape, count), None)[1]
        return returned, data._replace(out_pytree_def=tree), rebuild

    def __reduce__(self) -> Any:
        return _as_it_is, (self.original,)


class _Donor:
    """Called for each call of a function that donates arrays: they are digested, then ``inner`` is called."""

    def __init__(self, miss: _Miss, function: Any, recorder: CallRecorder) -> None:
        self._original, self._digest, info = miss.original, recorder.digest_donated, function._jit_info
        self._places, self._names = info.donate_argnums, info.donate_argnames
        self._has_static = bool(info.static_argnums)
        how = {**function.__getstate__(), "fun": miss, "cache_miss": miss}  # executables are shared by those of one fun
        del how["version"]
        self.inner = _jax.pjit(*how.values())

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._has_static:  # JAX counts with them, or without them
            given: Sequence[Any] = args
        else:
            given = [args[place] for place in self._places if place < len(args)]
        if kwargs:
            given = [*given, *(kwargs[name] for name in self._names if name in kwargs)]
        self._digest(given)
        return self.inner(*args, **kwargs), None, False

    def __reduce__(self) -> Any:
        return _as_it_is, (self._original,)


def donates(function: Any) -> bool:
    """Whether a compiled function donates arrays that it takes."""
    return bool(function._jit_info.donate_argnums or function._jit_info.donate_argnames)


def see(function: Any, recorder: CallRecorder) -> None:
    """Have ``recorder`` see each call of a compiled function; of another JAX's, each call passes through Python."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        miss = function._cache_miss
        [cell] = (cell for cell in miss.__closure__ if cell.cell_contents is miss.__wrapped__)
        seen = _Miss(miss.__wrapped__, function, recorder)
        cell.cell_contents = _Donor(seen, function, recorder) if donates(function) else seen


def _evict(original: Callable[[Any], None], function: Any) -> None:
    """``clear_cache`` of a compiled function."""
    original(function)
    for cell in getattr(function._cache_miss, "__closure__", ()):
        if type(cell.cell_contents) is _Donor:
            cell.cell_contents.inner._clear_cache()


class _HookState:
    """In place of JAX's: the recorder's hook is called first, then the one that JAX sets."""

    def __init__(self, original: Any, recorder: CallRecorder) -> None:
        self._original, self._recorder = original, recorder
        self.set_global(original.get_global())

    def set_global(self, then: Callable[..., None] | None) -> None:
        self._original.set_global(_hook(self._recorder, then))

    def set_local(self, then: Callable[..., None] | None) -> None:
        self._original.set_local(_hook(self._recorder, then))


def _hook(recorder: CallRecorder, then: Callable[..., None] | None) -> Callable[..., None]:
    served = _served

    def record(function: Any, given: Sequence[Any], kwargs: dict[str, Any], returned: Any) -> None:
        now, args = served.now, given
        if now is not None:
            served.now = None
            (call, _, _, places, static), results = now
            if places is None:
                args = _leaves(args, kwargs, static)
            elif places:
                args = [args[place] for place in places]
            recorder.add_cached(call, args, results)
        if then is not None:
            then(function, given, kwargs, returned)

    return record


def watch(patches: Patches, recorder: CallRecorder) -> None:
    """Have ``recorder`` see the calls that JAX's cache serves, those of functions that JAX has made so far as well."""
    patches.wrap(pjit, EVICT, _evict)
    kind = type(jax.jit(len))  # its ``clear_cache`` is the one that ``pjit`` has now
    for function in [each for each in gc.get_objects() if type(each) is kind]:
        see(function, recorder)
        if function._cache_size():
            function._clear_cache()
    patches.replace(api, HOOK_STATE, _HookState(getattr(api, HOOK_STATE), recorder))


def _dynamic(args: Sequence[Any], static: Static) -> tuple[int, ...]:
    """The places of positional arguments that are no static ones."""
    places = {number % len(args) for number in static[0] if -len(args) <= number < len(args)}
    return tuple(i for i in range(len(args)) if i not in places)


def _leaves(args: Sequence[Any], kwargs: dict[str, Any], static: Static) -> Sequence[Any]:
    if any(static):
        args = tuple(args[place] for place in _dynamic(args, static))
        kwargs = {name: arg for name, arg in kwargs.items() if name not in static[1]}
    leaves: list[Any] = tree_util.tree_leaves((args, kwargs))
    return leaves


def cached_call(
    common: MakeCommon, closed: Any, compiled: Any, inputs: Sequence[Operand], results: Sequence[Any], update: str
) -> CachedCall | None:
    """What is common to the calls of a function with these results; None where each has to be seen by Python.

    ``update``: what the steps are called that they end, if they do.
    Where a call runs callbacks, it may change an argument; where it is not on one CPU, its results are copied to be
    digested; what a reference holds changes; of types that others have added, only random keys are known.
    """
    avals = *closed.in_avals, *closed.consts
    if getattr(getattr(compiled, "unsafe_call", None), "has_host_callbacks", True):
        return None
    if not all(isinstance(aval, (jax.core.ShapedArray, jax.Array)) for aval in avals):
        return None
    kinds = {a.dtype for a in (*avals, *results) if jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended)}
    if not all(jax.dtypes.issubdtype(kind, jax.dtypes.prng_key) for kind in kinds):
        return None
    if not all(map(is_near, (*results, *closed.consts))):
        return None
    read = tuple(operand.layout for operand in inputs)
    written = tuple(map(layout_here, results))
    weight = max(sum(max(layout.size, LEAST) for layout in written), LEAST)
    is_small = all(layout.size <= PAGE_BYTES for layout in written)
    seeds = tuple(layout.seed for layout in written) if is_small else ()
    executable = getattr(compiled, "xla_executable", None)
    made = tuple(zip(map(slot_of, range(len(written))), written, strict=True))
    constants = tuple(closed.consts)
    return CachedCall(common(read, len(written)), read, avals, constants, executable, made, seeds, weight, update)


MISS = _Miss.__call__.__code__
"""Of the frame from which JAX fills the cache of a function that is seen."""

DONOR = _Donor.__call__.__code__
"""Of the frame from which a function is called that donates arrays."""


def _as_it_is(miss: Callable[..., Any]) -> Callable[..., Any]:
    return miss
