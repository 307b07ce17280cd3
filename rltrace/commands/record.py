"""``rltrace record``: run a command and record it.

Owns the options, the name of the trace, the launch record, and which exit status the command line ends with.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT

import click

from rltrace.commands.console import ExitCode, complain, counted, narrate, readable_size
from rltrace.errors import UsageError
from rltrace.launch.command import Found, fresh_trace, look_up, script_folder, trace_stem
from rltrace.launch.environment import ORIGIN
from rltrace.launch.outcome import Recorded, advice, discard
from rltrace.launch.repository import state as repository_state
from rltrace.launch.run import CannotStartError, Ending, run
from rltrace.launch.signals import die_of
from rltrace.privacy import home_as_tilde, masked_arguments
from rltrace.record.options import RecordOptions
from rltrace.select import parse_selectors
from rltrace.trace.root import create_trace
from rltrace.trace.schema import LIMIT


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="TRACE", help="Where to; default: a fresh name."
)
@click.option(
    "--level", type=click.Choice(["step", "op"]), default="op", show_default=True, help="Every op, or a digest a step."
)
@click.option("--steps", metavar="A:B", help="Record the ops of steps A to B only (B left out); A: and :B are open.")
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="End the program once this step is done.")
@click.option("--verify-inputs", is_flag=True, help="Digest every input of every op too; needs --steps.")
@click.option(
    "--values", multiple=True, metavar="SELECTOR", help="Keep the tensors that these ops return and write; repeatable."
)
@click.option("--values-inputs", is_flag=True, help="Keep what they read, too.")
@click.option(
    "--values-limit", metavar="SIZE", default="1GiB", show_default=True, help="Keep so much of each process at most."
)
@click.option("--force", is_flag=True, help="Replace the trace if there is one.")
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD …")
def command(
    output: Path | None,
    level: str,
    steps: str | None,
    until: int | None,
    verify_inputs: bool,
    values: tuple[str, ...],
    values_inputs: bool,
    values_limit: str,
    force: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run CMD and record every op it runs, in all its processes.

    Options come before CMD; everything after it is its own. Ends as CMD ends; with 125 where rltrace failed or nothing
    was recorded, 126 and 127 where CMD could not be started.

    --values keeps tensors themselves, so that they can be looked at and replayed: of the ops that SELECTOR finds, such
    as op=addmm,module=policy.*,step=100:110 (rltrace ops lists what a selector finds).
    """
    if not command:
        raise UsageError("nothing to record: name a command, as in rltrace record -- python train.py")
    first, end = parse_steps(steps) if steps is not None else (0, None)
    if steps is not None and level == "step":
        raise UsageError("--steps chooses steps whose ops are recorded; --level step records no ops")
    if verify_inputs and steps is None:
        raise UsageError("--verify-inputs reads every input of every op in a window: name its steps with --steps A:B")
    if values:
        parse_selectors(values)  # an error in one is told before anything is made
        if level == "step":
            raise UsageError("--values keeps tensors of ops; --level step records no ops")
    elif values_inputs:
        raise UsageError("--values-inputs adds to what --values SELECTOR keeps: say of which ops")
    limit = parse_size("--values-limit", values_limit)
    unstartable = _check(command[0])
    if unstartable is not None:
        return unstartable
    trace = output if output is not None else fresh_trace(Path(), trace_stem(command))
    path = os.path.abspath(trace)  # noqa: PTH100  links stay
    options = RecordOptions(path, level, first, end, until, verify_inputs, values, values_inputs, limit)
    create_trace(trace, _launch_record(command, options), force=force and output is not None)
    if not quiet:
        narrate(f"recording to {trace} ({_extent(options)})")
    try:
        ending = run(command, options, repository_state(script_folder(command)))
    except CannotStartError as error:
        discard(trace)
        complain(str(error))
        return ExitCode.NOT_FOUND if error.not_found else ExitCode.NOT_EXECUTABLE
    return _conclude(command, options, trace, ending, quiet=quiet)


def parse_steps(text: str) -> tuple[int, int | None]:
    """``A:B`` as (first, end), half open; an open side is 0 or None. Raises UsageError."""
    first, colon, end = (part.strip() for part in text.partition(":"))
    if not colon or not all(part == "" or (part.isascii() and part.isdigit()) for part in (first, end)):
        raise UsageError(f"--steps {text}: write A:B with step numbers from 0, as in 100:110, 100: or :10")
    window = int(first or 0), int(end) if end else None
    if window[1] is not None and window[1] <= window[0]:
        raise UsageError(f"--steps {text}: no step is in it; the second number is the first step that is left out")
    return window


def parse_size(option: str, text: str) -> int:
    """``500MB``, ``1GiB``, ``1.5 G``, ``4096`` as bytes. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)[bB]?\s*", text, re.ASCII)
    if found is None or (found[3] and not found[2]):
        raise UsageError(f"{option} {text}: write a number of bytes, as in 500MB, 1GiB or 4096")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " "))


def _check(program: str) -> ExitCode | None:
    """Say so before anything is made where the command cannot be started."""
    found = look_up(program)
    if found is Found.EXECUTABLE:
        return None
    complain(f"{program} cannot be run: {found.value}", hint=_not_run_hint(program, found))
    return ExitCode.NOT_FOUND if found is Found.NOTHING else ExitCode.NOT_EXECUTABLE


def _not_run_hint(program: str, found: Found) -> str:
    if program.endswith(".py"):
        return f"run it with Python: rltrace record -- python {program}"
    return "check its permissions" if found is Found.NOT_EXECUTABLE else ""


def _launch_record(command: Sequence[str], options: RecordOptions) -> dict[str, object]:
    """What the trace says of its launch; nothing secret, nothing under the home folder by its full path."""
    others = ("trace", "values", "replay", "inject")
    asked = {name: value for name, value in asdict(options).items() if not name.startswith(others)} | options.extras()
    return {
        "command": masked_arguments(command),
        "cwd": home_as_tilde(_current_folder()),
        "host": platform.node(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": asked,
        "executable": home_as_tilde(sys.executable),
        "versions": {"python": platform.python_version()},
    }


def _current_folder() -> str:
    try:
        return os.environ.get(ORIGIN) or os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise UsageError(f"the current folder cannot be used: {error.strerror}") from error


def _extent(options: RecordOptions) -> str:
    """``every op``, ``ops of steps 100:110 until step 120``, ``a digest each step``."""
    if options.level == "step":
        what = "a digest each step"
    elif options.windowed:
        what = f"ops of steps {options.first_step}:{'' if options.end_step is None else options.end_step}"
    else:
        what = "every op"
    if options.verify_inputs:
        what += " and every input"
    if options.values:
        what += f", with values of {' or '.join(options.values)}"
    return what if options.until is None else f"{what}, until step {options.until} is done"


def _conclude(command: Sequence[str], options: RecordOptions, trace: Path, ending: Ending, *, quiet: bool) -> int:
    """Say what was recorded, or why nothing was, and end as the command did."""
    found = ending.recorded
    failed = bool(found.failures) or ending.trouble is not None or found.nothing
    for failure in (*found.failures, *([ending.trouble] if ending.trouble else [])):
        complain(f"not everything was recorded: {failure}")
    if found.nothing:
        _say_nothing(command, trace, ending)
    elif not quiet:
        narrate(f"recorded {_summary(ending)} in {trace}", hint=_left_out(found))
    if ending.signal is not None and not _stopped_as_asked(options, ending):
        return die_of(ending.signal)
    if ending.status:
        return ending.status
    return ExitCode.RLTRACE_FAILED if failed else ExitCode.IDENTICAL


def _say_nothing(command: Sequence[str], trace: Path, ending: Ending) -> None:
    found = ending.recorded
    complain(f"nothing was recorded; the command {ending.how}", hint="" if found.failures else advice(found, command))
    if found.processes == 0 and not found.waiting:
        discard(trace)


def _summary(ending: Ending) -> str:
    """``2 processes, 12,345 ops, 6 steps, 1.2 MB (complete)``."""
    found = ending.recorded
    states = {state: found.states.count(state) for state in dict.fromkeys(found.states)}
    if len(states) == 1:
        told = next(iter(states))
    else:
        told = ", ".join(f"{number} {state}" for state, number in states.items())
    counts = [counted(found.processes, "process", "processes"), counted(found.ops, "op"), counted(found.steps, "step")]
    if found.values is not None:
        counts.append(counted(found.values, "value"))
    return f"{', '.join(counts)}, {readable_size(found.size)} ({told})"


def _left_out(found: Recorded) -> str:
    """What was asked for and is not there; empty where everything is."""
    told = [f"{counted(entry.values, 'value')} ({readable_size(entry.bytes)}): {entry.why}" for entry in found.left_out]
    more = "; --values-limit raises it" if any(entry.why == LIMIT for entry in found.left_out) else ""
    return f"not kept: {'; '.join(told)}{more}" if told else ""


def _stopped_as_asked(options: RecordOptions, ending: Ending) -> bool:
    """Whether it was ``--until`` that interrupted the program, not the user."""
    return options.until is not None and ending.signal == SIGINT and "stopped" in ending.recorded.states
