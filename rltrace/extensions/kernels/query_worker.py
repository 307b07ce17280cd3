"""The worker that queries oneDNN and MKL for the kernels of a trace's calls: ``python -m`` this module.

The libraries print their kernels to the standard output of the process, at any time; so this runs in a process separate
from the recorded program. It makes the recorded calls again, one by one, on generated tensors of the same dtypes,
shapes, strides and alignment, under the same settings and number of threads, which the libraries choose by. Standard
output is redirected to a file. Each answer is a line in another file, so that a crash loses none.
"""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace import fingerprint
from rltrace.errors import HoleError, UsageError
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.cpu_kernels import Kernels
from rltrace.recorder.core.op_info import make_plan
from rltrace.rerun.arguments import arguments_of
from rltrace.rerun.library_output import LibraryOutput, parse
from rltrace.rerun.recorded_op import find_operator, lay_out, layouts_of
from rltrace.rerun.runner import Memory, OpCall, TensorSpec
from rltrace.rerun.torch_flags import fits, temporary_switches
from rltrace.trace.format import dtypes
from rltrace.trace.format.row_hashes import GOLDEN
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag
from rltrace.trace.kernels.evidence import without_reorders
from rltrace.trace.kernels.library_reports import call_keys
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.stream import StreamTrace

# --- distinct calls ---------------------------------------------------------------------------------------------------


MAX_CALLS = 20_000
"""Distinct calls that are queried, the first ones of a process."""


@dataclass
class DistinctCall:
    """A distinct call, with its first row and its number of rows."""

    key: int
    kernel: int
    stream: int
    row: int
    threads: int
    settings: list[int] = field(default_factory=list)
    """Ids in table "settings" of all its rows."""
    times: int = 0


@dataclass
class CallSurvey:
    """The distinct calls of a process that can be queried."""

    calls: dict[tuple[int, int], DistinctCall] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    """Number of distinct calls that cannot be queried, by reason."""

    def leave_out(self, why: str) -> None:
        self.unknown[why] = self.unknown.get(why, 0) + 1


def survey_calls(process: ProcessTrace, steps: range | None) -> CallSurvey:
    """The distinct calls in the rows of these steps (None: all) for which a library may be called."""
    survey, queryable = CallSurvey(), _queryable(process)
    for stream in process.streams:
        for segment in stream.segments:
            try:
                rows = stream.read_segment(segment)
            except HoleError:
                continue
            _add_rows(survey, queryable, process, stream, rows, steps)
    return survey


def _add_rows(
    survey: CallSurvey,
    queryable: NDArray[np.bool_],
    process: ProcessTrace,
    stream: StreamTrace,
    rows: Rows,
    steps: range | None,
) -> None:
    column = rows.column(Column.STEP)
    idle = (rows.column(Column.FLAGS) & np.uint32(RowFlag.VIEW | RowFlag.ALLOCATION)) != 0
    chosen = (rows.column(Column.KIND) == Kind.OP) & ~idle & queryable[rows.column(Column.OP)]
    if steps is not None:
        chosen &= (column >= steps.start) & (column < steps.stop)
    at = np.flatnonzero(chosen)
    kernels = rows.column(Column.KERNEL)[at]
    keys = call_keys(rows, process.tables)[at]
    settings = rows.column(Column.SETTINGS)[at]
    kinds = (keys + kernels.astype(np.uint64) * GOLDEN) * GOLDEN + settings.astype(np.uint64)
    _, first, counts = np.unique(kinds, return_index=True, return_counts=True)
    for i, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
        key, kernel = int(keys[i]), int(kernels[i])
        threads = process.words.evidence(kernel).get("threads")
        if (key, kernel) not in survey.calls:
            if not isinstance(threads, int) or len(survey.calls) >= MAX_CALLS:
                survey.leave_out("on another device" if threads is None else f"more than {MAX_CALLS:,} kinds of call")
                continue
            survey.calls[key, kernel] = DistinctCall(key, kernel, stream.index, rows.first + int(at[i]), threads)
        call = survey.calls[key, kernel]
        call.times += count
        if settings[i] not in call.settings:
            call.settings.append(int(settings[i]))


def _queryable(process: ProcessTrace) -> NDArray[np.bool_]:
    """By id, which operators may call a library: those of ATen, but for elementwise ones."""
    kernels, words = Kernels(Tables()), process.words
    return np.array([_may_call(words.op(i), kernels) for i in range(words.size("ops"))], bool)


def _may_call(name: str, kernels: Kernels) -> bool:
    if not name.startswith("aten.") or name.startswith(("aten._foreach_", "aten._fused_")):
        return False
    try:
        func = find_operator(name)
    except UsageError:
        return False
    if not make_plan(0, func).computes:
        return False
    return torch.Tag.pointwise not in func.tags or kernels.library(name) != "ATen"


# --- queries ----------------------------------------------------------------------------------------------------------


MAX_INPUT_BYTES = 1 << 30
"""A call with larger inputs is not made."""

CHOOSING = ("grad_mode", "inference_mode", "deterministic_algorithms", "matmul_precision", "mkldnn.")
"""Prefixes of the settings that the choice of these libraries depends on."""


class Libraries:
    """The output of the libraries, call by call. Redirects standard output of the process permanently."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        sys.stdout.flush()
        os.dup2(self._printed.fileno(), 1)
        self._c = ctypes.CDLL(None)

    @contextmanager
    def verbose(self) -> Iterator[None]:
        """Verbose mode of the libraries."""
        with ExitStack() as stack:
            for library in (torch.backends.mkldnn, torch.backends.mkl):
                if library.is_available():
                    stack.enter_context(library.verbose(library.VERBOSE_ON))
            yield

    def output_of(self, call: Any) -> LibraryOutput:
        """Their output during ``call()``, whose errors are raised."""
        self._c.fflush(None)
        before = os.lseek(1, 0, os.SEEK_END)
        call()
        self._c.fflush(None)
        os.lseek(1, before, os.SEEK_SET)
        text = os.read(1, os.fstat(1).st_size - before)
        output = parse(text.decode(errors="replace").splitlines())
        self.versions |= output.libraries
        return output


def prepare(process: ProcessTrace, stream: StreamTrace, row: int) -> Any:
    """The call of a row on generated values, as a function. Raises UsageError, HoleError."""
    rows = stream.read(row, row + 1)
    func = find_operator(process.words.op(int(rows.columns[0, Column.OP])))
    tensors, storages = lay_out(layouts_of(process, rows), process.values.placements(stream.index, row))
    if any(tensor.device != "cpu" for tensor in tensors):
        raise UsageError("its tensors are on another device")
    if sum(map(len, storages)) > MAX_INPUT_BYTES:
        raise UsageError(f"its inputs have more than {MAX_INPUT_BYTES:,} bytes")
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    for tensor in tensors:
        _fill(tensor, storages[tensor.storage])
    made = Memory().arguments(OpCall("", lambda *_: None, tensors, contents=dict(enumerate(storages))))
    args, kwargs = arguments.values(made, torch.Generator() if arguments.takes_generator else None)
    return lambda: func(*args, **kwargs)


def _fill(tensor: TensorSpec, storage: NDArray[np.uint8]) -> None:
    """Fill in values that every op accepts: well-conditioned square matrices, integers 0, booleans False."""
    dtype = dtypes.PLAIN.get(tensor.dtype)
    if not tensor.span or dtype is None or np.dtype(dtype).kind not in "fc":
        return
    size = np.dtype(dtype).itemsize
    strides = [stride * size for stride in tensor.strides]
    np.ndarray(tensor.shape, dtype, storage.data, tensor.offset, strides)[...] = _numbers(tensor)


def _numbers(tensor: TensorSpec) -> Any:
    square = len(tensor.shape) > 1 and tensor.shape[-1] == tensor.shape[-2]
    return 0.5 + 2 * tensor.shape[-1] * np.eye(tensor.shape[-1]) if square else 0.5


def combined(answers: Sequence[LibraryOutput]) -> LibraryOutput:
    """The output for a call that ran under several settings, such as with and without gradients."""
    distinct = list({output.names: output for output in reversed(answers)}.values())[::-1]
    if len(distinct) == 1:
        return answers[0]
    names = " or ".join(" + ".join(without_reorders(list(output.names))) for output in distinct)
    lines = " or ".join(" + ".join(output.reported) for output in distinct)
    return LibraryOutput((names,), (lines,))


def answer(traces: Mapping[int, ProcessTrace], steps: range | None, skip: set[str], out: IO[str]) -> None:
    """Query all calls of these processes, each under its recorded settings, and write the answers."""

    def write(**record: object) -> None:
        out.write(json.dumps(record) + "\n")
        out.flush()

    libraries = Libraries()
    known: dict[tuple[object, ...], tuple[LibraryOutput | None, str]] = {}
    with libraries.verbose():
        for number, process in traces.items():
            survey = survey_calls(process, steps)
            streams = {stream.index: stream for stream in process.streams}
            for call in survey.calls.values():
                settings = [_settings(process, number) for number in call.settings]
                key = (call.key, call.threads, *(tuple(one.items()) for one in settings))
                where = f"{number} {call.stream} {call.row}"
                if key not in known:
                    write(asking=where)
                    known[key] = _query(libraries, process, streams[call.stream], call, settings, where in skip)
                output, why = known[key]
                if output is None:
                    survey.leave_out(why)
                    continue
                place = [call.kernel, call.stream, call.row, call.times]
                write(process=number, call=[f"{call.key:016x}", *place], names=output.names, reported=output.reported)
            write(process=number, unknown=sorted(survey.unknown.items()))
    facts = {"digest": "", **fingerprint.facts()}
    write(facts=facts, libraries=libraries.versions)


def _settings(process: ProcessTrace, number: int) -> dict[str, Any]:
    known = process.words.settings(number)
    return {name: value for name, value in known.items() if name.startswith(CHOOSING) and fits(name, value)}


def _query(
    libraries: Libraries,
    process: ProcessTrace,
    stream: StreamTrace,
    call: DistinctCall,
    settings: Sequence[Mapping[str, Any]],
    skip: bool,
) -> tuple[LibraryOutput | None, str]:
    if skip:
        return None, "the call ended the process that made it"
    torch.set_num_threads(call.threads)
    try:
        outputs = []
        for one in settings:
            made = prepare(process, stream, call.row)
            with temporary_switches(one):
                outputs.append(libraries.output_of(made))
        return combined(outputs), ""
    except (UsageError, HoleError) as error:
        return None, str(error)
    except Exception as error:  # not every op accepts generated values
        return None, f"it does not take generated values ({type(error).__name__})"


def main() -> None:
    """Arguments: TRACE OUT; processes, steps and calls to skip are JSON on standard input."""
    request = json.loads(sys.stdin.read())
    trace = open_trace(Path(sys.argv[1]))
    processes = {int(process.base.rpartition("/")[2]): process for process in trace.processes}
    traces = {number: processes[number] for number in request["processes"]}
    steps = None if request["steps"] is None else range(*request["steps"])
    with open(sys.argv[2], "a", encoding="utf-8") as out:  # noqa: PTH123
        answer(traces, steps, set(request["skip"]), out)


if __name__ == "__main__":
    main()
