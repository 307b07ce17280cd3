"""Programs whose calls are recorded with the values within them that are read.

Owns how such a program is compiled and called, and when a function without a loop becomes one. Which values are read is
chosen in ``fusions.py``, and what a row within says is in ``inner_rows.py``.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np
from jax._src import dispatch
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from numpy.typing import NDArray

from rltrace.errors import RecordError
from rltrace.extensions.jax import programs
from rltrace.extensions.jax.digest_log import LOG, DigestLog, LogLibrary, log_library
from rltrace.extensions.jax.fusions import Choice, InnerValue, choose, results_not_read
from rltrace.extensions.jax.inner_rows import Line
from rltrace.extensions.jax.loops import CannotCutError, check_placement, nested
from rltrace.extensions.jax.programs import ArrayLayout
from rltrace.extensions.jax.recording import JaxRecording, Within
from rltrace.extensions.jax.rows import InnerBlock, Operand, digests_of
from rltrace.trace.format.schema import READS_WITHIN

VALUES = "jax.values"
"""Fact: programs with the values within that are read."""

MISREAD = "a value was read as another one than was returned: none is recorded"

MIN_NUMBERS = 1 << 22
"""Numbers that a call of a function without a driven loop computes, about, from which on it is read into: some 0.5 to
1 ms. A call that is read into takes some 0.2 ms more, where JAX's C++ cache could have served it."""

NO_LOG = np.zeros(LOG.shape, LOG.dtype)
"""What a program takes of which nothing is digested."""

Lowered = Callable[[ClosedJaxpr, bool], Any]
"""Of a function, and whether it takes and returns the log, its lowered program."""


class ReadValues:
    """What is read within the calls of one program, and recorded in streams of their own."""

    def __init__(self, op: str, choice: Choice, arguments: Sequence[int | None], lines: Sequence[Line]) -> None:
        """``op``: of the rows of the calls; ``arguments`` and ``lines``: see ``JaxRecording.within``."""
        self.op, self.choice = op, choice
        self._arguments, self._lines = arguments, lines
        self._of_stream: dict[int, Within] = {}
        self._is_wrong = False

    def are_right(
        self,
        recording: JaxRecording,
        block: InnerBlock,
        read: NDArray[np.uint64],
        results: Mapping[int, NDArray[np.uint64]],
    ) -> bool:
        """Whether what was read of each value that calls return is what they returned.

        Where it once was not, nothing within these calls is recorded any more. ``read``: shape [calls, values];
        ``results``: by the number of a result, its digest in each call.
        """
        for value, result in block.returned.tolist():
            if result in results and not np.array_equal(read[:, value], results[result]):
                self._is_wrong = True
                recording.life.note(VALUES, f"{self.op}: {MISREAD}")
        return not self._is_wrong

    def of_thread(self, recording: JaxRecording, operands: Iterable[ArrayLayout]) -> Within:
        """What is recorded by the calling thread, of whose calls these are the operands."""
        rows = recording.rows_here()
        assert rows is not None, "the call has a row"
        found = self._of_stream.get(rows.number)
        if found is None:
            read = self._arguments, list(operands), self._lines
            found = self._of_stream[rows.number] = recording.within(self.op, self.choice, *read)
        return found


def chosen_program(
    recording: JaxRecording, op: str, function: ClosedJaxpr, library: LogLibrary, lowered: Lowered
) -> tuple[Choice, Any] | None:
    """The values within a function that are read, and its program that reads them; None: nothing can be read."""
    why_not = ""
    try:
        limit = _limit_of(recording.options.read_within, op)
        choice = choose(function, library, lambda *how: lowered(*how).compile(code_only()), limit)
        program = None if choice is None else lowered(choice.reading, True).compile()
    except Exception as error:  # private parts of JAX have moved: calls are recorded all the same
        choice, program, why_not = None, None, f": {type(error).__name__}: {error}"
    recording.life.note(VALUES, f"{op}: {'no values within are read' if choice is None else choice}{why_not}")
    if choice is None:
        return None
    recording.life.note(READS_WITHIN, " ".join([op, *map(str, sorted(choice.values))]))
    return choice, program


class ReadProgram:
    """A compiled function whose values in memory are read, and its calls."""

    def __init__(self, values: ReadValues, library: LogLibrary, program: Any) -> None:
        self.evidence = values.choice.outer_evidence(values.op)
        """Kernel evidence of the rows of its calls."""
        self.program = program
        self._values, self._library = values, library

    def call(self, recording: JaxRecording, args: Sequence[Any], inputs: Sequence[Operand]) -> list[Any]:
        """What the function returns; rows for what is within, and none for the call. ``inputs``: of ``args`` first."""
        if recording.life.is_over or not recording.steps.in_window:
            return list(self.program(*args, NO_LOG))[:-1]
        log = DigestLog(self._library)
        log.begin(1, 0, 1, True)
        *results, passed_on = self.program(*args, log.address)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the program's, which the results have, too
            jax.block_until_ready(passed_on)
            recording.life.guarded(partial(self._add_rows, recording, inputs, log, results))
        return list(results)

    def _add_rows(
        self, recording: JaxRecording, inputs: Sequence[Operand], log: DigestLog, results: Sequence[Any]
    ) -> None:
        within = self._values.of_thread(recording, [operand.layout for operand in inputs])
        read = log.take()
        if read.size != within.block.written:
            raise RecordError(f"{self._values.op} has digested {read.size:,} values, not {within.block.written:,}")
        numbers = list(self._values.choice.results.values())
        digests = digests_of(recording.known.operands(results))
        if self._values.are_right(recording, within.block, read[None], dict(enumerate(digests[:, None]))):
            given = np.concatenate([digests_of(inputs), digests[numbers], read])
            recording.add_within(within, [recording.steps.now], given[None])


def read_program(
    recording: JaxRecording,
    op: str,
    function: ClosedJaxpr,
    args: Sequence[Any],
    library: LogLibrary,
    donated: Sequence[int] = (),
) -> ReadProgram | None:
    """The program of a function that is called with ``args``; None: nothing within it can be read."""

    def lowered(function: ClosedJaxpr, reads: bool) -> Any:
        log = [LOG] if reads else []
        return jax.jit(jaxpr_as_fun(function), donate_argnums=tuple(donated)).lower(*args, *log)

    found = chosen_program(recording, op, function, library, lowered)
    if found is None:
        return None
    choice, program = found
    choice = choice._replace(results=results_not_read(choice.tagged, choice.values))
    values = ReadValues(op, choice, range(len(args)), programs.lines_here())
    return ReadProgram(values, library, program)


def read_function(
    recording: JaxRecording, op: str, function: ClosedJaxpr, args: Sequence[Any], params: Any
) -> ReadProgram | None:
    """The program of a function without a loop that is driven, called so; None: nothing within it is read."""
    library = library_of(recording)
    if library is None or numbers_computed(function.jaxpr) < MIN_NUMBERS or dispatch.needs_check_special():
        return None
    if any(hasattr(aval, "inner_aval") for aval in function.in_avals):  # a reference
        return None
    try:
        check_placement(args, params)
    except CannotCutError:
        return None
    return read_program(recording, op, function, args, library, donated_of(params))


def donated_of(params: Any) -> list[int]:
    """Which arguments a function is given that is called so."""
    return [place for place, is_donated in enumerate(params["donated_invars"]) if is_donated]


def library_of(recording: JaxRecording) -> LogLibrary | None:
    """The library that reads values within programs of a recording; None: none are read."""
    options = recording.options
    reads = options.level == "op" and options.engine != "mode" and not options.replay and not options.values
    return log_library() if reads else None


def numbers_computed(jaxpr: Jaxpr) -> int:
    """Numbers that a call of a function computes, about: results of equations, of a product also its terms by sixteen.

    A loop of unknown length counts once, of branches the largest.
    """
    return sum(map(_numbers_of, jaxpr.eqns))


def _numbers_of(eqn: Any) -> int:
    inner = [numbers_computed(function) for function in nested(eqn)]
    if inner:
        return max(inner) * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
    own = sum(int(getattr(v.aval, "size", 0)) for v in eqn.outvars)
    if eqn.primitive.name == "dot_general":
        [contracted, _], _ = eqn.params["dimension_numbers"]
        own *= max(prod(eqn.invars[0].aval.shape[axis] for axis in contracted) // 16, 1)
    return own


def _limit_of(read_within: Iterable[str], op: str) -> Collection[InnerValue] | None:
    """Of an option, the values within a program that may be read; None: all."""
    lists = [words for name, *words in map(str.split, read_within) if name == op]
    return frozenset(InnerValue.parse(word) for words in lists for word in words) if read_within else None


def code_only() -> dict[str, Any] | None:
    """Options to compile with where only the optimised code is asked for: LLVM need not optimise, half the time."""
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
