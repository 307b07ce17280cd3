"""``rltrace arm``: have a run that was started asleep record steps, while it runs.

Owns the options and the wait for answers; ``trace.format.arming`` has the requests and the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

import click

from rltrace.command_lines import line
from rltrace.commands._option_types import argument, option, recorded, verb
from rltrace.commands.console import narrate
from rltrace.errors import UsageError
from rltrace.recorder.base.options import VARIABLE, RecordOptions, check_options, parse_steps, steps_text
from rltrace.trace.format.arming import Answer, ArmRequest, SleepingProcess, sleeping_processes, write_request
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.trace.read.reader import Trace

POLL_SECONDS = 0.02

PACE_SECONDS = 0.5
"""For so long the steps of several processes are counted; as many more are left for them to read the request."""


class ArmSteps(NamedTuple):
    """The value of ``--steps``."""

    first: int
    end: int | None
    """None: to the end of the program."""
    relative: bool
    """``first`` and ``end`` count from the step that the run is in."""


def parse_arm_steps(text: str) -> ArmSteps:
    """``+1:+2`` (from the next step on, two), ``100:+2``, ``100:110``, ``100:``. Raises UsageError."""
    found = re.fullmatch(r"(\+?)([0-9]+):\+([0-9]+)", text.replace(" ", ""), re.ASCII)
    if found is None and "+" in text:
        raise UsageError(
            f"--steps {text}: give +A:+N for N steps, A steps from now, as in +1:+2; or step numbers, as in 100:110"
        )
    if found is None:
        return ArmSteps(*parse_steps(text), relative=False)
    first, count = int(found[2]), int(found[3])
    if not count:
        raise UsageError(f"--steps {text} is empty; the number after the colon is how many steps to record")
    if found[1] and not first:
        raise UsageError(f"--steps {text}: the step that the run is in has begun; the next one is +1")
    return ArmSteps(first, first + count, bool(found[1]))


@dataclass(frozen=True, kw_only=True)
class ArmArguments:
    run: str = argument(metavar="RUN")
    steps: str = option(default="+1:+1", metavar="A:B", help="A to B, or from now: +A:+N.")
    level: str = recorded("level")
    values: tuple[str, ...] = recorded("values")
    values_inputs: bool = recorded("values_inputs")
    values_limit: int = recorded("values_limit")
    disarm: bool = option(help="Record nothing more, until it is armed again.")
    wait: float = option(type=click.FloatRange(min=0), default=10.0, metavar="SECONDS", help="For an answer.")


@verb(ArmArguments)
def command(arguments: ArmArguments) -> None:
    """Record steps of RUN, a program that runs under rltrace record --asleep.

    RUN is its trace, or the pid of one of its processes. --steps +1:+2 records two steps, from the next one on, and
    100:110 the steps of these numbers. All processes record the same steps, as far as they have not passed them. What
    is recorded is appended to the trace, and RUN can be armed again.

    A process reads the request as an optimizer step ends. Until then it cannot answer; a request without an answer
    stays valid.
    """
    run, values, disarm = arguments.run, arguments.values, arguments.disarm
    window = parse_arm_steps(arguments.steps)
    asked = RecordOptions(run, level=arguments.level, values=values, values_inputs=arguments.values_inputs)
    check_options(asked, {name: entry.flag for name, entry in asked.set_options().items()})
    trace = _trace_of(run)
    asleep = _processes(trace, run)
    first = _common_first(trace, asleep, window.first) if window.relative and not disarm else window.first
    end = None if window.end is None else first + window.end - window.first
    limit, inputs = arguments.values_limit, arguments.values_inputs
    request = ArmRequest(first, end, window.relative, arguments.level, values, inputs, limit, disarm)
    number = write_request(trace, request)
    _report(_answers(trace, number, arguments.wait), number, request, trace)


def _trace_of(run: str) -> Path:
    """The trace of a run that is named by its path, or by the pid of one of its processes. Raises UsageError."""
    path = Path(run)
    if path.exists() or not (run.isascii() and run.isdigit()):
        return path
    for pid in (run, *_children(run)):
        try:
            variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        options = next((v.partition(b"=")[2] for v in variables if v.startswith(f"{VARIABLE}=".encode())), b"")
        if options:
            return Path(json.loads(options)["trace"])
    raise UsageError(f"process {run} is no process of a recorded run that is visible here; give the path of its trace")


def _children(pid: str) -> list[str]:
    try:
        return Path("/proc", pid, "task", pid, "children").read_text().split()
    except OSError:
        return []


def _processes(path: Path, run: str) -> Sequence[SleepingProcess]:
    """The processes that can be armed. Raises UsageError where there are none, with the reason."""
    from rltrace.trace.read.reader import open_trace

    trace = open_trace(path)
    if not trace.options.get("asleep"):
        raise UsageError(
            f"{run} was not started asleep, so it cannot be armed:"
            f" {line('record', '--asleep', '-o', path, '--', 'CMD')}"
        )
    if trace.exit is not None:
        raise UsageError(f"{run} has ended; only a running program can be armed")
    found = list(sleeping_processes(path))
    if not found:
        raise UsageError(_why_none(trace, run))
    return found


def _why_none(trace: Trace, run: str) -> str:
    if any(process.state == "running" for process in trace.unrecorded):
        return f"no process of {run} has imported torch yet; try again once it has"
    states = ", ".join(f"{process.name} is {process.state}" for process in trace.processes)
    return f"no process of {run} can be armed" + (f": {states}" if states else "; its program has ended")


def _common_first(trace: Path, asleep: Sequence[SleepingProcess], later: int) -> int:
    """The step that is ``later`` steps from now, and that none of the processes has reached as it reads the request."""
    before = max(process.step for process in asleep)
    if sum(process.step > 0 for process in asleep) < 2:
        return before + later
    sleep(PACE_SECONDS)
    reached = max((process.step for process in sleeping_processes(trace)), default=before)
    return reached + later + 1 + (reached - before)


def _answers(trace: Path, number: int, wait: float) -> Sequence[SleepingProcess]:
    """The processes, once each that makes optimizer steps has answered or ended, or ``wait`` seconds have passed."""
    until = monotonic() + wait
    while True:
        found = list(sleeping_processes(trace))
        training = [process for process in found if process.step] or found
        if all(process.request >= number for process in training) or monotonic() >= until:
            return found
        sleep(POLL_SECONDS)


def _report(found: Sequence[SleepingProcess], number: int, request: ArmRequest, trace: Path) -> None:
    """Say what was agreed. Raises UsageError where no process records anything because of the request."""
    answered = [process for process in found if process.request >= number]
    if not answered:
        narrate(
            f"request {number} to {trace} is not answered yet",
            hint="a process reads it as an optimizer step ends, or rltrace.step() is called; it stays valid",
        )
        return
    armed = [process for process in answered if process.answer is Answer.ARMED]
    if request.disarm:
        narrate(f"disarmed {counted(len(answered), 'process', 'processes')}")
        return
    if not armed:
        at = ", ".join(f"{process.step:,}" for process in answered)
        if any(process.answer is Answer.REFUSED for process in answered):
            raise UsageError("the program refuses the request: it has another version of rltrace, or is another user's")
        asked = steps_text((request.first, request.end))
        raise UsageError(f"steps {asked} have passed; the program is in step {at}. --steps +1:+1 records the next one")
    windows = {(process.first, process.end) for process in armed}
    what, steps = f"armed {counted(len(armed), 'process', 'processes')}", _steps(windows)
    if len(windows) == 1:
        narrate(f"{what}: {steps}", hint=_unanswered(found, number))
    else:
        narrate(
            f"{what}, which do not record the same steps: {steps}",
            hint="some were past the first step; arm again with a later one, as in --steps +100:+2",
        )


def _steps(windows: Iterable[tuple[int, int | None]]) -> str:
    return ", ".join(f"steps {steps_text(window)}" for window in sorted(windows, key=lambda w: w[0]))


def _unanswered(found: Sequence[SleepingProcess], number: int) -> str:
    count = sum(process.step > 0 and process.request < number for process in found)
    return f"{counted(count, 'process', 'processes')} without an answer: no step has ended there since" if count else ""
