"""Running a command under the recorder and reporting the result, for ``record`` and ``replay``.

Owns the launch record, the narration and the exit status.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT

from rltrace.command_lines import line
from rltrace.commands.console import ExitCode, complain, narrate, readable_size
from rltrace.errors import RecordError, UsageError
from rltrace.launch.command import (
    ORIGIN,
    CommandLookup,
    git_state,
    lacks_rltrace,
    look_up,
    python_of,
    script_folder,
    trace_stem,
)
from rltrace.launch.run import CannotStartError, Ending, Work, run
from rltrace.launch.signals import die_of
from rltrace.launch.summary import NOT_INSTALLED, RecordingSummary, advice, discard, remedy
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.native.library import find, torch_folder
from rltrace.recorder.base.options import RecordOptions, steps_text
from rltrace.trace.format.root import create_trace, fresh_trace, has_trace, remove_trace, set_aside
from rltrace.trace.format.schema import LIMIT, OVER_LIMIT
from rltrace.wording import counted


@dataclass(frozen=True)
class Destination:
    """Where a recording is written."""

    trace: Path
    force: bool = False
    """Replace an existing trace."""

    @classmethod
    def here(cls, output: Path | None, command: Sequence[str], *, force: bool) -> Destination:
        """A folder of this machine; by default a new one that is named after the command."""
        if output is not None:
            return cls(output, force=force)
        return cls(fresh_trace(Path(), trace_stem(command)))


def record_command(
    command: Sequence[str],
    to: Destination,
    options: RecordOptions,
    *,
    quiet: bool,
    on_recorded: Callable[[], bool] | None = None,
    meanwhile: Work | None = None,
) -> int:
    """Run ``command``, recorded, and return its exit status.

    ``on_recorded`` is called after the recording; if it returns False, a command that succeeded ends with 125.
    ``meanwhile``: as of ``run``. Raises UsageError where it cannot be recorded so.
    """
    trace, hint = to.trace, _engine_hint(options)
    unstartable = _check(command)
    if unstartable is not None:
        return unstartable
    launch = _launch_record(command, options)
    before = set_aside(trace) if has_trace(trace, to.force) else None
    has_recorded = False
    try:
        create_trace(trace, launch)
        if not quiet:
            if options.asleep:
                hint = f"{line('arm', trace)} wakes it for a step" + (f"; {hint}" if hint else "")
            narrate(f"recording to {trace} ({_extent(options)})", hint=hint)
        ending = run(command, options, git_state(script_folder(command)), meanwhile)
        has_recorded = not _recorded_nothing(options, ending)
        failed = _report(command, options, trace, ending, on_recorded, quiet=quiet)
    except CannotStartError as error:
        discard(trace)
        complain(str(error))
        return ExitCode.NOT_FOUND if error.not_found else ExitCode.NOT_EXECUTABLE
    finally:
        if before is not None:
            _replace(before, trace, has_recorded, quiet=quiet)
    return _exit_status(options, ending, failed)


def _replace(before: Path, trace: Path, has_recorded: bool, *, quiet: bool) -> None:
    """Remove the trace that stood in the place of ``trace``; where nothing was recorded, put it back."""
    if has_recorded:
        try:
            remove_trace(before)
        except RecordError as error:  # the program's exit status matters more
            complain(str(error))
    elif os.path.lexists(trace):  # with what is known of the failure, or a process may yet record
        narrate(f"the trace that was to be replaced is {before}")
    else:
        before.rename(trace)
        if not quiet:
            narrate(f"{trace} is as it was: nothing has replaced it")


def distinct_paths(trace: Path, source: Path) -> tuple[str, str]:
    """Absolute paths of both. Raises UsageError if they are the same."""
    path, path_a = os.path.abspath(trace), os.path.abspath(source)  # noqa: PTH100  links stay
    if os.path.realpath(path) == os.path.realpath(path_a):
        raise UsageError(f"{trace} is the trace whose values are injected; give the replay another name")
    return path, path_a


def _check(command: Sequence[str]) -> ExitCode | None:
    """The exit status of a command that cannot be started, after an error message; None if it can."""
    program = command[0]
    found = look_up(program)
    if found is CommandLookup.EXECUTABLE:
        python = python_of(command)
        if python is None or not lacks_rltrace(python, script_folder(command)):
            return None
        failure = NOT_INSTALLED + home_as_tilde(python)
        complain(f"nothing was started: {failure}", hint=remedy(failure))
        return ExitCode.RLTRACE_FAILED
    complain(f"{program} cannot be run: {found.value}", hint=_not_run_hint(command, found))
    return ExitCode.NOT_FOUND if found is CommandLookup.NOTHING else ExitCode.NOT_EXECUTABLE


def _not_run_hint(command: Sequence[str], found: CommandLookup) -> str:
    program, *rest = command
    if program.endswith(".zarr") and rest:
        return f"-o names the trace: {line('record', '-o', program, '--', *(rest[1:] if rest[0] == '--' else rest))}"
    if program.endswith(".py"):
        return f"run it with Python: rltrace record -- python {program}"
    return "check its permissions" if found is CommandLookup.NOT_EXECUTABLE else ""


def _launch_record(command: Sequence[str], options: RecordOptions) -> dict[str, object]:
    """The launch record of the trace, without secrets and without the home folder's path."""
    always = ("level", "first_step", "end_step", "until", "verify_inputs")
    recorded = {name: getattr(options, name) for name in always} | options.extras()
    return {
        "command": masked_arguments(command),
        "cwd": home_as_tilde(_current_folder()),
        "host": platform.node(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "id": os.urandom(8).hex(),  # two launches in one second are two
        "options": recorded,
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
    if options.asleep:
        what = "asleep"
    elif options.level == "step":
        what = "one digest a step"
        what += f", of steps {steps_text((options.first_step, options.end_step))}" if options.windowed else ""
    elif options.windowed:
        what = f"ops of steps {steps_text((options.first_step, options.end_step))}"
    else:
        what = "every op"
    return what + options.narration()


def _report(
    command: Sequence[str],
    options: RecordOptions,
    trace: Path,
    ending: Ending,
    on_recorded: Callable[[], bool] | None,
    *,
    quiet: bool,
) -> bool:
    """Report what was recorded, or why nothing was; returns whether rltrace failed."""
    found = ending.recorded
    nothing = _recorded_nothing(options, ending)
    failed = bool(found.failures) or ending.failure is not None or nothing
    what = "nothing" if nothing else "not everything"
    for failure in (*found.failures, *([ending.failure] if ending.failure else [])):
        complain(f"{what} was recorded: {failure}", hint=remedy(failure))
    if nothing:
        _report_nothing(command, trace, ending, options.level)
    elif not quiet:
        if said := ending.stopped.said():
            narrate(said)
        narrate(
            f"recorded {_summary(ending)} in {trace}",
            hint=still_compiled(options, found)
            or _left_out(found)
            or (f"left out: {', '.join(found.not_chosen)}" if found.not_chosen else "")
            or unmatched_selectors(options, found, trace)
            or unreached_steps(options, found),
        )
    if on_recorded is not None and not nothing and not on_recorded():
        failed = True
    return failed


def _recorded_nothing(options: RecordOptions, ending: Ending) -> bool:
    return ending.recorded.nothing and not (options.asleep and ending.recorded.processes)


def _exit_status(options: RecordOptions, ending: Ending, failed: bool) -> int:
    """The program's, or what says that rltrace failed; a signal that ended the program ends the launcher."""
    if ending.signal is not None and not _was_stopped_by_option(options, ending):
        return die_of(ending.signal)
    if ending.status:
        return ending.status
    return ExitCode.RLTRACE_FAILED if failed else ExitCode.IDENTICAL


def _report_nothing(command: Sequence[str], trace: Path, ending: Ending, level: str) -> None:
    found = ending.recorded
    if found.failures or ending.failure is not None:
        narrate(f"the command {ending.how}")
    else:
        complain(f"nothing was recorded; the command {ending.how}", hint=advice(found, command, level))
    if found.processes == 0 and not found.waiting and ending.failure is None:  # nothing but the empty trace made above
        discard(trace)


def _summary(ending: Ending) -> str:
    """``2 processes, 12,345 ops, 6 steps, 1.2 MB (complete)``."""
    found = ending.recorded
    states = {state: found.states.count(state) for state in dict.fromkeys(found.states)}
    listed = ", ".join(f"{number} {state}" if len(states) > 1 else state for state, number in states.items())
    counts = [counted(found.processes, "process", "processes"), counted(found.ops, "op"), counted(found.steps, "step")]
    if found.slept:
        counts[-1] += f" ({found.slept:,} asleep)"
    if found.values is not None:
        counts.append(counted(found.values, "value"))
    if found.rerunnable:
        counts.append(f"{found.rerunnable:,} to run again on {readable_size(found.memory)} of memory")
    if found.by_row is not None:
        counts.append(f"rows of {counted(found.by_row, 'tensor')}")
    return f"{', '.join(counts)}, {readable_size(found.size)} ({listed})"


def _left_out(found: RecordingSummary) -> str:
    """Requested values and rows that were not recorded; "" if all were."""
    listed = [f"{counted(left.values, 'value')} ({readable_size(left.bytes)}): {left.why}" for left in found.left_out]
    listed += [f"rows of {counted(entry.values, 'tensor')}: {entry.why}" for entry in found.not_by_row]
    limits = (("--values-limit", found.left_out), ("--rows-limit", found.not_by_row))
    raising = [option for option, left_out in limits if any(entry.why in (LIMIT, OVER_LIMIT) for entry in left_out)]
    more = f"; {' and '.join(raising)} {'raises it' if len(raising) == 1 else 'raise them'}" if raising else ""
    return f"not recorded: {'; '.join(listed)}{more}" if listed else ""


def unmatched_selectors(options: RecordOptions, found: RecordingSummary, trace: Path) -> str:
    """Selectors of an option that matched nothing; "" if there are none."""
    selectors = [
        *(options.values if found.values == 0 else ()),
        *(options.rerunnable if found.rerunnable == 0 else ()),
        *(options.rows if found.by_row == 0 else ()),
    ]
    return f"{' or '.join(selectors)} matched nothing; {line('ops', trace)} lists the recorded ops" if selectors else ""


def still_compiled(options: RecordOptions, found: RecordingSummary) -> str:
    """That ``--compile eager`` had no effect on a graph; "" if it had."""
    if options.compile != "eager" or not found.compiled:
        return ""
    return "--compile eager had no effect on what was compiled ahead of time, as vLLM does without enforce_eager=True"


def unreached_steps(options: RecordOptions, found: RecordingSummary) -> str:
    """Steps that the program did not reach; "" if it did."""
    if found.ops or not options.windowed or found.steps > options.first_step:
        return ""
    ended = f"the program ended after {counted(found.steps, 'step')}, before step {options.first_step}"
    return f"no op was recorded: {ended}"


def _was_stopped_by_option(options: RecordOptions, ending: Ending) -> bool:
    """Whether ``--until`` or ``--stop`` interrupted the program, not the user."""
    was_stopped = ending.signal == SIGINT or ending.stopped.ended + ending.stopped.waited > 0
    return options.may_stop and was_stopped and "stopped" in ending.recorded.states


def _engine_hint(options: RecordOptions) -> str:
    """Where ops are recorded in Python for want of a library: what it costs, what to do; ``native``: UsageError."""
    in_python = options.in_python if options.level == "op" else f"--level {options.level}"
    required = options.engine == "native"
    if required and in_python:
        raise UsageError(f"--engine native records ops, and with {in_python} it cannot: leave one of them out")
    if options.engine == "mode" or in_python:
        return ""
    found = find(torch_folder())
    if required and found.why_not:
        raise UsageError(f"--engine native: {found.why_not}; {line('build-engine')} compiles one")
    cost = "small ops take about twice as long, and linalg.eigvalsh, svdvals and gradients of prod get other bits"
    costly = f"{found.why_not}: {cost}; {line('build-engine')} compiles one"
    return costly if found.why_not else ""
