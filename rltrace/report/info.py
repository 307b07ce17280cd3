"""The description of a trace that ``rltrace info`` shows: a dictionary, and its text.

Owns the field names of ``rltrace.info/1``. Reads tables, journals and steps, never ops. Never prints.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rltrace.diff.base.coverage import coverage_notes
from rltrace.json import to_json
from rltrace.report.link_checks import FoundFault, fault_lines, found_faults
from rltrace.trace.format.arming import sleeping_process
from rltrace.trace.format.location import Location
from rltrace.trace.format.records import LeftOut, add_up
from rltrace.trace.format.root import RUNNING
from rltrace.trace.format.schema import BOUNDARY_ONLY, READS_WITHIN, Step, has_iterations
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace
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

NOT_LISTED = {*JAX_FUNCTIONS, READS_WITHIN}
"""Facts that are not among the others: those, and a list of numbers for ``record --fusions-of``."""


def describe(trace: Trace) -> dict[str, Any]:
    """Everything that ``trace`` holds except its ops."""
    ops = sum(stream.rows for process in trace.processes for stream in process.streams)
    sizes = trace_sizes(trace)
    info = {
        "schema": "rltrace.info/1",
        "path": str(trace.path),
        "format": trace.format,
        "level": trace.level,
        "engine": trace.engine,
        "created": trace.created,
        "launch": _record(trace.launch),
        "exit": _record(trace.exit),
        "slice": _record(trace.slice),
        "ops": ops,
        "size": None
        if sizes is None
        else {"bytes": sum(sizes), "files": len(sizes), "bytes_per_op": round(sum(sizes) / ops, 2) if ops else None},
        "processes": [_process(process, trace.path) for process in trace.processes],
        "unrecorded_processes": [
            {"state": process.state, "why": process.why, "process": process.record} for process in trace.unrecorded
        ],
        "unrecorded": list(coverage_notes(trace)),
        "holes": trace.holes,
    }
    described: dict[str, Any] = to_json(info)
    return described


def trace_sizes(trace: Trace) -> list[int] | None:
    """Bytes of each file of the trace; None: its server lists none."""
    walks = [one.folder.walk() for one in trace.nodes or (trace,)]
    return None if None in walks else [size for files in walks for _, size in files or ()]


def _process(process: ProcessTrace, trace: Location) -> dict[str, Any]:
    process.load()
    sleeping = None
    if isinstance(trace, Path) and process.state == RUNNING and process.token:
        sleeping = sleeping_process(trace, process.token)
    asleep_in = None if sleeping is None or sleeping.is_awake else sleeping.step
    return {
        "name": process.name,
        "state": process.state,
        "after_op": process.after_op,
        "why": process.why if asleep_in is None else f"it is asleep in step {asleep_in:,}; rltrace arm wakes it",
        "windows": process.windows,
        "asleep": process.asleep,
        "exit": _record(process.exit),
        "streams": [_stream(stream) for stream in process.streams],
        "optimizers": _optimizers(process),
        "series": _series(process),
        "values": _values(process),
        "rows": _rows(process),
        "link_faults": found_faults(process),
        "launch_rows": sum(str(name).startswith(LAUNCH_ROWS) for name in set(process.tables["ops"].payloads)),
        "compiled": sum(str(name).startswith("inductor.") for name in process.tables["ops"].payloads),
        "facts": process.facts,
    }


def _stream(stream: StreamTrace) -> dict[str, Any]:
    return {"name": stream.name, "ops": stream.rows}


def _values(process: ProcessTrace) -> dict[str, Any] | None:
    """Recorded values, and those left out; None if none were requested."""
    values = process.values
    if values.request is None or not (values or len(values) or values.left_out):
        return None
    return {
        **values.request._asdict(),
        "count": len(values),
        "bytes": values.nbytes,
        "in_checkpoint": values.nbytes_elsewhere,
        "left_out": [{**entry._asdict(), "stream": _stream_name(process, entry)} for entry in add_up(values.left_out)],
    }


def _rows(process: ProcessTrace) -> dict[str, Any] | None:
    """Recorded activation rows, and those left out; None if none were requested."""
    rows = process.activations
    if rows.request is None:
        return None
    return {
        "selectors": rows.request.selectors,
        "axes": rows.request.axes,
        "limit": rows.request.limit,
        "calls": rows.call_count,
        "tensors": rows.tensor_count,
        "digests": rows.digest_count,
        "left_out": [{**entry._asdict(), "stream": _stream_name(process, entry)} for entry in add_up(rows.left_out)],
    }


def _stream_name(process: ProcessTrace, entry: LeftOut) -> str:
    return next((stream.name for stream in process.streams if stream.index == entry.stream), "?")


def _record(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The content of a journal record, without its type."""
    return {key: value for key, value in record.items() if key != "type"} if record else None


def _series(process: ProcessTrace) -> dict[str, int] | None:
    """Number of recorded series and of their samples; None if there are none."""
    samples = sum(chunk.count for chunk in process.sample_parts)
    return {"count": len(process.tables["series"]), "samples": samples} if samples else None


def _optimizers(process: ProcessTrace) -> list[dict[str, Any]]:
    """Attempts by optimizer, in the order of creation."""
    payloads: list[Any] = process.tables["optimizers"].payloads
    made = Counter(process.steps[:, Step.OPTIMIZER].tolist())
    skipped = Counter(process.steps[process.steps[:, Step.SKIPPED] == 1][:, Step.OPTIMIZER].tolist())
    return [
        {**(payloads[number] if number < len(payloads) else {}), "attempts": made[number], "skipped": skipped[number]}
        for number in sorted(made)
    ]


def info_text(info: Mapping[str, Any]) -> str:
    """The text of ``describe``'s dictionary."""
    return "\n".join([*head_lines(info), *fact_lines(info)])


def head_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Command, recording, processes and damage."""
    launch, size = info["launch"] or {}, info["size"]
    yield f"trace     {info['path']} (format {'.'.join(map(str, info['format']))})"
    yield f"command   {_command_line(launch.get('command', '?'))}"
    for name in ("cwd", "host"):
        if launch.get(name):
            yield f"{name:<9} {launch[name]}"
    yield f"created   {_moment(info['created'])}"
    yield f"recorded  level {info['level']}, engine {info['engine']}" + _options(launch.get("options") or {})
    if (engine := _engine_text([process["facts"] for process in info["processes"]])) is not None:
        yield f"engine    {engine}"
    yield f"ops       {info['ops']:,}"
    if size is not None:  # else the server lists no files
        per_op = f", {size['bytes_per_op']} bytes an op" if size["bytes_per_op"] is not None else ""
        yield f"on disk   {size['bytes']:,} bytes in {size['files']:,} files{per_op}"
    if info["slice"]:
        yield f"slice     {_pairs(info['slice'])}"
    if info["exit"]:
        yield f"exit      {_pairs(info['exit'])}"
    for process in info["processes"]:
        yield ""
        yield from _process_lines(process, info["engine"], launch.get("options") or {})
    for one in info["unrecorded_processes"]:
        yield f"\nprocess   {one['state']}: {_unrecorded_name(one['process'])}: {one['why']}"
    for text in info["unrecorded"]:
        yield f"\nmissing   {text}"
    for hole in info["holes"]:
        yield f"\nhole      {_hole_text(hole)}"


def _unrecorded_name(record: Mapping[str, Any]) -> str:
    """The name of a process that was left out; the command line of one that has none."""
    return str(record.get("name") or _command_line(record.get("argv", "?")))


def _command_line(command: object) -> str:
    """A command line, quoted for a shell."""
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _moment(created: object) -> str:
    """Seconds since the epoch as local time; anything else as it is."""
    if not isinstance(created, (int, float)):
        return str(created)
    return datetime.fromtimestamp(created).astimezone().isoformat(sep=" ", timespec="seconds")


def _hole_text(hole: Mapping[str, Any]) -> str:
    where = hole["stream"] or hole["process"] or "trace"
    rows = f" rows {hole['first']:,} to {hole['first'] + hole['rows'] - 1:,}" if hole["rows"] else ""
    return f"{where}{rows}: {hole['why']}"


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


def _process_lines(process: Mapping[str, Any], engine: str, options: Facts) -> Iterator[str]:
    why = f": {process['why']}" if process["why"] else ""
    yield f"process   {process['name']}  {process['state']} after op {process['after_op']:,}{why}"
    if process["exit"]:
        yield f"  exit    {_pairs(process['exit'])}"
    for first, end in process["windows"]:
        yield f"  window  steps {first}:{'' if end is None else end}"
    for first, end in process["asleep"]:
        yield f"  asleep  steps {first}:{end}"
    for stream in process["streams"]:
        yield f"  stream  {stream['name']}  {counted(stream['ops'], 'op')}"
    for optimizer in process["optimizers"]:
        skipped = f", {optimizer['skipped']:,} skipped" if optimizer["skipped"] else ""
        name = f"{optimizer.get('class', '?')} #{optimizer.get('ordinal', '?')}"
        unit = "iteration" if has_iterations(engine) else "attempt"
        yield f"  steps   {name}  {counted(optimizer['attempts'], unit)}{skipped}"
    if process["series"]:
        count, samples = process["series"]["count"], counted(process["series"]["samples"], "number")
        others = "" if has_iterations(engine) else ", and scalars read with .item()"
        yield f"  series  {count:,} recorded, {samples} (rltrace series draws them{others})"
    yield from _jax_lines(process["facts"])
    if process["compiled"]:
        kinds = counted(process["compiled"], "kind")
        yield f"  opaque  {kinds} of compiled region: each call is one op, its inside is not recorded"
    yield from _link_lines(process["link_faults"])
    if process["launch_rows"]:
        kernels = counted(process["launch_rows"], "kernel")
        yield f"  opaque  {kernels} outside torch (Triton, ctypes, extensions): each call is one op"
    yield from _value_lines(process, options)
    yield from _row_lines(process["rows"])


def _jax_lines(facts: Facts) -> Iterator[str]:
    for fact, label in JAX_FUNCTIONS.items():
        for text in filter(None, str(facts.get(fact) or "").split("; ")):
            function, _, why = text.partition(": ")
            yield f"  {label:<7} " + (f"{function} is one op: {why}" if fact == BOUNDARY_ONLY else text)


def _link_lines(faults: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    if faults is not None:
        yield f"  links   checked, {counted(len(faults), 'fault')}"
        yield from (f"          {text}" for text in fault_lines([FoundFault(**fault) for fault in faults]))


def _value_lines(process: Mapping[str, Any], options: Facts) -> Iterator[str]:
    values = process["values"]
    if values is None:
        return
    what = _values_text(process, options)
    yield f"  values  {values['count']:,}, {values['bytes']:,} bytes of at most {values['limit']:,}  ({what})"
    if values["in_checkpoint"]:
        yield f"          in the checkpoint: {values['in_checkpoint']:,} bytes more"
    for entry in values["left_out"]:
        count, rows = counted(entry["values"], "value"), f"rows {entry['first']:,} to {entry['last']:,}"
        yield (
            f"          not recorded: {count}, {entry['bytes']:,} bytes, of {rows} of {entry['stream']}: {entry['why']}"
        )


def _values_text(process: Mapping[str, Any], options: Facts) -> str:
    """What the recorded values of a process are of."""
    values = process["values"]
    found = [" or ".join(values["selectors"]) + (", inputs too" if values["inputs"] else "")]
    again = options.get("rerunnable")
    if isinstance(again, list):
        found.append(f"what {' or '.join(map(str, again))} needs to be run again")
    if process["rows"] is not None:
        found.append("what identifies activation rows")
    if options.get("state"):
        found.append(f"state of steps {options['state']}")
    return "; ".join(filter(None, found)) or "what runs ops again, or state"


def _row_lines(rows: Mapping[str, Any] | None) -> Iterator[str]:
    if rows is None:
        return
    axes = "" if rows["axes"] is None else f", along axes {', '.join(map(str, rows['axes']))}"
    counts = f"{counted(rows['tensors'], 'tensor')} by row, {counted(rows['calls'], 'call')} of modules"
    yield f"  rows    {counts}  ({' or '.join(rows['selectors'])}{axes})"
    for entry in rows["left_out"]:
        count, where = counted(entry["values"], "tensor"), f"rows {entry['first']:,} to {entry['last']:,}"
        yield f"          not by row: {count}, at {where} of {entry['stream']}: {entry['why']}"


def fact_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Facts of the first process by group, then those that differ in other processes."""
    processes: dict[str, Facts] = {process["name"]: process["facts"] for process in info["processes"]}
    (first_name, first), *rest = processes.items() or [("", {})]
    for group in dict.fromkeys([*GROUPS.values(), "other"]):
        names = sorted(
            name for name in first if GROUPS.get(name.partition(".")[0], "other") == group and name not in NOT_LISTED
        )
        if names:
            yield f"\n{group}"
            yield from (f"  {name:<34} {first[name]}" for name in names)
    for name, facts in rest:
        shown = {key: value for key, value in facts.items() if key not in NOT_LISTED}
        differing = {key: value for key, value in shown.items() if key not in first or first[key] != value}
        if differing:
            yield f"\nonly in {name} (against {first_name})"
            yield from (f"  {key:<34} {differing[key]}" for key in sorted(differing))
