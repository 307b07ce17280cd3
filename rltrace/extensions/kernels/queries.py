"""Queries of oneDNN and MKL for the kernels of a trace's calls, and the records of their answers.

Owns the grouping of processes with the same settings, the handling of calls that crash, and the check that machine and
torch are those of the recording. Imports no torch: ``kernel_query_worker`` makes the calls, in separate processes.
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
from rltrace.fingerprint.host import ACTING, acting_variables
from rltrace.trace.format.location import local_folder
from rltrace.trace.format.root import RUNNING, add_to_launch
from rltrace.trace.kernels.library_reports import ReportedCall, library_reports_record
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace

WORKER = "rltrace.extensions.kernels.query_worker"

SECONDS = 600
"""Time limit for one group of processes with the same settings."""

MAX_CRASHES = 8
"""Calls of a group that may end the worker."""

FIXED_FACTS = ("host.cpu", "host.isa", "host.machine", "torch.version", "torch.git", "torch.mkl", "torch.onednn")
"""Facts that must equal the recorded ones: kernels depend on them, and they cannot be set."""

Window = tuple[int, int | None]


@dataclass
class KernelQueryResult:
    """Counts of a query."""

    calls: int = 0
    """Distinct calls that were queried, per process."""
    answered: int = 0
    """Calls for which a library reported a kernel."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Number of distinct calls without an answer, by reason."""


def query_kernels(path: Path, steps: Window | None = None) -> KernelQueryResult:
    """Query every distinct call in the rows of these steps, and add the answers to the trace at ``path``.

    Raises UsageError on another machine than the recorded one, or while the trace is being written; RecordError where
    the query fails or the answers cannot be written.
    """
    trace = open_trace(path)
    running = next((process.name for process in trace.processes if process.state == RUNNING), None)
    if running is not None:
        raise UsageError(f"{path} is still being recorded ({running}): query it when it has ended")
    result, records = KernelQueryResult(), []
    for numbers in _groups(trace):
        answers = _Answers()
        _query_group(trace, numbers, steps, answers)
        _check_machine(path, trace.processes, numbers, answers.facts)
        for number in numbers:
            calls, unknown = answers.calls.get(number, []), answers.unknown.get(number, [])
            records.append(library_reports_record(number, answers.libraries, calls, unknown))
            result.calls += len(calls)
            result.answered += sum(bool(call.names) for call in calls)
            for why, count in unknown:
                result.unknown[why] = result.unknown.get(why, 0) + count
    add_to_launch(path, [record for record in records if record["calls"]])
    return result


def _groups(trace: Trace) -> list[list[int]]:
    """Numbers of the processes with rows, grouped by their settings."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for process in trace.processes:
        if process.after_op:
            flags = sorted((name, str(value)) for name, value in process.facts.items() if name.startswith("flag."))
            settings = (*acting_variables(process.facts).items(), *flags)
            groups.setdefault(settings, []).append(_number(process))
    return list(groups.values())


def _number(process: ProcessTrace) -> int:
    return int(process.base.rpartition("/")[2])


def _query_group(trace: Trace, numbers: Sequence[int], steps: Window | None, answers: _Answers) -> None:
    process = next(process for process in trace.processes if _number(process) == numbers[0])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ACTING)}
    environment |= acting_variables(process.facts)
    window = None if steps is None else [steps[0], 1 << 62 if steps[1] is None else steps[1]]
    skip: list[str] = []
    end = monotonic() + SECONDS
    with tempfile.TemporaryDirectory(prefix="rltrace-kernels-") as folder:
        while True:
            out = Path(folder, f"answers-{len(skip)}")
            request = json.dumps({"processes": list(numbers), "steps": window, "skip": skip})
            command = [
                sys.executable,
                "-P",
                "-m",
                WORKER,
                os.fspath(local_folder(trace.path, "rltrace kernels --ask").absolute()),
                os.fspath(out),
            ]
            reason = _run(command, request, environment, end - monotonic())
            answers.reset()
            last = answers.read(out.read_text(encoding="utf-8").splitlines() if out.exists() else ())
            if answers.facts is not None:
                return
            if last is None or len(skip) == MAX_CRASHES or monotonic() > end:
                raise RecordError(f"oneDNN and MKL could not be queried: {reason}")
            skip.append(last)


def _run(command: Sequence[str], request: str, environment: Mapping[str, str], seconds: float) -> str:
    """Run the worker; returns the reason in case that it did not finish."""
    try:
        done = subprocess.run(
            command,
            input=request,
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
    return lines[-1] if lines else f"the worker ended with status {done.returncode}"


class _Answers:
    """The output of the worker."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.calls: dict[int, list[ReportedCall]] = {}
        self.unknown: dict[int, list[tuple[str, int]]] = {}
        self.libraries: dict[str, str] = {}
        self.facts: Mapping[str, object] | None = None

    def read(self, lines: Iterable[str]) -> str | None:
        """Parse lines; returns the call that was pending at their end, or None."""
        pending: str | None = None
        for line in lines:
            try:
                record: Any = json.loads(line)
            except ValueError:  # cut off with its writer
                break
            if "asking" in record:
                pending = record["asking"]
            elif "call" in record:
                key, kernel, stream, row, times = record["call"]
                output = tuple(record["names"]), tuple(record["reported"])
                call = ReportedCall(int(key, 16), kernel, stream, row, times, *output)
                self.calls.setdefault(record["process"], []).append(call)
            elif "unknown" in record:
                self.unknown[record["process"]] = [(why, count) for why, count in record["unknown"]]
            elif "facts" in record:
                self.facts, self.libraries = record["facts"], record["libraries"]
        return pending


def _check_machine(
    path: Path, processes: Iterable[ProcessTrace], numbers: Sequence[int], current: Mapping[str, object] | None
) -> None:
    for process in processes:
        if _number(process) in numbers and current is not None:
            name = next(
                (name for name in FIXED_FACTS if process.facts.get(name, current.get(name)) != current.get(name)), None
            )
            if name is not None:
                raise UsageError(
                    f"{path} was recorded where {name} is {process.facts[name]}; here it is {current.get(name)}:"
                    " kernels can only be queried there"
                )
