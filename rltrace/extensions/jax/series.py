"""Series of a JAX program: what its loop stacks in each iteration, and what it gives to callbacks.

Owns the samples until they are committed, and how an array becomes a number: by its mean, in double precision. Runs no
operation of JAX, and never fails a callback of the program.
"""

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import callback as callbacks
from jax._src import debugging
from numpy.typing import NDArray

from rltrace.extensions.jax import programs
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.schema import Sample

MAX_SERIES = 64
"""Arrays of one loop, or of one callback, that are series."""

MAX_ELEMENTS = 1 << 20
"""Elements of an array whose mean is taken: one millisecond."""

MAX_READS = 16
"""Numbers of one callback that are recorded of a step, as for torch's reads: an inner loop has one for each of its."""

Called = Callable[[Any, Sequence[Any]], None]
"""Called with JAX's own object for a callback of the program, and the arrays it is called with."""


class JaxSeries:
    """The samples of one process."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._samples: list[tuple[int, int, int, int, float]] = []
        self._reads: dict[int, tuple[int, int]] = {}
        """By id of a callback's series: the current step, and its numbers so far."""
        self._arguments: dict[int, tuple[Any, _Arguments]] = {}

    def add_stacked(
        self, loop: str, names: Sequence[str], arrays: Sequence[Any], rows: Sequence[int], steps: Sequence[int],
        stream: int, row: int,
    ) -> None:  # fmt: skip
        """Of each stacked array the means of these rows, written at these steps; ``names``: as the scan has them."""
        for i, (name, array) in enumerate(zip(names[:MAX_SERIES], arrays, strict=False)):
            if not _is_number(array.dtype) or array.size > MAX_ELEMENTS * array.shape[0]:
                continue
            number = self._number("stacked", _dotted(name) or f"stacked[{i}]", loop)
            means = _means(programs.rows_of(array, rows)).tolist()
            with self._lock:
                self._samples += [(number, stream, step, row, mean) for step, mean in zip(steps, means, strict=True)]

    def add_given(self, callback: Any, arrays: Sequence[Any], step: int, stream: int, row: int) -> None:
        """What a callback of the program is called with."""
        known = self._arguments.get(id(callback))
        if known is None:
            known = self._arguments[id(callback)] = callback, _arguments_of(callback, len(arrays))
        names = known[1]
        for name, array in zip(names.names[:MAX_SERIES], arrays, strict=False):
            dtype = getattr(array, "dtype", None)
            if dtype is None or not _is_number(dtype) or array.size > MAX_ELEMENTS:
                continue
            number = self._number("callback", name, names.function)
            (mean,) = _means(np.asarray(array)[None]).tolist()
            with self._lock:
                last, count = self._reads.get(number, (-1, 0))
                count = count if last == step else 0
                self._reads[number] = step, count + 1
                if count < MAX_READS:
                    self._samples.append((number, stream, step, row, mean))

    def take(self) -> NDArray[np.uint64]:
        """Samples since the last call, shape [n, len(Sample)]."""
        with self._lock:
            taken, self._samples = self._samples, []
        samples = np.empty((len(taken), len(Sample)), np.uint64)
        if taken:
            *places, values = zip(*taken, strict=True)
            samples[:, : Sample.VALUE] = np.array(places, np.uint64).T
            samples[:, Sample.VALUE] = np.array(values, np.float64).view(np.uint64)
        return samples

    def _number(self, kind: str, name: str, place: str) -> int:
        payload = {"kind": kind, "name": name, "place": place}
        return self._tables.intern("series", portable_key("series", payload), payload)


def watch_callbacks(patches: Patches, called: Called) -> None:
    """Have ``called`` called before each callback that the program gets from a compiled function, or eagerly.

    JAX looks these functions up when it calls back, on a thread of XLA: nothing that it traces is another.
    """

    def around(original: Any, *args: Any, callback: Any, **params: Any) -> Any:
        called(callback, args)
        return original(*args, callback=callback, **params)

    patches.wrap(debugging.debug_callback_p, "impl", around)
    patches.wrap(debugging, "debug_callback_impl", around)  # of an eager jax.debug.print
    patches.wrap(callbacks, "io_callback_impl", around)


class _Arguments(NamedTuple):
    """What the arrays are called with which a callback is called."""

    function: str
    names: tuple[str, ...]


def _arguments_of(callback: Any, count: int) -> _Arguments:
    """From JAX's own object for a callback, which holds the program's function and the tree of its arguments."""
    free = getattr(getattr(callback, "__code__", None), "co_freevars", ())
    closed = getattr(callback, "__closure__", None) or ()
    held = {name: cell.cell_contents for name, cell in zip(free, closed, strict=False)}
    function: Any = held.get("callback", getattr(callback, "callback_func", None))
    tree = held.get("in_tree", getattr(callback, "in_tree", None))
    text = function.args[0] if getattr(function, "func", None) is debugging._format_print_callback else None
    try:
        static = dict(held.get("static_args", ()))
        paths = [path for i, path in enumerate(_paths(tree)) if i not in static]
        names = [_argument_name(function, path, text, len(paths)) for path in paths]
    except Exception:  # another version of JAX holds them otherwise
        names = [f"[{i}]" for i in range(count)]
    name = "jax.debug.print" if text is not None else getattr(function, "__name__", type(function).__name__)
    return _Arguments(name, tuple(names))


def _paths(tree: Any) -> Iterator[tuple[Any, ...]]:
    """Of each leaf of (positional, keyword) arguments the keys that lead to it."""
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return (path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0])


def _argument_name(function: Any, path: tuple[Any, ...], text: str | None, count: int) -> str:
    """``info.timestep``; of ``jax.debug.print`` its text, and which argument of it."""
    is_keyword, first, *rest = path
    name = first.key if is_keyword.idx else f"[{first.idx}]"
    if text is not None:
        return text if count == 1 else f"{text} {name}{_dotted(jax.tree_util.keystr(tuple(rest)))}"
    if not is_keyword.idx:
        names = list(inspect.signature(function).parameters.values())
        if first.idx < len(names) and names[first.idx].kind is not inspect.Parameter.VAR_POSITIONAL:
            name = names[first.idx].name
    return _dotted(f"{name}{jax.tree_util.keystr(tuple(rest))}")


_KEY = re.compile(r"\['([^']*)'\]")


def _dotted(path: str) -> str:
    """``metrics.returns`` for ``result[1]['metrics'].returns``, a path that JAX writes."""
    stacked = path.removeprefix("result[1]")
    path = stacked if stacked.startswith(("['", ".")) else path
    return _KEY.sub(r".\1", path).lstrip(".")


def _is_number(dtype: Any) -> bool:
    """Whether a series has numbers of this kind: a bool is a decision."""
    return bool(jax.dtypes.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating))


def _means(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Of each row its mean, NaN where it has no elements; the sum of a row does not depend on how many there are."""
    numbers = np.ascontiguousarray(rows.reshape(len(rows), -1), np.float64)
    if not numbers.shape[1]:
        return np.full(len(rows), np.nan)
    with np.errstate(all="ignore"):
        return np.asarray(np.add.reduce(numbers, axis=1) / numbers.shape[1])
