"""Kernels of every kind of call of a trace, and those that differ in another one: what is printed as JSON, and its
document.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any, ClassVar

from rltrace.diff.base.model import OtherKernel
from rltrace.diff.compare import compare
from rltrace.diff.notes import evidence_of
from rltrace.errors import HoleError
from rltrace.report.document import ALL, Document, Fact, Section
from rltrace.trace.format.schema import Column
from rltrace.trace.kernels.evidence import kernel_text, launches
from rltrace.trace.kernels.launches import Unknown
from rltrace.trace.kernels.library_reports import LibraryReports, ReportedCall
from rltrace.trace.kernels.names import distinct_names
from rltrace.trace.read.launched_calls import MAX_ROWS_READ, SeenCall, seen_calls
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.wording import counted, sentences

BITS = {True: "same bits", False: "other bits", None: "whether it gave the same bits is not known"}


@dataclass(frozen=True)
class LibraryCall:
    """A kind of call, and what its library reported."""

    op: str
    inputs: tuple[str, ...]
    """Layouts of its tensors."""
    stream: int
    row: int
    """The first one."""
    times: int
    kernel: str | None
    """In words; None: not known."""
    names: tuple[str, ...]
    """What oneDNN or MKL ran."""
    reported: tuple[str, ...]
    """What the library printed."""


@dataclass(frozen=True)
class LaunchSize:
    """Blocks of a launch, and threads of a block, by dimension."""

    grid: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class LaunchedKernel:
    """What some calls of a kind launched."""

    times: int
    kernel: str | None
    """In words; None: not known."""
    names: tuple[str, ...] | None
    launches: tuple[LaunchSize, ...]
    """Of each name; empty: not known."""


@dataclass(frozen=True)
class LaunchedCall:
    """A kind of call, and what a profiler recorded of it."""

    op: str
    inputs: tuple[str, ...]
    stream: int
    row: int
    """The first one."""
    times: int
    ran: tuple[LaunchedKernel, ...]
    """The most frequent first."""


@dataclass(frozen=True)
class StrayKernel:
    """A kernel that was launched outside any row."""

    name: str
    by: str | None
    """The innermost op or call around it; None: not known."""
    times: int


@dataclass(frozen=True)
class UnknownCalls:
    """Calls of which the libraries could not be asked."""

    why: str
    calls: int


@dataclass(frozen=True)
class LaunchedKernels:
    """What a profiler recorded of a process."""

    rows: int
    calls: tuple[LaunchedCall, ...]
    """In the order of their first row."""
    for_no_row: tuple[StrayKernel, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class ProcessKernels:
    """The kernels of a process."""

    name: str
    libraries: Mapping[str, str]
    """Version and instruction set of each library."""
    calls: tuple[LibraryCall, ...]
    """In the order of their first row."""
    unknown: tuple[UnknownCalls, ...]
    launched: LaunchedKernels | None
    """None: no profiler ran."""


@dataclass(frozen=True)
class TraceKernels:
    """The kernels of a trace."""

    SCHEMA: ClassVar = "rltrace.kernels/1"

    trace: str
    processes: tuple[ProcessKernels, ...]
    """Those of which a library or a profiler reported something."""


@dataclass(frozen=True)
class OtherKernels:
    """Kinds of call for which another kernel ran in B."""

    SCHEMA: ClassVar = TraceKernels.SCHEMA

    a: str
    b: str
    other_kernels: tuple[OtherKernel, ...]


def kernels_of(trace: Trace) -> TraceKernels:
    processes = (_process(process) for process in trace.processes if process.library_reports or process.launches)
    return TraceKernels(str(trace.path), tuple(processes))


def other_kernels(a: Trace, b: Trace) -> OtherKernels:
    return OtherKernels(str(a.path), str(b.path), compare(a, b).other_kernels)


def _process(process: ProcessTrace) -> ProcessKernels:
    reports = process.library_reports or LibraryReports()
    calls = sorted(reports.calls.values(), key=lambda call: (call.stream, call.row))
    return ProcessKernels(
        process.name,
        reports.libraries,
        tuple(_library_call(process, call) for call in calls),
        tuple(starmap(UnknownCalls, reports.unknown)),
        _launched(process) if process.launches else None,
    )


def _library_call(process: ProcessTrace, call: ReportedCall) -> LibraryCall:
    op, layouts = _op_and_layouts(process, call.stream, call.row)
    kernel = kernel_text(evidence_of(process, call))
    return LibraryCall(op, layouts, call.stream, call.row, call.times, kernel, call.names, call.reported)


def _launched(process: ProcessTrace) -> LaunchedKernels:
    launched = process.launches
    strays = (StrayKernel(name, launcher or None, count) for (name, launcher), count in launched.strays.items())
    calls = (_launched_call(process, call) for call in seen_calls(process))
    return LaunchedKernels(launched.rows, tuple(calls), tuple(strays), tuple(launched.unknown))


def _launched_call(process: ProcessTrace, call: SeenCall) -> LaunchedCall:
    op, layouts = _op_and_layouts(process, call.stream, call.row)
    ran = []
    for kernel, count in call.kernels.most_common():
        evidence = process.words.evidence(kernel)
        names: Any = evidence.get("names")
        sizes = tuple(starmap(LaunchSize, launches(evidence) or ()))
        ran.append(LaunchedKernel(count, kernel_text(evidence), None if names is None else tuple(names), sizes))
    return LaunchedCall(op, layouts, call.stream, call.row, call.times, tuple(ran))


def _op_and_layouts(process: ProcessTrace, index: int, row: int) -> tuple[str, tuple[str, ...]]:
    """Operator of a row and the layouts of its tensors."""
    stream = next((stream for stream in process.streams if stream.index == index), None)
    try:
        rows = None if stream is None or row >= stream.rows else stream.read(row, row + 1)
    except HoleError:
        rows = None
    if rows is None:
        return "?", ()
    op, structure = (int(rows.columns[0, column]) for column in (Column.OP, Column.STRUCTURE))
    return process.words.op(op), tuple(process.words.layouts(structure))


# --- document ---------------------------------------------------------------------------------------------------------


def kernels_document(found: TraceKernels, *, everything: bool) -> Document:
    """Kinds of call process by process; ``everything``: also those on which no library reported anything."""
    by_process = ((_launched_section(process), _library_section(process, everything)) for process in found.processes)
    return Document(sections=tuple(filter(None, chain.from_iterable(by_process))))


def _library_section(process: ProcessKernels, everything: bool) -> Section:
    shown = [call for call in process.calls if everything or call.names]
    left = len(process.calls) - len(shown)
    remarks = [f"{counted(left, 'more kind')} of call on which no library reported anything (--all shows them)"] * bool(
        left
    )
    remarks += [f"unknown for {one.calls}: {one.why}" for one in process.unknown]
    return Section(
        f"libraries-{process.name}",
        process.name,
        sentences(*remarks),
        tuple(Fact(name, version) for name, version in sorted(process.libraries.items())),
        parts=tuple(Section("", _call_text(call), (call.kernel or "–",)) for call in shown),
        limit=ALL,
    )


def _launched_section(process: ProcessKernels) -> Section:
    launched = process.launched
    if launched is None:
        return Section("", "")
    unknown: Counter[str] = Counter()
    for one in launched.unknown:
        unknown[one.why] += one.rows
    remarks = [f"unknown for {counted(rows, 'row')}: {why}" for why, rows in unknown.items()]
    if launched.rows > MAX_ROWS_READ:
        remarks.append(f"kinds of call are those of the first {MAX_ROWS_READ:,} rows")
    strays = sorted(launched.for_no_row, key=lambda stray: -stray.times)
    names = zip(distinct_names([stray.name for stray in strays]), strays, strict=True)
    outside = Section(
        "",
        f"launched outside any row: {sum(stray.times for stray in strays):,}",
        tuple(f"{name} ×{stray.times:,}{f', by {stray.by}' if stray.by else ''}" for name, stray in names),
    )
    calls = tuple(Section("", _call_text(call), tuple(_ran(call))) for call in launched.calls)
    return Section(
        f"launched-{process.name}",
        f"{process.name}, profiled: {counted(launched.rows, 'row')}",
        sentences(*remarks),
        parts=(*calls, *filter(None, (outside,))),
        limit=ALL,
    )


def _ran(call: LaunchedCall) -> Iterator[str]:
    for kernel in call.ran:
        times = "" if len(call.ran) == 1 else f"  ({kernel.times:,} times)"
        yield f"{kernel.kernel or '–'}{times}"


def _call_text(call: LibraryCall | LaunchedCall) -> str:
    return f"row {call.row:,}  ×{call.times:,}  {call.op}  {' '.join(call.inputs)}".rstrip()


def other_kernels_document(found: OtherKernels) -> Document:
    """Each call with both kernels."""
    if not found.other_kernels:
        return Document(lead=("The same kernels ran on both sides, wherever the libraries were asked.",))
    parts = tuple(
        Section(
            f"call-{number}",
            f"{other.op}  ({other.stream}:{other.a_index:,} in A): {BITS[other.same_bits]}",
            facts=(Fact("A", other.a), Fact("B", other.b)),
        )
        for number, other in enumerate(found.other_kernels)
    )
    return Document(sections=parts)
