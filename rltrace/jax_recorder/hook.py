"""The hook in JAX: every concrete call of a compiled function passes here, those of eager operations too.

Owns the private name of JAX that is replaced, which recordings JAX programs do not have, and how a call becomes rows.
Derivatives and ``vmap`` are already in what is called. A function with a training loop is cut and driven
(``loops.py``); of any other, and of one that cannot be cut, the boundary is recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax._src import pjit
from jax.extend.core import jaxpr_as_fun
from numpy.typing import NDArray

from rltrace import recorder
from rltrace.errors import RecordError
from rltrace.jax_recorder import programs
from rltrace.jax_recorder.digest_log import LOG, DigestLog, log_library
from rltrace.jax_recorder.equations import CannotEvaluateError, Evaluation, Evaluator
from rltrace.jax_recorder.loops import CannotCutError, Cut, has_loop, is_given
from rltrace.jax_recorder.programs import ArrayLayout
from rltrace.jax_recorder.recording import JaxRecording, MakeHook
from rltrace.jax_recorder.rows import Operand, RowTemplate
from rltrace.jax_recorder.series import watch_callbacks
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.schema import BOUNDARY_ONLY, EQUATION

Original = Callable[..., Any]

CALL = "_pjit_call_impl_python"
"""Of ``jax._src.pjit``: reached by every concrete call for which JAX's C++ cache has no executable."""

INNER_CALL = "_pjit_call_impl"
"""Of the same module: the call of a function within another's. Its C++ cache keeps executables, ``CALL`` or not."""

NOT_THERE = {
    "rerunnable": "--rerunnable",
    "rows": "--rows",
    "by_rows": "replay --rows",
    "state": "--state",
    "kernels": "--kernels",
    "check_links": "--check-links",
    "against": "--against",
    "asleep": "--asleep",
    "rerun": "rerun",
}
"""Options of a recording that JAX programs do not have."""

CALLED = ("donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs")
"""Parameters of a call with which a function is compiled anew."""

PIECE_SECONDS = 0.5
"""Time for which a loop may run on, about, before the host looks; what is recorded does not depend on it."""

LOOPS = "jax.loops"
"""Fact: functions whose loop the host drove."""


CODE = "jax.code"
"""Fact: how the code of the functions whose loop the host drove compares with their own."""


def start(options: RecordOptions, token: str, make_hook: MakeHook | None = None) -> None:
    """Record this process from its first call of a compiled function on; called once JAX has been imported.

    ``make_hook``: for what is done with the arrays of rows, instead of recording values.
    Raises RecordError where this JAX, or this recording, is not one that is supported.
    """
    asked = next((option for name, option in NOT_THERE.items() if getattr(options, name)), None)
    if asked is not None:
        raise RecordError(f"{asked} is not there for JAX programs, whose calls and iterations are recorded")
    if not hasattr(pjit, CALL):
        raise RecordError(f"JAX {jax.__version__} has no jax._src.pjit.{CALL}, where its calls are seen; try JAX 0.10")
    calls = JaxCalls(options, token, make_hook)
    patches = Patches()
    patches.wrap(pjit, CALL, calls.pass_on)
    watch_callbacks(patches, calls.call_back)


class _Busy(threading.local):
    """Whether the calling thread is within a call: what JAX calls inside is part of it."""

    now = False
    compiled: Any = None
    """The executable of the last call within that was compiled or found anew."""


class _Parts(NamedTuple):
    """The compiled programs of a cut, each with its kernel evidence."""

    before: Any
    loop: Any
    after: Any
    evidence: tuple[dict[str, object], ...]


class _Function:
    """What is known of one compiled function."""

    def __init__(self, name: str, closed: Any) -> None:
        self.op = f"jit.{name}"
        self.before = f"{self.op}.before"
        self.program = programs.program_of(closed.jaxpr)
        self.template: RowTemplate | None = None
        """Of its rows, where it is recorded at its boundary."""
        self.cut: Cut | None = None
        self.parts: _Parts | None = None
        self.why_not = ""
        """Why a function with a loop is not cut."""


class JaxCalls:
    """Turns calls into rows."""

    def __init__(self, options: RecordOptions, token: str, make_hook: MakeHook | None) -> None:
        self._options, self._token, self._make_hook = options, token, make_hook
        self._busy = _Busy()
        self._lock = threading.Lock()
        self._functions: WeakKeyDictionary[Any, dict[Any, _Function]] = WeakKeyDictionary()
        self._recording: JaxRecording | None = None
        self._evaluator: Evaluator | None = None
        """At level equation."""
        self._has_called = False
        self._off = False

    def pass_on(self, original: Original, *args: Any, **params: Any) -> Any:
        """Call a compiled function, recorded."""
        busy = self._busy
        if busy.now:
            returned = original(*args, **params)
            busy.compiled = returned[1]
            return returned
        recording = None if self._off else self._recording or self._started()
        if recording is None or recording.is_over or recording.rows_here() is None:
            return original(*args, **params)
        self._busy.now = True
        try:
            if recording.options.level == EQUATION:
                return self._evaluated(recording, original, args, params)
            return self._recorded(recording, original, args, params)
        finally:
            self._busy.now = False

    def call_back(self, callback: Any, arrays: Sequence[Any]) -> None:
        """The program is about to be called back."""
        recording = self._recording
        if recording is not None:
            recording.guarded(lambda: recording.add_given(callback, arrays), None)

    def _started(self) -> JaxRecording | None:
        """The recording, which begins with the first call; None where torch's has begun before."""
        with self._lock:
            if self._recording is None and not self._off:
                if recorder.current_session() is not None:
                    self._off = True
                    return None
                self._recording = JaxRecording(self._options, self._token, self._make_hook)
                self._recording.start()
            return self._recording

    def _recorded(self, recording: JaxRecording, original: Original, args: Sequence[Any], params: Any) -> Any:
        closed = params["jaxpr"]
        try:
            function = self._function(closed, params)
            arrays = [programs.array_of(arg, aval) for arg, aval in zip(args, closed.in_avals, strict=True)]
            inputs = recording.operands([*arrays, *(programs.array_of(c, c) for c in closed.consts)])
            site = recording.call_site(3)
            self._prepare(recording, function, closed, args, params)
            given = args
            if recording.sees_arrays:
                op = function.op if function.parts is None else function.before
                taken = recording.begin_row(op, site, inputs, arrays)
                args = [arg if new is old else new for arg, old, new in zip(args, arrays, taken, strict=True)]
        except Exception as error:
            recording.fail(error)
            return original(*args, **params)
        if function.parts is not None:
            results = self._drive(recording, function, args, inputs, site)
        else:
            results = self._called(original, args, params)
            if args is not given:
                _delete_donated(given, args, params["donated_invars"])
            try:
                if function.template is None:
                    evidence = programs.evidence_of(self._busy.compiled)
                    function.template = recording.template(function.op, program=function.program, kernel=evidence)
                if recording.sees_arrays:
                    results = list(results)
                recording.add_row(function.template, site, inputs, results)
            except Exception as error:
                recording.fail(error)
        if not self._has_called:
            self._has_called = True
            recording.first_call_ended()
        # without an executable, JAX keeps none in its C++ cache, and the next call comes here, too
        return results, None, None, []

    def _evaluated(self, recording: JaxRecording, original: Original, args: Sequence[Any], params: Any) -> Any:
        """Call a function equation by equation."""
        try:
            evaluation = self._evaluation(recording, args, params)
        except (CannotCutError, CannotEvaluateError) as error:
            recording.note(BOUNDARY_ONLY, f"jit.{params['name']}: {error}")
            evaluation = None
        except Exception as error:
            recording.fail(error)
            return original(*args, **params)
        if evaluation is None:
            return self._recorded(recording, original, args, params)
        try:
            results = _give_away(args, params["donated_invars"], evaluation.run(args))
        except Exception as error:
            if evaluation.has_effects:
                raise
            returned = original(*args, **params)  # which raises what the program raises
            recording.fail(error)
            return returned
        if not self._has_called:
            self._has_called = True
            recording.first_call_ended()
        return results, None, None, []

    def _evaluation(self, recording: JaxRecording, args: Sequence[Any], params: Any) -> Evaluation | None:
        """The evaluation of a call; None: it begins before or after the window, and may stay compiled.

        Raises CannotCutError and CannotEvaluateError where it cannot be evaluated.
        """
        closed = params["jaxpr"]
        if not recording.in_window(recording.step):
            function = self._function(closed, params)
            self._prepare(recording, function, closed, args, params)
            if function.parts is not None or not has_loop(closed.jaxpr):
                return None
        _check_placement(args, {**params, "donated_invars": ()})
        return self._evaluator_of(recording).begin(params["name"], closed, programs.lines_here())

    def _evaluator_of(self, recording: JaxRecording) -> Evaluator:
        if self._evaluator is None:
            self._evaluator = Evaluator(recording, lambda: self._busy.compiled)
        return self._evaluator

    def _called(self, original: Original, args: Sequence[Any], params: Any) -> Any:
        """What the function returns, called as an inner one is: from C++, once it is compiled, in half the time."""
        call = getattr(pjit, INNER_CALL, None)
        if call is not None:
            return call(*args, **params)
        results, self._busy.compiled, *_ = original(*args, **params)
        return results

    def _function(self, closed: Any, params: Any) -> _Function:
        """What is known of a function as it is called: JAX traces it once, however its arguments are placed."""
        kinds = self._functions.setdefault(closed, {})
        how = tuple(params[name] for name in CALLED)
        found = kinds.get(how)
        if found is None:
            found = kinds[how] = _Function(params["name"], closed)
        return found

    def _prepare(self, recording: JaxRecording, function: _Function, closed: Any, args: Any, params: Any) -> None:
        """Cut the function, and compile the parts, where it has a loop and that is possible."""
        if function.cut is not None or function.why_not:
            return
        if not has_loop(closed.jaxpr):
            function.why_not = "it has no scan"
            return
        try:
            library = None if recording.options.engine == "mode" else log_library()
            cut = Cut(closed, library)
            _check_placement(args, params)
            function.parts = _compiled_parts(cut, closed, args)
            if recording.options.level == "op" and not recording.options.replay:
                recording.note(CODE, f"{function.op}: {_comparison(closed, args, function.parts)}")
        except CannotCutError as error:
            function.why_not = str(error)
            if recording.options.level != EQUATION:
                recording.note(BOUNDARY_ONLY, f"{function.op}: {error}")
            return
        function.cut = cut
        where = "by the host" if cut.library is None else "within the program"
        recording.note(LOOPS, f"{function.op}: {cut.length:,} iterations, digested {where}")

    def _drive(
        self, recording: JaxRecording, function: _Function, args: Sequence[Any], inputs: Sequence[Operand], site: int
    ) -> list[Any]:
        """Call a function whose loop the host drives; rows for what precedes it, its iterations and what follows."""
        cut, parts = function.cut, function.parts
        assert cut is not None and parts is not None, "it was prepared"
        constants, carry, xs, rest = parts.before(list(args))
        carry = _unshared(carry, cut.in_place, args)
        first = [*constants, *xs, *rest, *carry]
        rows = _LoopRows(recording, function, site, (len(constants) + len(xs), len(rest)))
        recording.guarded(lambda: rows.before(inputs, first), None)
        found = iter(first)
        constants, xs, rest, carry = ([next(found) for _ in group] for group in (constants, xs, rest, carry))
        ys, done = cut.empty_outputs(), 0
        while done < cut.length:
            recording.guarded(partial(rows.open_window, carry), None)
            if recording.options.level == EQUATION and recording.in_window(recording.step):
                evaluated = self._iterate(recording, function, rows, done, (constants, carry, xs, ys))
                if evaluated is not None:
                    carry, ys = evaluated
                    recording.stop_after_until()
                    done += 1
                    continue
            stop = rows.next_stop(done)
            moved = cut.split(carry)
            carry, ys, log = parts.loop(np.int32(done), np.int32(stop), rows.log_address, constants, *moved, ys, xs)
            recording.guarded(partial(rows.piece, done, stop, carry, ys, log), None)
            recording.stop_after_until()
            done = stop
        results = [*carry, *ys]
        final = cut.final(results)
        recording.guarded(partial(rows.end, carry, ys), None)
        if final is None:
            final = parts.after(rest, results)
            recording.guarded(partial(rows.after, final), None)
        return final

    def _iterate(
        self, recording: JaxRecording, function: _Function, rows: _LoopRows, done: int, arrays: Sequence[list[Any]]
    ) -> tuple[list[Any], list[Any]] | None:
        """Evaluate an iteration equation by equation: its carry and the stacked outputs; None: it cannot be."""
        cut, (constants, carry, xs, ys) = function.cut, arrays
        assert cut is not None, "it was prepared"
        if recording.is_over:
            return None
        iteration = None
        try:
            iteration = self._evaluator_of(recording).iteration(cut.scan, programs.lines_here())
            at = cut.rows_written(done, done + 1).start
            whole, written = iteration.iterate(*cut.body_inputs(constants, carry), xs, at)
        except Exception as error:
            if iteration is not None and iteration.has_effects:
                raise
            recording.fail(error)
            return None
        ys = cut.stack(ys, written, np.int32(at))
        carry = _unshared(cut.moving(whole), cut.in_place, [*constants, *xs])
        recording.guarded(partial(rows.evaluated, at, carry, ys), None)
        return carry, ys


class _LoopRows:
    """The rows of one call whose loop the host drives, in their order."""

    def __init__(self, recording: JaxRecording, function: _Function, site: int, counts: tuple[int, int]) -> None:
        """``counts``: how many of the first results every iteration reads, and how many only what follows does."""
        assert function.cut is not None and function.parts is not None, "it was prepared"
        self._recording, self._function, self._cut, self._site = recording, function, function.cut, site
        self._evidence = function.parts.evidence
        self._counts = counts
        lines = programs.lines_of(self._cut.scan)
        self._loop_site = recording.site_of(lines) if lines else site
        names = self._cut.carry_names + self._cut.stacked_names
        self._template = recording.template(f"{function.op}.iteration", kernel=self._evidence[1], names=names)
        self._fixed: list[Operand] = []
        """What every iteration reads."""
        self._rest: list[Operand] = []
        """What only the end reads."""
        self._state: list[Operand] = []
        """The carry now."""
        self._log = None if self._cut.library is None else DigestLog(self._cut.library)
        self.log_address = None if self._log is None else self._log.address
        """What the loop's program takes as its log."""
        self._most, self._stride, self._began = 1, 1, 0.0
        """How many iterations the host has digested at a time, every how many are, and when they began."""

    def before(self, inputs: Sequence[Operand], first: Sequence[Any]) -> None:
        """What precedes the loop has computed these."""
        fixed, rest = self._counts
        names = ("",) * (fixed + rest) + self._cut.carry_names
        program, kernel = self._function.program, self._evidence[0]
        template = self._recording.template(self._function.before, program=program, kernel=kernel, names=names)
        written = self._recording.add_row(template, self._site, inputs, first)
        self._fixed, self._rest, self._state = written[:fixed], written[fixed : fixed + rest], written[fixed + rest :]

    def open_window(self, carry: Sequence[Any]) -> None:
        """An iteration begins with this carry, and perhaps the window with it."""
        if self._recording.opens_window():
            self._state = self._recording.open_window(self._cut.carry_names, self._loop_site, carry)

    def evaluated(self, at: int, carry: Sequence[Any], ys: Sequence[Any]) -> None:
        """An iteration has been evaluated whose equations are rows; it has written the rows of index ``at``."""
        recording, op = self._recording, self._function.op
        self._state = recording.operands(carry)
        recording.add_stacked(op, self._cut.stacked_names, ys, {0: at})
        recording.end_iteration(op, self._state)

    def next_stop(self, done: int) -> int:
        """The iteration before which the host looks next; until then, the program writes its log."""
        cut, most = self._cut, 1 if self._log is None or self._recording.sees_arrays else self._most
        self._stride, stop = self._recording.next_piece(done, cut.length, cut.carry_bytes, most)
        if self._log is not None:
            self._log.begin(self._stride, done, stop)
            self._recording.running = self._log.ended
        self._began = perf_counter()
        return stop

    def piece(self, start: int, stop: int, carry: list[Any], ys: list[Any], log: Any) -> None:
        """Iterations ``start`` to ``stop`` have been called; what is injected replaces items of the lists."""
        cut, stride = self._cut, self._stride
        seen = [*range((start // stride + 1) * stride, stop, stride), stop]
        counts = [end - begin for begin, end in pairwise((start, *seen))]
        if self._log is None:
            written = cut.rows_written(start, stop)
            operands = [programs.digest(a) for a in carry] + [programs.digest_rows(y, written) for y in ys]
            layouts, digests = zip(*operands, strict=True)
            table = np.array([digests], np.uint64)
        else:
            jax.block_until_ready((log, carry))
            layouts = tuple(map(programs.layout_here, (*carry, *ys)))
            table = self._log.take()
            if table.size != len(seen) * len(layouts):
                raise RecordError(f"{self._function.op} has digested {table.size} arrays of {len(seen) * len(layouts)}")
            table = table.reshape(len(seen), -1)
            self._most = self._most * 2 if perf_counter() - self._began < PIECE_SECONDS else max(self._most // 2, 1)
        if self._recording.sees_arrays:
            table = self._exchange(cut.rows_written(start, stop), carry, ys, layouts, table)
        self._recording.running = lambda: 0
        places = {end - 1 - start: cut.rows_written(end - 1, end).start for end in seen}
        self._recording.add_stacked(self._function.op, cut.stacked_names, ys, places)
        reads = self._fixed, self._state
        self._state = self._recording.add_iterations(
            self._function.op, self._template, self._loop_site, *reads, counts, layouts, table
        )

    def _exchange(
        self, written: slice, carry: list[Any], ys: list[Any], layouts: Sequence[ArrayLayout], table: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Have the arrays of the one iteration seen recorded or replaced; returns its digests, shape [1, arrays]."""
        recording, count = self._recording, len(carry)
        rows = [programs.host_array(y, written) for y in ys]
        stacked = [programs.layout_of(row.dtype, row.shape, "cpu") for row in rows]
        outputs = [Operand(*each) for each in zip((*layouts[:count], *stacked), table[0].tolist(), strict=True)]
        arrays = [*carry, *rows]
        step = recording.step + written.stop - written.start - 1
        recording.finish_row(self._template, self._loop_site, step, [*self._fixed, *self._state], outputs, arrays)
        carry[:] = arrays[:count]
        for i, (old, new) in enumerate(zip(rows, arrays[count:], strict=True)):
            if new is not old:
                content = programs.host_array(ys[i])
                content[written] = new
                ys[i] = programs.array_like(ys[i], content)
        return np.array([[operand.digest for operand in outputs]], np.uint64)

    def end(self, carry: Sequence[Any], ys: Sequence[Any]) -> None:
        """The loop has ended."""
        self._recording.know(carry, self._state)
        self._state += [self._recording.know_mixed(y) for y in ys]

    def after(self, final: Sequence[Any]) -> None:
        """What follows the loop has computed these."""
        template = self._recording.template(f"{self._function.op}.after", kernel=self._evidence[2])
        self._recording.add_row(template, self._site, [*self._rest, *self._state], final)


def _delete_donated(given: Sequence[Any], args: Sequence[Any], donated: Sequence[bool]) -> None:
    """Delete the arrays that the program gave away in a call, where it took others."""
    for old, new, is_donated in zip(given, args, donated, strict=True):
        if is_donated and new is not old and isinstance(old, jax.Array):
            old.delete()


def _give_away(args: Sequence[Any], donated: Sequence[bool], results: list[Any]) -> list[Any]:
    """Delete the donated arguments that JAX would: for each, a result of its type is written in its place."""
    room = Counter((result.shape, result.dtype) for result in results)
    for arg, is_donated in zip(args, donated, strict=True):
        if is_donated and isinstance(arg, jax.Array) and room[arg.shape, arg.dtype]:
            room[arg.shape, arg.dtype] -= 1
            own = _address(arg)
            results = [jax.numpy.copy(result) if _address(result) == own else result for result in results]
            arg.delete()
    return results


def _check_placement(args: Sequence[Any], params: Any) -> None:
    """Raise CannotCutError where the parts would not be compiled as the function is."""
    given = [*params["in_shardings"], *params["out_shardings"], *params["in_layouts"], *params["out_layouts"]]
    if any(map(is_given, given)):
        raise CannotCutError("it places its arrays")
    if any(params["donated_invars"]):
        raise CannotCutError("it takes donated arrays")
    if params["compiler_options_kvs"]:
        raise CannotCutError("it has options for the compiler")
    devices = {device for arg in args if isinstance(arg, jax.Array) for device in arg.devices()}
    if len(devices) > 1:
        raise CannotCutError("it runs on several devices")


def _compiled_parts(cut: Cut, closed: Any, args: Sequence[Any]) -> _Parts:
    """Compile the three programs of a cut. Raises CannotCutError where they would return other types."""
    before = cut.before.lower(list(args))
    constants, carry, xs, rest = jax.eval_shape(cut.before, list(args))
    ys = jax.eval_shape(cut.empty_outputs)
    at = np.int32(0)
    log = None if cut.library is None else LOG
    moved, stacked, _ = jax.eval_shape(cut.loop, at, at, log, constants, *cut.split(carry), ys, xs)
    results = [*moved, *stacked]
    returned = cut.final(results) or jax.eval_shape(cut.after, rest, results)
    if _types(moved) != _types(carry) or _types(returned) != _types(closed.out_avals):
        raise CannotCutError("a part of it would return other types")
    loop = cut.loop.lower(at, at, log, constants, *cut.split(carry), ys, xs).compile()
    after = None if cut.final(results) is not None else cut.after.lower(rest, results).compile()
    compiled = before.compile(), loop, after
    return _Parts(*compiled, tuple({} if part is None else programs.evidence_of(part) for part in compiled))


def _comparison(closed: Any, args: Sequence[Any], parts: _Parts) -> str:
    """Whether the parts of a cut compute what the whole function does, by their optimised code.

    Only the code of the whole function is asked for, so LLVM need not optimise it: half the time.
    """
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    whole = programs.operations_of(jax.jit(jaxpr_as_fun(closed)).lower(*args).compile(options))
    found = [programs.operations_of(part) for part in (parts.before, parts.loop, parts.after) if part is not None]
    if whole is None or None in found:
        return "its code cannot be compared with the uncut program's"
    others = sum((each - whole).total() for each in found if each is not None)
    count = sum(each.total() for each in found if each is not None)
    if others:
        return f"{others} of its {count} floating-point operations are not in the uncut program: it may round otherwise"
    return f"its {count} floating-point operations are those of the uncut program"


def _types(arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(a.shape, a.dtype, bool(getattr(a, "weak_type", False))) for a in arrays]


def _unshared(carry: Sequence[Any], in_place: Sequence[bool], args: Sequence[Any]) -> list[Any]:
    """The carry, what is written in place in memory that nothing else uses."""
    uses = Counter(_address(array) for array in (*args, *carry) if isinstance(array, jax.Array))
    pairs = zip(carry, in_place, strict=True)
    return [jax.numpy.copy(array) if own and uses[_address(array)] > 1 else array for array, own in pairs]


def _address(array: Any) -> int:
    try:
        return int(array.unsafe_buffer_pointer())
    except Exception:  # in several parts, or without memory
        return id(array)
