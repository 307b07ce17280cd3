"""Running a command under the recorder, and telling what came of it: what ``record`` and ``replay`` share.

Owns the launch record, the two lines of narration, and which exit status the command line ends with.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT

from rltrace.command_lines import line
from rltrace.commands.console import ExitCode, complain, counted, narrate, readable_size
from rltrace.errors import UsageError
from rltrace.launch.command import ORIGIN, CommandLookup, git_state, look_up, script_folder
from rltrace.launch.run import CannotStartError, Ending, run
from rltrace.launch.signals import die_of
from rltrace.launch.summary import RecordingSummary, advice, discard, remedy
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.schema import LIMIT


def carry_out(
    command: Sequence[str],
    trace: Path,
    options: RecordOptions,
    *,
    force: bool,
    quiet: bool,
    also: Callable[[], bool] | None = None,
) -> int:
    """Run ``command``, recorded into ``trace``, and say what was; the status to end with, as the command did.

    ``also`` is called when everything is recorded, and says whether what it looks at is as it should be: if not, a
    command that ended well ends with 125 all the same. ``force`` replaces a trace that is there.
    """
    unstartable = _check(command[0])
    if unstartable is not None:
        return unstartable
    create_trace(trace, _launch_record(command, options), force=force)
    if not quiet:
        narrate(f"recording to {trace} ({_extent(options)})")
    try:
        ending = run(command, options, git_state(script_folder(command)))
    except CannotStartError as error:
        discard(trace)
        complain(str(error))
        return ExitCode.NOT_FOUND if error.not_found else ExitCode.NOT_EXECUTABLE
    return _conclude(command, options, trace, ending, also, quiet=quiet)


def other_trace(trace: Path, source: Path) -> tuple[str, str]:
    """Absolute paths of both. Raises UsageError where they are one."""
    path, path_a = os.path.abspath(trace), os.path.abspath(source)  # noqa: PTH100  links stay
    if os.path.realpath(path) == os.path.realpath(path_a):
        raise UsageError(f"{trace} is the trace whose values are injected; give the replay another name")
    return path, path_a


def _check(program: str) -> ExitCode | None:
    """Say so before anything is made where the command cannot be started."""
    found = look_up(program)
    if found is CommandLookup.EXECUTABLE:
        return None
    complain(f"{program} cannot be run: {found.value}", hint=_not_run_hint(program, found))
    return ExitCode.NOT_FOUND if found is CommandLookup.NOTHING else ExitCode.NOT_EXECUTABLE


def _not_run_hint(program: str, found: CommandLookup) -> str:
    if program.endswith(".py"):
        return f"run it with Python: rltrace record -- python {program}"
    return "check its permissions" if found is CommandLookup.NOT_EXECUTABLE else ""


def _launch_record(command: Sequence[str], options: RecordOptions) -> dict[str, object]:
    """What the trace says of its launch; nothing secret, nothing under the home folder by its full path."""
    others = ("trace", "compile", "kernels", "values", "row", "against", "stop")
    replays = ("replay", "inject", "kinds", "only", "origins", "lockstep", "by_rows", "weights", "names")
    told = {name: value for name, value in options._asdict().items() if not name.startswith(others + replays)}
    asked = told | options.extras()
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
        what = "one digest a step"
    elif options.windowed:
        what = f"ops of steps {options.first_step}:{'' if options.end_step is None else options.end_step}"
    else:
        what = "every op"
    if options.verify_inputs:
        what += " and every input"
    if options.replay:
        what += ", with values injected"
    if options.against:
        what += ", compared with another trace"
    if options.values:
        what += f", with values of {' or '.join(options.values)}"
    if options.rows:
        what += f", with rows of {' or '.join(options.rows)}"
    return what if options.until is None else f"{what}, until step {options.until} is done"


def _conclude(
    command: Sequence[str],
    options: RecordOptions,
    trace: Path,
    ending: Ending,
    also: Callable[[], bool] | None,
    *,
    quiet: bool,
) -> int:
    """Say what was recorded, or why nothing was, and end as the command did."""
    found = ending.recorded
    failed = bool(found.failures) or ending.failure is not None or found.nothing
    for failure in (*found.failures, *([ending.failure] if ending.failure else [])):
        complain(f"not everything was recorded: {failure}", hint=remedy(failure))
    if found.nothing:
        _say_nothing(command, trace, ending)
    elif not quiet:
        narrate(
            f"recorded {_summary(ending)} in {trace}", hint=_left_out(found) or nothing_found(options, found, trace)
        )
    if also is not None and not found.nothing and not also():
        failed = True
    if ending.signal is not None and not _stopped_as_asked(options, ending):
        return die_of(ending.signal)
    if ending.status:
        return ending.status
    return ExitCode.RLTRACE_FAILED if failed else ExitCode.IDENTICAL


def _say_nothing(command: Sequence[str], trace: Path, ending: Ending) -> None:
    found = ending.recorded
    complain(f"nothing was recorded; the command {ending.how}", hint="" if found.failures else advice(found, command))
    if found.processes == 0 and not found.waiting and ending.failure is None:  # it is the one that was made here
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
    if found.by_row is not None:
        counts.append(f"rows of {counted(found.by_row, 'tensor')}")
    return f"{', '.join(counts)}, {readable_size(found.size)} ({told})"


def _left_out(found: RecordingSummary) -> str:
    """What was asked for and is not there; empty where everything is."""
    told = [f"{counted(entry.values, 'value')} ({readable_size(entry.bytes)}): {entry.why}" for entry in found.left_out]
    told += [f"rows of {counted(entry.values, 'tensor')}: {entry.why}" for entry in found.not_by_row]
    limits = (("--values-limit", found.left_out), ("--rows-limit", found.not_by_row))
    raising = [option for option, left_out in limits if any(entry.why == LIMIT for entry in left_out)]
    more = f"; {' and '.join(raising)} {'raises it' if len(raising) == 1 else 'raise them'}" if raising else ""
    return f"not recorded: {'; '.join(told)}{more}" if told else ""


def nothing_found(options: RecordOptions, found: RecordingSummary, trace: Path) -> str:
    """What was asked for by a selector that found nothing at all; empty where each found something."""
    asked = [*(options.values if found.values == 0 else ()), *(options.rows if found.by_row == 0 else ())]
    return f"{' or '.join(asked)} matched nothing; {line('ops', trace)} lists the recorded ops" if asked else ""


def _stopped_as_asked(options: RecordOptions, ending: Ending) -> bool:
    """Whether it was ``--until`` or ``--stop`` that interrupted the program, not the user."""
    asked = options.until is not None or options.stop
    return asked and ending.signal == SIGINT and "stopped" in ending.recorded.states
