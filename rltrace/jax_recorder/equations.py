"""A call of a compiled function evaluated on the host, equation by equation (``record --level equation``).

Owns which equations are entered, which are compiled, each as a program of its own, and their rows. Calls, branches and
derivative rules are entered, loops are driven; any other equation is a row. XLA fuses equations that are compiled
together and may round a fusion otherwise, so what is computed here are the bits of another program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.interpreters import partial_eval

from rltrace.jax_recorder import programs
from rltrace.jax_recorder.loops import (
    UNNAMED,
    LoopRule,
    every_scan,
    is_plain_call,
    names_of,
    training_loop,
    typed,
    variables_of,
)
from rltrace.jax_recorder.recording import JaxRecording
from rltrace.jax_recorder.rows import SEVERAL, Operand, Producer, RowTemplate
from rltrace.trace.format.schema import Phase

Array = Any
Eqn = Any
Variable = Any
Lines = tuple[tuple[str, str, int], ...]
"""(file, function, line) of each frame, innermost first."""

ENTERED = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that call a function, with the parameter that is the function."""

MAX_PARAMETER = 200
"""Letters of a parameter that a row names; longer ones are in the fingerprint of the equation alone."""


class CannotEvaluateError(Exception):
    """Why a function is not evaluated equation by equation."""


class _Place(NamedTuple):
    """Where a traced function is called: what its equations have of their callers."""

    lines: Lines
    source: str
    """Of the innermost line."""
    scopes: tuple[str, ...]
    """Of ``jax.named_scope``, and so the modules of Flax, outermost first."""
    transforms: frozenset[str]
    """Names of transformations: ``jvp``, ``transpose``."""

    def of(self, eqn: Eqn) -> _Place:
        """The place of an equation of the function."""
        scopes, transforms = programs.scopes_of(eqn)
        lines, source = (*programs.lines_of(eqn), *self.lines), programs.source_of(eqn) or self.source
        return _Place(lines, source, (*self.scopes, *scopes), self.transforms.union(transforms))

    @property
    def module(self) -> str:
        return ".".join(self.scopes)

    @property
    def phase(self) -> Phase:
        if "transpose" in self.transforms:
            return Phase.BACKWARD
        return Phase.FORWARD if "jvp" in self.transforms else Phase.OTHER


class _Block:
    """A traced function at one place of the program."""

    def __init__(
        self, function: Any, place: _Place, literals: Mapping[int, Literal], rule: LoopRule | None = None
    ) -> None:
        """``literals``: arguments that are numbers of the program text, which stay so within. ``rule``: by it, its
        largest loop is the training loop; None: it has none.

        Raises CannotEvaluateError where its variables are not all arrays.
        """
        self.jaxpr: Jaxpr = function.jaxpr if isinstance(function, ClosedJaxpr) else function
        self.consts: Sequence[Array] = getattr(function, "consts", ())
        inlined = {self.jaxpr.invars[i]: literal for i, literal in literals.items()}
        self.variables = [*self.jaxpr.constvars, *(v for v in self.jaxpr.invars if v not in inlined)]
        self.outvars = [_inlined(v, inlined) for v in self.jaxpr.outvars]
        at = None if rule is None else training_loop(self.jaxpr, rule)
        self.equations = [
            _Equation(
                eqn.replace(invars=[_inlined(v, inlined) for v in eqn.invars]), place.of(eqn), rule if i == at else None
            )
            for i, eqn in enumerate(self.jaxpr.eqns)
        ]
        used = set(variables_of(self.outvars))
        for equation in reversed(self.equations):
            equation.last = [v for v in {*equation.reads, *equation.eqn.outvars} if v not in used]
            used.update(equation.reads)
        for v in (*self.variables, *(v for equation in self.equations for v in equation.eqn.outvars)):
            if not isinstance(v.aval, jax.core.ShapedArray) or v.aval.dtype == jax.dtypes.float0:
                raise CannotEvaluateError(f"it has a value of type {v.aval}, which is no array")


class _Equation:
    """An equation at one place of the program."""

    def __init__(self, eqn: Eqn, place: _Place, rule: LoopRule | None) -> None:
        """``rule``: by it, this is the training loop, or it is within; None: it is not."""
        self.eqn, self.place, self.rule = eqn, place, rule
        self.reads = variables_of(eqn.invars)
        self.last: list[Variable] = []
        """Variables that nothing after it reads."""
        name = eqn.primitive.name
        is_opaque = not is_plain_call(eqn) if name in ("jit", "pjit") else eqn.params.get("length") == 0
        self.kind = name if name in (*ENTERED, "cond", "while", "scan") and not is_opaque else ""
        """Of what it calls; "": nothing that is entered, so that it is a row."""
        self.op = f"jit.{eqn.params['name']}" if is_opaque and "name" in eqn.params else name
        self.blocks: dict[int, _Block] = {}
        self.program: _Program | None = None
        self.site = 0
        self.template: RowTemplate | None = None
        self._compiled: Callable[..., list[Array]] | None = None

    def block(self, at: int, function: Any, invars: Sequence[Any], fixed: int | None = None) -> _Block:
        """The function number ``at`` that it calls with these, of which ``fixed`` are the same each time."""
        found = self.blocks.get(at)
        if found is None:
            literals = {i: v for i, v in enumerate(invars[:fixed]) if isinstance(v, Literal)}
            found = self.blocks[at] = _Block(function, self.place, literals, None if self.kind == "scan" else self.rule)
        return found

    def prepare(self) -> None:
        """Make what it calls, in so far as that is no choice of the program. Raises CannotEvaluateError."""
        params, invars = self.eqn.params, self.eqn.invars
        if self.kind in ENTERED:
            self.block(0, params[ENTERED[self.kind]], invars)
        elif self.kind == "cond":
            for at, branch in enumerate(params["branches"]):
                self.block(at, branch, invars[1:])
        elif self.kind == "while":
            split, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            self.block(0, params["cond_jaxpr"], invars[:split])
            self.block(1, params["body_jaxpr"], invars[split:end])
            if params["cond_jaxpr"].out_avals[0].shape:
                raise CannotEvaluateError("each element of its arrays has its own number of iterations")
        elif self.kind == "scan":
            self.block(0, params["jaxpr"], invars, params["num_consts"])

    def compiled(self) -> Callable[..., list[Array]]:
        """The body of a scan as one program, for iterations that are no rows."""
        if self._compiled is None:
            block = self.blocks[0]
            jaxpr = block.jaxpr.replace(
                invars=block.variables[len(block.consts) :], outvars=block.outvars, debug_info=UNNAMED
            )
            self._compiled = jax.jit(jax.extend.core.jaxpr_as_fun(ClosedJaxpr(jaxpr, list(block.consts))))
        return self._compiled


class _Program:
    """An equation that is compiled."""

    def __init__(self, eqn: Eqn, reads: Sequence[Variable]) -> None:
        jaxpr = Jaxpr((), reads, eqn.outvars, [eqn], eqn.effects, UNNAMED)
        self._eqn = eqn

        def function(*arrays: Array) -> list[Array]:
            results = jax.core.eval_jaxpr(jaxpr, (), *arrays)
            return [typed(result, v.aval) for result, v in zip(results, eqn.outvars, strict=True)]

        function.__name__ = eqn.primitive.name
        self.call = jax.jit(function)
        self.evidence: dict[str, object] | None = None
        """Of the kernel; None: it was not called yet."""


class Evaluator:
    """Evaluates the calls of one process."""

    def __init__(self, recording: JaxRecording, executable: Callable[[], Any]) -> None:
        """``executable`` returns what JAX has compiled last."""
        self.recording, self.executable = recording, executable
        self.rows_of: Callable[[Sequence[Array], int], Sequence[Array]] = jax.jit(_rows)
        """Of each array the row of this index, in one call."""
        self._programs: dict[Hashable, _Program] = {}
        self._blocks: WeakKeyDictionary[Any, dict[Lines, _Block]] = WeakKeyDictionary()
        self._bodies: dict[int, tuple[_Equation, Eqn]] = {}

    def begin(self, name: str, closed: ClosedJaxpr, lines: Lines) -> Evaluation:
        """Evaluate a function that is called here. Raises CannotEvaluateError."""
        blocks = self._blocks.setdefault(closed, {})
        block = blocks.get(lines)
        if block is None:
            used = _without_unused(closed.jaxpr)
            place = _Place(lines, "", (), frozenset())
            block = blocks[lines] = _Block(used, place, {}, self.recording.loop_rule(name))
        return Evaluation(self, f"jit.{name}", block, closed.consts)

    def iteration(self, scan: Eqn, lines: Lines) -> Iteration:
        """Evaluate an iteration of a scan that the host drives. Raises CannotEvaluateError."""
        body = self._bodies.get(id(scan))
        if body is None:
            inner = scan.params["jaxpr"]
            used = _without_unused(inner.jaxpr)
            eqn = scan.replace(params={**scan.params, "jaxpr": ClosedJaxpr(used, inner.consts)})
            equation = _Equation(eqn, _Place(lines, "", (), frozenset()).of(scan), every_scan)
            equation.prepare()
            body = self._bodies[id(scan)] = equation, scan  # which keeps its id
        return Iteration(self, body[0])

    def program(self, equation: _Equation) -> _Program:
        """The program of an equation; equal equations have one."""
        eqn, reads = equation.eqn, equation.reads
        read = tuple((str(v.aval), repr(v.val)) if isinstance(v, Literal) else reads.index(v) for v in eqn.invars)
        avals = tuple(v.aval for v in reads), tuple(v.aval for v in eqn.outvars)
        key: Hashable = (eqn.primitive, read, avals, tuple(sorted(eqn.params.items())), eqn.ctx)
        try:
            hash(key)
        except TypeError:  # a parameter is an array
            key = id(eqn)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = _Program(eqn, reads)
        return found


class Evaluation:
    """One call of a function."""

    def __init__(self, evaluator: Evaluator, op: str, block: _Block, consts: Sequence[Array]) -> None:
        self._evaluator, self._recording, self._op = evaluator, evaluator.recording, op
        self._block, self._consts = block, consts
        self.has_effects = False
        """Whether anything has been done that the program would notice if it were done again."""

    def run(self, args: Sequence[Array]) -> list[Array]:
        """What the function returns for these arguments."""
        block, recording = self._block, self._recording
        arrays = [programs.array_of(arg, v.aval) for arg, v in zip(args, block.jaxpr.invars, strict=True)]
        recording.guarded(lambda: recording.know(arrays, recording.operands(arrays)), None)
        results = self._evaluate(block, arrays, self._consts)
        return [_returned(result, v.aval) for result, v in zip(results, block.outvars, strict=True)]

    def _evaluate(self, block: _Block, args: Iterable[Array], consts: Sequence[Array] | None = None) -> list[Array]:
        given = [*(block.consts if consts is None else consts), *args]
        values = dict(zip(block.variables, given, strict=True))
        del given
        for equation in block.equations:
            results = self._apply(equation, values)
            values.update(zip(equation.eqn.outvars, results, strict=True))
            del results
            for v in equation.last:
                del values[v]
        return [_value(v, values) for v in block.outvars]

    def _apply(self, equation: _Equation, values: Mapping[Variable, Array]) -> Sequence[Array]:
        if equation.kind and not equation.blocks:
            try:
                equation.prepare()
            except CannotEvaluateError:  # it is called as one program
                equation.kind, equation.blocks = "", {}
        if not equation.kind:
            return self._row(equation, [values[v] for v in equation.reads])
        invars = equation.eqn.invars
        match equation.kind:
            case "cond":
                index = int(np.asarray(_value(invars[0], values)))
                at = min(max(index, 0), len(equation.blocks) - 1)
                return self._evaluate(equation.blocks[at], _given(invars[1:], values))
            case "while":
                return self._while(equation, values)
            case "scan":
                return self._scan(equation, values)
        return self._evaluate(equation.blocks[0], _given(invars, values))

    def _while(self, equation: _Equation, values: Mapping[Variable, Array]) -> Sequence[Array]:
        params, invars = equation.eqn.params, equation.eqn.invars
        split, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_condition, of_body = _given(invars[:split], values), _given(invars[split:end], values)
        carry = [_value(v, values) for v in invars[end:]]
        while np.asarray(self._evaluate(equation.blocks[0], (*of_condition, *carry))[0]):
            carry = self._evaluate(equation.blocks[1], (*of_body, *carry))
        return carry

    def _scan(self, equation: _Equation, values: Mapping[Variable, Array]) -> Sequence[Array]:
        params, invars = equation.eqn.params, equation.eqn.invars
        split, end = params["num_consts"], params["num_consts"] + params["num_carry"]
        block, recording = equation.blocks[0], self._recording
        consts, carry = _given(invars[:split], values), [_value(v, values) for v in invars[split:end]]
        xs = [values[v] for v in invars[end:]]
        stacked = [_Stacked(v.aval) for v in equation.eqn.outvars[params["num_carry"] :]]
        names = names_of(block.jaxpr.debug_info, "result_paths", len(block.outvars))[params["num_carry"] :]
        is_step = equation.rule is not None and not recording.is_over
        for done in range(params["length"]):
            at = params["length"] - 1 - done if params["reverse"] else done
            if is_step:
                recording.guarded(partial(self._open_window, equation, carry), None)
            rows = self._rows_of(xs, at)
            if is_step and not recording.in_window(recording.step):
                self.has_effects = self.has_effects or bool(block.jaxpr.effects)
                results = equation.compiled()(*consts, *carry, *rows)
            else:
                results = self._evaluate(block, (*consts, *carry, *rows))
            carry = results[: params["num_carry"]]
            for each, row in zip(stacked, results[params["num_carry"] :], strict=True):
                each.add(at, row)
            if is_step:
                recording.guarded(partial(self._end_iteration, names, carry, stacked, at), None)
                recording.stop_after_until()
        return [*carry, *(self._whole(each) for each in stacked)]

    def _open_window(self, equation: _Equation, carry: Sequence[Array]) -> None:
        if self._recording.opens_window():
            taken = names_of(equation.blocks[0].jaxpr.debug_info, "arg_names", len(equation.blocks[0].jaxpr.invars))
            names = taken[equation.eqn.params["num_consts"] :][: len(carry)]
            self._recording.open_window(names, self._recording.site_of(equation.place.lines), carry)

    def _end_iteration(
        self, names: Sequence[str], carry: Sequence[Array], stacked: Sequence[_Stacked], at: int
    ) -> None:
        arrays = [each.rows for each in stacked]
        self._recording.add_stacked(self._op, names, arrays, {0: at})
        self._recording.end_iteration(self._op, self._recording.operands(carry))

    def _rows_of(self, xs: Sequence[Array], at: int) -> Sequence[Array]:
        """Of each array the row that an iteration reads: of the origin of the array, if nothing recorded wrote it."""
        rows = self._evaluator.rows_of(xs, at) if xs else ()
        recording = self._recording

        def know() -> None:
            for whole, row in zip(recording.operands(xs), rows, strict=True):
                producer = None if whole.producer is None else Producer(0, SEVERAL, 0)
                recording.know([row], [Operand(*programs.digest(row), producer)])

        recording.guarded(know, None)
        return rows

    def _whole(self, stacked: _Stacked) -> Array:
        array = stacked.array()
        self._recording.guarded(lambda: self._recording.know_mixed(array), None)
        return array

    def _row(self, equation: _Equation, arrays: Sequence[Array]) -> list[Array]:
        """Call the program of an equation, recorded."""
        recording, program = self._recording, equation.program
        if program is None:
            program = equation.program = self._evaluator.program(equation)
            equation.site = recording.guarded(lambda: recording.site_of(equation.place.lines), 0)
        inputs: list[Operand] = recording.guarded(lambda: recording.operands(arrays), [])
        if recording.sees_arrays:
            place = equation.place
            begin = partial(recording.begin_row, equation.op, equation.site, inputs, arrays, place.module, place.phase)
            arrays = recording.guarded(begin, arrays)
        had_effects = self.has_effects or bool(equation.eqn.effects)
        self.has_effects = had_effects or equation.op == "pure_callback"  # whose error is the program's
        results: list[Array] = list(program.call(*arrays))
        self.has_effects = had_effects
        if equation.eqn.effects:  # callbacks come in the order of the equations
            jax.effects_barrier()
        if program.evidence is None:
            program.evidence = programs.evidence_of(self._evaluator.executable())
        recording.guarded(lambda: self._add_row(equation, program, inputs, results), None)
        return results

    def _add_row(self, equation: _Equation, program: _Program, inputs: Sequence[Operand], results: list[Array]) -> None:
        recording = self._recording
        if equation.template is None:
            eqn, place = equation.eqn, equation.place
            alone = Jaxpr((), equation.reads, eqn.outvars, [eqn], eqn.effects, UNNAMED)
            equation.template = recording.template(
                equation.op,
                program=programs.program_of(alone, place.source),
                kernel=program.evidence,
                module=place.module,
                phase=place.phase,
                parameters=programs.parameters_of(eqn, MAX_PARAMETER),
            )
        recording.add_row(equation.template, equation.site, inputs, results)


def _rows(xs: Sequence[Array], at: Array) -> list[Array]:
    return [jax.lax.dynamic_index_in_dim(x, at, 0, False, allow_negative_indices=False) for x in xs]


class Iteration(Evaluation):
    """One iteration of a scan."""

    def __init__(self, evaluator: Evaluator, scan: _Equation) -> None:
        super().__init__(evaluator, "", scan.blocks[0], scan.blocks[0].consts)
        self._eqn = scan.eqn

    def iterate(
        self, consts: Sequence[Array], carry: Sequence[Array], xs: Sequence[Array], at: int
    ) -> tuple[list[Array], list[Array]]:
        """The carry after the iteration that reads the rows of index ``at``, and what it stacks."""
        own = [c for c, v in zip(consts, self._eqn.invars, strict=False) if not isinstance(v, Literal)]
        results = self._evaluate(self._block, (*own, *carry, *self._rows_of(xs, at)))
        arrays = [_returned(result, v.aval) for result, v in zip(results, self._block.outvars, strict=True)]
        return arrays[: len(carry)], arrays[len(carry) :]


def _without_unused(jaxpr: Jaxpr) -> Jaxpr:
    """A function without the equations whose results nothing uses, which JAX does not compile."""
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return used


class _Stacked:
    """What the iterations of a scan stack into one array."""

    def __init__(self, aval: Any) -> None:
        self._aval = aval
        self._impl: Any = None
        """Of random keys, whose data are stacked."""
        self.rows: Any = None
        """Shape [iterations, …]."""

    def add(self, at: int, row: Array) -> None:
        if jax.dtypes.issubdtype(self._aval.dtype, jax.dtypes.prng_key):
            self._impl = jax.random.key_impl(row)
        content = programs.host_array(row)
        if self.rows is None:
            self.rows = np.empty((self._aval.shape[0], *content.shape), content.dtype)
        self.rows[at] = content

    def array(self) -> Array:
        array = _returned(self.rows, self._aval) if self._impl is None else jax.device_put(self.rows)
        return array if self._impl is None else jax.random.wrap_key_data(array, impl=self._impl)


@lru_cache(1_024)
def _conversion(aval: Any) -> Any:
    return jax.jit(lambda array: typed(array, aval))


def _returned(value: Array, aval: Any) -> Array:
    """A value as JAX returns it."""
    if isinstance(value, jax.Array) and getattr(value, "weak_type", False) == aval.weak_type:
        return value
    return _conversion(aval)(value if isinstance(value, jax.Array) else np.asarray(value, aval.dtype))


def _value(atom: Any, values: Mapping[Variable, Array]) -> Array:
    return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else values[atom]


def _given(atoms: Iterable[Any], values: Mapping[Variable, Array]) -> list[Array]:
    """The values of those that are no numbers of the program text."""
    return [values[v] for v in atoms if not isinstance(v, Literal)]


def _inlined(atom: Any, literals: Mapping[Variable, Literal]) -> Any:
    return atom if isinstance(atom, Literal) else literals.get(atom, atom)
