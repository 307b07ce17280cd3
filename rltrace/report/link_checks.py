"""What ``record --check-links`` found, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rltrace.errors import HoleError
from rltrace.query.ops import op_line
from rltrace.report.document import Section
from rltrace.trace.format.records import FaultKind, LinkFault, Place
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class FoundFault:
    """One fault, with the ops around it as text."""

    kind: FaultKind
    """``write``: memory changed between two uses; ``op``: an op wrote it against its schema; ``link``: a row links
    memory to outside that a recorded op wrote; ``call``: memory changed within the call that allocated it and read it,
    which is no fault of the program."""
    step: int
    """The step in which it was noticed."""
    found: str | None
    """The op that read the memory, or wrote it against its schema; None: none until the step ended."""
    used: str | None
    """The op that used the memory last before it; of ``link``: the one that wrote it."""
    writer: str | None
    """The recorded op that wrote the memory last, or allocated it; None: none did."""
    allocation: str | None
    """The op that returned the memory first."""
    handed_out: bool
    """NumPy or DLPack shares the memory, so ops digest it at every use and no link rests on it."""
    bytes: int
    """Size of the memory, not of the write."""


def found_faults(process: ProcessTrace) -> tuple[FoundFault, ...] | None:
    """What the check of one process found; None: its links were not checked."""
    return tuple(_words(process, fault) for fault in process.link_faults) if process.checks_links else None


def missed_faults(trace: Trace) -> list[FoundFault]:
    """The faults of links of all processes. Memory that was handed out, or written within a call, is none."""
    found = [fault for process in trace.processes for fault in found_faults(process) or ()]
    return [fault for fault in found if not fault.handed_out and fault.kind is not FaultKind.CALL]


def fault_sections(faults: Sequence[FoundFault]) -> Iterator[Section]:
    """What was noticed in which step, and the ops around it."""
    for fault in faults:
        size = f"{fault.bytes:,} bytes of memory"
        match fault.kind:
            case FaultKind.OP:
                what = f"{size} written against its schema by {fault.found}"
            case FaultKind.LINK:
                what = f"{size} read as from outside by {fault.found}"
            case FaultKind.CALL:
                what = f"{size} written in the call that allocated it, before {fault.found} read it"
            case FaultKind.WRITE:
                until = f"before {fault.found} read it" if fault.found else "before the step ended"
                what = f"{size} written by no op {until}"
        yield Section("", f"step {fault.step:,}: {what}", tuple(_ops_around(fault)))


def _ops_around(fault: FoundFault) -> Iterator[str]:
    if fault.kind is FaultKind.LINK:
        yield f"written by {fault.used}"
    if fault.kind is FaultKind.WRITE:
        yield f"used last by {fault.used or 'an op before the recording'}"
    if fault.writer is not None and fault.writer not in (fault.used, fault.allocation):
        yield f"written last by {fault.writer}"
    yield f"returned first by {fault.allocation or 'no recorded op'}"


def _words(process: ProcessTrace, fault: LinkFault) -> FoundFault:
    places = (fault.found, fault.used, fault.writer, fault.allocation)
    found, used, writer, allocation = (None if place is None else _op_text(process, place) for place in places)
    return FoundFault(fault.kind, fault.step, found, used, writer, allocation, fault.handed_out, fault.bytes)


def _op_text(process: ProcessTrace, place: Place) -> str:
    """``aten.add_.Tensor at train.py:12 (update), row 7``."""
    number, row = place
    stream = next((stream for stream in process.streams if stream.index == number), None)
    if stream is None or row >= stream.rows:
        return f"row {row:,}, which was not recorded"
    try:
        op = op_line(stream.read(row, row + 1), 0, stream.name, process.words)
    except HoleError:
        return f"row {row:,} of {stream.name}"
    site = f" at {op.site.file}:{op.site.line} ({op.site.function})" if op.site else ""
    return f"{op.op}{site}, row {row:,}"
