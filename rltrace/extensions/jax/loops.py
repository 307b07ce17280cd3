"""A compiled function cut at its outermost scan, so that the host drives the loop and sees its carry.

Owns which scan that is, when a function cannot be cut, and the three programs of a cut. Records nothing.

The loop is compiled as a ``while`` over a range of iterations, with the body of the scan. Nothing is read in it but
what an iteration passes on or stacks, which has a buffer anyway, so XLA fuses the body as in the function itself. What
the function computes from constants alone is computed again in each of the three programs: XLA folds constants into
the body (a division by one becomes a product), which it could not do with an argument.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import jax
from jax._src import source_info_util
from jax._src.lax import lax
from jax._src.linear_util import DebugInfo
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, primitives

from rltrace.extensions.jax.digest_log import LogLibrary, can_be_logged

Array = Any
Atom = Any
Eqn = Any

MIN_ITERATIONS = 2
"""Scans of fewer iterations are no loops."""


UNNAMED = DebugInfo("rltrace", "rltrace", None, None)
"""Of functions that the recorder makes of the program's: JAX warns of those without."""

IN_PLACE_BYTES = 1 << 20
"""Size of an array of the carry from which it is written in place. With smaller ones XLA's code takes twice as long
where they are (measured on a CPU: all of PureJaxRL's PPO), and no memory worth mentioning is saved."""


class CannotCutError(Exception):
    """Why a function is recorded at its boundary only."""


LoopRule = Callable[[Eqn], bool]
"""Which scans are training loops."""


def every_scan(_: Eqn) -> bool:
    """A rule."""
    return True


def computes_gradient(eqn: Eqn) -> bool:
    """Whether an equation is the transpose of another one, or one within it is; a rule, too."""
    transforms = (each for each in eqn.source_info.name_stack.stack if isinstance(each, source_info_util.Transform))
    return any(each.name == "transpose" for each in transforms) or any(map(has_gradient, nested(eqn)))


def has_gradient(jaxpr: Jaxpr) -> bool:
    """Whether a function computes a gradient."""
    return any(map(computes_gradient, jaxpr.eqns))


def outermost_scan(jaxpr: Jaxpr, rule: LoopRule) -> int | None:
    """Place of the training loop that does most of the work among the equations of a function itself; None: none."""
    scans = [i for i, eqn in enumerate(jaxpr.eqns) if _is_loop(eqn, rule)]
    return max(scans, key=lambda i: _work(jaxpr.eqns[i]), default=None)


def _work(eqn: Eqn) -> int:
    """Equations that it runs, by the lengths of the scans in it; a loop of unknown length counts once."""
    inner = sum(_work(each) for jaxpr in nested(eqn) for each in jaxpr.eqns)
    return (1 + inner) * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)


def nested(eqn: Eqn) -> Iterable[Jaxpr]:
    """The functions among its parameters: of a loop the body, of a branch all alternatives."""
    for value in eqn.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each


def flattened(closed: ClosedJaxpr, rule: LoopRule) -> ClosedJaxpr:
    """A function with its training loop among its own equations: that of a function that it calls is taken into it.

    Of ``jit(train)`` in another ``jit``, and so of ``jit(vmap(jit(train)))``. XLA takes called functions in as well.
    A call that places its arrays, or compiles otherwise, stays.
    """
    jaxpr, consts = closed.jaxpr, list(closed.consts)
    while True:
        at = training_loop(jaxpr, rule)
        if at is None or not is_plain_call(jaxpr.eqns[at]):
            return ClosedJaxpr(jaxpr, consts)
        called, call = jaxpr.eqns[at].params["jaxpr"], jaxpr.eqns[at]
        named: dict[Atom, Atom] = dict(zip(called.jaxpr.invars, call.invars, strict=True))
        eqns = [*jaxpr.eqns[:at], *(renamed(eqn, named) for eqn in called.jaxpr.eqns)]
        results = (named.get(v, v) if not isinstance(v, Literal) else v for v in called.jaxpr.outvars)
        named = dict(zip(call.outvars, results, strict=True))
        eqns += [renamed(eqn, named) for eqn in jaxpr.eqns[at + 1 :]]
        outvars = [named.get(v, v) if not isinstance(v, Literal) else v for v in jaxpr.outvars]
        constvars = [*jaxpr.constvars, *called.jaxpr.constvars]
        consts += called.consts
        jaxpr = jaxpr.replace(constvars=constvars, eqns=eqns, outvars=outvars, debug_info=UNNAMED)


def training_loop(jaxpr: Jaxpr, rule: LoopRule) -> int | None:
    """Place of the training loop that does most of the work, or of the call that it is in; None: there is none."""
    work = [_loop_work(eqn, rule) for eqn in jaxpr.eqns]
    return work.index(max(work)) if any(work) else None


def has_loop(jaxpr: Jaxpr, rule: LoopRule = every_scan) -> bool:
    """Whether a training loop is among the equations of a function, or of those that it calls."""
    return training_loop(jaxpr, rule) is not None


def has_while(jaxpr: Jaxpr) -> bool:
    """Whether a ``while_loop`` is among the equations of a function, or of those that it calls."""
    inner = (eqn.params["jaxpr"].jaxpr for eqn in jaxpr.eqns if _is_call(eqn))
    return any(eqn.primitive.name == "while" for eqn in jaxpr.eqns) or any(map(has_while, inner))


def _loop_work(eqn: Eqn, rule: LoopRule) -> int:
    """Of a training loop its work, of a call that of the largest one in it: what a called function does beside is none.

    So of two equal calls the second is not larger than the first one's loop, and stays: both have the same variables.
    """
    if _is_call(eqn):
        return max((_loop_work(each, rule) for each in eqn.params["jaxpr"].jaxpr.eqns), default=0)
    return _work(eqn) if _is_loop(eqn, rule) else 0


def _is_loop(eqn: Eqn, rule: LoopRule) -> bool:
    if eqn.primitive.name != "scan":
        return False
    return eqn.params["length"] >= MIN_ITERATIONS and bool(eqn.params["num_carry"]) and rule(eqn)


def _is_call(eqn: Eqn) -> bool:
    return eqn.primitive is primitives.jit_p


def is_plain_call(eqn: Eqn) -> bool:
    """Whether a called function is compiled as if its equations were the caller's."""
    if not _is_call(eqn):
        return False
    given = [*eqn.params["in_shardings"], *eqn.params["out_shardings"], *eqn.params["in_layouts"]]
    return not eqn.params["compiler_options_kvs"] and not any(is_given(each) for each in given)


def is_given(placement: Any) -> bool:
    """Whether a program says where, or how, an array is to be."""
    return placement is not None and type(placement).__name__ != "UnspecifiedValue"


def renamed(eqn: Eqn, named: Mapping[Atom, Atom]) -> Eqn:
    return eqn.replace(invars=[v if isinstance(v, Literal) else named.get(v, v) for v in eqn.invars])


class Cut:
    """A function in three programs: what precedes its loop, iterations of the loop, what follows.

    A *fixed* place of the carry is one that iterations pass on unchanged: a constant of the loop.
    """

    def __init__(self, closed: ClosedJaxpr, library: LogLibrary | None, rule: LoopRule = every_scan) -> None:
        """``library``: with it, iterations digest what they pass on and stack; None: nothing is digested.

        Raises CannotCutError where no training loop is among its own equations, or where the loop cannot be driven.
        """
        closed = flattened(closed, rule)
        jaxpr, at = closed.jaxpr, outermost_scan(closed.jaxpr, rule)
        if at is None:
            raise CannotCutError("it has no scan among its own equations")
        self._closed, self.scan = closed, jaxpr.eqns[at]
        params, body = self.scan.params, self.scan.params["jaxpr"].jaxpr
        if params["unroll"] != 1:
            raise CannotCutError("its scan is unrolled")
        if any(hasattr(v.aval, "inner_aval") for v in self.scan.invars):
            raise CannotCutError("its loop reads references")
        self.length: int = params["length"]
        consts, carried = params["num_consts"], params["num_carry"]
        self._consts, self._xs = self.scan.invars[:consts], self.scan.invars[consts + carried :]
        self._init = self.scan.invars[consts : consts + carried]
        self._ys = self.scan.outvars[carried:]
        if any(jax.dtypes.issubdtype(y.aval.dtype, jax.dtypes.extended) for y in self._ys):
            raise CannotCutError("its scan stacks random keys")
        fixed = [body.outvars[i] is body.invars[consts + i] for i in range(carried)]
        self._moving = [i for i in range(carried) if not fixed[i]]
        self._fixed = [i for i in range(carried) if fixed[i]]
        taken = names_of(body.debug_info, "arg_names", len(body.invars))
        returned = names_of(body.debug_info, "result_paths", len(body.outvars))
        sizes = [body.invars[consts + i].aval for i in self._moving]
        self.in_place = [aval.size * aval.dtype.itemsize >= IN_PLACE_BYTES for aval in sizes]
        """Which of the moving carry the loop's program writes in place, so that it takes no second copy of it."""
        logged = all(can_be_logged(v.aval) for v in (*(body.invars[consts + i] for i in self._moving), *self._ys))
        self.library = library if logged else None
        self.carry_bytes = sum(aval.size * aval.dtype.itemsize for aval in sizes)
        self.carry_names = tuple(taken[consts + i] for i in self._moving)
        """Of the carry that iterations change, as the scan's function names it; "" where that is not known."""
        self.stacked_names = returned[carried:]
        """Of the stacked outputs."""
        self._find_parts(at)
        self.body: ClosedJaxpr = params["jaxpr"]
        """Of the scan."""
        self.loop = self.loop_with(self.body)
        self.unchanging = jax.jit(self._unchanging)

    def _find_parts(self, at: int) -> None:
        jaxpr = self._closed.jaxpr
        known: set[Atom] = set(jaxpr.constvars)
        self._constants, self._early, self._late = [], [], []
        dependent: set[Atom] = set(self.scan.outvars)
        for place, eqn in enumerate(jaxpr.eqns):
            read = variables_of(eqn.invars)
            if not eqn.effects and place != at and known.issuperset(read):
                self._constants.append(eqn)
                known.update(eqn.outvars)
            elif place > at and (eqn.effects or not dependent.isdisjoint(read)):
                self._late.append(eqn)
                dependent.update(eqn.outvars)
            elif place != at:
                self._early.append(eqn)
        fixed = [self._init[i] for i in self._fixed]
        self._loop_inputs = [v for v in variables_of([*self._consts, *fixed]) if v not in known]
        used = variables_of([*(v for eqn in self._late for v in eqn.invars), *jaxpr.outvars, *fixed])
        self._rest = [v for v in used if v not in known and v not in dependent]
        self._results = [*(self.scan.outvars[i] for i in self._moving), *self._ys]

    def _evaluate(self, eqns: Sequence[Eqn], values: Mapping[Atom, Array], wanted: Sequence[Atom]) -> list[Array]:
        """Run the constant equations and these from the values of variables; returns what is wanted."""
        parts = {"eqns": [*self._constants, *eqns], "invars": list(values), "outvars": list(wanted)}
        part = self._closed.jaxpr.replace(**parts, debug_info=UNNAMED)
        return list(jax.core.eval_jaxpr(part, self._closed.consts, *values.values()))

    def before(self, *args: Array) -> list[Array]:
        """What precedes the loop: what its iterations read, its stacked inputs, what only the end reads, its carry."""
        init = [self._init[i] for i in self._moving]
        wanted = [*self._loop_inputs, *self._xs, *self._rest, *init]
        values = dict(zip(self._closed.jaxpr.invars, args, strict=True))
        found = self._evaluate(self._early, values, wanted)
        first = len(wanted) - len(init)
        ends = (self.scan.outvars[i].aval for i in self._moving)  # a first carry of Python's numbers is weakly typed
        return [*found[:first], *map(typed, found[first:], ends)]

    def split_first(self, first: Sequence[Atom]) -> list[list[Atom]]:
        """The four groups that ``before`` returns."""
        found = iter(first)
        return [list(islice(found, len(group))) for group in (self._loop_inputs, self._xs, self._rest, self._moving)]

    def operands(self) -> list[int | None]:
        """What each argument of the body is: a number among the arguments of the loop's program that its iterations
        read, stacked inputs after the others, then the moving carry. None: it is computed from constants alone.
        """
        fixed = {v: i for i, v in enumerate(self._loop_inputs)}
        carried = [None if isinstance(v, Literal) else fixed.get(v) for v in self._init]
        first = len(fixed) + len(self._xs)
        for number, i in enumerate(self._moving):
            carried[i] = first + number
        consts = [None if isinstance(v, Literal) else fixed.get(v) for v in self._consts]
        return [*consts, *carried, *range(len(fixed), first)]

    def split(self, carry: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The carry, and what of it is written in place (None in the carry)."""
        pairs = list(zip(carry, self.in_place, strict=True))
        return [None if large else array for array, large in pairs], [array for array, large in pairs if large]

    def loop_with(self, body: ClosedJaxpr, *, reads: bool = False) -> Any:
        """The loop's program, with another body; ``reads``: it takes the log last, and returns it last."""

        def loop(*args: Any) -> Any:
            return self._loop(body, reads, args)

        return jax.jit(loop, donate_argnums=(5, 6))

    def _loop(self, body: ClosedJaxpr, reads: bool, args: Sequence[Any]) -> tuple[list[Array], list[Array], Any]:
        """Iterations ``start`` to ``stop``: the carry after them, the stacked outputs so far, and the log.

        ``args``: these two, the log, what every iteration reads, the carry (``split``), the stacked outputs and inputs.
        """
        start, stop, log, inputs, carry, large, ys, xs = args
        held = iter(large)
        carry = [next(held) if array is None else array for array in carry]
        params = self.scan.params
        consts, fixed = self._unchanging(inputs)
        whole = [None] * len(self._init)
        for i, value in zip(self._fixed, fixed, strict=True):
            whole[i] = value

        def iterate(state: Any) -> Any:
            at, moving, stacked, log = state
            place = self.length - at - 1 if params["reverse"] else at
            for i, value in zip(self._moving, moving, strict=True):
                whole[i] = value
            read = [jax.lax.dynamic_index_in_dim(x, place, 0, False, allow_negative_indices=False) for x in xs]
            out = _call(body, [*consts, *whole, *read, *([log] if reads else [])])
            if reads:
                log = out.pop()
            new, rows = out[: len(whole)], out[len(whole) :]
            stacked = self._stack(stacked, rows, place)
            moved = [new[i] for i in self._moving]
            if self.library is not None:
                log = self.library.digest(log, at, place, moved, stacked, reverse=params["reverse"])
            return at + 1, moved, stacked, log

        def is_next(state: Any) -> Any:
            return (state[0] if begin is None else begin(state[3], state[0])) < stop

        # in the condition, which runs before anything of the iteration, and which XLA compiles apart from it
        begin = self.library.begin if self.library is not None and body.effects else None
        _, moved, ys, log = jax.lax.while_loop(is_next, iterate, (start, carry, list(ys), log))
        return moved, ys, log

    def _unchanging(self, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        values = dict(zip(self._loop_inputs, inputs, strict=True))
        outer = self._evaluate((), values, [*self._consts, *(self._init[i] for i in self._fixed)])
        return outer[: len(self._consts)], outer[len(self._consts) :]

    def moved(self) -> dict[int, int]:
        """Of the results of the body, which of the moving carry each is."""
        return {i: number for number, i in enumerate(self._moving)}

    def _stack(self, stacked: Sequence[Array], rows: Sequence[Array], place: Array) -> list[Array]:
        return [
            typed(jax.lax.dynamic_update_index_in_dim(y, row, place, 0, allow_negative_indices=False), v.aval)
            for v, y, row in zip(self._ys, stacked, rows, strict=True)
        ]

    def after(self, *args: Array) -> list[Array]:
        """What follows the loop, of what only the end reads and of the loop's results."""
        rest, results = args[: len(self._rest)], args[len(self._rest) :]
        values = dict(zip(self._rest, rest, strict=True))
        fixed = self._evaluate((), values, [self._init[i] for i in self._fixed])
        ended = zip((self.scan.outvars[i] for i in self._fixed), fixed, strict=True)
        values |= {**dict(ended), **dict(zip(self._results, results, strict=True))}
        return self._evaluate(self._late, values, self._closed.jaxpr.outvars)

    def rows_written(self, start: int, stop: int) -> slice:
        """The rows of the stacked outputs that iterations ``start`` to ``stop`` write."""
        if self.scan.params["reverse"]:
            return slice(self.length - stop, self.length - start)
        return slice(start, stop)

    def empty_outputs(self) -> list[Array]:
        """Where iterations write their stacked outputs."""
        return [typed(jax.numpy.zeros(y.aval.shape, y.aval.dtype), y.aval) for y in self._ys]

    @property
    def is_whole(self) -> bool:
        """Whether what the function returns is the results of its loop, each once; else ``after`` computes it."""
        outvars = self._closed.jaxpr.outvars
        return not self._late and len(variables_of(outvars)) == len(outvars) and set(self._results) >= set(outvars)

    def final(self, results: Sequence[Array]) -> list[Array]:
        """What such a function returns."""
        places = {v: i for i, v in enumerate(self._results)}
        return [results[places[v]] for v in self._closed.jaxpr.outvars]


def check_placement(args: Sequence[Any], params: Any) -> None:
    """Raise CannotCutError where parts of a function that is called so would not be compiled as it is."""
    given = [*params["in_shardings"], *params["out_shardings"], *params["in_layouts"], *params["out_layouts"]]
    if any(map(is_given, given)):
        raise CannotCutError("it places its arrays")
    if params["compiler_options_kvs"]:
        raise CannotCutError("it has options for the compiler")
    devices = {device for arg in args if isinstance(arg, jax.Array) for device in arg.devices()}
    if len(devices) > 1:
        raise CannotCutError("it runs on several devices")


def typed(array: Array, aval: Any) -> Array:
    """``array``, weakly typed where the variable is that it is the value of, and only there; computes nothing."""
    weak = bool(getattr(aval, "weak_type", False))
    if bool(getattr(array, "weak_type", False)) == weak and isinstance(array, jax.Array):
        return array
    return lax._convert_element_type(array, aval.dtype, weak_type=weak)


def _call(closed: ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
    """Call a function as the scan calls its own, so that XLA has it as one function, too."""
    call = primitives.closed_call_p
    return list(call.bind(*args, **call.get_bind_params({"call_jaxpr": closed})))


def variables_of(atoms: Iterable[Atom]) -> list[Atom]:
    """Those that are no literals, each once."""
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, Literal)))


def names_of(debug_info: Any, field: str, count: int) -> tuple[str, ...]:
    """What JAX calls arguments ("arg_names") or results ("result_paths") of a function, "" where it does not know."""
    names = getattr(debug_info, field, None) or ()
    return tuple(str(name or "") for name in names) if len(names) == count else ("",) * count
