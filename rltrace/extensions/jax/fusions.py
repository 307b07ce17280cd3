"""The values within a compiled program that it has in memory anyway: which they are, and how they are read.

A program is one that is called, or the body of a loop, which each iteration calls. Owns the tags by which an
instruction of the optimised code names the equation that it was made of, the choice of the values that are read, and
the custom calls that read them. XLA fuses equations into one instruction, and the values between them are nowhere;
reading one of these would make another program. So what is read is chosen from the optimised code, and the code with
the readers must have the same operations: a value for which it has not is left out.

Read into are called functions and scans. Of a ``while``, whose number of iterations is not known, and of a ``cond``,
the results are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax._src.core import ShapedArray, Var
from jax._src.sharding_impls import UNSPECIFIED
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, primitives

from rltrace.extensions.jax.digest_log import LOG, LogLibrary, can_be_logged
from rltrace.extensions.jax.loops import UNNAMED, is_plain_call, nested, renamed
from rltrace.extensions.jax.programs import Instruction, evidence_of, instructions_of, loops_of
from rltrace.portable_keys import portable_key
from rltrace.trace.kernels.evidence import WITHIN

Eqn = Any
Compile = Callable[[ClosedJaxpr, bool], Any]
"""Of a function, and whether it takes and returns the log, the program compiled as far as its optimised code."""

MAX_TRIES = 8
"""Choices of values that are compiled."""

MAX_DIGESTS = 1 << 16
"""Digests of one call; of inner loops with more, those that run most often are not read into."""

MAX_BYTES = 1 << 24
"""Bytes of one value that are digested in a call: 16 MiB, some 2 ms."""

VALUES_OF_A_READER = 8
"""Values that one custom call reads: a value stays in memory until it is read."""

_READ_INTO = ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint", "scan")
_LOOPS_AND_BRANCHES = ("scan", "while", "cond")
_RESHAPING = ("broadcast_in_dim", "expand_dims", "reshape", "squeeze")
TAGGED = (*_READ_INTO, *_LOOPS_AND_BRANCHES)
"""Primitives with functions among their parameters whose equations are instructions of their own."""


class InnerValue(NamedTuple):
    """A result of an equation of the function, or of a function in it."""

    tag: int
    """Of the equation: its number, those in inner functions counted after the call of the function."""
    place: int
    """Among its results."""
    axes: tuple[int, ...] = ()
    """Its axes in the order in which the program has them, slowest first; none: as they are."""

    @classmethod
    def parse(cls, text: str) -> InnerValue:
        """``12.0`` or ``12.0:1,0``. Raises ValueError."""
        value, _, axes = text.partition(":")
        tag, _, place = value.partition(".")
        return cls(int(tag), int(place), tuple(map(int, axes.split(","))) if axes else ())

    def __str__(self) -> str:
        return f"{self.tag}.{self.place}" + (f":{','.join(map(str, self.axes))}" if self.axes else "")


# --- tags -------------------------------------------------------------------------------------------------------------


_PREFIX = "rltrace"
_TAG = re.compile(rf"\b{_PREFIX}(\d+)\b")


def tagged(function: ClosedJaxpr) -> ClosedJaxpr:
    """The same function, each equation with its number in the name that XLA keeps of it. No operation changes."""
    numbers = count()

    def tag(jaxpr: Jaxpr) -> Jaxpr:
        return jaxpr.replace(eqns=list(map(tag_equation, jaxpr.eqns)))

    def tag_equation(eqn: Eqn) -> Eqn:
        source = eqn.source_info
        named = source.replace(name_stack=source.name_stack.extend(f"{_PREFIX}{next(numbers)}"))
        return eqn.replace(source_info=named, params=_with_functions(eqn, tag))

    return ClosedJaxpr(tag(function.jaxpr), function.consts)


def _with_functions(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> dict[str, Any]:
    """The parameters of an equation, with its functions changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return ClosedJaxpr(change(value.jaxpr), value.consts)
        if isinstance(value, Jaxpr):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    if eqn.primitive.name not in TAGGED:
        return dict(eqn.params)
    return {name: changed(value) for name, value in eqn.params.items()}


def tag_of(eqn: Eqn) -> int:
    """The number of a tagged equation."""
    return int(eqn.source_info.name_stack.stack[-1].name.removeprefix(_PREFIX))


def primitives_by_tag(jaxpr: Jaxpr) -> dict[int, str]:
    """Of a tagged function and the functions in it, without the calls of these."""
    found = {tag_of(eqn): eqn.primitive.name for eqn in jaxpr.eqns if eqn.primitive.name not in TAGGED}
    for eqn in jaxpr.eqns:
        for function in nested(eqn) if eqn.primitive.name in TAGGED else ():
            found |= primitives_by_tag(function)
    return found


def tags_in(name: str) -> list[int]:
    """The numbers of the equations that an instruction was made of: of a call in it, before those of its function."""
    return [int(number) for number in _TAG.findall(name)]


# --- the choice -------------------------------------------------------------------------------------------------------


def is_read_into(eqn: Eqn) -> bool:
    """Whether the values within a function that an equation calls are read, too."""
    if eqn.primitive.name not in _READ_INTO or len(list(nested(eqn))) != 1:
        return False
    return eqn.primitive is not primitives.jit_p or is_plain_call(eqn)


def function_of(eqn: Eqn) -> Jaxpr:
    """The one function among its parameters."""
    return next(iter(nested(eqn)))


def _candidates(jaxpr: Jaxpr, times: int = 1) -> Iterator[tuple[Eqn, int]]:
    """Equations whose results may be read, and how often each runs in a call."""
    for eqn in jaxpr.eqns:
        is_scan = eqn.primitive.name == "scan"
        if not is_read_into(eqn) or is_scan:
            yield eqn, times
        if is_read_into(eqn):
            yield from _candidates(function_of(eqn), times * (eqn.params["length"] if is_scan else 1))


def in_memory(function: ClosedJaxpr, instructions: Iterable[Instruction], loops: Iterable[str]) -> set[InnerValue]:
    """The values of a tagged function that have a buffer in its optimised program, by the tags of its instructions.

    All results of a loop or a branch have one, if the program still has it; ``loops``: their names.
    """
    left = {tags_in(name)[-1] for name in loops if tags_in(name)}
    types: dict[int, set[_Buffer]] = {}
    for instruction in instructions:
        tags = tags_in(instruction.names[0])
        if tags:
            types.setdefault(tags[-1], set()).update(_arrays_in(instruction.type))
    found: dict[InnerValue, int] = {}
    for eqn, times in _candidates(function.jaxpr):
        for place, v in enumerate(eqn.outvars):
            if type(v).__name__ == "DropVar" or not can_be_logged(v.aval):
                continue
            axes = () if tag_of(eqn) in left else _axes_in(types.get(tag_of(eqn), ()), v.aval)
            if axes is not None and v.aval.size * v.aval.dtype.itemsize * times <= MAX_BYTES:
                found[InnerValue(tag_of(eqn), place, axes)] = times
    counts = Counter[int]()
    for times in found.values():
        counts[times] += times
    total, most = 0, 0
    for times in sorted(counts):
        total += counts[times]
        if total <= MAX_DIGESTS:
            most = times
    return {value for value, times in found.items() if times <= most}


_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)[^}]*\})?")


class _Buffer(NamedTuple):
    """An array in memory."""

    kind: str
    """Of its elements, as HLO has it."""
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Slowest first."""

    @property
    def is_row_major(self) -> bool:
        return self.axes == tuple(range(len(self.axes)))


def _arrays_in(text: str) -> Iterator[_Buffer]:
    """The arrays of a type of HLO."""
    for kind, shape, order in _ARRAY.findall(text):
        sizes = tuple(int(size) for size in shape.split(",") if size)
        axes = tuple(int(axis) for axis in order.split(",") if axis)
        yield _Buffer(kind, sizes, axes[::-1])


def _axes_in(buffers: Collection[_Buffer], aval: Any) -> tuple[int, ...] | None:
    """How a value lies in one of these, as ``InnerValue`` has it; None: it is in none of them.

    In row-major order the shape may be another one: reshaping moves nothing then.
    """
    kind, shape = _array_type(aval)
    alike = [buffer for buffer in buffers if buffer.kind == kind]
    if any(buffer.is_row_major and prod(buffer.shape) == prod(shape) for buffer in alike):
        return ()
    return next((buffer.axes for buffer in sorted(alike) if buffer.shape == shape and not buffer.is_row_major), None)


_KINDS = (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "s"), ("bool", "pred"))


def _array_type(aval: Any) -> tuple[str, tuple[int, ...]]:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, aval)
    name = str(aval.dtype)
    old, new = next(((old, new) for old, new in _KINDS if name.startswith(old)), ("", ""))
    return name.replace(old, new, 1), aval.shape


class Choice(NamedTuple):
    """The values that are read, and the function that reads them."""

    tagged: ClosedJaxpr
    values: frozenset[InnerValue]
    reading: ClosedJaxpr
    """The function that reads them; takes the log last, and returns it last."""
    instructions: Sequence[Instruction]
    """Of the plain program; those of the one that reads are the same."""
    evidence: Mapping[str, object]
    """Kernel evidence of the plain program."""
    results: Mapping[InnerValue, int] = MappingProxyType({})
    """Values that are not read, as the function returns them, each with its number among the results."""

    @property
    def key(self) -> str:
        """Equal where the same values are read of the same equations."""
        names = [[tag, name] for tag, name in primitives_by_tag(self.tagged.jaxpr).items()]
        return f"{portable_key('values', names, *map(list, sorted(self.values))):016x}"

    @property
    def rows(self) -> int:
        """How many equations with values that are read run in a call."""
        chosen = {value.tag for value in (*self.values, *self.results)}

        def count(jaxpr: Jaxpr) -> int:
            return sum((tag_of(eqn) in chosen) + (inner(eqn) if is_reading(eqn, chosen) else 0) for eqn in jaxpr.eqns)

        def inner(eqn: Eqn) -> int:
            return count(function_of(eqn)) * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)

        return count(self.tagged.jaxpr)

    def outer_evidence(self, op: str) -> dict[str, object]:
        """Kernel evidence of the rows of this name that these are within."""
        return {**self.evidence, WITHIN: f"{op}@{self.key} {self.rows}"}

    def __str__(self) -> str:
        return f"{len(self.values):,} values within are read, choice {self.key}"


def results_not_read(function: ClosedJaxpr, values: Iterable[InnerValue]) -> dict[InnerValue, int]:
    """Of a tagged function the values that it returns and that are not among these, with their numbers."""
    read = {(value.tag, value.place) for value in values}
    computed = [(_computed(function.jaxpr, v), number) for number, v in enumerate(function.jaxpr.outvars)]
    found = {InnerValue(*at): number for at, number in reversed(computed) if at is not None and at not in read}
    return dict(sorted(found.items()))


def _computed(jaxpr: Jaxpr, v: Any) -> tuple[int, int] | None:
    """(tag, place) of the equation, of a function or those that it calls, that computes a variable; None: none does.

    Equations that give an array another shape compute nothing.
    """
    found = next(((eqn, eqn.outvars.index(v)) for eqn in jaxpr.eqns if v in eqn.outvars), None)
    if found is None or isinstance(v, Literal):
        return None
    eqn, place = found
    if eqn.primitive.name in _RESHAPING and eqn.invars[0].aval.size == v.aval.size:
        return _computed(jaxpr, eqn.invars[0]) or (tag_of(eqn), place)
    if not is_read_into(eqn) or eqn.primitive.name == "scan":
        return tag_of(eqn), place
    inner = function_of(eqn)
    own = inner.outvars[place]
    return _computed(jaxpr, eqn.invars[inner.invars.index(own)]) if own in inner.invars else _computed(inner, own)


def choose(
    function: ClosedJaxpr, library: LogLibrary, compiled: Compile, limit: Collection[InnerValue] | None = None
) -> Choice | None:
    """Of a function, the values that can be read with the same operations; None: there are none.

    ``limit``: only of these; None: of all.
    """
    if limit is not None and not limit:
        return None
    plain = tagged(function)
    program = compiled(plain, False)
    before = instructions_of(program)
    if before is None:
        return None
    operations = Counter(each.text for each in before if each.rounds)
    values = in_memory(plain, before, loops_of(program))
    values = values if limit is None else values.intersection(limit)
    for _ in range(MAX_TRIES):
        if not values:
            return None
        reading = with_readers(plain, values, library)
        after = instructions_of(compiled(reading, True)) or ()
        now = Counter(each.text for each in after if each.rounds)
        if now == operations:
            return Choice(plain, frozenset(values), reading, before, evidence_of(program))
        lost = [each for each in before if each.text in operations - now]
        values = _left(values, lost, [each for each in after if each.text in now - operations])
    return None


def _left(values: set[InnerValue], lost: Sequence[Instruction], new: Sequence[Instruction]) -> set[InnerValue]:
    """The values but for those for which operations may be others: ``lost`` are the plain program's, ``new`` are not.

    First those that one of two operations with one result alone was made of; then results of new operations.
    """
    were, are = _parts(lost), _parts(new)
    moved = {tag for result in were.keys() | are.keys() for tag in were.get(result, set()) ^ are.get(result, set())}
    for tags in (moved - (were.keys() & are.keys()), moved, are.keys(), were.keys()):
        left = {value for value in values if value.tag not in tags}
        if len(left) < len(values):
            return left
    return set()


def _parts(instructions: Sequence[Instruction]) -> dict[int, set[int]]:
    """By the equation that an instruction is the result of, the equations that it was made of."""
    found: dict[int, set[int]] = {}
    for each in instructions:
        result, *parts = [tag for name in each.names for tag in tags_in(name)[-1:]] or [-1]
        found.setdefault(result, set()).update(parts)
    return found


# --- readers ----------------------------------------------------------------------------------------------------------


def with_readers(function: ClosedJaxpr, values: Collection[InnerValue], library: LogLibrary) -> ClosedJaxpr:
    """A tagged function that digests these values in their order; it takes the log last, and returns it last."""
    chosen: dict[int, list[InnerValue]] = {}
    for value in sorted(values):
        chosen.setdefault(value.tag, []).append(value)
    return ClosedJaxpr(_Readers(chosen, library).within(function.jaxpr), function.consts)


class _Readers:
    """Puts custom calls into functions. The log is passed from one to the next: XLA sees no side effects."""

    def __init__(self, chosen: Mapping[int, Sequence[InnerValue]], library: LogLibrary) -> None:
        self._chosen, self._library = chosen, library

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        log = taken = _new_log()
        eqns: list[Eqn] = []
        waiting: list[tuple[Any, tuple[int, ...]]] = []

        def read(log: Any) -> Any:
            if not waiting:
                return log
            values, orders = zip(*waiting, strict=True)
            reader = jax.make_jaxpr(partial(self._library.read, orders))(*(v.aval for v in (log, *values))).jaxpr
            named = dict(zip(reader.invars, (log, *values), strict=True))
            eqns.extend(renamed(eqn, named) for eqn in reader.eqns)
            waiting.clear()
            return reader.outvars[0]

        for eqn in jaxpr.eqns:
            if is_reading(eqn, self._chosen):
                reading, log = self._with_log(eqn, read(log))
                eqns.append(reading)
            else:
                eqns.append(eqn)
            waiting += [(eqn.outvars[value.place], value.axes) for value in self._chosen.get(tag_of(eqn), ())]
            if len(waiting) >= VALUES_OF_A_READER:
                log = read(log)
        invars, outvars = [*jaxpr.invars, taken], [*jaxpr.outvars, read(log)]
        return jaxpr.replace(invars=invars, outvars=outvars, eqns=eqns, debug_info=UNNAMED)

    def _with_log(self, eqn: Eqn, log: Any) -> tuple[Eqn, Any]:
        """A call whose function reads, and the log after it."""
        params, after = _with_functions(eqn, self.within), _new_log()
        invars, outvars = [*eqn.invars, log], [*eqn.outvars, after]
        if eqn.primitive.name == "scan":
            place, carried = params["num_consts"] + params["num_carry"], params["num_carry"]
            inner = params["jaxpr"].jaxpr
            inner = inner.replace(invars=_last_to(inner.invars, place), outvars=_last_to(inner.outvars, carried))
            invars, outvars = _last_to(invars, place), _last_to([*eqn.outvars, after], carried)
            linear = _last_to([*params["linear"], False], place) if "linear" in params else ()
            params |= {"jaxpr": ClosedJaxpr(inner, params["jaxpr"].consts), "num_carry": carried + 1}
            params |= {"linear": tuple(linear)} if linear else {}
        elif eqn.primitive is primitives.jit_p:
            params |= {name: (*params[name], UNSPECIFIED) for name in ("in_shardings", "out_shardings")}
            params |= {name: (*params[name], None) for name in ("in_layouts", "out_layouts")}
            params["donated_invars"] = (*params["donated_invars"], False)
        return eqn.replace(invars=invars, outvars=outvars, params=params), after


def is_reading(eqn: Eqn, chosen: Collection[int]) -> bool:
    """Whether a value within the function that an equation calls is read."""
    if not is_read_into(eqn):
        return False
    return any(tag_of(inner) in chosen or is_reading(inner, chosen) for inner in function_of(eqn).eqns)


def _new_log() -> Any:
    return Var(ShapedArray(LOG.shape, LOG.dtype))


def _last_to(items: Sequence[Any], place: int) -> list[Any]:
    return [*items[:place], items[-1], *items[place:-1]]
