"""What JAX compiles, as evidence: the program that was asked for, and what XLA made of it.

Owns the fingerprint of a traced function and its numbers, the fingerprint of optimised code, the facts of JAX and the
digest of an array. A number of the program text (a learning rate) is named by the line that it comes from, so that two
programs which differ in it alone are one program called with another number.
"""

from __future__ import annotations

import ctypes
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import string_at
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from numpy.typing import NDArray

from rltrace.digest import PAGE_BYTES, digest_address, digest_buffer, digest_page, seed_of
from rltrace.jax_recorder.digest_log import TARGET as DIGEST_TARGET
from rltrace.jax_recorder.loops import nested, typed
from rltrace.portable_keys import portable_key

LIBRARY = "XLA"
"""Library of the kernel evidence."""

MAX_NUMBERS = 4_096
"""Numbers of one program that are recorded; the rest is in its fingerprint."""

CHANGES_NUMBERS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_partitionable",
)
"""Settings of JAX that are facts."""


# --- the traced function ----------------------------------------------------------------------------------------------


def lines_of(eqn: Any) -> list[tuple[str, str, int]]:
    """(file, function, line) of the user's frames above an equation, innermost first; none where JAX kept none."""
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    return [(frame.file_name, frame.function_name, frame.start_line) for frame in frames]


class Program(NamedTuple):
    """A traced function as one can compare it."""

    fingerprint: str
    """Of its equations without their numbers."""
    numbers: tuple[tuple[str, float], ...]
    """Each with the line that it comes from and its place in it: ``return config["LR"] * frac #1``."""


def program_of(closed: ClosedJaxpr) -> Program:
    """The fingerprint and the numbers of a function."""
    numbers: dict[str, list[float]] = {}
    words = list(_words(closed.jaxpr, "", numbers))
    named = [(f"{line} #{k}", value) for line, values in numbers.items() for k, value in enumerate(values, 1)]
    return Program(f"{portable_key('jaxpr', *words, *named[MAX_NUMBERS:]):016x}", tuple(named[:MAX_NUMBERS]))


def _words(jaxpr: Jaxpr, line: str, numbers: dict[str, list[float]]) -> Iterator[object]:
    """Every equation as JSON: variables by the order in which they are bound, numbers as their types."""
    names: dict[Any, int] = {}
    for v in (*jaxpr.constvars, *jaxpr.invars):
        names[v] = len(names)
        yield str(v.aval)
    for eqn in jaxpr.eqns:
        own = _line(eqn) or line
        read: list[object] = []
        for v in eqn.invars:
            if isinstance(v, Literal):
                read.append(str(v.aval))
                number = _number(v.val)
                if number is None:
                    read.append(_stable(v.val))
                else:
                    numbers.setdefault(own, []).append(number)
            else:
                read.append(names[v])
        for v in eqn.outvars:
            names[v] = len(names)
        inner = list(nested(eqn))
        rest = {name: _stable(value) for name, value in eqn.params.items() if not _holds_function(value)}
        yield [eqn.primitive.name, read, [str(v.aval) for v in eqn.outvars], rest]
        for each in inner:
            yield list(_words(each, own, numbers))
    yield [names.get(v, _stable(v)) if not isinstance(v, Literal) else _stable(v.val) for v in jaxpr.outvars]


def _number(value: object) -> float | None:
    """A number of the program text, by its shortest text in its own precision; None: it is none."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iuf":
        return None
    return float(str(array[()]))


def _holds_function(value: object) -> bool:
    """Whether a parameter is a function, which is no text: ``nested`` has it, or it is the rule of a derivative."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(each, (ClosedJaxpr, Jaxpr)) or callable(each) for each in several)


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def _stable(value: object) -> str:
    return _ADDRESS.sub("", repr(value))


def _line(eqn: Any) -> str:
    """Its source, ``frac = 1.0 - count``, whatever the file is called; "" where it is not known."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    return "" if frame is None else linecache.getline(frame.file_name, frame.start_line).strip()


# --- the compiled program ---------------------------------------------------------------------------------------------


_DISPLAYED = re.compile(r", metadata=\{[^{}]*\}|, backend_config=(\"[^\"]*\"|\{.*\})")
"""Parts of HLO that name source lines, or hold addresses of callbacks."""

_CODE = ("HloModule", "%", "ENTRY", " ", "}")
"""Starts of the lines of HLO that are code; the others are tables of source lines."""


def evidence_of(compiled: Any) -> dict[str, object]:
    """Kernel evidence: the platform, the flags given to XLA, and a fingerprint of the optimised code."""
    flags = os.environ.get("XLA_FLAGS", "").replace("--", "").split()
    isa = next((flag.partition("=")[2] for flag in flags if flag.startswith("xla_cpu_max_isa=")), "native")
    others = [flag for flag in flags if not flag.startswith(("xla_cpu_max_isa=", "xla_dump_"))]
    platform = jax.default_backend()
    evidence: dict[str, object] = {"library": LIBRARY, "isa": isa if platform == "cpu" else None, "device": platform}
    evidence |= {"flags": " ".join(sorted(others)) or None, "jaxlib": jax.lib.__version__}
    text = _hlo(compiled)
    if text is not None:
        code = "\n".join(line for line in text.splitlines() if line.startswith(_CODE))
        evidence["code"] = f"{portable_key('hlo', _DISPLAYED.sub('', code)):016x}"
    return {name: value for name, value in evidence.items() if value is not None}


def _hlo(compiled: Any) -> str | None:
    try:
        text = compiled.as_text()
    except Exception:  # this platform does not give it
        return None
    return text if isinstance(text, str) else None


_MOVES = {"parameter", "constant", "tuple", "get-tuple-element", "copy", "bitcast", "while", "conditional", "call"}
"""Operations of HLO that compute nothing themselves."""

_COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_INNER = re.compile(r"(calls|to_apply)=%([\w.\-]+)")
_OPCODE = re.compile(r"(?:^|\s)([a-z][\w\-]*)\(")


def operations_of(compiled: Any) -> Counter[str] | None:
    """What an optimised program rounds: its operations on floating-point numbers, with fused computations as text.

    Without names, operands, moves and the digests of the recorder; integers are exact however they are computed. Two
    programs with the same operations round alike. None: this platform does not give the code.
    """
    text = _hlo(compiled)
    if text is None:
        return None
    computations: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if lines is not None and line.startswith("  "):
            lines.append(_DISPLAYED.sub("", line.strip().removeprefix("ROOT ")))
        else:
            begins = _COMPUTATION.match(line)
            lines = computations.setdefault(begins[1], []) if begins else None

    @cache
    def body(name: str) -> str:
        """A computation with its values numbered."""
        numbers: dict[str, int] = {}

        def renamed(match: re.Match[str]) -> str:
            name = match[1]
            return f"{{{body(name)}}}" if name in computations else f"%{numbers.setdefault(name, len(numbers))}"

        return "\n".join(_NAME.sub(renamed, line) for line in computations[name])

    calls = [(call, line) for lines in computations.values() for line in lines for call in _INNER.finditer(line)]
    fused = {call[2] for call, line in calls if call[1] == "calls" or " call(" not in line}
    found: Counter[str] = Counter()
    for name in computations.keys() - fused:
        for line in computations[name]:
            value = line.partition(" = ")[2]
            opcode = _OPCODE.search(value)
            if opcode is not None and opcode[1] not in _MOVES and DIGEST_TARGET not in value:
                named = _NAME.sub(lambda match: f"{{{body(match[1])}}}" if match[1] in computations else "%", value)
                if _FLOATING.search(named):
                    found[_INDEX.sub("", named)] += 1
    return found


_INDEX = re.compile(r"/\*index=\d+\*/")
_FLOATING = re.compile(r"\b(b?f\d+\w*|c64|c128)\[")


def facts() -> dict[str, str | int | float | bool | None]:
    """Facts of JAX. Call it after the first computation: reading them starts the platform."""
    devices = jax.devices()
    found: dict[str, str | int | float | bool | None] = {
        "jax.version": jax.__version__,
        "jax.jaxlib": jax.lib.__version__,
        "jax.platform": jax.default_backend(),
        "jax.devices": f"{len(devices)} × {devices[0].device_kind}",
    }
    for name in CHANGES_NUMBERS:
        value = getattr(jax.config, name, None)
        value = getattr(value, "value", value)
        found[f"jax.{name.removeprefix('jax_')}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return found


# --- arrays -----------------------------------------------------------------------------------------------------------


class ArrayLayout(NamedTuple):
    """What a digest and a row say of an array."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    seed: int
    size: int
    """Bytes."""


@lru_cache(65_536)
def layout_of(dtype: Any, shape: tuple[int, ...], device: str) -> ArrayLayout:
    size = prod(shape) * int(getattr(dtype, "itemsize", 0))
    return ArrayLayout(str(dtype), shape, device, seed_of(str(dtype), shape), size)


def array_of(value: Any, aval: Any) -> Any:
    """An argument as an array: numbers in the type that JAX gave them."""
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype=aval.dtype)


@lru_cache(1_024)
def _placed(sharding: Any) -> tuple[str, bool]:
    """The platform of an array, and whether all of it is in this process's memory, in one piece."""
    devices = sharding.device_set
    platform = next(iter(devices)).platform
    return platform, platform == "cpu" and len(devices) == 1 and sharding.is_fully_addressable


def is_near(array: Any) -> bool:
    """Whether all of a JAX array is in this process's memory, in one piece."""
    return _placed(array.sharding)[1]


def layout_here(array: Any) -> ArrayLayout:
    """Layout of a JAX array on a CPU."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return layout_of(array.dtype, array.shape, "cpu")


def rows_of(array: Any, places: Sequence[int]) -> np.ndarray[Any, Any]:
    """These rows of a JAX array, copied; the array itself may be donated afterwards."""
    _, near = _placed(array.sharding)
    if not near or not array.nbytes:
        return np.asarray(array[min(places) : max(places) + 1])[np.subtract(places, min(places))]
    array.block_until_ready()
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.unsafe_buffer_pointer())
    found: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)[list(places)]
    return found


def digest_rows(array: Any, rows: slice) -> tuple[ArrayLayout, int]:
    """The same of some rows of an array."""
    shape = (rows.stop - rows.start, *array.shape[1:])
    platform, near = _placed(array.sharding)
    if not near or not array.nbytes:
        return digest(np.asarray(array[rows]))
    layout = layout_of(array.dtype, shape, platform)
    array.block_until_ready()
    size = array.nbytes // array.shape[0]
    start = array.unsafe_buffer_pointer() + rows.start * size
    return layout, digest_address(start, shape[0] * size, layout.seed)


def host_array(array: Any, rows: slice | None = None) -> NDArray[Any]:
    """A copy of an array, or of some of its rows, in this process's memory; of random keys, of their data."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if not isinstance(array, jax.Array):
        return np.array(array)
    _, near = _placed(array.sharding)
    if not near or not array.nbytes:
        return np.array(array if rows is None else array[rows])
    array.block_until_ready()  # a view of it would keep the loop's program from writing it in place
    start, size, shape = array.unsafe_buffer_pointer(), array.nbytes, array.shape
    if rows is not None:
        size //= shape[0]
        start, size, shape = (
            start + rows.start * size,
            size * (rows.stop - rows.start),
            (rows.stop - rows.start, *shape[1:]),
        )
    return np.frombuffer(bytearray(string_at(start, size)), array.dtype).reshape(shape)


def array_like(array: Any, content: NDArray[Any]) -> Any:
    """A new array with this content, of the kind and at the place of another one."""
    if not isinstance(array, jax.Array):
        return content
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = array_like(jax.random.key_data(array), content)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    made = typed(jax.numpy.array(content), array.aval)
    return jax.device_put(made, array.sharding) if array.committed else made


def digest(array: Any) -> tuple[ArrayLayout, int]:
    """Layout and digest of a JAX or NumPy array, on the host; waits for it. Nothing is copied on a CPU.

    Of random keys, that of their data.
    """
    if not isinstance(array, jax.Array):
        layout = layout_of(array.dtype, array.shape, "cpu")
        return layout, digest_buffer(np.ascontiguousarray(array).view(np.uint8).reshape(-1), layout.seed)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    platform, near = _placed(array.sharding)
    layout = layout_of(array.dtype, array.shape, platform)
    if near and layout.size:
        read = _digest_small(array, layout)
        if read is not None:
            return layout, read
        array.block_until_ready()
        return layout, digest_address(array.unsafe_buffer_pointer(), layout.size, layout.seed)
    host = np.ascontiguousarray(np.asarray(array))
    return layout, digest_buffer(host.view(np.uint8).reshape(-1), layout.seed)


def digest_as(array: Any, layout: ArrayLayout) -> int:
    """Digest of an array with this layout, in this process's memory; waits for it."""
    read = _digest_small(array, layout)
    return digest(array)[1] if read is None else read


def _digest_small(array: Any, layout: ArrayLayout) -> int | None:
    """Digest of a small array that is read as a buffer, in a quarter of the time; None: it is not one."""
    if layout.size > PAGE_BYTES:
        return None
    try:
        return digest_page(array, layout.seed)
    except (BufferError, ValueError):  # its dtype is no buffer's, or it is not in row-major order
        return None
