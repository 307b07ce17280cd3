"""The functions that JAX has compiled and the program calls, and how each is recorded.

Owns that choice: its training loop is driven, values within it are read, or it is recorded at its boundary only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax

from rltrace.extensions.jax import programs
from rltrace.extensions.jax.callback_errors import ServedCalls
from rltrace.extensions.jax.driven_loops import DrivenLoop
from rltrace.extensions.jax.loops import CannotCutError, has_gradient, has_loop, has_while
from rltrace.extensions.jax.read_calls import ReadProgram, read_function
from rltrace.extensions.jax.recording import JaxRecording
from rltrace.extensions.jax.rows import RowTemplate
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


class CompiledFunctions:
    """Those of one process."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, dict[Any, CompiledFunction]] = WeakKeyDictionary()

    def of(self, closed: Any, args: Sequence[Any], params: Any) -> CompiledFunction:
        """What is known of a function as it is called: JAX traces it once, however its arguments are placed."""
        kinds = self._known.setdefault(closed, {})
        how: tuple[Any, ...] = tuple(params[name] for name in CALLED)
        if jax.device_count() > 1:
            how += (frozenset(device for arg in args if isinstance(arg, jax.Array) for device in arg.devices()),)
        found = kinds.get(how)
        if found is None:
            found = kinds[how] = CompiledFunction(params["name"], closed)
        return found
