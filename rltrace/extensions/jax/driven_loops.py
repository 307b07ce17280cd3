"""A function whose training loop the host drives: its programs, their calls, and the rows of a call in their order.

Owns when a function can be driven, how it is compiled in parts and compared with itself, and in which pieces the loop
runs. How a function is cut is in ``loops.py``, how values within its programs are read in ``read_calls.py``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from numpy.typing import NDArray

from rltrace.errors import RecordError
from rltrace.extensions.jax import programs
from rltrace.extensions.jax.digest_log import LOG, DigestLog, LogLibrary, log_library
from rltrace.extensions.jax.loops import CannotCutError, Cut, LoopRule, check_placement
from rltrace.extensions.jax.programs import ArrayLayout, Program
from rltrace.extensions.jax.read_calls import (
    ReadProgram,
    ReadValues,
    chosen_program,
    code_only,
    donated_of,
    library_of,
    read_program,
)
from rltrace.extensions.jax.recording import JaxRecording, Within
from rltrace.extensions.jax.rows import Operand
from rltrace.trace.format.schema import ITERATION

PIECE_SECONDS = 0.5
"""Time for which a loop may run on, about, before the host looks; what is recorded does not depend on it."""

LOOPS = "jax.loops"
"""Fact: functions whose loop the host drove."""

CODE = "jax.code"
"""Fact: how the code of the functions whose loop the host drove compares with their own."""


class _Part(NamedTuple):
    """What precedes the loop, or what follows it."""

    program: Any
    evidence: Mapping[str, object]
    """Kernel evidence."""
    read: ReadProgram | None
    """The same program, where values within are read."""

    def call(self, recording: JaxRecording, args: Sequence[Any], inputs: Sequence[Operand]) -> list[Any]:
        """What it computes; rows for the values within that are read. ``inputs``: of ``args`` first."""
        return list(self.program(*args)) if self.read is None else self.read.call(recording, args, inputs)


class _Loop(NamedTuple):
    """The loop."""

    program: Any
    evidence: Mapping[str, object]
    values: ReadValues | None
    """What is read within its iterations."""


class _Parts(NamedTuple):
    """The compiled programs of a cut."""

    before: _Part
    loop: _Loop
    after: _Part | None
    """None: what the function returns is the loop's results."""


class DrivenLoop:
    """A compiled function whose loop the host drives."""

    def __init__(
        self,
        recording: JaxRecording,
        op: str,
        program: Program,
        closed: Any,
        args: Sequence[Any],
        params: Any,
        rule: LoopRule,
    ) -> None:
        """Cut the function that is called so, and compile its parts. Raises CannotCutError where that is impossible."""
        options = recording.options
        self.op, self.before, self.after, self.program = op, f"{op}.before", f"{op}.after", program
        self.cut = Cut(closed, None if options.engine == "mode" else log_library(), rule)
        check_placement(args, params)
        self.parts = _compiled_parts(recording, op, self.cut, closed, args, library_of(recording))
        where = "by the host" if self.cut.library is None else "within the program"
        recording.life.note(LOOPS, f"{op}: {self.cut.length:,} iterations, digested {where}")
        compares, donated = options.level == "op" and not options.replay, donated_of(params)
        if compares or donated:  # JAX warns of arrays that are donated in vain where it lowers the whole function
            whole = jax.jit(jaxpr_as_fun(closed), donate_argnums=donated).lower(*args)
            if compares:
                recording.life.note(CODE, f"{op}: {_comparison(whole, self.parts)}")

    def call(
        self,
        recording: JaxRecording,
        args: Sequence[Any],
        inputs: Sequence[Operand],
        site: int,
    ) -> list[Any]:
        """What the function returns; rows for what precedes its loop, its iterations and what follows."""
        cut, parts = self.cut, self.parts
        constants, xs, rest, carry = cut.split_first(parts.before.call(recording, args, inputs))
        first = [*constants, *xs, *rest, *_unshared(carry, cut.in_place, args)]
        rows = _LoopRows(recording, self, site, (len(constants) + len(xs), len(rest)))
        recording.life.guarded(lambda: rows.before(inputs, first))
        constants, xs, rest, carry = cut.split_first(first)
        ys, done = cut.empty_outputs(), 0
        while done < cut.length:
            recording.life.guarded(partial(rows.open_window, carry))
            stop = rows.next_stop(done)
            moved = cut.split(carry)
            piece = np.int32(done), np.int32(stop), rows.log_address
            carry, ys, log = parts.loop.program(*piece, constants, *moved, ys, xs)
            recording.life.guarded(partial(rows.piece, done, stop, carry, ys, log))
            recording.end_program_if_due()
            done = stop
        results = [*carry, *ys]
        recording.life.guarded(partial(rows.end, carry, ys))
        if parts.after is None:
            return cut.final(results)
        final = parts.after.call(recording, [*rest, *results], rows.last_inputs)
        recording.life.guarded(partial(rows.after, final))
        return final


class _LoopRows:
    """The rows of one call whose loop the host drives, in their order."""

    def __init__(self, recording: JaxRecording, loop: DrivenLoop, site: int, counts: tuple[int, int]) -> None:
        """``counts``: how many of the first results every iteration reads, and how many only what follows does."""
        self._recording, self._loop, self._cut, self._site = recording, loop, loop.cut, site
        self._parts = loop.parts
        self._counts = counts
        lines = programs.lines_of(self._cut.scan)
        self._loop_site = recording.sites.intern_lines(lines) if lines else site
        names = self._cut.carry_names + self._cut.stacked_names
        self._template = recording.template(f"{loop.op}{ITERATION}", kernel=self._parts.loop.evidence, names=names)
        self._fixed: list[Operand] = []
        """What every iteration reads."""
        self._rest: list[Operand] = []
        """What only the end reads."""
        self._state: list[Operand] = []
        """The carry now."""
        self._log = None if self._cut.library is None else DigestLog(self._cut.library)
        self.log_address = None if self._log is None else self._log.address
        """What the loop's program takes as its log."""
        self._most, self._stride, self._began, self._looks_within = 1, 1, 0.0, False
        """How many iterations the host has digested at a time, every how many are, when they began, and whether values
        within them are read."""

    def before(self, inputs: Sequence[Operand], first: Sequence[Any]) -> None:
        """What precedes the loop has computed these."""
        fixed, rest = self._counts
        names = ("",) * (fixed + rest) + self._cut.carry_names
        program, kernel = self._loop.program, self._parts.before.evidence
        template = self._recording.template(self._loop.before, program=program, kernel=kernel, names=names)
        written = self._recording.add_row(template, self._site, inputs, first)
        self._fixed, self._rest, self._state = written[:fixed], written[fixed : fixed + rest], written[fixed + rest :]

    def open_window(self, carry: Sequence[Any]) -> None:
        """An iteration begins with this carry, and perhaps the window with it."""
        if self._recording.steps.opens_window():
            self._state = self._recording.open_window(self._cut.carry_names, self._loop_site, carry)

    def next_stop(self, done: int) -> int:
        """The iteration before which the host looks next; until then, the program writes its log."""
        cut, recording, steps = self._cut, self._recording, self._recording.steps
        most = 1 if self._log is None or recording.sees_arrays else self._most
        if recording.life.is_over:
            self._stride, stop = cut.length, cut.length
        else:
            self._stride, stop = steps.next_piece(done, cut.length, cut.carry_bytes, most)
        if self._log is not None:
            self._looks_within = self._parts.loop.values is not None and self._stride == 1 and steps.in_window
            self._log.begin(self._stride, done, stop, self._looks_within)
            steps.running = self._log.ended
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
            self._most = self._most * 2 if perf_counter() - self._began < PIECE_SECONDS else max(self._most // 2, 1)
        within = self._rows_within()
        if table.size != len(seen) * (len(layouts) + (0 if within is None else within.block.written)):
            raise RecordError(f"{self._loop.op} has digested {table.size:,} arrays in {len(seen):,} iterations")
        table = table.reshape(len(seen), -1)
        if within is not None and not self._are_right(within, table):
            table, within = table[:, within.block.written :], None
        if self._recording.sees_arrays:
            table = self._exchange(cut.rows_written(start, stop), carry, ys, layouts, table)
        self._recording.steps.running = lambda: 0
        places = {end - 1 - start: cut.rows_written(end - 1, end).start for end in seen}
        self._recording.add_stacked(self._loop.op, cut.stacked_names, ys, places)
        reads = self._fixed, self._state
        self._state = self._recording.add_iterations(
            self._template, self._loop_site, reads, counts, layouts, table, within
        )

    def _rows_within(self) -> Within | None:
        """What is recorded within the iterations of this piece; None: nothing."""
        values = self._parts.loop.values
        if values is None or not self._looks_within:
            return None
        return values.of_thread(self._recording, (operand.layout for operand in (*self._fixed, *self._state)))

    def _are_right(self, within: Within, table: NDArray[np.uint64]) -> bool:
        """Whether what was read within iterations is what they passed on."""
        values, block = self._parts.loop.values, within.block
        assert values is not None, "they have been read"
        passed_on = {result: table[:, block.written + place] for result, place in self._cut.moved().items()}
        return values.are_right(self._recording, block, table[:, : block.written], passed_on)

    def _exchange(
        self, written: slice, carry: list[Any], ys: list[Any], layouts: Sequence[ArrayLayout], table: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Have the arrays of the one iteration seen recorded or replaced; returns its digests, shape [1, arrays]."""
        recording, count = self._recording, len(carry)
        rows = [programs.host_array(y, written) for y in ys]
        stacked = [programs.layout_of(row.dtype, row.shape, "cpu") for row in rows]
        outputs = [Operand(*each) for each in zip((*layouts[:count], *stacked), table[0].tolist(), strict=True)]
        arrays = [*carry, *rows]
        step = recording.steps.now + written.stop - written.start - 1
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
        self._recording.known.add(carry, self._state)
        self._state += [self._recording.known.add_mixed(y) for y in ys]

    @property
    def last_inputs(self) -> list[Operand]:
        """What follows the loop reads."""
        return [*self._rest, *self._state]

    def after(self, final: Sequence[Any]) -> None:
        """What follows the loop has computed these."""
        part = self._parts.after
        assert part is not None, "it has been called"
        template = self._recording.template(self._loop.after, kernel=part.evidence)
        self._recording.add_row(template, self._site, self.last_inputs, final)


def _compiled_parts(
    recording: JaxRecording, op: str, cut: Cut, closed: Any, args: Sequence[Any], library: LogLibrary | None
) -> _Parts:
    """Compile the three programs of a cut. Raises CannotCutError where they would return other types.

    ``library``: with it, each reads the values within that it has in memory, the loop where each iteration is seen.
    """
    before, first = jax.make_jaxpr(cut.before, return_shape=True)(*args)
    constants, xs, rest, carry = cut.split_first(first)
    ys = jax.eval_shape(cut.empty_outputs)
    at = np.int32(0)
    log = None if cut.library is None else LOG
    taken = at, at, log, constants, *cut.split(carry), ys, xs
    moved, stacked, _ = jax.eval_shape(cut.loop, *taken)
    results = [*moved, *stacked]
    after = None if cut.is_whole else jax.make_jaxpr(cut.after)(*rest, *results)
    returned = cut.final(results) if after is None else after.out_avals
    if _types(moved) != _types(carry) or _types(returned) != _types(closed.out_avals):
        raise CannotCutError("a part of it would return other types")

    def lowered(body: Any, reads_values: bool) -> Any:
        return cut.loop_with(body, reads=reads_values).lower(*taken)

    preceding = _compiled_part(recording, f"{op}.before", before, args, library)
    found, own = None, f"{op}{ITERATION}"
    if library is not None and cut.library is not None and recording.steps.sees_each(cut.length, cut.carry_bytes):
        found = chosen_program(recording, own, cut.body, library, lowered)
    if found is None:
        program = cut.loop.lower(*taken).compile()
        loop = _Loop(program, programs.evidence_of(program), None)
    else:
        choice, program = found
        values = ReadValues(own, choice, cut.operands(), programs.lines_of(cut.scan))
        loop = _Loop(program, choice.outer_evidence(own), values)
    if after is None:
        return _Parts(preceding, loop, None)
    return _Parts(preceding, loop, _compiled_part(recording, f"{op}.after", after, [*rest, *results], library))


def _compiled_part(
    recording: JaxRecording, op: str, function: ClosedJaxpr, args: Sequence[Any], library: LogLibrary | None
) -> _Part:
    """Compile what precedes the loop, or what follows it; with a library, it is to read the values within."""
    read = None if library is None else read_program(recording, op, function, args, library)
    if read is not None:
        return _Part(read.program, read.evidence, read)
    program = jax.jit(jaxpr_as_fun(function)).lower(*args).compile()
    return _Part(program, programs.evidence_of(program), None)


def _comparison(lowered: Any, parts: _Parts) -> str:
    """Whether the parts of a cut compute what the whole function does, by their optimised code."""
    whole = programs.operations_of(lowered.compile(code_only()))
    found = [programs.operations_of(part.program) for part in parts if part is not None]
    if whole is None or None in found:
        return "its code cannot be compared with the uncut program's"
    others = sum((each - whole).total() for each in found if each is not None)
    count = sum(each.total() for each in found if each is not None)
    if others:
        return f"{others} of its {count} floating-point operations are not in the uncut program: it may round otherwise"
    same = f"its {count} floating-point operations are those of the uncut program"
    return (
        f"{same}, which fast math may compile to other code: it may round otherwise"
        if programs.is_fast_math()
        else same
    )


def _types(arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(a.shape, a.dtype, bool(getattr(a, "weak_type", False))) for a in arrays]


def _unshared(carry: Sequence[Any], in_place: Sequence[bool], args: Sequence[Any]) -> list[Any]:
    """The carry, what is written in place in memory that nothing else uses."""
    uses = Counter(address_of(array) for array in (*args, *carry) if isinstance(array, jax.Array))
    pairs = zip(carry, in_place, strict=True)
    return [jax.numpy.copy(array) if own and uses[address_of(array)] > 1 else array for array, own in pairs]


def address_of(array: Any) -> int:
    try:
        return int(array.unsafe_buffer_pointer())
    except Exception:  # in several parts, or without memory
        return id(array)
