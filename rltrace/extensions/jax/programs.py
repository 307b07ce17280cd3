"""What JAX compiles, as evidence: the program that was asked for, and what XLA made of it.

Owns the fingerprint of a traced function and its numbers, the fingerprint of optimised code, the facts of JAX and the
digest of an array. A number of the program text (a learning rate) is named by the line that it comes from, so that two
programs which differ in it alone are one program called with another number.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import string_at
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, primitives
from numpy.typing import NDArray

from rltrace.digest import PAGE_BYTES, digest_address, digest_buffer, digest_page, seed_of
from rltrace.extensions.jax.digest_log import PREFIX as DIGEST_PREFIX
from rltrace.extensions.jax.digest_log import is_packed
from rltrace.extensions.jax.loops import nested, typed
from rltrace.fingerprint.libraries import is_on, xla_flags
from rltrace.portable_keys import portable_key

LIBRARY = "XLA"
"""Library of the kernel evidence."""

WRITES_FILES = ("xla_dump_", "xla_gpu_dump_autotune_results_to=")
"""Starts of flags that change no code."""

MAX_NUMBERS = 4_096
"""Numbers of one program that are recorded; the rest is in its fingerprint."""

MAX_LINES = 4_096
"""Lines of one program whose fingerprints are recorded."""

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


def lines_here() -> tuple[tuple[str, str, int], ...]:
    """The same of the stack of the calling thread."""
    frames = source_info_util.user_frames(source_info_util.current().traceback)
    return tuple((frame.file_name, frame.function_name, frame.start_line) for frame in frames)


REMAT = ("checkpoint", "rematted_computation")
"""Scopes of ``jax.checkpoint``, which are no modules."""


def scopes_of(eqn: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """Of ``jax.named_scope``, and so the modules of Flax, outermost first; and names of transformations: ``jvp``."""
    stack = eqn.source_info.name_stack.stack
    transforms = frozenset(each.name for each in stack if isinstance(each, source_info_util.Transform))
    scopes = (each.name for each in stack if not isinstance(each, source_info_util.Transform))
    return tuple(name for name in scopes if name not in REMAT), transforms


class Program(NamedTuple):
    """A traced function as one can compare it."""

    fingerprint: str
    """Of its equations without their numbers."""
    numbers: tuple[tuple[str, float], ...]
    """Each with the line that it comes from and its place in it: ``return config["LR"] * frac #1``."""
    lines: tuple[tuple[str, str], ...]
    """Each line that equations come from, in their order, with a fingerprint of what they are without their numbers."""


def program_of(jaxpr: Jaxpr, line: str = "") -> Program:
    """The fingerprint, the numbers and the lines of a function; ``line``: the source of equations that have none."""
    numbers: dict[str, list[float]] = {}
    lines: dict[str, list[object]] = {}
    words = list(_words(jaxpr, line, numbers, lines))
    named = [(f"{line} #{k}", value) for line, values in numbers.items() for k, value in enumerate(values, 1)]
    fingerprint = portable_key("jaxpr", *words, *named[MAX_NUMBERS:])
    hashed = [(line, f"{portable_key('line', *made):016x}") for line, made in lines.items() if line]
    return Program(f"{fingerprint:016x}", tuple(named[:MAX_NUMBERS]), tuple(hashed[:MAX_LINES]))


def _words(
    jaxpr: Jaxpr, line: str, numbers: dict[str, list[float]], lines: dict[str, list[object]]
) -> Iterator[object]:
    """Every equation as JSON: variables by the order in which they are bound, numbers as their types.

    ``numbers`` and ``lines``: of each line of the source, become the numbers and the equations that come from it.
    """
    names: dict[Any, int] = {}
    for v in (*jaxpr.constvars, *jaxpr.invars):
        names[v] = len(names)
        yield str(v.aval)
    for eqn in jaxpr.eqns:
        own = source_of(eqn) or line
        read: list[object] = []
        for place, v in enumerate(eqn.invars):
            if isinstance(v, Literal):
                read.append(str(v.aval))
                number = _number(v.val)
                if number is None:
                    read.append(_stable(v.val))
                elif (computes := _line_of_use(eqn, place)) is not None:
                    numbers.setdefault(computes or own, []).append(number)
            else:
                read.append(names[v])
        for v in eqn.outvars:
            names[v] = len(names)
        inner = list(nested(eqn))
        rest = {name: _stable(value) for name, value in eqn.params.items() if not _holds_function(value)}
        made = [str(v.aval) for v in eqn.outvars]
        yield [eqn.primitive.name, read, made, rest]
        lines.setdefault(own, []).append([eqn.primitive.name, [str(v.aval) for v in eqn.invars], made, rest])
        for each in inner:
            yield list(_words(each, own, numbers, lines))
    yield [names.get(v, _stable(v)) if not isinstance(v, Literal) else _stable(v.val) for v in jaxpr.outvars]


def _line_of_use(eqn: Any, place: int) -> str | None:
    """The line that computes with an input of an equation, for what a compiled function is called with a line in it.

    "": it is not known; None: nothing computes with it.
    """
    if eqn.primitive is not primitives.jit_p:
        return source_of(eqn)
    called = eqn.params["jaxpr"].jaxpr
    own = called.invars[place]
    uses = ((each, at) for each in called.eqns for at, v in enumerate(each.invars) if v is own)
    lines = [line for use, at in uses if (line := _line_of_use(use, at)) is not None]
    return next(filter(None, lines), "") if lines or own in called.outvars else None


def callbacks_of(jaxpr: Jaxpr) -> list[str]:
    """Names of the functions of the program that it calls back for a result, such as an environment in Python."""
    found: dict[str, None] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("pure_callback", "io_callback") and eqn.outvars:
            function = getattr(eqn.params["callback"], "callback_func", eqn.params["callback"])
            found[getattr(function, "__name__", type(function).__name__)] = None
        for inner in nested(eqn):
            found |= dict.fromkeys(callbacks_of(inner))
    return list(found)


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


def source_of(eqn: Any) -> str:
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
    others = [flag for flag in flags if not flag.startswith(("xla_cpu_max_isa=", *WRITES_FILES))]
    platform = jax.default_backend()
    evidence: dict[str, object] = {"library": LIBRARY, "isa": isa if platform == "cpu" else None, "device": platform}
    evidence |= {"flags": " ".join(sorted(others)) or None, "jaxlib": jax.lib.__version__}
    evidence |= {"threads": _threads() if platform == "cpu" else None}
    text = _hlo(compiled)
    if text is not None:
        code = "\n".join(line for line in text.splitlines() if line.startswith(_CODE))
        evidence["code"] = f"{portable_key('hlo', _DISPLAYED.sub('', code)):016x}"
    return {name: value for name, value in evidence.items() if value is not None}


def is_fast_math() -> bool:
    """Whether the compiler may order sums as suits the code around them: equal operations may round otherwise."""
    return is_on(xla_flags({"env.XLA_FLAGS": os.environ.get("XLA_FLAGS")}) or {}, "xla_cpu_enable_fast_math")


def name_of(compiled: Any) -> str:
    """Name of a compiled program, as its code has it; "" where this platform does not give that."""
    found = _MODULE.match(_hlo(compiled) or "")
    return "" if found is None else found[1]


_MODULE = re.compile(r"HloModule (?:jit_)?([^,\s]+)")


def _threads() -> int:
    """Threads of XLA on a CPU, among which it splits sums: one for each core, or as many as a variable says."""
    given = os.environ.get("NPROC", "")
    if given.isdecimal():
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Instruction(NamedTuple):
    """An instruction of an optimised program that is in no fused computation: what it computes has a buffer."""

    type: str
    """Of its result: ``f32[4,64]{1,0}``."""
    opcode: str
    text: str
    """Without names, operands and metadata; with fused computations as text."""
    names: tuple[str, ...]
    """Of the operations that it was made of, as JAX named them: its own first, then those fused into it."""

    @property
    def rounds(self) -> bool:
        """Whether floating-point numbers are in it; integers are exact however they are computed."""
        return _FLOATING.search(self.text) is not None


def loops_of(compiled: Any) -> list[str]:
    """Names of the loops and branches of an optimised program, as JAX named them: XLA removes some."""
    lines = (_hlo(compiled) or "").splitlines()
    names = (_OP_NAME.search(line) for line in lines if _LOOP_OR_BRANCH.search(line) is not None)
    return [found[1] for found in names if found is not None]


_LOOP_OR_BRANCH = re.compile(r" = .* (while|conditional)\(")


def instructions_of(compiled: Any) -> list[Instruction] | None:
    """Those of an optimised program but for moves and digests; None: this platform does not give the code."""
    text = _hlo(compiled)
    if text is None:
        return None
    computations: dict[str, list[tuple[str, str]]] = {}
    lines: list[tuple[str, str]] | None = None
    for line in text.splitlines():
        if lines is not None and line.startswith("  "):
            named = _OP_NAME.search(line)
            lines.append((_DISPLAYED.sub("", line.strip().removeprefix("ROOT ")), named[1] if named else ""))
        else:
            begins = _COMPUTATION.match(line)
            lines = computations.setdefault(begins[1], []) if begins else None

    @cache
    def body(name: str) -> tuple[str, tuple[str, ...]]:
        """A computation with its values numbered, and the names of its operations."""
        numbers: dict[str, int] = {}
        names: list[str] = []

        def renamed(match: re.Match[str]) -> str:
            if match[1] not in computations:
                return f"%{numbers.setdefault(match[1], len(numbers))}"
            inner, more = body(match[1])
            names.extend(more)
            return f"{{{inner}}}"

        texts = []
        for line, own in computations[name]:
            names += [own] if own else []
            texts.append(_PARAMETER.sub("parameter()", _NAME.sub(renamed, line)))
        return "\n".join(texts), tuple(names)

    calls = [(call, line) for lines in computations.values() for line, _ in lines for call in _INNER.finditer(line)]
    fused = {call[2] for call, line in calls if call[1] == "calls" or " call(" not in line}
    found = []
    for line, own in (each for name, lines in computations.items() if name not in fused for each in lines):
        value = line.partition(" = ")[2]
        opcode = _OPCODE.search(value)
        if opcode is not None and opcode[1] not in _MOVES and DIGEST_PREFIX not in value:
            called = {match[1]: body(match[1]) for match in _NAME.finditer(value) if match[1] in computations}
            text = _NAME.sub(lambda match: f"{{{body(match[1])[0]}}}" if match[1] in computations else "%", value)
            names = own, *(name for _, names in called.values() for name in names)
            found.append(Instruction(value[: opcode.start()].strip(), opcode[1], _INDEX.sub("", text), names))
    return found


def operations_of(compiled: Any) -> Counter[str] | None:
    """What an optimised program rounds: its operations on floating-point numbers, with fused computations as text.

    Two programs with the same operations round alike. None: this platform does not give the code.
    """
    found = instructions_of(compiled)
    return None if found is None else Counter(each.text for each in found if each.rounds)


_PARAMETER = re.compile(r"parameter\(\d+\)")
"""Their order is that of the operands, which are left out, too."""

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
    if jax.default_backend() == "cpu":
        found["jax.threads"] = _threads()
    for name in CHANGES_NUMBERS:
        value = getattr(jax.config, name, None)
        value = getattr(value, "value", value)
        found[f"jax.{name.removeprefix('jax_')}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
    found["jax.compilation_cache"] = bool(
        jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir
    )
    return found


AUTOTUNING = {
    "jax.autotuning_dumped": "xla_gpu_dump_autotune_results_to",
    "jax.autotuning_loaded": "xla_gpu_load_autotune_results_from",
}
"""Facts, and the flags that name files with the kernels that XLA chose by timing them."""

_RUN_TIME = re.compile(r"\brun_time\s*:?\s*\{[^{}]*\}\s*")


def autotuning() -> dict[str, str]:
    """Digests of what XLA chose by timing, in the text files that ``XLA_FLAGS`` names, without the times themselves.

    Of a binary file there is none, as its times cannot be left out.
    """
    flags = xla_flags({"env.XLA_FLAGS": os.environ.get("XLA_FLAGS")}) or {}
    found = {}
    for fact, flag in AUTOTUNING.items():
        path = Path(flags.get(flag, ""))
        if path.suffix in (".txt", ".textproto"):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # none was written: this is no GPU
                chosen = _RUN_TIME.sub("", path.read_text("utf-8"))
                found[fact] = f"{digest_buffer(chosen.encode(), 0):016x}"
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
    is_plain: bool
    """Whether it has bytes, and a program has them as the host has."""
    mesh: Mesh | None = None
    """Of an array on several devices."""


class Mesh(NamedTuple):
    """How an array lies on several devices: by dimension of their mesh, as of a distributed tensor of torch."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    placements: tuple[str, ...]
    """``Shard(0)`` or ``Replicate``; of a sharding without a mesh its class."""
    is_here: bool
    """Whether this process can read all of it."""


@lru_cache(65_536)
def layout_of(dtype: Any, shape: tuple[int, ...], device: str, mesh: Mesh | None = None) -> ArrayLayout:
    size = prod(shape) * int(getattr(dtype, "itemsize", 0))
    is_plain = size > 0 and not is_packed(dtype)
    return ArrayLayout(str(dtype), shape, device, seed_of(str(dtype), shape), size, is_plain, mesh)


def array_of(value: Any, aval: Any) -> Any:
    """An argument as an array: numbers in the type that JAX gave them, of a reference what it refers to now."""
    if isinstance(value, jax.Array):
        return value
    return value[...] if is_reference(value) else np.asarray(value, dtype=aval.dtype)


def is_reference(value: Any) -> bool:
    """Whether an argument is a reference, which a call can write."""
    return not isinstance(value, jax.Array) and isinstance(value, getattr(jax, "Ref", ()))


@lru_cache(1_024)
def _placed(sharding: Any) -> tuple[str, bool, Mesh | None]:
    """Where an array is, ``cpu`` or ``cpu:1``, and whether all of it is in this process's memory, in one piece."""
    devices = sharding.device_set
    device = next(iter(devices))
    platform: str = device.platform
    if len(devices) > 1:
        return platform, False, _mesh_of(sharding)
    beside = jax.local_devices(backend=platform)
    at = beside.index(device) if device in beside else 0
    return f"{platform}:{at}" if at else platform, platform == "cpu" and sharding.is_fully_addressable, None


def _mesh_of(sharding: Any) -> Mesh:
    is_here = sharding.is_fully_addressable or sharding.is_fully_replicated
    if not isinstance(sharding, jax.sharding.NamedSharding):
        placed = "Replicate" if sharding.is_fully_replicated else type(sharding).__name__
        return Mesh(("devices",), (len(sharding.device_set),), (placed,), is_here)
    split: dict[Any, int] = {}
    for dim, axes in enumerate(sharding.spec):
        split |= dict.fromkeys(axes if isinstance(axes, tuple) else (axes,), dim)
    sizes = sharding.mesh.shape
    placements = (f"Shard({split[name]})" if name in split else "Replicate" for name in sizes)
    return Mesh(tuple(map(str, sizes)), tuple(sizes.values()), tuple(placements), is_here)


def _read(array: Any) -> NDArray[Any]:
    """An array on the host; of one that other processes have parts of the own parts, one after the other."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    own = {tuple(each.start or 0 for each in part.index): part.data for part in array.addressable_shards}
    return np.concatenate([np.asarray(own[start]).reshape(-1) for start in sorted(own)])


def data_of(array: Any) -> Any:
    """The array whose bytes it has: of random keys their data, of others itself."""
    return getattr(array, "_base_array", array)


def layout_here(array: Any) -> ArrayLayout:
    """Layout of a JAX array."""
    return _layout(data_of(array))[0]


def _layout(array: Any) -> tuple[ArrayLayout, bool]:
    """Layout of an array, no random keys, and whether its bytes can be read where they are."""
    device, near, mesh = _placed(array.sharding)
    layout = layout_of(array.dtype, array.shape, device, mesh)
    return layout, near and layout.is_plain


def is_near(array: Any) -> bool:
    """Whether the bytes of a JAX array can be read where they are."""
    return _layout(data_of(array))[1]


def rows_of(array: Any, places: Sequence[int]) -> np.ndarray[Any, Any]:
    """These rows of an array, copied; a JAX array itself may be donated afterwards."""
    if not isinstance(array, jax.Array):
        return np.asarray(array[list(places)])
    if not is_near(array):
        return np.asarray(array[min(places) : max(places) + 1])[np.subtract(places, min(places))]
    array.block_until_ready()
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.unsafe_buffer_pointer())
    found: np.ndarray[Any, Any] = np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)[list(places)]
    return found


def digest_rows(array: Any, rows: slice) -> tuple[ArrayLayout, int]:
    """The same of some rows of an array."""
    shape = (rows.stop - rows.start, *array.shape[1:])
    whole, near = _layout(array)
    if not near:
        return digest(np.asarray(array[rows]))
    layout = layout_of(array.dtype, shape, whole.device)
    array.block_until_ready()
    size = array.nbytes // array.shape[0]
    start = array.unsafe_buffer_pointer() + rows.start * size
    return layout, digest_address(start, shape[0] * size, layout.seed)


def host_array(array: Any, rows: slice | None = None) -> NDArray[Any]:
    """A copy of an array, or of some of its rows, in this process's memory; of random keys, of their data."""
    array = data_of(array)
    if not isinstance(array, jax.Array):
        return np.array(array)
    if not is_near(array):
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
        data = array_like(data_of(array), content)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    made = typed(jax.numpy.array(content), array.aval)
    return jax.device_put(made, array.sharding) if array.committed else made


def digest(array: Any) -> tuple[ArrayLayout, int]:
    """Layout and digest of a JAX or NumPy array, on the host; waits for it. Nothing is copied on a CPU.

    Of random keys, that of their data; of an array that other processes have parts of, that of the own parts.
    """
    array = data_of(array)
    if not isinstance(array, jax.Array):
        layout = layout_of(array.dtype, array.shape, "cpu")
        return layout, digest_buffer(np.ascontiguousarray(array).view(np.uint8).reshape(-1), layout.seed)
    layout, near = _layout(array)
    if near:
        read = _digest_small(array, layout)
        if read is not None:
            return layout, read
        array.block_until_ready()
        return layout, digest_address(array.unsafe_buffer_pointer(), layout.size, layout.seed)
    host = np.ascontiguousarray(_read(array))
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
