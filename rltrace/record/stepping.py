"""A session's steps: what is written as each optimizer's attempt ends, and the windows that open and close there.

Owns when ops begin to be rows and when they cease to be, when the profiler of kernels is on, and the end of the program
at ``--until``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from rltrace.identity import portable_key
from rltrace.record import window
from rltrace.record.open_rows import phase_bits
from rltrace.record.overrides import unasked
from rltrace.record.parts import Parts
from rltrace.record.steps import Attempt, OptimizerState
from rltrace.trace.rows import StepRecord
from rltrace.trace.schema import Phase


class Stepping(Parts):
    """That side of a session."""

    # --- rows on and off ----------------------------------------------------------------------------------------------

    def _begin_rows(self) -> None:
        self._recording = True
        self._instruments.watch()
        main = self._streams.main
        self._writer.window(main.number, self._process.step, self.options.end_step, main.row)
        self._streams.enter()
        if self._process.step > 0:
            states = self._steps.generator_states()
            window.write_state(main, self._steps.optimizers(), self._modules.roots(), states)
        self._move_profiler(self._process.step)

    def _end_rows(self, end_step: int | None) -> None:
        if self._cycles is not None:
            self._cycles.ignore()
        self._recording = False
        self._streams.leave()
        self._instruments.ignore()
        self._process.storages.clear()

    # --- steps --------------------------------------------------------------------------------------------------------

    def before_attempt(self, caller: FrameType) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.phase = phase_bits(Phase.OPTIMIZER)
            stream.begin_attempt(caller)

    def after_attempt(self, attempt: Attempt) -> None:
        if self._over:
            return
        ended = self._process.step
        try:
            with unasked():
                self._end_step(attempt)
        except Exception as error:
            self.fail(error)
        if self.options.until is not None and ended == self.options.until:
            self.stop_program()

    def stop_program(self) -> None:
        """End the program as Ctrl-C would; the trace says that it was asked for."""
        self._stopped = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
            if threading.current_thread() is not threading.main_thread():
                raise KeyboardInterrupt
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    def _end_step(self, attempt: Attempt) -> None:
        process, own = self._process, self._streams.here()
        if own is not None:
            own.phase = phase_bits(process.phase)  # other, unless the program says what it is doing
            own.end_attempt()
        stream = own or self._streams.main
        ended = process.step
        self._committer.add_step(
            StepRecord(
                step=ended,
                stream=stream.number,
                optimizer=self._optimizer_id(attempt.optimizer),
                count=attempt.count,
                skipped=attempt.skipped,
                backwards=attempt.backwards,
                environment_steps=self._boundaries.environment_steps,
                end_row=stream.row,
                recorded=self._recording,
                parameters=attempt.parameters,
                gradients=attempt.gradients,
                generators=attempt.generators,
            )
        )
        self._series.rates(attempt.optimizer.ordinal, attempt.groups, ended)
        process.step = ended + 1
        process.attempt = attempt.optimizer.ordinal, attempt.count
        process.storages.step_ends()
        if ended == 0:
            self._write_facts()
        self._streams.step_began(ended + 1)
        self._move_window(ended + 1)

    def after_scaler(self, scaler: Any, optimizer: Any, attempt: Attempt) -> None:
        if self._over:
            return
        try:
            self._scalers.attempted(
                scaler, optimizer, attempt.optimizer.ordinal, self._process.step - 1, attempt.skipped
            )
        except Exception as error:
            self.fail(error)

    def _optimizer_id(self, optimizer: OptimizerState) -> int:
        identity = {"ordinal": optimizer.ordinal, "class": optimizer.name}
        payload = {**identity, "owner": optimizer.owner}
        return self._process.tables.intern("optimizers", portable_key("optimizers", identity), payload)

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        return self._modules.owner_of(parameters)

    def _move_window(self, step: int) -> None:
        options = self.options
        if options.level != "op":
            return
        if not self._recording and options.first_step <= step and (options.end_step is None or step < options.end_step):
            self._begin_rows()
        elif self._recording and options.end_step is not None and step >= options.end_step:
            self._end_rows(step)
        elif self._recording:
            self._move_profiler(step)

    def _move_profiler(self, step: int) -> None:
        """Between two steps: the profiler begins, ends, or goes on in another cycle."""
        cycles, asked = self._cycles, self.options.kernels
        if cycles is None or asked is None:
            return
        first, end = asked
        if first <= step and (end is None or step < end):
            cycles.watch()
        else:
            cycles.ignore()
