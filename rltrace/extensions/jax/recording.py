"""The recording of one process that runs JAX: its rows and its trace, from the first call to its end.

Owns the rows of threads and of what is within calls, and what is committed of them; what is known of arrays is
``known_arrays.py``'s; and the number of the step, an iteration of a loop or a call that computes a gradient. Calls in
threads that Python did not start are not recorded: there XLA runs callbacks of the program, at a moment that nothing
fixes.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax._src.lib import xla_client
from numpy.typing import NDArray

from rltrace import recorder
from rltrace.digest import digest_buffer
from rltrace.errors import RecordError
from rltrace.extensions.jax import JAX_ENGINE, programs
from rltrace.extensions.jax.cached_calls import CachedCall
from rltrace.extensions.jax.fusions import Choice
from rltrace.extensions.jax.inner_rows import Line, rows_within
from rltrace.extensions.jax.known_arrays import KnownArrays
from rltrace.extensions.jax.loops import LoopRule, computes_gradient, every_scan
from rltrace.extensions.jax.programs import ArrayLayout
from rltrace.extensions.jax.rows import (
    BACK,
    ArrayHook,
    InnerBlock,
    JaxRows,
    NewRow,
    Operand,
    Producer,
    RowTemplate,
    cell_of,
    digests_of,
    row_template,
    unread_cell,
)
from rltrace.extensions.jax.series import JaxSeries
from rltrace.extensions.jax.values import ArrayValues
from rltrace.fingerprint import Facts
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.background_thread import CommitThread
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.process_names import mark_children, recorded_name
from rltrace.recorder.core.call_sites import Sites
from rltrace.recorder.processes.recording import ProcessRecording, RecordingPart
from rltrace.trace.format.rows import StepRecord
from rltrace.trace.format.schema import ITERATION, within_stream

MAX_ITERATIONS: Final = 4_096
"""Iterations of a loop that are steps, unless they are in the window; of a longer loop, every second, third …"""

MAX_BYTES: Final = 1 << 36
"""Bytes of the carries of a loop that are digested, outside of the window: 64 GiB, some 10 s."""


class LoopSteps:
    """The steps of one process."""

    def __init__(self, options: RecordOptions, tables: Tables) -> None:
        self._options, self._tables = options, tables
        self.now = 0
        """Iterations of all loops so far."""
        self.running: Callable[[], int] = lambda: 0
        """How many more have ended in the piece of a loop that runs now."""
        self.attempt: tuple[int, int] | None = None
        """(ordinal of the loop, its count of iterations) of the last iteration seen; None: there was none."""
        self._ended: list[tuple[StepRecord, NewRow | None]] = []
        """Each with the row whose results its digest is of, where they are not digested yet."""
        self._has_opened = False
        """Whether the window has begun within the run."""
        self._loops: dict[str, int] = {}
        """Ids in table "optimizers", by the name of the function with the loop."""
        self._counts: dict[int, int] = {}

    @property
    def in_window(self) -> bool:
        """Whether the rows of the current step are recorded."""
        end = self._options.end_step
        return self.now >= self._options.first_step and (end is None or self.now < end)

    def opens_window(self) -> bool:
        """Whether the window begins with the step that comes next, and not with the process; True only once."""
        if not self._options.first_step == self.now > 0 or self._has_opened:
            return False
        self._has_opened = True
        return True

    def next_piece(self, done: int, length: int, size: int, most: int) -> tuple[int, int]:
        """Of a loop that has done so many iterations: every how many are seen next, and where the host is to look.

        Of a carry of ``size`` bytes, and ``most`` iterations seen. Which iterations are seen depends on nothing but
        the loop, the window and the end asked for, so that two runs see the same; where the host looks does not matter.
        """
        options = self._options
        stride = 1 if options.windowed and self.in_window else _stride(length, size)
        stop = min(length, (done // stride + most) * stride)
        for step in (options.first_step, options.end_step, None if options.until is None else options.until + 1):
            if step is not None and self.now < step < self.now + stop - done:
                stop = done + step - self.now
        return stride, stop

    def sees_each(self, length: int, size: int) -> bool:
        """Whether each iteration of a loop is seen, or each of the window; ``size``: of its carry, in bytes."""
        return self._options.windowed or _stride(length, size) == 1

    def loop_rule(self, name: str) -> LoopRule:
        """Which scans are training loops of a function of this name."""
        return every_scan if any(fnmatchcase(name, each) for each in self._options.loops) else computes_gradient

    def end(
        self,
        loop: str,
        ends: Sequence[int],
        stream: int,
        row_ends: Sequence[int],
        digests: Sequence[int],
        row: NewRow | None = None,
    ) -> None:
        """Iterations of a loop have ended, counted from the last one seen, each with the row after it and its digest.

        ``row``: of which the digest will be.
        """
        number = self._loop(loop)
        count, begin, recorded = self._counts.get(number, 0), self.now, self.in_window
        for end, row_end, digest in zip(ends, row_ends, digests, strict=True):
            done = (number, count + end - 1, 0, 0, 0, row_end, recorded, digest, 0, (0, 0, 0, 0))
            self._ended.append((StepRecord(begin + end - 1, stream, *done), row))
        self._counts[number] = count + ends[-1]
        self.attempt = list(self._loops).index(loop), count + ends[-1] - 1
        self.now = begin + ends[-1]

    def take(self) -> list[StepRecord]:
        """Remove and return the steps up to the first whose results are not digested yet."""
        unread = (i for i, (_, row) in enumerate(self._ended) if row is not None and row[-1] is not None)
        count = next(unread, len(self._ended))
        taken, self._ended = self._ended[:count], self._ended[count:]
        digests = (
            record.parameters if row is None else digest_of([cell[0] for cell in row[4]]) for record, row in taken
        )
        return [record._replace(parameters=digest) for (record, _), digest in zip(taken, digests, strict=True)]

    def _loop(self, name: str) -> int:
        """Id of a loop in table "optimizers"."""
        loop = self._loops.get(name)
        if loop is None:
            identity = {"ordinal": len(self._loops), "class": name}
            key = portable_key("optimizers", identity)
            loop = self._loops[name] = self._tables.intern("optimizers", key, identity)
        return loop


def digest_of(digests: Sequence[Any] | NDArray[np.uint64]) -> int:
    """Of what a step passes on, by the digests of its arrays."""
    return digest_buffer(np.asarray(digests, np.uint64), 0)


def _stride(length: int, size: int) -> int:
    """Every how many iterations of a loop are seen, unless they are in the window."""
    return -(-length // max(min(MAX_ITERATIONS, MAX_BYTES // max(size, 1)), 1))


# --- recording --------------------------------------------------------------------------------------------------------


FAILED: Final = "jax.failed"
"""Fact: calls without a row, as what they took was deleted before, or what they computed failed."""

MAX_STACKS: Final = 1 << 16
"""Stacks of which what JAX makes of them is kept."""

MAX_ROWS: Final = 1 << 18
"""Rows within calls after which all are written, some 50 MB; at twice as many, before the program goes on."""


class Within(NamedTuple):
    """What is recorded within the calls of a program on one thread."""

    rows: JaxRows
    block: InnerBlock


MakeHook = Callable[[str, Tables], ArrayHook | None]
"""Makes the hook of the process of that name; None: it has none."""


class _OfThread(threading.local):
    """What is the calling thread's; by the thread and not by its number, which a later one may have."""

    rows: JaxRows | None = None


class JaxRecording:
    """The recording of one process."""

    def __init__(self, options: RecordOptions, token: str, make_hook: MakeHook | None = None) -> None:
        """Raises RecordError where the trace cannot be written."""
        self.options, self._is_windowed = options, options.windowed
        name = recorded_name(options.trace, "jax")
        self.life = ProcessRecording(options, token, name, JAX_ENGINE, {"jax": jax.__version__})
        self._writer = self.life.writer
        self._tables = Tables()
        self.sites = Sites(self._tables)
        self._stacks: dict[Any, int] = {}
        """Their ids, by what JAX makes of the stack of a thread: in C++, in a tenth of the time that a walk takes."""
        self.series = JaxSeries(self._tables)
        self._lock = threading.RLock()
        self._taken: deque[tuple[Any, ...]] = deque()
        """What is to be committed: a record that comes first, or None, and arguments of ``ProcessWriter.commit``."""
        self._writing = threading.RLock()
        """Never held while that of the rows is waited for."""
        self._streams: list[JaxRows] = []
        self._of_thread = _OfThread()
        self._within: dict[str, JaxRows] = {}
        """Rows within calls and iterations, by the names of their streams."""
        self.known = KnownArrays(lambda text: self.life.note(FAILED, text))
        """Arrays whose digest and producer are known."""
        self.steps = LoopSteps(options, self._tables)
        self._values = ArrayValues(options, self._tables) if options.values else None
        self._hook = self._values if make_hook is None else make_hook(self._writer.name, self._tables)
        self._facts: Facts = {}
        """Those of JAX, once it has computed something."""
        self._commits = CommitThread(lambda _: self.commit(), self.life.fail)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record."""
        commits, hook = self._commits, self._hook
        part = RecordingPart(
            install=self._begin,
            sleep=commits.end,
            stop=commits.give_up,
            commit=self.commit,
            facts=lambda: self._facts | (programs.autotuning() if self.life.is_over else {}),
            accounts=(lambda: ()) if hook is None else hook.records,
        )
        self.life.start([part])
        os.register_at_fork(after_in_child=self.life.forked)  # asking for the process takes as long as a digest

    def _begin(self) -> None:
        if self._values is not None:
            self._writer.request_values(self._values.queue.request)
            self._values.queue.request_commit = self._values.queue.wait_for_commit = self.commit
        rows = self.rows_here()
        if rows is not None and self.steps.in_window:
            self._writer.window(rows.number, 0, self.options.end_step, 0)
        mark_children()

    def first_call_ended(self) -> None:
        """Record the facts that are known only once JAX has computed something, and begin to commit: JAX has threads of
        its own by now, so that Python warns of a fork with or without this one."""
        self._facts = programs.facts()
        self.life.write_facts()
        self._commits.start()

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write all rows and steps.

        Rows are added meanwhile: what is taken is written without the lock of the rows, in the order in which it was.
        """
        self.known.read_results()
        with self._lock:
            streams, steps = [*self._within.values(), *self._streams], self.steps.take()
            for rows in streams:
                own = [step for step in steps if step.stream == rows.number]
                moments, taken = rows.take_moments(), rows.take()
                samples, entries = self.series.take(), self._tables.take()
                values = None if self._values is None else self._values.queue.take(rows.number, rows.row)
                if taken is not None or own or entries or values or len(samples) or moments:
                    self._taken.append((moments, rows.number, taken, entries, own, values, samples))
        with self._writing:
            while self._taken:
                moments, *committed = self._taken.popleft()
                if moments is not None:  # of these rows, so never after them
                    self._writer.append({"type": "interleaving", **moments})
                self._writer.commit(*committed)

    # --- rows -------------------------------------------------------------------------------------------------------

    def rows_here(self) -> JaxRows | None:
        """The rows of the calling thread; None in one that Python did not start."""
        found = self._of_thread.rows
        if found is not None:
            return found
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # current_thread() would add it
        if thread is None or isinstance(thread, threading._DummyThread):
            return None
        with self._lock:
            names = {rows.name for rows in self._streams}
            base = f"{self._writer.name}/thread:{thread.name}" if names else self._writer.name
            count = 1
            while (name := base if count == 1 else f"{base}#{count}") in names:
                count += 1
            rows = self._of_thread.rows = JaxRows(self._writer.stream(name), name, self._tables)
            self._streams.append(rows)
        self.find_torch(rows)
        return rows

    def own_rows(self) -> JaxRows:
        """The rows of the calling thread, which is known to have some."""
        rows = self.rows_here()
        assert rows is not None, "the caller has asked for them"
        return rows

    def find_torch(self, rows: JaxRows) -> None:
        """Have the rows of the calling thread follow its torch ops, if it has any."""
        session = recorder.current_session() if rows.torch is None else None
        stream = None if session is None else session.op_stream_here()
        if stream is not None:
            rows.follow(stream)

    def template(self, op: str, **more: Any) -> RowTemplate:
        """What the rows of a program have in common (``row_template``)."""
        return row_template(self._tables, op, **more)

    @property
    def sees_arrays(self) -> bool:
        """Whether the arrays of rows are wanted now, besides their digests."""
        return self._hook is not None and self.steps.in_window and not self.life.is_over

    def begin_row(self, op: str, site: int, inputs: list[Operand], arrays: Sequence[Any]) -> Sequence[Any]:
        """What the call of a row is to take: ``arrays``, but for what is injected; ``inputs`` are corrected."""
        rows = self.rows_here()
        if self._hook is None or rows is None:
            return arrays
        taken = list(arrays)
        self._hook.begin(rows.place(op, site, self.steps.now, self.steps.attempt), inputs, taken)
        return taken

    def digest_donated(self, given: Sequence[Any], *, is_within: bool) -> None:
        """Arrays are about to be donated, in trees; ``is_within``: to a call that is part of another one."""
        sees = not is_within and self.steps.in_window and self.rows_here() is not None
        self.known.digest_donated(given, sees=sees)

    def finish_row(
        self,
        template: RowTemplate,
        site: int,
        step: int,
        inputs: Sequence[Operand],
        outputs: list[Operand],
        arrays: Any,
    ) -> None:
        """A row has written these arrays; in the two lists, those that are injected replace them."""
        rows = self.rows_here()
        if self._hook is None or rows is None or not self.sees_arrays:
            return
        place = rows.place(template.op, site, step, self.steps.attempt, template.module, template.phase)
        self._hook.finish(place, template, inputs, outputs, arrays)
        rows.count(place)

    def add_row(
        self, template: RowTemplate, site: int, inputs: Sequence[Operand], results: Sequence[Any]
    ) -> list[Operand]:
        """A row with these results, whose producer is known from now on; returns their operands.

        Outside of the window there is no row, only the digests. Of a list of results, those that are injected replace
        items.
        """
        rows, step = self.own_rows(), self.steps.now
        outputs = [Operand(*self.known.operand(array)[:2]) for array in results]
        if template.op:  # a call, not the start of a window
            self.finish_row(template, site, step, inputs, outputs, results)
        with self._lock:
            row = rows.add(template, site, step, inputs, outputs) if self.steps.in_window else None
        if row is not None:
            outputs = [Operand(o.layout, o.digest, Producer(rows.number, row, i)) for i, o in enumerate(outputs)]
        for array, operand in zip(results, outputs, strict=True):
            if isinstance(array, jax.Array):
                self.known[array] = operand
        return outputs

    def add_cached(
        self, call: CachedCall, arguments: Sequence[Any], results: Sequence[Any], innermost: Callable[[], FrameType]
    ) -> None:
        """A row of a call that JAX's cache has served; its results are digested later.

        ``innermost``: the innermost frame of the program.
        """
        rows, step, known = self._of_thread.rows or self.rows_here(), self.steps.now, self.known
        if rows is None:
            return
        cells = known.cells
        if self._is_windowed and not self.steps.in_window:
            if call.update:
                written = [unread_cell(layout) for _, layout in call.results]
                cells.update(zip(map(id, results), written, strict=True))
                new = [call.common, 0, step, [], written, (results, call.seeds)]
                known.read_later(new, call.weight)
                self._end_update(call.update, rows, new)
            return
        end, stream = BACK * rows.row, rows.number
        if call.constants:
            arguments = *arguments, *call.constants
        read: list[Any] = list(map(cells.get, map(id, arguments)))
        if len(read) != len(call.avals):
            raise RecordError(f"a call of a function of {len(call.avals)} arrays has {len(read)}")
        if not all(read):
            read = [cell or known.argument(call, *each) for cell, each in zip(read, enumerate(arguments), strict=True)]
        written = [[None, stream, end - slot, layout] for slot, layout in call.results]
        cells.update(zip(map(id, results), written, strict=True))
        stack = xla_client.Traceback.get_traceback()
        site = self._stacks.get(stack)
        if site is None or stack is None:
            if len(self._stacks) > MAX_STACKS:
                self._stacks.clear()
            site = self._stacks[stack] = self.sites.of_stack(innermost())
        rows.begin_call()  # which calls nothing back
        new = [call.common, site, step, read, written, (results, call.seeds)]
        rows.append(new)
        if call.update:
            self._end_update(call.update, rows, new)
        if known.read_later(new, call.weight):
            with self._lock:
                rows.close_block()
            self.find_torch(rows)

    # --- steps ------------------------------------------------------------------------------------------------------

    def open_window(self, names: Sequence[str], site: int, carry: Sequence[Any]) -> list[Operand]:
        """The window begins within a loop: a row for each array of its carry."""
        rows, opened = self.own_rows(), []
        self.commit()
        self._writer.window(rows.number, self.options.first_step, self.options.end_step, rows.row)
        for name, array in zip(names, carry, strict=True):
            opened += self.add_row(self.template("", module=name), site, (), [array])
        return opened

    def add_given(self, callback: Any, arrays: Sequence[Any]) -> None:
        """The program is called back, on some thread of XLA."""
        with self._lock:
            rows = next(iter(self._streams), None)
            step = self.steps.now + self.steps.running()
        if rows is not None:
            self.series.add_given(callback, arrays, step, rows.number, rows.row)

    def add_stacked(self, loop: str, names: Sequence[str], arrays: Sequence[Any], places: Mapping[int, int]) -> None:
        """What iterations stacked that have ended; ``places``: of each, counted from now, its row in the arrays."""
        rows, steps = self.own_rows(), [self.steps.now + each for each in places]
        self.series.add_stacked(loop, names, arrays, [*places.values()], steps, rows.number, rows.row)

    def add_iterations(
        self,
        template: RowTemplate,
        site: int,
        reads: tuple[Sequence[Operand], Sequence[Operand]],
        counts: Sequence[int],
        layouts: Sequence[ArrayLayout],
        digests: NDArray[np.uint64],
        within: Within | None,
    ) -> list[Operand]:
        """Iterations of a loop that have ended, each a row and a step; returns the carry after them.

        ``reads``: what each reads, and the carry, which only the first one does. ``counts``: of each that was seen, the
        iterations since the one seen before; ``digests``: of what each wrote, shape [seen, arrays]: what was read
        within it, the carry, the stacked outputs, of these two with their layouts.
        """
        self.known.read_results()
        rows, (fixed, state) = self.own_rows(), reads
        ends = np.cumsum(counts)
        steps = (self.steps.now + ends - 1).tolist()
        values, digests = np.split(digests, [0 if within is None else within.block.written], 1)
        carry = np.ascontiguousarray(digests[:, : len(state)])
        written = [Operand(*each) for each in zip(layouts, digests[0].tolist(), strict=True)]
        with self._lock:
            first, recorded = rows.row, self.steps.in_window
            if recorded:
                rows.add(template, site, steps[0], [*fixed, *state], written)
                rows.repeat(steps[1:], fixed, digests)
            row_ends = [first + (i + 1 if recorded else 0) for i in range(len(ends))]
            loop = template.op.removesuffix(ITERATION)
            self.steps.end(loop, ends.tolist(), rows.number, row_ends, list(map(digest_of, carry)))
        if within is not None:
            constant = np.tile(digests_of(fixed), (len(steps), 1))
            before = np.concatenate([digests_of(state)[None], carry[:-1]])
            self.add_within(within, steps, np.concatenate([constant, before, values], 1))
        last = [Producer(rows.number, rows.row - 1, i) if recorded else None for i in range(len(state))]
        return [Operand(*each) for each in zip(layouts, carry[-1].tolist(), last, strict=False)]

    def end_update(self, name: str, results: Sequence[Any]) -> None:
        """A call of a function of this name has ended, and with it a step, as it has computed a gradient."""
        written = list(map(cell_of, self.known.operands(results)))
        self._end_update(name, self.own_rows(), [None, 0, self.steps.now, (), written, None])

    def _end_update(self, name: str, rows: JaxRows, row: NewRow) -> None:
        with self._lock:
            self.steps.end(name, [1], rows.number, [rows.row], [0], row)
        if self.steps.opens_window():
            self.open_window((), 0, ())

    def end_program_if_due(self) -> None:
        """End the program where its last step has ended."""
        if not self.life.is_over:
            self.life.step_ended(self.steps.now - 1)

    # --- within calls -------------------------------------------------------------------------------------------------

    def within(
        self,
        op: str,
        choice: Choice,
        arguments: Sequence[int | None],
        operands: Sequence[ArrayLayout],
        lines: Sequence[Line],
    ) -> Within:
        """What is recorded within the rows of this name of the calling thread, in a stream of its own.

        ``arguments``: of the function, which of the operands of a call each is; ``lines``: frames of the call.
        """
        name = within_stream(self.own_rows().name, op, choice.key)
        with self._lock:
            if name not in self._within:
                self._within[name] = JaxRows(self._writer.stream(name), name, self._tables)
                self._writer.window(self._within[name].number, self.options.first_step, self.options.end_step, 0)
            own = self._within[name]
            return Within(own, rows_within(self._tables, self.sites, own, choice, arguments, operands, lines))

    def add_within(self, within: Within, steps: Sequence[int], digests: NDArray[np.uint64]) -> None:
        """Rows within calls; ``steps``: those of the calls, ``digests``: see ``JaxRows.add_blocks``."""
        with self._lock:
            within.rows.add_blocks(within.block, steps, digests)
        if within.rows.held > 2 * MAX_ROWS:
            self.commit()
        elif within.rows.held > MAX_ROWS:
            self._commits.wake()
