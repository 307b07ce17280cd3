"""The hook in JAX: every concrete call of a compiled function passes here, those of eager operations too.

Owns the private name of JAX that is replaced, which recordings JAX programs do not have, and how a call becomes rows.
Derivatives and ``vmap`` are already in what is called. The loop of a function that has one is driven
(``driven_loops.py``), or values within it are read; of any other function, the boundary is recorded.
"""

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax._src import api, dispatch, pjit, source_info_util, traceback_util
from jax._src.array import ArrayImpl
from jax.extend.core import primitives

from rltrace import recorder
from rltrace.errors import RecordError
from rltrace.extensions.jax import cached_calls, programs
from rltrace.extensions.jax.cached_calls import CachedCall
from rltrace.extensions.jax.callback_errors import ServedCalls, as_unrecorded
from rltrace.extensions.jax.driven_loops import DrivenLoop, address_of
from rltrace.extensions.jax.loops import CannotCutError, has_gradient, has_loop, has_while
from rltrace.extensions.jax.read_calls import ReadProgram, read_function
from rltrace.extensions.jax.recording import FAILED, JaxRecording, MakeHook
from rltrace.extensions.jax.rows import Operand, RowTemplate
from rltrace.extensions.jax.series import watch_callbacks
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.trace.format.process_start import note_failure
from rltrace.trace.format.schema import BOUNDARY_ONLY, CALLS_BACK

CALLED = ("donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs")
"""Parameters of a call with which a function is compiled anew."""


class CompiledFunction:
    """What is known of one compiled function."""

    def __init__(self, name: str, closed: Any) -> None:
        self.name, self.op = name, f"jit.{name}"
        self.program = programs.program_of(closed.jaxpr)
        self.template: RowTemplate | None = None
        """Of its rows, where it is recorded at its boundary."""
        self.loop: DrivenLoop | None = None
        self.read: ReadProgram | None = None
        """Its program, where the values within it are read."""
        self.computes_gradient = has_gradient(closed.jaxpr)
        self._is_prepared = False
        self.served: ServedCalls | None = None
        """Of a function that calls back: which calls JAX's C++ cache would serve unrecorded; None: none."""

    def update(self, counts: bool) -> str:
        """What the steps are called that its calls end; "": they end none. ``counts``: whether they may."""
        return self.op if counts and self.computes_gradient and self.loop is None else ""

    def prepare(self, recording: JaxRecording, closed: Any, args: Any, params: Any) -> None:
        """Have its loop driven, where that is possible; of another function, where it is large, read values within."""
        if self._is_prepared:
            return
        self._is_prepared = True
        called_back = programs.callbacks_of(closed.jaxpr)
        if called_back:
            recording.life.note(CALLS_BACK, f"{self.op}: {', '.join(called_back)}")
            self.served = None if closed.effects else ServedCalls()
        try:
            rule = recording.steps.loop_rule(self.name)
            if has_loop(closed.jaxpr, rule):
                self.loop = DrivenLoop(recording, self.op, self.program, closed, args, params, rule)
                return
            if has_loop(closed.jaxpr):
                raise CannotCutError(f"its loop computes no gradient (--loops {self.name} records its iterations)")
            if has_while(closed.jaxpr):
                raise CannotCutError("its loop is a while_loop")
        except CannotCutError as error:
            recording.life.note(BOUNDARY_ONLY, f"{self.op}: {error}")
        self.read = read_function(recording, self.op, closed, args, params)


# --- hook -------------------------------------------------------------------------------------------------------------


Original = Callable[..., Any]

FIRST = (0, 9)
"""The first version of JAX that is supported."""

CALL = "_pjit_call_impl_python"
"""Of ``jax._src.pjit``: reached by every concrete call for which JAX's C++ cache has no executable."""

INNER_CALL = "_pjit_call_impl"
"""Of the same module: the call of a function within another's. Its C++ cache keeps executables, ``CALL`` or not."""

CREATE = "_cpp_pjit"
"""Of the same module: make a compiled function."""

NOT_THERE = frozenset({"rerunnable", "rows", "provider", "state", "kernels", "check_links", "asleep"})
"""Options of a recording that JAX programs do not have."""

NOT_RECORDED = "jax.not_recorded"
"""Fact of a process whose torch ops are recorded: why its calls of JAX are not."""


def start(options: RecordOptions, token: str, make_hook: MakeHook | None = None) -> None:
    """Record this process from its first call of a compiled function on; called once JAX has been imported.

    ``make_hook``: for what is done with the arrays of rows, instead of recording values.
    Raises RecordError where this JAX, or this recording, is not one that is supported.
    """
    asked = next((option.flag for name, option in options.set_options().items() if name in NOT_THERE), None)
    session = recorder.current_session()
    if asked is not None and session is not None:
        session.recording.note(NOT_RECORDED, f"{asked} is not there for what JAX computes")
        return
    if asked is not None:
        raise RecordError(f"{asked} is not there for JAX programs, whose calls and iterations are recorded")
    if jax.__version_info__ < FIRST:
        first = ".".join(map(str, FIRST))
        raise RecordError(
            f"JAX {jax.__version__} is older than {first}, the first whose programs are recorded; upgrade it"
        )
    if not hasattr(pjit, CALL):
        raise RecordError(f"JAX {jax.__version__} has no jax._src.pjit.{CALL}, where its calls are seen; try JAX 0.10")
    calls = JaxCalls(options, token, make_hook)
    patches = Patches()
    patches.wrap(pjit, CALL, calls.pass_on)
    patches.wrap(primitives.jit_p, "impl", calls.pass_bound)
    patches.wrap(dispatch, "_batched_device_put_impl", calls.pass_put)
    patches.wrap(jax.stages.Traced, "lower", calls.note_lowered)
    patches.wrap(jax.stages.Lowered, "compile", calls.note_compiled)
    patches.wrap(jax.stages.Compiled, "__call__", calls.call_compiled)
    is_late = make_hook is None and not options.values
    if is_late and hasattr(api, cached_calls.HOOK_STATE):  # else arrays are wanted when they are made
        patches.wrap(pjit, CREATE, calls.create)
        patches.replace(ArrayImpl, "delete", calls.delete(ArrayImpl.delete))
        cached_calls.watch(patches, calls)
    watch_callbacks(patches, calls.call_back)
    _hide_frames()


class _Busy(threading.local):
    """Whether the calling thread is within a call: what JAX calls inside is part of it."""

    now = False
    compiled: Any = None
    """The executable of the last call within that was compiled or found anew."""
    is_bound = False
    """Whether the call is made for an eager derivative or ``vmap``, of which a program's update has several."""
    cached: tuple[CachedCall, int] | None = None
    """What JAX's cache may have for the call that has been recorded last, and the row after it."""


class _Caller(NamedTuple):
    """Who calls a compiled function."""

    frame: FrameType
    """The innermost one outside of what JAX does for a call."""
    is_seen: bool
    """Whether each call of the function is seen, whatever JAX's cache has."""


class JaxCalls:
    """Turns calls into rows."""

    def __init__(self, options: RecordOptions, token: str, make_hook: MakeHook | None) -> None:
        self._options, self._token, self._make_hook = options, token, make_hook
        self._busy = _Busy()
        self._lock = threading.Lock()
        self._functions: WeakKeyDictionary[Any, dict[Any, CompiledFunction]] = WeakKeyDictionary()
        self._lowered: WeakIdDict[Any, tuple[str, Any]] = WeakIdDict()
        """(name, traced function) of what the program lowers, and compiles, itself."""
        self._compiled: WeakIdDict[Any, tuple[RowTemplate, list[Any], bool]] = WeakIdDict()
        """Of what it has compiled, and called: what its rows have in common, the constants that it holds, and whether
        it computes a gradient."""
        self._recording: JaxRecording | None = None
        self._has_called = self._is_refused = False

    def pass_on(self, original: Original, *args: Any, **params: Any) -> Any:
        """Call a compiled function, recorded."""
        busy = self._busy
        if busy.now:
            returned = original(*args, **params)
            busy.compiled = returned[1]
            return returned
        recording = self._here()
        if recording is None:
            return original(*args, **params)
        self._busy.now = True
        try:
            return self._recorded(recording, original, args, params)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raised: Exception = error
            with contextlib.suppress(Exception):  # another JAX: it has the recorder's frames in its text
                served = self._function(args, params).served
                is_served = served is not None and served.note(args, returned=False)
                raised = as_unrecorded(error, original, is_served=is_served)
        finally:
            self._busy.now = False
        raise raised

    def pass_bound(self, original: Original, *args: Any, **params: Any) -> Any:
        """Call a function that is called as a primitive: by an eager derivative or ``vmap``, say.

        Recorded here, since its C++ cache would be entered twice for one call from where ``CALL`` is reached.
        """
        if self._busy.now:
            return original(*args, **params)

        def call(*args: Any, **params: Any) -> Any:
            return original(*args, **params), None, None, []

        self._busy.is_bound = True
        try:
            return self.pass_on(call, *args, **params)[0]
        finally:
            self._busy.is_bound = False

    def pass_put(self, original: Original, *arrays: Any, **params: Any) -> Any:
        """Arrays are put on devices: their bytes have the producers that they had."""
        copies, recording = original(*arrays, **params), self._recording
        if recording is not None:
            recording.life.guarded(lambda: recording.known.add_copies(arrays, copies))
        return copies

    def note_lowered(self, original: Original, traced: Any, *args: Any, **options: Any) -> Any:
        """The program lowers a traced function."""
        lowered = original(traced, *args, **options)
        if not self._busy.now:
            self._lowered[lowered] = traced.fun_name, traced.jaxpr
        return lowered

    def note_compiled(self, original: Original, lowered: Any, *args: Any, **options: Any) -> Any:
        """The program compiles what it has lowered."""
        compiled = original(lowered, *args, **options)
        known = self._lowered.get(lowered)
        if known is not None:
            self._lowered[compiled] = known
        return compiled

    def call_compiled(self, original: Original, compiled: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what the program has compiled, recorded."""
        recording = None if self._busy.now else self._here()
        if recording is None:
            return original(compiled, *args, **kwargs)
        self._busy.now = True
        try:
            return self._recorded_compiled(recording, original, compiled, args, kwargs)
        finally:
            self._busy.now = False

    def create(self, original: Original, *args: Any) -> Any:
        """A compiled function as the program gets it."""
        made = original(*args)
        cached_calls.see(made, self)
        return made

    def delete(self, original: Original) -> Original:
        """``delete`` of arrays, with which the program deletes one."""

        def delete(array: Any) -> Any:
            recording = self._recording
            if recording is not None:
                recording.life.guarded(partial(recording.known.operands, [array]))
            return original(array)

        return delete

    @property
    def is_over(self) -> bool:
        return self._recording is not None and self._recording.life.is_over

    def take_cached(self) -> CachedCall | None:
        cached, self._busy.cached = self._busy.cached, None
        rows = None if self._recording is None else self._recording.rows_here()
        return cached[0] if cached is not None and rows is not None and rows.row == cached[1] else None

    def digest_donated(self, given: Sequence[Any]) -> None:
        recording = self._recording
        if recording is not None:
            is_within = self._busy.now
            recording.life.guarded(lambda: recording.digest_donated(given, is_within=is_within))

    def add_cached(self, call: CachedCall, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        recording = self._recording
        if recording is None or recording.life.is_over or self._busy.now:
            return
        try:
            recording.add_cached(call, arguments, results, _served_caller)
        except Exception as error:
            recording.life.fail(error)
        if call.update:
            recording.end_program_if_due()

    def call_back(self, callback: Any, arrays: Sequence[Any]) -> None:
        """The program is about to be called back."""
        recording = self._recording
        if recording is not None:
            recording.life.guarded(lambda: recording.add_given(callback, arrays))

    def _here(self) -> JaxRecording | None:
        """The recording; None where calls of this thread are not recorded."""
        recording = self._recording or self._started()
        rows = None if recording is None or recording.life.is_over else recording.rows_here()
        if recording is None or rows is None:
            return None
        recording.find_torch(rows)
        rows.begin_call()
        return recording

    def _started(self) -> JaxRecording | None:
        """The recording, which begins with the first call; None: it cannot, and the trace says why."""
        with self._lock:
            if self._recording is None and not self._is_refused:
                try:
                    self._recording = JaxRecording(self._options, self._token, self._make_hook)
                    self._recording.start()
                except Exception as error:
                    self._is_refused = True
                    note_failure(self._options.trace, self._token, f"{type(error).__name__}: {error}")
            return self._recording

    def _function(self, args: Sequence[Any], params: Any) -> CompiledFunction:
        """What is known of a function as it is called: JAX traces it once, however its arguments are placed."""
        closed = params["jaxpr"]
        kinds = self._functions.setdefault(closed, {})
        how: tuple[Any, ...] = tuple(params[name] for name in CALLED)
        if jax.device_count() > 1:
            how += (frozenset(device for arg in args if isinstance(arg, jax.Array) for device in arg.devices()),)
        found = kinds.get(how)
        if found is None:
            found = kinds[how] = CompiledFunction(params["name"], closed)
        return found

    def _recorded(self, recording: JaxRecording, original: Original, args: Sequence[Any], params: Any) -> Any:
        closed = params["jaxpr"]
        try:
            function = self._function(args, params)
            arrays = [programs.array_of(arg, aval) for arg, aval in zip(args, closed.in_avals, strict=True)]
            inputs = recording.known.operands([*arrays, *(programs.array_of(c, c) for c in closed.consts)])
            recording.known.link_references([*args, *closed.consts], inputs)
            caller = _caller(sys._getframe(3))
            site = recording.sites.of_stack(caller.frame)
            function.prepare(recording, closed, args, params)
            given = args
            if recording.sees_arrays:
                op = function.op if function.loop is None else function.loop.before
                taken = recording.begin_row(op, site, inputs, arrays)
                args = [arg if new is old else new for arg, old, new in zip(args, arrays, taken, strict=True)]
        except Exception as error:
            _fail(recording, error, f"jit.{params['name']}", args)
            return original(*args, **params)
        cached = None
        if function.loop is not None:
            results = function.loop.call(recording, args, inputs, site)
            results = _give_away(args, params["donated_invars"], results)
            if args is not given:
                _delete_donated(given, args, params["donated_invars"])
        else:
            if function.read is None:
                results, compiled, *others = self._called(original, args, params, caller)
            else:
                results = function.read.call(recording, args, inputs)
            if args is not given:
                _delete_donated(given, args, params["donated_invars"])
            try:
                if function.template is None:
                    read = function.read
                    evidence = programs.evidence_of(self._busy.compiled) if read is None else read.evidence
                    function.template = recording.template(function.op, program=function.program, kernel=evidence)
                results = _add_row(recording, function.template, site, inputs, results, [*args, *closed.consts])
                update = function.update(not self._busy.is_bound)
                if update:
                    recording.end_update(update, results)
                if caller.is_seen and function.read is None:
                    common = partial(recording.own_rows().common, function.template)
                    cached = cached_calls.cached_call(common, closed, compiled, inputs, results, update)
            except Exception as error:
                _fail(recording, error, function.op)
        self._end_call(recording)
        if function.served is not None:
            function.served.note(given, returned=True)
        rows = recording.rows_here()
        if cached is not None and rows is not None:
            self._busy.cached = cached, rows.row
            return results, compiled, *others
        # without an executable, JAX keeps none in its C++ cache, and the next call comes here, too
        return results, None, None, []

    def _recorded_compiled(
        self, recording: JaxRecording, original: Original, compiled: Any, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Call what the program has compiled; its row has the numbers of the traced function, where that is known."""
        given, tree = jax.tree.flatten((args, kwargs))
        wanted = jax.tree.leaves(compiled.args_info)
        if len(given) != len(wanted) or any(isinstance(each, jax.core.Tracer) for each in given):
            return original(compiled, *args, **kwargs)  # which raises
        try:
            template, constants, is_update = self._of_compiled(recording, compiled)
            arrays = list(map(programs.array_of, given, wanted))
            inputs = recording.known.operands([*arrays, *constants])
            recording.known.link_references(given, inputs)
            site = recording.sites.of_stack(sys._getframe(3))
            if recording.sees_arrays:
                taken = recording.begin_row(template.op, site, inputs, arrays)
                new = [each if new is old else new for each, old, new in zip(given, arrays, taken, strict=True)]
                args, kwargs = jax.tree.unflatten(tree, new)
        except Exception as error:
            _fail(recording, error, "what the program compiles itself", given)
            return original(compiled, *args, **kwargs)
        returned = original(compiled, *args, **kwargs)
        try:
            if recording.sees_arrays:
                _delete_donated(given, jax.tree.leaves((args, kwargs)), [each.donated for each in wanted])
            results, tree = jax.tree.flatten(returned)
            results = _add_row(recording, template, site, inputs, results, given)
            returned = jax.tree.unflatten(tree, results)
            if is_update:
                recording.end_update(template.op, results)
        except Exception as error:
            _fail(recording, error, template.op)
        self._end_call(recording)
        return returned

    def _end_call(self, recording: JaxRecording) -> None:
        """A call has ended, perhaps the first."""
        if not self._has_called:
            self._has_called = True
            recording.life.guarded(recording.first_call_ended)
        recording.end_program_if_due()

    def _of_compiled(self, recording: JaxRecording, compiled: Any) -> tuple[RowTemplate, list[Any], bool]:
        """What is known of what the program has compiled; of what it has loaded, what its code says."""
        found = self._compiled.get(compiled)
        if found is None:
            name, closed = self._lowered.get(compiled) or (programs.name_of(compiled), None)
            program = None if closed is None else programs.program_of(closed.jaxpr)
            template = recording.template(f"jit.{name}", program=program, kernel=programs.evidence_of(compiled))
            constants = [] if closed is None else [programs.array_of(each, each) for each in closed.consts]
            is_update = closed is not None and has_gradient(closed.jaxpr)
            found = self._compiled[compiled] = template, constants, is_update
            if closed is not None and (has_loop(closed.jaxpr) or has_while(closed.jaxpr)):
                recording.life.note(BOUNDARY_ONLY, f"{template.op}: the program compiles it itself")
        return found

    def _called(self, original: Original, args: Sequence[Any], params: Any, caller: _Caller) -> Any:
        """What ``original`` returns; where that is possible, the function is called as an inner one is: from C++, once
        it is compiled, in half the time."""
        call = getattr(pjit, INNER_CALL, None)
        if call is not None and not caller.is_seen:
            return call(*args, **params), None, None, []
        returned = original(*args, **params)
        self._busy.compiled = returned[1]
        return returned


def _hide_frames() -> None:
    """Leave the recorder's frames out of tracebacks, and of the places of equations, where JAX leaves out its own."""
    for module in traceback_util, source_info_util:
        hide = getattr(module, "register_exclusion", None)
        if hide is not None:
            hide(str(Path(__file__).parents[2]))


def _add_row(
    recording: JaxRecording, template: RowTemplate, site: int, inputs: list[Operand], results: Any, args: Sequence[Any]
) -> list[Any]:
    """Add the row of a call, which has written what ``args`` refer to as well; returns the results, some injected."""
    references = list(filter(programs.is_reference, args))
    written = [*results, *(reference[...] for reference in references)]
    count = len(written) - len(references)
    recording.known.add(references, recording.add_row(template, site, inputs, written)[count:])
    return written[:count]


def _fail(recording: JaxRecording, error: Exception, op: str, args: Sequence[Any] = ()) -> None:
    """End the recording; where the error is the program's, in what it takes or has computed, leave out this row."""
    is_gone = any(isinstance(arg, jax.Array) and arg.is_deleted() for arg in args)
    if is_gone or isinstance(error, jax.errors.JaxRuntimeError):
        recording.life.note(FAILED, f"{op}: {str(error).partition(chr(10))[0]}")
    else:
        recording.life.fail(error)


_JAX_FILES = frozenset((pjit.__file__, traceback_util.__file__))
"""Files of the functions of JAX between a compiled function's call and the recorder."""


def _caller(frame: FrameType) -> _Caller:
    """Who calls a compiled function; ``frame``: the one in JAX that calls the recorder."""
    is_seen, code = False, frame.f_code
    while code.co_filename in _JAX_FILES or code in (cached_calls.MISS, cached_calls.DONOR):
        is_seen = is_seen or code is cached_calls.MISS
        assert frame.f_back is not None, "the recorder is called"
        frame = frame.f_back
        code = frame.f_code
    return _Caller(frame, is_seen)


def _served_caller() -> FrameType:
    """The innermost frame of the program, as ``JaxRecording.add_cached`` asks for it."""
    return _caller(sys._getframe(4)).frame


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
            own = address_of(arg)
            results = [jax.numpy.copy(result) if address_of(result) == own else result for result in results]
            arg.delete()
    return results
