"""``rltrace record``: run a command and record it.

Owns the options and their checks; ``_recording`` runs the command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from rltrace.command_lines import line
from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    command_argument,
    given_by,
    option,
    quiet_option,
    recorded,
    recording_option,
    verb,
)
from rltrace.commands._recording import Destination, record_command
from rltrace.commands.console import ExitCode, complain
from rltrace.errors import UsageError
from rltrace.extension import check_installed, extensions, findings
from rltrace.recorder.base.options import CHECKS, EXTENT, OPTIONS, RecordOptions, check_options
from rltrace.trace.format.location import Location, TraceURL
from rltrace.trace.format.root import NODES
from rltrace.trace.format.schema import READS_WITHIN
from rltrace.wording import counted


@dataclass(frozen=True, kw_only=True)
class LauncherArguments:
    """What the launcher does with a recording; what is recorded is in ``RecordOptions``."""

    output: Location | None = option(
        "-o", "--output", metavar="TRACE", group=EXTENT, help="Trace to write; default: a new name."
    )
    force: bool = option(group=EXTENT, help="Replace a trace, once anything was recorded.")
    quiet: bool = quiet_option(group=EXTENT)
    against: Location | None = recorded("against", group=CHECKS)
    stop: bool = recorded("stop", group=CHECKS)
    exit_code: bool = option(group=CHECKS, help="End with 1 if it differs, 125 if that is not known.")
    result: Path | None = option(metavar="FILE", group=CHECKS, help="Write the result of --against as JSON.")
    command: tuple[str, ...] = command_argument()


RECORDING = [
    recording_option(name, group=entry.group)
    for name, entry in OPTIONS.items()
    if entry.group and name not in ("against", "stop")
]


@verb(LauncherArguments, *RECORDING, context_settings=BEFORE_COMMAND)
def command(arguments: LauncherArguments) -> int:
    """Run CMD and record every op of all its processes. Ends as CMD ends."""
    command, quiet = arguments.command, arguments.quiet
    if not command:
        raise UsageError("nothing to record: name a command, as in rltrace record -- python train.py")
    given, values = _given()
    against = arguments.against
    if against is None and (arguments.result or arguments.stop):
        raise UsageError(f"{'--stop' if arguments.stop else '--result'} needs a live comparison: --against A")
    if against is None and arguments.exit_code and not values.get("repeat"):
        raise UsageError("--exit-code needs a live comparison, --against A, or --repeat")
    to = _destination(arguments, values.get("nodes", 1))
    options = RecordOptions(os.path.abspath(to.trace), **values)  # noqa: PTH100  links stay
    check_options(options, given)
    check_installed(options)
    reports: list[Callable[[], bool]] = []
    meanwhile = comparison = None
    if against is not None:
        from rltrace.commands._live_diff import LiveComparison, live_options

        options = live_options(options, against, as_in_a=not {"steps", "level"} & given.keys())
        comparison = LiveComparison(against, to.trace, stop=options.stop, quiet=quiet)
        reports, meanwhile = [partial(comparison.report, arguments.result)], comparison.run
    added = (extension.after_recording for extension in extensions())
    reports += [partial(resolve_name(name), to.trace, options, quiet) for name in added if name]
    if options.check_links:
        reports.append(partial(_report_links, to.trace))

    def report() -> bool:
        succeeded = [each() for each in reports]  # all of them, whatever the first ones find
        return all(succeeded)

    status = record_command(command, to, options, quiet=quiet, on_recorded=report, meanwhile=meanwhile)
    if not arguments.exit_code:
        return status
    status = status if comparison is None else comparison.status(status)
    return ExitCode.DIVERGED if status == 0 and any(each.differs(to.trace) for each in findings()) else status


def _given() -> tuple[dict[str, str], dict[str, Any]]:
    """Of the options of the recording that are set: what set each, and its value. Raises UsageError."""
    context, default = click.get_current_context(), click.core.ParameterSource.DEFAULT
    given = {
        name: given_by(context, parameter)
        for parameter in context.command.params
        if (name := parameter.name) in OPTIONS and context.get_parameter_source(name) is not default
    }
    values = {name: context.params[name] for name in given if name != "against"}
    if "read_within" in values:
        values["read_within"] = _read_within(values["read_within"])
    if values.get("kernels") == "window":
        if "steps" not in values:
            raise UsageError("--kernels window needs --steps; without it, give --kernels all")
        values["kernels"] = values["steps"]
    return given, values


def _destination(arguments: LauncherArguments, nodes: int) -> Destination:
    """Where the recording is written. Raises UsageError where it cannot be."""
    output = arguments.output
    if isinstance(output, TraceURL):
        folder = f"{output.name.removesuffix('.zarr')}.zarr"
        raise UsageError(f"{output} is a URL: record with -o {folder}, and copy that there")
    if nodes > 1:
        if output is None or output.parent.name != NODES or not output.name.isdigit():
            raise UsageError("--nodes: name the part of this machine with -o TRACE/nodes/NUMBER, from 0")
        output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Destination.here(output, arguments.command, force=arguments.force)


def _read_within(traces: Sequence[Location]) -> tuple[str, ...]:
    """The values within programs of JAX that all of these traces have. Raises UsageError where one has none."""
    from rltrace.trace.read.reader import open_trace

    common: dict[str, set[str]] = {}
    for number, location in enumerate(traces):
        trace = open_trace(location)
        facts = "; ".join(str(p.facts[READS_WITHIN]) for p in trace.processes if READS_WITHIN in p.facts)
        if not facts:
            raise UsageError(
                f"{trace.path} has nothing within programs of JAX: record it at level op, with the library that"
                " rltrace build-engine compiles"
            )
        values = {loop: set(words) for loop, *words in map(str.split, facts.split("; "))}
        common = {loop: words & common.get(loop, set()) for loop, words in values.items()} if number else values
    return tuple(" ".join([loop, *sorted(words)]) for loop, words in sorted(common.items()))


def _report_links(trace: Path) -> bool:
    """Name the faults of links; returns False where there are any."""
    from rltrace.report.document import Document, Section
    from rltrace.report.link_checks import fault_sections, missed_faults
    from rltrace.report.text import document_text
    from rltrace.trace.read.reader import open_trace

    missed = missed_faults(open_trace(trace))
    if missed:
        what = counted(len(missed), "fault") + " of links"
        faults = Section("faults", what, parts=tuple(fault_sections(missed)), limit=10)
        complain(document_text(Document(sections=(faults,))), hint=f"{line('info', trace)} lists them")
    return not missed
