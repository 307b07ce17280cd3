"""Digests taken within a compiled program, by a custom call that reads its arrays where they are.

Owns the library with that call, how it is called from a traced function, and the log that it writes. The library is
compiled by ``rltrace build-engine``; without it, and on other platforms than a CPU, the host digests arrays.
"""

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, layout_text, seed_of
from rltrace.extensions.jax.log_library import find as find_log_library
from rltrace.native.library import TRIED_SEED, TRIED_SIZES

PREFIX = "rltrace_digest_"
"""Of the names of custom calls that digest."""

TARGET = "rltrace_digest_iteration"
"""Name of the custom call in compiled programs, and of its function in the library."""

READER = "rltrace_digest_values"
"""Of the custom call that digests values within a program."""

BEGINS = "rltrace_begin_iteration"
"""Of the custom call with which an iteration begins, where the program may be called back within it."""

LOG = jax.ShapeDtypeStruct((2,), np.uint32)
"""Of a log's address in a traced function: without the setting for it, JAX has no integers of 64 bits."""


class LogLibrary:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        """Load it, and make its custom call known to JAX. Raises OSError or ValueError where it is not usable."""
        library = ctypes.CDLL(str(path))
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        for name, result, arguments in (
            ("new", pointer, ()),
            ("delete", None, (pointer,)),
            ("begin", None, (pointer, number, number, number, number)),
            ("size", size, (pointer,)),
            ("entries", pointer, (pointer,)),
            ("ended", number, (pointer,)),
        ):
            function = getattr(library, f"rltrace_log_{name}")
            function.restype, function.argtypes = result, arguments
        digest = library.rltrace_digest
        digest.restype, digest.argtypes = ctypes.c_uint64, (ctypes.c_char_p, size, ctypes.c_uint64)
        content = bytes(range(251)) * (TRIED_SIZES[-1] // 251 + 1)
        for tried in TRIED_SIZES:
            if digest(content, tried, TRIED_SEED) != digest_buffer(content[:tried], TRIED_SEED):
                raise ValueError(f"{path} computes another digest of {tried:,} bytes")
        self.functions = library
        for target in (TARGET, READER, BEGINS):
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")

    def digest(
        self, log: Any, at: Any, row: Any, arrays: Sequence[Any], stacked: Sequence[Any], *, reverse: bool
    ) -> Any:
        """Within a traced function: append the digests of arrays, and of the newest rows of each stacked array.

        Returns the log, which the next call is to take. ``at``: the iteration that ends; ``row``: the one it wrote.
        """
        arrays = [_data(array) for array in arrays]
        layouts = "".join(layout_text(str(y.dtype), (0, *y.shape[1:])).replace("[0", "[#") + ";" for y in stacked)
        call = jax.ffi.ffi_call(TARGET, LOG)
        return call(log, at, row, *arrays, *stacked, seeds=_seeds(arrays), stacked=layouts, reverse=reverse)

    def read(self, orders: Sequence[Sequence[int]], log: Any, *arrays: Any) -> Any:
        """Within a traced function: append the digests of values within it; returns the log.

        ``orders``: of each array the axes in the order in which the program has them, slowest first; none: as they are.
        It is digested as an array with these axes.
        """
        arrays = tuple(map(_data, arrays))
        axes = [tuple(order or range(x.ndim)) for order, x in zip(orders, arrays, strict=True)]
        shapes = [tuple(x.shape[axis] for axis in order) for x, order in zip(arrays, axes, strict=True)]
        seeds = _seeds([jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, arrays, strict=True)])
        return jax.ffi.ffi_call(READER, LOG, input_layouts=[(0,), *axes])(log, *arrays, seeds=seeds)

    def begin(self, log: Any, at: Any) -> Any:
        """Within a traced function: note that an iteration begins; returns its number."""
        return jax.ffi.ffi_call(BEGINS, jax.ShapeDtypeStruct((), np.int32))(log, at)


def can_be_logged(aval: Any) -> bool:
    """Whether an array has its bytes in memory as the host sees them: not so numbers of four bits, or no numbers."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))
    return aval.dtype.itemsize > 0 and not is_packed(aval.dtype)


def is_packed(dtype: Any) -> bool:
    """Whether several numbers share a byte where a program has them, and have one each on the host."""
    return _PACKED.match(str(dtype)) is not None


_PACKED = re.compile(r"(u?int|float)[124](_|$)")


def _seeds(arrays: Sequence[Any]) -> NDArray[np.int64]:
    return np.array([seed_of(str(a.dtype), a.shape) for a in arrays], np.uint64).view(np.int64)


def _data(array: Any) -> Any:
    """What of an array is digested: of random keys their data."""
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array


class DigestLog:
    """The log of one call of a function."""

    def __init__(self, library: LogLibrary) -> None:
        self._functions = library.functions
        self._log = library.functions.rltrace_log_new()
        self.address: NDArray[np.uint32] = np.array([self._log], np.uint64).view(np.uint32)
        """What the program takes."""

    def begin(self, stride: int, start: int, stop: int, within: bool) -> None:
        """Of iterations ``start`` to ``stop``, every ``stride``-th is to be digested, and the last; forget the log.

        ``within``: values within the iterations, too.
        """
        self._functions.rltrace_log_begin(self._log, stride, start, stop, within)

    def ended(self) -> int:
        """How many iterations of this piece have ended, as far as the program notes where they begin."""
        return int(self._functions.rltrace_log_ended(self._log))

    def take(self) -> NDArray[np.uint64]:
        """The digests so far, in the order in which they were taken."""
        count = self._functions.rltrace_log_size(self._log)
        if not count:
            return np.zeros(0, np.uint64)
        entries = ctypes.cast(self._functions.rltrace_log_entries(self._log), ctypes.POINTER(ctypes.c_uint64))
        return np.ctypeslib.as_array(entries, (count,)).copy()

    def __del__(self) -> None:
        self._functions.rltrace_log_delete(self._log)


@cache
def log_library() -> LogLibrary | None:
    """The library for this JAX; None where there is none, where it is not usable, or where no CPU computes."""
    path = find_log_library()
    if path is None or jax.default_backend() != "cpu":
        return None
    try:
        return LogLibrary(path)
    except (OSError, ValueError, AttributeError):
        return None
