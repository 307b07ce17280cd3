"""Has oneDNN and MKL asked what they run for the calls of a trace, and writes down in the trace what they said.

Owns who is asked together (processes that ran under the same settings), what becomes of a call that ends the process
that made it, and that only the machine and the torch that were recorded may answer. Imports no torch: who makes the
calls is ``witness``, in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rltrace.errors import RecordError, UsageError
from rltrace.fingerprint.host import ACTING
from rltrace.trace.format.root import RUNNING, add_to_launch
from rltrace.trace.kernels.library_reports import ReportedCall, library_reports_record
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace

WITNESS = "rltrace.rerun_op.kernel_query_worker"

SECONDS = 600
"""How long asking may take, of processes that ran under the same settings."""

MOST_ENDED = 8
"""Calls that end the process that makes them, before the rest is left out."""

SAME = ("host.cpu", "host.isa", "host.machine", "torch.version", "torch.git", "torch.mkl", "torch.onednn")
"""Facts that must be as they were recorded: they choose what runs, and cannot be set."""

Window = tuple[int, int | None]


@dataclass
class KernelQueryResult:
    """What came of asking."""

    calls: int = 0
    """Kinds of call that the libraries were asked about, counted in each process."""
    told: int = 0
    """Those for which one of them said something."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Why it is not known what runs, and of how many kinds of call."""


def query_kernels(path: Path, steps: Window | None = None) -> KernelQueryResult:
    """Ask for every kind of call in the rows of these steps, and add the answers to the trace at ``path``.

    Raises UsageError where this is not the machine that was recorded, or the trace is still being written; RecordError
    where the answers cannot be had or written.
    """
    trace = open_trace(path)
    running = next((process.name for process in trace.processes if process.state == RUNNING), None)
    if running is not None:
        raise UsageError(f"{path} is still being recorded ({running}): ask when it has ended")
    asked, records = KernelQueryResult(), []
    for numbers in _together(trace):
        answers = _Answers()
        _ask_group(trace, numbers, steps, answers)
        _check_machine(path, trace.processes, numbers, answers.facts)
        for number in numbers:
            calls, unknown = answers.calls.get(number, []), answers.unknown.get(number, [])
            records.append(library_reports_record(number, answers.libraries, calls, unknown))
            asked.calls += len(calls)
            asked.told += sum(bool(call.names) for call in calls)
            for why, count in unknown:
                asked.unknown[why] = asked.unknown.get(why, 0) + count
    add_to_launch(path, [record for record in records if record["calls"]])
    return asked


def _together(trace: Trace) -> list[list[int]]:
    """Numbers of the processes with rows, those together that ran under the same settings."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for process in trace.processes:
        if process.after_op:
            settings = (*sorted(_variables(process).items()), *_flags(process))
            groups.setdefault(settings, []).append(_number(process))
    return list(groups.values())


def _number(process: ProcessTrace) -> int:
    return int(process.base.rpartition("/")[2])


def _variables(process: ProcessTrace) -> dict[str, str]:
    """Those that choose kernels, as they were set."""
    named = {name.removeprefix("env."): value for name, value in process.facts.items() if name.startswith("env.")}
    return {name: str(value) for name, value in named.items() if name.startswith(ACTING) and value is not None}


def _flags(process: ProcessTrace) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in process.facts.items() if name.startswith("flag."))


def _ask_group(trace: Trace, numbers: Sequence[int], steps: Window | None, answers: _Answers) -> None:
    process = next(process for process in trace.processes if _number(process) == numbers[0])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ACTING)}
    environment |= _variables(process)
    window = None if steps is None else [steps[0], 1 << 62 if steps[1] is None else steps[1]]
    skip: list[str] = []
    end = monotonic() + SECONDS
    with tempfile.TemporaryDirectory(prefix="rltrace-kernels-") as folder:
        while True:
            out = Path(folder, f"answers-{len(skip)}")
            asked = json.dumps({"processes": list(numbers), "steps": window, "skip": skip})
            command = [sys.executable, "-P", "-m", WITNESS, os.fspath(trace.path.absolute()), os.fspath(out)]
            why = _run(command, asked, environment, end - monotonic())
            answers.forget()
            last = answers.take(out.read_text(encoding="utf-8").splitlines() if out.exists() else ())
            if answers.facts is not None:
                return
            if last is None or len(skip) == MOST_ENDED or monotonic() > end:
                raise RecordError(f"oneDNN and MKL could not be asked what they run: {why}")
            skip.append(last)


def _run(command: Sequence[str], asked: str, environment: Mapping[str, str], seconds: float) -> str:
    """How the witness ended, where it did not come to its end."""
    try:
        done = subprocess.run(
            command,
            input=asked,
            env=dict(environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS} seconds"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"the process that asked ended with status {done.returncode}"


class _Answers:
    """What the witness wrote."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.calls: dict[int, list[ReportedCall]] = {}
        self.unknown: dict[int, list[tuple[str, int]]] = {}
        self.libraries: dict[str, str] = {}
        self.facts: Mapping[str, object] | None = None

    def take(self, lines: Iterable[str]) -> str | None:
        """The call that was being made when the lines end; None: none was."""
        asking: str | None = None
        for line in lines:
            try:
                record: Any = json.loads(line)
            except ValueError:  # cut off with its writer
                break
            if "asking" in record:
                asking = record["asking"]
            elif "call" in record:
                key, kernel, stream, row, times = record["call"]
                said = tuple(record["names"]), tuple(record["reported"])
                call = ReportedCall(int(key, 16), kernel, stream, row, times, *said)
                self.calls.setdefault(record["process"], []).append(call)
            elif "unknown" in record:
                self.unknown[record["process"]] = [(why, count) for why, count in record["unknown"]]
            elif "facts" in record:
                self.facts, self.libraries = record["facts"], record["libraries"]
        return asking


def _check_machine(
    path: Path, processes: Iterable[ProcessTrace], numbers: Sequence[int], here: Mapping[str, object] | None
) -> None:
    for process in processes:
        if _number(process) in numbers and here is not None:
            name = next((name for name in SAME if process.facts.get(name, here.get(name)) != here.get(name)), None)
            if name is not None:
                raise UsageError(
                    f"{path} was recorded where {name} is {process.facts[name]}; here it is {here.get(name)}: what ran"
                    " there can only be asked there"
                )
