"""``rltrace replay``: run a command, recorded, with values of another trace injected."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.commands._option_types import TraceFirst, TraceLocation, injecting_options
from rltrace.commands._recording import distinct_paths, record_command
from rltrace.commands.console import complain, narrate, write_json
from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.replay.plan import InjectionPlan


@click.command(cls=TraceFirst, context_settings={"allow_interspersed_args": False})
@click.option("--trace-a", "a", hidden=True, type=TraceLocation(only_folder=True))
@click.option("--inject", multiple=True, metavar="SELECTOR", help="Inject A's values at these ops; repeatable.")
@click.option("--lockstep", is_flag=True, help="Inject at every op, so that the run stays on A's path.")
@click.option("--kinds", type=click.Path(path_type=Path), metavar="FILE", help="Only at ops of the kinds listed there.")
@click.option("--only", type=click.Path(path_type=Path), metavar="FILE", help="Only at the ops of A listed there.")
@click.option("--origins", is_flag=True, help="Only at ops whose inputs are those of A.")
@click.option(
    "-o", "--output", type=TraceLocation(written=True), metavar="TRACE", help="Trace to write; default: a new name."
)
@click.option(
    "--rerun", "step", type=click.Path(path_type=Path), metavar="STEP", help="Run the steps of this trace again, alone."
)
@click.option("--process", metavar="NAME", help="With --rerun: the process, as in rank1/main; default: the only one.")
@click.option("--warm-up", type=click.IntRange(min=0), metavar="STEPS", help="With --rerun: steps made before.")
@injecting_options
def command(
    a: Path | None,
    inject: tuple[str, ...],
    lockstep: bool,
    kinds: Path | None,
    only: Path | None,
    origins: bool,
    output: Path | None,
    step: Path | None,
    process: str | None,
    warm_up: int | None,
    until: int | None,
    result: Path | None,
    force: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run CMD under the recorder and inject values of trace A, at the ops that SELECTOR matches in A.

    Options come after A and before CMD. What the ops returned, wrote and drew from in A replaces what they have
    here; A must hold those values (rltrace record --values SELECTOR). The run is recorded like any other, so rltrace
    diff A TRACE shows whether it equals A.

    With --lockstep values are injected at every op (or at those of --inject, such as a range of steps), so no
    difference hides a later one: it reports every kind of op that gives different results here, and whether the run
    equals A.

    With --rerun STEP the program runs recorded steps again on their memory, as one process, as with rltrace rerun STEP;
    A may be such a run. Collectives are answered as recorded in STEP, so no values are injected there.

    Ends as CMD ends; with 125 where rltrace failed, or where not every injection happened: such a run proves nothing.
    """
    from rltrace.commands._rerun_program import ProgramSteps, ran_steps, set_variables
    from rltrace.launch.command import fresh_trace, trace_stem
    from rltrace.recorder.base.options import RecordOptions
    from rltrace.replay.plan import compile_of, loops_of, plans_of, window_of
    from rltrace.trace.read.reader import open_trace

    usage = "as in rltrace replay a.zarr --inject op=mm -- python train.py"
    if a is None:
        raise UsageError(f"name the trace whose values are injected first, {usage}")
    if lockstep or kinds is not None or only is not None:
        inject = inject or ("all",)
    if not inject:
        raise UsageError(f"give the ops with --inject SELECTOR, {usage}")
    if step is None and (process is not None or warm_up is not None):
        raise UsageError("--process and --warm-up are for steps that run again: name their trace with --rerun")
    if not command:
        raise UsageError(f"nothing to run: name a command, {usage}")
    source = a
    trace_a = open_trace(source)
    window = window_of(trace_a)
    if origins and not trace_a.has_all_inputs:
        raise UsageError(f"--origins needs digests of the inputs in {source}: record it again with --verify-inputs")
    trace = output if output is not None else fresh_trace(Path(), trace_stem(command))
    path, path_a = distinct_paths(trace, source)
    lists = ["" if file is None else os.path.abspath(file) for file in (kinds, only)]  # noqa: PTH100
    steps: ProgramSteps | None = None
    if step is None:
        options = RecordOptions(path, *window, until, compile=compile_of(trace_a), loops=loops_of(trace_a))
    else:
        from rltrace.commands.rerun import find_program

        steps = ProgramSteps(*find_program(step, process), warm_up, until)
        options = steps.options(trace)
        set_variables(steps.process)
    options = options._replace(
        replay=path_a,
        inject=inject,
        kinds=lists[0],
        only=lists[1],
        origins=origins,
        lockstep=lockstep,
    )
    plans = plans_of(trace_a, inject, lists[0], lists[1], lockstep=lockstep, process=options.process)

    def report() -> bool:
        ran = steps is None or ran_steps(steps.process, trace)
        return _report(plans, source, trace, inject, result, quiet=quiet, lockstep=lockstep) and ran

    force = force and output is not None
    return record_command(command, trace, options, force=force, quiet=quiet, on_recorded=report)


def _report(
    plans: Mapping[str, InjectionPlan],
    a: Path,
    trace: Path,
    inject: Sequence[str],
    result: Path | None,
    *,
    quiet: bool,
    lockstep: bool,
) -> bool:
    """Report the injections, and after a lockstep run whether it equals A; returns whether all injections happened."""
    from rltrace.replay.report import add_up
    from rltrace.report.replay import account_json, account_lines, verdict_line
    from rltrace.trace.read.reader import open_trace

    account = add_up(plans, open_trace(trace))
    first, *more = account_lines(account)
    comparison = None
    if lockstep and account.complete:
        from rltrace.diff.compare import compare

        comparison = compare(a, trace)
        more.append(verdict_line(comparison))
    if not account.complete:
        complain("\n".join([first, *more]))
    elif not quiet:
        narrate("\n".join([first, *more]))
    if result is not None:
        where, verdict = {"a": str(a), "trace": str(trace)}, None if comparison is None else comparison.verdict
        write_json(result, account_json(account, where, inject, verdict=verdict))
    return account.complete
