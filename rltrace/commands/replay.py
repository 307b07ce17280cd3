"""``rltrace replay``: run a command, recorded, with values of another trace injected."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._option_types import BEFORE_COMMAND, InjectingArguments, TraceFirst, option, verb
from rltrace.commands._recording import Destination, distinct_paths, record_command
from rltrace.commands.console import complain, narrate, write_json
from rltrace.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(InjectingArguments):
    inject: tuple[str, ...] = option(metavar="SELECTOR", help="Inject A's values at these ops; repeatable.")
    lockstep: bool = option(help="Inject at every op, so that the run stays on A's path.")
    kinds: Path | None = option(metavar="FILE", help="Only at ops of the kinds listed there.")
    only: Path | None = option(metavar="FILE", help="Only at the ops of A listed there.")
    origins: bool = option(help="Only at ops whose inputs are those of A.")


@verb(ReplayArguments, cls=TraceFirst, context_settings=BEFORE_COMMAND)
def command(arguments: ReplayArguments) -> int:
    """Run CMD under the recorder and inject values of trace A, at the ops that SELECTOR matches in A.

    Options come after A and before CMD. What the ops returned, wrote and drew from in A replaces what they have
    here; A must hold those values (rltrace record --values SELECTOR). The run is recorded like any other, so rltrace
    diff A TRACE shows whether it equals A.

    With --lockstep values are injected at every op (or at those of --inject, such as a range of steps), so no
    difference hides a later one: it reports every kind of op that gives different results here, and whether the run
    equals A.

    Ends as CMD ends; with 125 where rltrace failed, or where not every injection happened: such a run proves nothing.
    """
    from rltrace.recorder.base.options import RecordOptions
    from rltrace.report.replay import ReplayReport, account_lines, verdict_line
    from rltrace.rerun.account import add_up
    from rltrace.rerun.plan import compile_of, loops_of, plans_of, window_of
    from rltrace.trace.read.reader import open_trace

    command, lockstep = arguments.command, arguments.lockstep
    source, inject = _requested(arguments)
    trace_a = open_trace(source)
    level, window = window_of(trace_a)
    if arguments.origins and not trace_a.has_all_inputs:
        raise UsageError(f"--origins needs digests of the inputs in {source}: record it again with --verify-inputs")
    to = Destination.here(arguments.output, command, force=arguments.force)
    path, path_a = distinct_paths(to.trace, source)
    kinds, only = ("" if file is None else os.path.abspath(file) for file in (arguments.kinds, arguments.only))  # noqa: PTH100
    options = RecordOptions(
        path,
        level=level,
        steps=window,
        until=arguments.until,
        compile=compile_of(trace_a),
        loops=loops_of(trace_a),
        replay=path_a,
        inject=inject,
        kinds=kinds,
        only=only,
        origins=arguments.origins,
        lockstep=lockstep,
    )
    plans = plans_of(trace_a, inject, kinds, only, lockstep=lockstep)

    def report() -> bool:
        account = add_up(plans, open_trace(to.trace))
        lines, verdict = list(account_lines(account)), None
        if lockstep and account.complete:
            from rltrace.diff.compare import compare

            comparison = compare(source, to.trace)
            lines.append(verdict_line(comparison))
            verdict = comparison.verdict
        if arguments.result is not None:
            write_json(arguments.result, ReplayReport(str(source), str(to.trace), inject, verdict, account))
        narrate_account(lines, complete=account.complete, quiet=arguments.quiet)
        return account.complete

    return record_command(command, to, options, quiet=arguments.quiet, on_recorded=report)


def _requested(arguments: ReplayArguments) -> tuple[Path, tuple[str, ...]]:
    """A, and the selectors of the ops. Raises UsageError where something is missing."""
    inject, usage = arguments.inject, "as in rltrace replay a.zarr --inject op=mm -- python train.py"
    if arguments.a is None:
        raise UsageError(f"name the trace whose values are injected first, {usage}")
    if arguments.lockstep or arguments.kinds is not None or arguments.only is not None:
        inject = inject or ("all",)
    if not inject:
        raise UsageError(f"give the ops with --inject SELECTOR, {usage}")
    if not arguments.command:
        raise UsageError(f"nothing to run: name a command, {usage}")
    return arguments.a, inject


def narrate_account(lines: Iterable[str], *, complete: bool, quiet: bool) -> None:
    """Print what came of the injections; ``complete``: whether all were made, otherwise it is an error."""
    if not complete:
        complain("\n".join(lines))
    elif not quiet:
        narrate("\n".join(lines))
