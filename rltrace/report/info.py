"""The description of a trace without its ops: what ``rltrace info`` prints as JSON, and its document.

Reads tables, journals and steps, never ops.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rltrace import extension
from rltrace.diff.base.coverage import coverage_notes
from rltrace.report.document import ALL, Code, Document, Fact, Section
from rltrace.report.link_checks import FoundFault, fault_sections, found_faults
from rltrace.trace.format.arming import sleeping_process
from rltrace.trace.format.location import Location
from rltrace.trace.format.records import ActivationRequest, LeftOut, ValueRequest, add_up
from rltrace.trace.format.root import RUNNING
from rltrace.trace.format.schema import BOUNDARY_ONLY, READS_WITHIN, Step, has_iterations
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.process import ProcessTrace, TraceHole
from rltrace.trace.read.reader import Trace
from rltrace.wording import counted

Facts = Mapping[str, object]

GROUPS = {
    "host": "hardware",
    "cpu": "hardware",
    "cuda": "hardware",
    "gpu": "hardware",
    "python": "versions",
    "package": "versions",
    "numpy": "versions",
    "torch": "torch",
    "jax": "JAX",
    "flag": "flags",
    "env": "variables",
    "source": "source files",
    "git": "source files",
}
"""Heading of a fact, by the first part of its name; all others are under "other"."""

JAX_FUNCTIONS = {"jax.loops": "loops", "jax.values": "within", "jax.code": "code", BOUNDARY_ONLY: "opaque"}
"""Labels of the facts that name functions of a JAX program, which are shown with the process, a function a line."""

FACT_SECTIONS = "facts-"
"""What the names of sections of facts begin with."""

NOT_LISTED = {*JAX_FUNCTIONS, READS_WITHIN}
"""Facts that are not among the others: those, and a list of numbers for ``record --fusions-of``."""


@dataclass(frozen=True)
class TraceSize:
    """The files of a trace."""

    bytes: int
    files: int
    bytes_per_op: float | None
    """None: it has no ops."""


@dataclass(frozen=True)
class StreamInfo:
    """A stream of a process."""

    name: str
    ops: int


@dataclass(frozen=True)
class SeriesCount:
    """How many series a process recorded, and numbers in them."""

    count: int
    samples: int


@dataclass(frozen=True)
class OmittedValues:
    """Requested values, or tensors by row, of one stream that were not recorded, for one reason."""

    why: str
    stream: str
    first: int
    """First row that lacks values."""
    last: int
    values: int
    bytes: int


@dataclass(frozen=True)
class ValuesInfo:
    """Recorded values of a process."""

    MERGED: ClassVar = ("request",)

    request: ValueRequest
    count: int
    bytes: int
    left_out: tuple[OmittedValues, ...]


@dataclass(frozen=True)
class RowsInfo:
    """Recorded activation rows of a process."""

    MERGED: ClassVar = ("request",)

    request: ActivationRequest
    calls: int
    tensors: int
    digests: int
    left_out: tuple[OmittedValues, ...]


@dataclass(frozen=True)
class ProcessInfo:
    """A recorded process."""

    name: str
    state: str
    after_op: int
    """Ops that were committed."""
    why: str | None
    windows: tuple[tuple[int, int | None], ...]
    """First step and step after, of each span of which ops are recorded."""
    asleep: tuple[tuple[int, int], ...]
    """The same of each span for which the run was not armed."""
    exit: Facts | None
    streams: tuple[StreamInfo, ...]
    optimizers: tuple[Facts, ...]
    """``class``, ``ordinal``, ``attempts`` and ``skipped`` of each, in the order of creation."""
    series: SeriesCount | None
    values: ValuesInfo | None
    rows: RowsInfo | None
    link_faults: tuple[FoundFault, ...] | None
    """None: links were not checked."""
    found: tuple[object, ...]
    """What extensions found in it while it ran: the ops that ``--repeat`` called again."""
    launch_rows: int
    """Kernels of launch rows."""
    compiled: int
    """Kinds of compiled region."""
    facts: Facts


@dataclass(frozen=True)
class UnrecordedInfo:
    """A process that started under the recorder and has no folder in the trace."""

    state: str
    """``never-recorded``, ``left-out`` or ``running``."""
    why: str | None
    process: Facts


@dataclass(frozen=True)
class TraceInfo:
    """Everything that a trace holds except its ops."""

    SCHEMA: ClassVar = "rltrace.info/1"

    path: str
    format: tuple[int, ...]
    level: str
    engine: str
    created: object
    """Seconds since the epoch, as recorded."""
    launch: Facts | None
    """As ``exit`` a record of the trace format."""
    exit: Facts | None
    ops: int
    size: TraceSize | None
    """None: a web server lists no files."""
    processes: tuple[ProcessInfo, ...]
    unrecorded_processes: tuple[UnrecordedInfo, ...]
    unrecorded: tuple[str, ...]
    """What else is not recorded, in words."""
    holes: tuple[TraceHole, ...]


def describe(trace: Trace) -> TraceInfo:
    ops = sum(stream.rows for process in trace.processes for stream in process.streams)
    sizes = trace_sizes(trace)
    per_op = round(sum(sizes) / ops, 2) if sizes is not None and ops else None
    return TraceInfo(
        path=str(trace.path),
        format=tuple(trace.format),
        level=trace.level,
        engine=trace.engine,
        created=trace.created,
        launch=_record(trace.launch),
        exit=_record(trace.exit),
        ops=ops,
        size=None if sizes is None else TraceSize(sum(sizes), len(sizes), per_op),
        processes=tuple(_process(process, trace.path) for process in trace.processes),
        unrecorded_processes=tuple(UnrecordedInfo(one.state, one.why, one.record) for one in trace.unrecorded),
        unrecorded=tuple(coverage_notes(trace)),
        holes=tuple(trace.holes),
    )


def trace_sizes(trace: Trace) -> list[int] | None:
    """Bytes of each file of the trace; None: its server lists none."""
    walks = [one.folder.walk() for one in trace.nodes or (trace,)]
    return None if None in walks else [size for files in walks for _, size in files or ()]


def _process(process: ProcessTrace, trace: Location) -> ProcessInfo:
    process.load()
    sleeping = None
    if isinstance(trace, Path) and process.state == RUNNING and process.token:
        sleeping = sleeping_process(trace, process.token)
    asleep_in = None if sleeping is None or sleeping.is_awake else sleeping.step
    ops = process.tables["ops"].payloads
    samples = sum(part.rows for part in process.sample_parts)
    return ProcessInfo(
        name=process.name,
        state=process.state,
        after_op=process.after_op,
        why=process.why if asleep_in is None else f"it is asleep in step {asleep_in:,}; rltrace arm wakes it",
        windows=tuple(process.windows),
        asleep=tuple(process.asleep),
        exit=_record(process.exit),
        streams=tuple(StreamInfo(stream.name, stream.rows) for stream in process.streams),
        optimizers=tuple(_optimizers(process)),
        series=SeriesCount(len(process.tables["series"]), samples) if samples else None,
        values=_values(process),
        rows=_rows(process),
        link_faults=found_faults(process),
        found=tuple(filter(None, (each.found_in(process) for each in extension.findings()))),
        launch_rows=sum(str(name).startswith(LAUNCH_ROWS) for name in set(ops)),
        compiled=sum(str(name).startswith("inductor.") for name in ops),
        facts=process.facts,
    )


def _values(process: ProcessTrace) -> ValuesInfo | None:
    """Recorded values, and those left out; None if none were requested."""
    values = process.values
    if values.request is None or not (values or len(values) or values.left_out):
        return None
    left_out = _left_out(process, values.left_out)
    return ValuesInfo(values.request, len(values), values.nbytes, left_out)


def _rows(process: ProcessTrace) -> RowsInfo | None:
    """Recorded activation rows, and those left out; None if none were requested."""
    rows = process.activations
    if rows.request is None:
        return None
    left_out = _left_out(process, rows.left_out)
    return RowsInfo(rows.request, rows.call_count, rows.tensor_count, rows.digest_count, left_out)


def _left_out(process: ProcessTrace, left_out: Sequence[LeftOut]) -> tuple[OmittedValues, ...]:
    names = {stream.index: stream.name for stream in process.streams}
    return tuple(
        OmittedValues(**entry._asdict() | {"stream": names.get(entry.stream, "?")}) for entry in add_up(left_out)
    )


def _record(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The content of a journal record, without its type."""
    return {key: value for key, value in record.items() if key != "type"} if record else None


def _optimizers(process: ProcessTrace) -> Iterator[Facts]:
    """Attempts by optimizer."""
    payloads: list[Any] = process.tables["optimizers"].payloads
    made = Counter(process.steps[:, Step.OPTIMIZER].tolist())
    skipped = Counter(process.steps[process.steps[:, Step.SKIPPED] == 1][:, Step.OPTIMIZER].tolist())
    for number in sorted(made):
        payload = payloads[number] if number < len(payloads) else {}
        yield {**payload, "attempts": made[number], "skipped": skipped[number]}


# --- document ---------------------------------------------------------------------------------------------------------


def info_document(info: TraceInfo) -> Document:
    """Command, recording, processes and damage; then the facts of system and settings."""
    options = _mapping((info.launch or {}).get("options"))
    sections = (
        *(_process_section(process, info.engine, options) for process in info.processes),
        Section("missing", "Not recorded, or not readable", facts=tuple(_missing(info)), limit=ALL),
        *fact_sections(info),
    )
    return Document(facts=tuple(_head(info, options)), sections=tuple(filter(None, sections)))


def _head(info: TraceInfo, options: Facts) -> Iterator[Fact]:
    launch, size = info.launch or {}, info.size
    yield Fact("trace", (Code(info.path), f" (format {'.'.join(map(str, info.format))})"))
    yield Fact("command", Code(_command_line(launch.get("command", "?"))))
    yield from (Fact(name, Code(str(launch[name]))) for name in ("cwd", "host") if launch.get(name))
    yield Fact("created", _moment(info.created))
    yield Fact("recorded", f"level {info.level}, engine {info.engine}{_options(options)}")
    if (engine := _engine_text([process.facts for process in info.processes])) is not None:
        yield Fact("engine", engine)
    yield Fact("ops", f"{info.ops:,}")
    if size is not None:
        per_op = f", {size.bytes_per_op} bytes an op" if size.bytes_per_op is not None else ""
        yield Fact("on disk", f"{size.bytes:,} bytes in {size.files:,} files{per_op}")
    if info.exit:
        yield Fact("exit", _pairs(info.exit))


def _missing(info: TraceInfo) -> Iterator[Fact]:
    for one in info.unrecorded_processes:
        name = one.process.get("name") or _command_line(one.process.get("argv", "?"))
        yield Fact("process", f"{one.state}: {name}: {one.why}")
    yield from (Fact("missing", text) for text in info.unrecorded)
    for hole in info.holes:
        rows = "" if not hole.rows or hole.first is None else f" rows {hole.first:,} to {hole.first + hole.rows - 1:,}"
        yield Fact("hole", f"{hole.stream or hole.process or 'trace'}{rows}: {hole.why}")


def _command_line(command: object) -> str:
    """A command line, quoted for a shell."""
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _moment(created: object) -> str:
    """Seconds since the epoch as local time; anything else as it is."""
    if not isinstance(created, (int, float)):
        return str(created)
    return datetime.fromtimestamp(created).astimezone().isoformat(sep=" ", timespec="seconds")


def _mapping(value: object) -> Facts:
    return value if isinstance(value, Mapping) else {}


def _engine_text(processes: Sequence[Facts]) -> str | None:
    """What recorded the ops of these processes, and how many the native engine left to Python; None: not recorded."""
    choices = [facts["engine.native"] for facts in processes if "engine.native" in facts]
    native = [facts for facts in processes if facts.get("engine.native")]
    if not choices:
        return None
    if not native:
        why = next((facts["engine.native.why_not"] for facts in processes if facts.get("engine.native.why_not")), None)
        return "dispatch mode in Python" + (f": {why}" if why else "")
    text = "native" + (f" in {len(native)} of {len(choices)} processes" if len(native) < len(choices) else "")
    ops, handed = (sum(_number(facts.get(f"engine.native.{name}")) for facts in native) for name in ("ops", "handed"))
    if ops:
        text += f"; {100 * handed / ops:.1f} % of {ops:,} ops in Python"
    largest = max(native, key=lambda facts: _number(facts.get("engine.native.handed")))
    most = str(largest.get("engine.native.handed.most", "")).partition(";")[0].rpartition(":")[0]
    return f"{text} (most: {most})" if most else text


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _options(options: Facts) -> str:
    """Options that limit the recording; those of values and rows are shown for each process."""
    given = {key: value for key, value in options.items() if key not in ("trace", "level") and value not in (None, 0)}
    shown = {key: value for key, value in given.items() if not key.startswith(("values", "row", "read_within"))}
    return f" ({_pairs(shown)})" if shown else ""


def _pairs(facts: Facts) -> str:
    """The facts that are not None, without the time of an ending; alternatives with "or"."""
    given = {key: value for key, value in facts.items() if value is not None and key != "time"}
    texts = {key: " or ".join(map(str, value)) if isinstance(value, list) else value for key, value in given.items()}
    return ", ".join(f"{key} {text}" for key, text in texts.items())


def _process_section(process: ProcessInfo, engine: str, options: Facts) -> Section:
    why = f": {process.why}" if process.why else ""
    return Section(
        f"process-{process.name}",
        f"process {process.name}, {process.state} after op {process.after_op:,}{why}",
        facts=tuple(_process_facts(process, engine, options)),
        parts=(
            *fault_sections(process.link_faults or ()),
            *(Section("", text) for *_, sentences in _descriptions(process) for text in sentences),
        ),
        limit=ALL,
    )


def _process_facts(process: ProcessInfo, engine: str, options: Facts) -> Iterator[Fact]:
    if process.exit:
        yield Fact("exit", _pairs(process.exit))
    for first, end in process.windows:
        yield Fact("window", f"steps {first}:{'' if end is None else end}")
    for first, end in process.asleep:
        yield Fact("asleep", f"steps {first}:{end}")
    for stream in process.streams:
        yield Fact("stream", (Code(stream.name), f"  {counted(stream.ops, 'op')}"))
    for optimizer in process.optimizers:
        skipped = f", {optimizer['skipped']:,} skipped" if optimizer["skipped"] else ""
        name = f"{optimizer.get('class', '?')} #{optimizer.get('ordinal', '?')}"
        unit = "iteration" if has_iterations(engine) else "step"
        yield Fact("steps", f"{name}  {counted(_number(optimizer['attempts']), unit)}{skipped}")
    if process.series is not None:
        count, samples = process.series.count, counted(process.series.samples, "number")
        others = "" if has_iterations(engine) else ", and scalars read with .item()"
        yield Fact("series", f"{count:,} recorded, {samples} (rltrace series draws them{others})")
    for fact, label in JAX_FUNCTIONS.items():
        for text in filter(None, str(process.facts.get(fact) or "").split("; ")):
            function, _, why = text.partition(": ")
            yield Fact(label, f"{function} is one op: {why}" if fact == BOUNDARY_ONLY else text)
    if process.compiled:
        kinds = counted(process.compiled, "kind")
        yield Fact("opaque", f"{kinds} of compiled region: each call is one op, its inside is not recorded")
    if process.launch_rows:
        kernels = counted(process.launch_rows, "kernel")
        yield Fact("opaque", f"{kernels} outside torch (Triton, ctypes, extensions): each call is one op")
    yield from _value_facts(process, options)
    yield from _row_facts(process.rows)
    if process.link_faults is not None:
        yield Fact("links", f"checked, {counted(len(process.link_faults), 'fault')}")
    yield from (Fact(label, summary) for label, summary, _ in _descriptions(process))


def _descriptions(process: ProcessInfo) -> list[tuple[str, str, Sequence[str]]]:
    """Label, summary and sentences of each that an extension found."""
    found: Iterable[Any] = process.found
    return [each.described() for each in found]


def _value_facts(process: ProcessInfo, options: Facts) -> Iterator[Fact]:
    values = process.values
    if values is None:
        return
    what = _values_text(process, values, options)
    yield Fact("values", f"{values.count:,}, {values.bytes:,} bytes of at most {values.request.limit:,}  ({what})")
    for entry in values.left_out:
        count = counted(entry.values, "value")
        yield Fact("", f"not recorded: {count}, {entry.bytes:,} bytes, of {_rows_text(entry)}")


def _values_text(process: ProcessInfo, values: ValuesInfo, options: Facts) -> str:
    """What the recorded values of a process are of."""
    found = [" or ".join(values.request.selectors) + (", inputs too" if values.request.inputs else "")]
    again = options.get("rerunnable")
    if isinstance(again, list):
        found.append(f"what {' or '.join(map(str, again))} needs to be run again")
    if process.rows is not None:
        found.append("what identifies activation rows")
    if options.get("state"):
        found.append(f"state of steps {options['state']}")
    return "; ".join(filter(None, found)) or "what runs ops again, or state"


def _row_facts(rows: RowsInfo | None) -> Iterator[Fact]:
    if rows is None:
        return
    axes = "" if rows.request.axes is None else f", along axes {', '.join(map(str, rows.request.axes))}"
    counts = f"{counted(rows.tensors, 'tensor')} by row, {counted(rows.calls, 'call')} of modules"
    yield Fact("rows", f"{counts}  ({' or '.join(rows.request.selectors)}{axes})")
    for entry in rows.left_out:
        yield Fact("", f"not by row: {counted(entry.values, 'tensor')}, at {_rows_text(entry)}")


def _rows_text(entry: OmittedValues) -> str:
    return f"rows {entry.first:,} to {entry.last:,} of {entry.stream}: {entry.why}"


def fact_sections(info: TraceInfo) -> Iterator[Section]:
    """Facts of the first process by group, then those that differ in other processes."""
    processes: dict[str, Facts] = {process.name: process.facts for process in info.processes}
    (first_name, first), *rest = processes.items() or [("", {})]
    for group in dict.fromkeys([*GROUPS.values(), "other"]):
        own = {name: value for name, value in first.items() if GROUPS.get(name.partition(".")[0], "other") == group}
        yield _fact_section(f"{FACT_SECTIONS}{group}", group, own)
    for name, facts in rest:
        differing = {key: value for key, value in facts.items() if key not in first or first[key] != value}
        yield _fact_section(f"{FACT_SECTIONS}{name}", f"only in {name} (against {first_name})", differing)


def _fact_section(name: str, title: str, facts: Facts) -> Section:
    rows = ((Code(name), Code(str(facts[name]))) for name in sorted(facts.keys() - NOT_LISTED))
    return Section(name, title, columns=("", ""), rows=tuple(rows), limit=ALL)
