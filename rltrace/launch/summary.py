"""Summary of a recording: what is in the trace, and what could not be recorded and why.

Owns the reading of failure notes (``starts/TOKEN.failed``) and the advice for a command of which nothing was recorded.
Reads only the trace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.distribution import own_requirement
from rltrace.errors import RltraceError
from rltrace.trace.format.process_start import STARTS, parse_start

if TYPE_CHECKING:
    from rltrace.trace.format.records import LeftOut
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class RecordingSummary:
    """What a trace holds when its command has ended."""

    processes: int
    """Recorded processes."""
    ops: int
    steps: int
    """Optimizer attempts of all processes."""
    slept: int = field(default=0, kw_only=True)
    """Those of them for which a run that was started asleep was not armed."""
    size: int
    """Bytes on disk."""
    states: tuple[str, ...]
    """State of each process."""
    not_chosen: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of those that ``--processes`` left out."""
    start_records: int
    """Python processes that started without being recorded."""
    waiting: bool
    """Whether one of those still runs, and may yet be recorded."""
    failures: tuple[str, ...]
    """Why a process could not be recorded, or not to its end: failures of rltrace."""
    values: int | None = None
    """Captured tensor values; None: none were requested."""
    rerunnable: int | None = None
    """Ops that can be run again; None: that was not requested."""
    memory: int = 0
    """Bytes of memory that these read and did not make."""
    left_out: tuple[LeftOut, ...] = ()
    """Requested values that are missing, by reason."""
    by_row: int | None = None
    """Tensors with activation rows; None: none were requested."""
    not_by_row: tuple[LeftOut, ...] = ()
    """Tensors whose requested rows are missing, by reason."""
    compiled: bool = False
    """Whether a graph ran that Inductor compiled."""

    @property
    def nothing(self) -> bool:
        return self.ops == 0 and self.steps == 0


def recorded(path: Path) -> RecordingSummary:
    """Read the trace of a command that has ended."""
    from rltrace.trace.read.reader import open_trace  # imports NumPy, whose threads must start after the command

    try:
        trace = open_trace(path)
        return _summarize(path, trace)
    except Exception as error:  # the command's exit status must not depend on reading
        why = str(error) if isinstance(error, RltraceError) else f"{type(error).__name__}: {error}"
        return RecordingSummary(0, 0, 0, _size(path), (), 0, False, (f"the trace cannot be read: {why}", *_notes(path)))


def _summarize(path: Path, trace: Trace) -> RecordingSummary:
    from rltrace.trace.format.records import by_reason
    from rltrace.trace.format.root import LEFT_OUT

    processes = trace.processes
    captured = [process.values for process in processes if process.value_request is not None]
    by_row = [process.activations for process in processes if process.activations]
    return RecordingSummary(
        processes=len(processes),
        ops=sum(process.after_op for process in processes),
        steps=sum(len(process.steps) for process in processes),
        slept=sum(end - first for process in processes for first, end in process.asleep),
        size=_size(path),
        states=tuple(process.state for process in processes),
        not_chosen=tuple(sorted(process.name for process in trace.unrecorded if process.state == LEFT_OUT)),
        start_records=len(trace.unrecorded),
        waiting=any(start_record.state == "running" for start_record in trace.unrecorded),
        failures=tuple(dict.fromkeys((*_notes(path), *_broken_off(trace)))),
        values=sum(map(len, captured)) if any(captured) else None,
        rerunnable=sum(v.rerunnable_rows for v in captured) if "rerunnable" in trace.options else None,
        memory=sum(values.memory_bytes for values in captured),
        left_out=tuple(by_reason(entry for values in captured for entry in values.left_out)),
        by_row=sum(rows.tensor_count for rows in by_row) if by_row else None,
        not_by_row=tuple(by_reason(entry for rows in by_row for entry in rows.left_out)),
        compiled=any("inductor.compiled_graph" in process.tables["ops"].payloads for process in processes),
    )


def advice(found: RecordingSummary, command: Sequence[str], level: str) -> str:
    """Why nothing may have been recorded at a level, and what to do about it."""
    if found.waiting or "running" in found.states:
        return "a process of the command is still running, and may yet record: rltrace info shows it"
    if found.processes and level == "step":
        return "--level step records optimizer steps, and none ended; without it every op is recorded"
    if found.processes:
        return "torch or JAX was imported, but no op ran that could be recorded, or none within the steps of --steps"
    if found.not_chosen:
        return f"--processes left out {', '.join(found.not_chosen)}"
    if found.start_records:
        return (
            f"Python ran ({found.start_records} of its processes loaded the recorder), but never imported torch or JAX"
        )
    flags = [word for word in command if word.startswith("-") and not word.startswith("--") and set("IES") & set(word)]
    if flags and "python" in Path(command[0]).name:
        return f"Python was started with {flags[0]}, which keeps the recorder out; omit that option"
    return (
        "no Python process loaded the recorder: either none ran, or it was started with -I, -E or -S, or with a "
        "separate environment (env -i, a cleared PYTHONPATH)"
    )


NOT_INSTALLED = "rltrace is not installed for "
"""Beginning of the bootstrap's message; the Python follows."""


def remedy(failure: str) -> str:
    """What to do about one of ``RecordingSummary.failures``; empty: unknown."""
    python = failure.removeprefix(NOT_INSTALLED)
    return "" if python == failure else f"install it beside that torch: {python} -m pip install {own_requirement()}"


def discard(path: Path) -> None:
    """Remove a trace that this launch created and nothing was written to."""
    shutil.rmtree(path, ignore_errors=True)


def _notes(path: Path) -> tuple[str, ...]:
    """The bootstrap's notes of why the recorder could not start."""
    reasons = []
    for note in sorted((path / STARTS).glob("*.failed")):
        try:
            record = parse_start(note.read_bytes())
        except OSError:
            record = None
        reasons.append(str((record or {}).get("why", "the recorder failed, and could not write why")))
    return tuple(dict.fromkeys(reasons))


def _broken_off(trace: Trace) -> tuple[str, ...]:
    """Why recorders ended before their program did."""
    endings = [str((process.exit or {}).get("why", "")) for process in trace.processes]
    return tuple(dict.fromkeys(why for why in endings if why.startswith("the recorder failed")))


def _size(path: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118  names as they come
        for folder, _, names in os.walk(path)
        for name in names
    )
