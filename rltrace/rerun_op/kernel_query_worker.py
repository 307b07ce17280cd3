"""Asks oneDNN and MKL what they run for the calls of a trace, in a process of its own: ``python -m`` this module.

The libraries print what they run to standard output, of the whole process and whenever they like; so the program that
was recorded is never asked. Here its calls are made once more, one after the other, on tensors of the same dtypes,
shapes, strides and alignment, under the same settings and number of threads: that is what the libraries choose by. The
values are made up. Standard output of this process is a file; answers go to another one, a line each, so that nothing
is lost where a call ends the process. ``asking`` starts it.
"""

from __future__ import annotations

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

from rltrace import fingerprint
from rltrace.errors import HoleError, UsageError
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.cpu_kernels import Kernels
from rltrace.recorder.core.op_info import make_plan
from rltrace.rerun_op.arguments import arguments_of
from rltrace.rerun_op.library_output import LibraryOutput, parse
from rltrace.rerun_op.recorded_op import Memory, find_operator, lay_out, layouts_of
from rltrace.rerun_op.runner import OpCase, TensorSpec, build
from rltrace.rerun_op.torch_flags import fits, under
from rltrace.trace.format import dtypes
from rltrace.trace.format.row_hashes import GOLDEN
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag
from rltrace.trace.kernels.evidence import telling
from rltrace.trace.kernels.library_reports import call_keys
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.stream import StreamTrace

# --- kinds ------------------------------------------------------------------------------------------------------------
#
# Which kinds of call there are in a process of a trace that oneDNN or MKL may be called for.
#
# Owns what is worth asking about. Reads rows; makes no call.


MOST = 20_000
"""Kinds of call that are asked for; of more, those that are met first."""


@dataclass
class DistinctCall:
    """A kind of call, where it was met first, and how often."""

    key: int
    kernel: int
    stream: int
    row: int
    threads: int
    settings: list[int] = field(default_factory=list)
    """Ids in table "settings": what torch was set to at one of its calls or another."""
    times: int = 0


@dataclass
class CallSurvey:
    """What there is to ask of a process."""

    calls: dict[tuple[int, int], DistinctCall] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    """Why calls cannot be asked for, and how many kinds."""

    def leave_out(self, why: str) -> None:
        self.unknown[why] = self.unknown.get(why, 0) + 1


def look_through(process: ProcessTrace, steps: range | None) -> CallSurvey:
    """Every kind of call among the rows of these steps (None: of all) that a library may be called for."""
    looked, askable = CallSurvey(), _Askable(process)
    for stream in process.streams:
        for segment in stream.segments:
            try:
                rows = stream.read_segment(segment)
            except HoleError:
                continue
            _take(looked, askable, process, stream, rows, steps)
    return looked


def _take(
    looked: CallSurvey, askable: _Askable, process: ProcessTrace, stream: StreamTrace, rows: Rows, steps: range | None
) -> None:
    column = rows.column(Column.STEP)
    idle = (rows.column(Column.FLAGS) & np.uint32(RowFlag.VIEW | RowFlag.ALLOCATION)) != 0
    chosen = (rows.column(Column.KIND) == Kind.OP) & ~idle & askable.of(rows.column(Column.OP))
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
        if (key, kernel) not in looked.calls:
            if not isinstance(threads, int) or len(looked.calls) >= MOST:
                looked.leave_out("on another device" if threads is None else f"more than {MOST:,} kinds of call")
                continue
            looked.calls[key, kernel] = DistinctCall(key, kernel, stream.index, rows.first + int(at[i]), threads)
        call = looked.calls[key, kernel]
        call.times += count
        if settings[i] not in call.settings:
            call.settings.append(int(settings[i]))


class _Askable:
    """Which operators may call a library: those of ATen, but for what computes each element for itself."""

    def __init__(self, process: ProcessTrace) -> None:
        kernels = Kernels(Tables())
        words = process.words
        self._known = np.array([_may_call(words.op(i), kernels) for i in range(words.size("ops"))], bool)

    def of(self, ops: Any) -> Any:
        return self._known[ops]


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


# --- witness ----------------------------------------------------------------------------------------------------------


LARGEST = 1 << 30
"""Bytes of inputs above which a call is not made again."""

CHOOSING = ("grad_mode", "inference_mode", "deterministic_algorithms", "matmul_precision", "mkldnn.")
"""Starts of the names of settings that these libraries are chosen by."""


class Libraries:
    """What the libraries say, a call at a time. Takes standard output of the process for good."""

    def __init__(self) -> None:
        self.themselves: dict[str, str] = {}
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        sys.stdout.flush()
        os.dup2(self._printed.fileno(), 1)
        self._c = ctypes.CDLL(None)

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """They tell of what they run."""
        with ExitStack() as speaking:
            for library in (torch.backends.mkldnn, torch.backends.mkl):
                if library.is_available():
                    speaking.enter_context(library.verbose(library.VERBOSE_ON))
            yield

    def of(self, call: Any) -> LibraryOutput:
        """What they said while ``call()`` ran; what it raises is raised."""
        self._c.fflush(None)
        before = os.lseek(1, 0, os.SEEK_END)
        call()
        self._c.fflush(None)
        os.lseek(1, before, os.SEEK_SET)
        text = os.read(1, os.fstat(1).st_size - before)
        said = parse(text.decode(errors="replace").splitlines())
        self.themselves |= said.libraries
        return said


def prepared(process: ProcessTrace, stream: StreamTrace, row: int) -> Any:
    """The call of a row on made-up values, ready to be made. Raises UsageError, HoleError."""
    rows = stream.read(row, row + 1)
    func = find_operator(process.words.op(int(rows.columns[0, Column.OP])))
    memory = lay_out(layouts_of(process, rows), process.values.lying(stream.index, row))
    if any(tensor.device != "cpu" for tensor in memory.tensors):
        raise UsageError("its tensors are on another device")
    if sum(len(storage) for storage in memory.storages) > LARGEST:
        raise UsageError(f"its inputs have more than {LARGEST:,} bytes")
    arguments = arguments_of(process.words.skeleton(int(rows.columns[0, Column.SCALARS])), rows, 0)
    _fill(memory)
    case = OpCase(lambda *_: None, memory.tensors, memory.storages, memory.alignments)
    args, kwargs = arguments.values(build(case), torch.Generator() if arguments.takes_generator else None)
    return lambda: func(*args, **kwargs)


def _fill(memory: Memory) -> None:
    """Numbers that every op takes: of a square matrix a well-conditioned one, integers 0, what is true false."""
    for tensor in memory.tensors:
        dtype = dtypes.PLAIN.get(tensor.dtype)
        if not tensor.span or dtype is None or np.dtype(dtype).kind not in "fc":
            continue
        size = np.dtype(dtype).itemsize
        strides = [stride * size for stride in tensor.strides]
        data = memory.storages[tensor.storage].data
        np.ndarray(tensor.shape, dtype, data, tensor.offset, strides)[...] = _numbers(tensor)


def _numbers(tensor: TensorSpec) -> Any:
    square = len(tensor.shape) > 1 and tensor.shape[-1] == tensor.shape[-2]
    return 0.5 + 2 * tensor.shape[-1] * np.eye(tensor.shape[-1]) if square else 0.5


def either(answers: Sequence[LibraryOutput]) -> LibraryOutput:
    """What is said of calls that ran under several settings, with gradients and without them."""
    distinct = list({said.names: said for said in reversed(answers)}.values())[::-1]
    if len(distinct) == 1:
        return answers[0]
    names = " or ".join(" + ".join(telling(list(said.names))) for said in distinct)
    lines = " or ".join(" + ".join(said.reported) for said in distinct)
    return LibraryOutput((names,), (lines,))


def answer(traces: Mapping[int, ProcessTrace], steps: range | None, skip: set[str], out: IO[str]) -> None:
    """Ask for all calls of these processes, each under the settings that it ran under, and write down what was said."""

    def tell(**record: object) -> None:
        out.write(json.dumps(record) + "\n")
        out.flush()

    libraries = Libraries()
    known: dict[tuple[object, ...], tuple[LibraryOutput | None, str]] = {}
    with libraries.speaking():
        for number, process in traces.items():
            looked = look_through(process, steps)
            streams = {stream.index: stream for stream in process.streams}
            for call in looked.calls.values():
                settings = [_settings(process, number) for number in call.settings]
                key = (call.key, call.threads, *(tuple(one.items()) for one in settings))
                where = f"{number} {call.stream} {call.row}"
                if key not in known:
                    tell(asking=where)
                    known[key] = _ask(libraries, process, streams[call.stream], call, settings, where in skip)
                said, why = known[key]
                if said is None:
                    looked.leave_out(why)
                    continue
                place = [call.kernel, call.stream, call.row, call.times]
                tell(process=number, call=[f"{call.key:016x}", *place], names=said.names, reported=said.reported)
            tell(process=number, unknown=sorted(looked.unknown.items()))
    facts = {"digest": "", **fingerprint.facts()}
    tell(facts=facts, libraries=libraries.themselves)


def _settings(process: ProcessTrace, number: int) -> dict[str, Any]:
    known = process.words.settings(number)
    return {name: value for name, value in known.items() if name.startswith(CHOOSING) and fits(name, value)}


def _ask(
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
        said = []
        for one in settings:
            made = prepared(process, stream, call.row)
            with under(one):
                said.append(libraries.of(made))
        return either(said), ""
    except (UsageError, HoleError) as error:
        return None, str(error)
    except Exception as error:  # made-up values are not what every op takes
        return None, f"it does not take generated values ({type(error).__name__})"


def main() -> None:
    """``witness TRACE OUT``: the rest (processes, steps, calls to leave out) is JSON on standard input."""
    asked = json.loads(sys.stdin.read())
    trace = open_trace(Path(sys.argv[1]))
    processes = {int(process.base.rpartition("/")[2]): process for process in trace.processes}
    traces = {number: processes[number] for number in asked["processes"]}
    steps = None if asked["steps"] is None else range(*asked["steps"])
    with open(sys.argv[2], "a", encoding="utf-8") as out:  # noqa: PTH123
        answer(traces, steps, set(asked["skip"]), out)


if __name__ == "__main__":
    main()
