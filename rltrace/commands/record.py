"""``rltrace record``: run a command and record it.

Owns the options and their checks; ``_recording`` runs the command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from rltrace.command_lines import line
from rltrace.commands._option_types import (
    TraceLocation,
    check_values,
    given_by,
    level_option,
    parse_axes,
    parse_loops,
    parse_processes,
    parse_size,
    parse_steps,
    values_inputs_option,
    values_limit_option,
    values_option,
)
from rltrace.commands._recording import record_command
from rltrace.commands.console import complain
from rltrace.commands.kernels import parse_kernels, query_after
from rltrace.errors import UsageError
from rltrace.launch.command import fresh_trace, local_copy, trace_stem
from rltrace.native.library import find, torch_folder
from rltrace.recorder.base.options import ENGINES, LOOPS_DEFAULT, PROCESSES_DEFAULT, STEPS_DEFAULT, RecordOptions
from rltrace.selectors import parse_selectors
from rltrace.trace.format.location import BUCKETS, Location, TraceURL
from rltrace.trace.format.schema import READS_WITHIN
from rltrace.wording import counted


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", type=TraceLocation(), metavar="TRACE", help="Trace to write, or its URL; default: a new name."
)
@level_option
@click.option(
    "--steps",
    metavar="A:B",
    envvar=STEPS_DEFAULT,
    show_envvar=True,
    help="Record the ops of steps A to B only (B left out); A: and :B are open.",
)
@click.option(
    "--processes",
    metavar="GLOB[,GLOB]",
    envvar=PROCESSES_DEFAULT,
    show_envvar=True,
    help="Record only processes with such names, as in rank0/*.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Machines that record one run to one URL, each with this command.",
)
@click.option("--asleep", is_flag=True, help="Record nothing until rltrace arm requests steps of the running program.")
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="End the program after this step.")
@click.option("--verify-inputs", is_flag=True, help="Also digest every input of every op; needs --steps.")
@click.option("--check-links", is_flag=True, help="Find writes of memory that no recorded op made.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="What records ops: compiled code (native), Python (mode), or native where it is there.",
)
@click.option(
    "--fusions-of",
    multiple=True,
    type=TraceLocation(),
    metavar="TRACE",
    help="Within programs of JAX, read only values that TRACE has; repeatable, then those that all have.",
)
@click.option(
    "--loops",
    metavar="GLOB[,GLOB]",
    envvar=LOOPS_DEFAULT,
    show_envvar=True,
    help="Functions of JAX whose outermost scan is a training loop though it computes no gradient.",
)
@values_option
@values_inputs_option
@click.option(
    "--rerunnable",
    multiple=True,
    metavar="SELECTOR",
    help="Record what these ops read and did not make, so that rltrace rerun runs them again; repeatable.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Do not record what this checkpoint holds; rerun reads it there.",
)
@values_limit_option
@click.option("--state", metavar="A:B", help="Record parameters, gradients and optimizer state at these steps.")
@click.option(
    "--kernels", default="off", show_default=True, metavar="[off|window|all|A:B]", help="Ask oneDNN and MKL what ran."
)
@click.option(
    "--rows",
    multiple=True,
    metavar="SELECTOR",
    help="Record a digest of each activation row of these; repeatable.",
)
@click.option(
    "--row-axes", metavar="AXES", help="Axes along which rows are counted, as in 0,1; default: all but the last."
)
@click.option(
    "--rows-limit", metavar="SIZE", default="1GiB", show_default=True, help="The same limit for activation rows."
)
@click.option("--compile", "compiled", type=click.Choice(["eager"]), help="Run what CMD compiles op by op instead.")
@click.option(
    "--against", type=TraceLocation(), metavar="A", help="Compare the run with A while it runs; A may still grow."
)
@click.option("--stop", is_flag=True, help="End CMD once it differs from A.")
@click.option("--exit-code", is_flag=True, help="End with 1 if the run differs from A, 125 if that is not known.")
@click.option(
    "--result", type=click.Path(path_type=Path), metavar="FILE", help="Write the result of --against as JSON."
)
@click.option("--force", is_flag=True, help="Replace an existing trace.")
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD …")
@click.pass_context
def command(
    context: click.Context,
    output: Location | None,
    level: str,
    steps: str | None,
    processes: str | None,
    nodes: int,
    asleep: bool,
    until: int | None,
    verify_inputs: bool,
    check_links: bool,
    engine: str,
    fusions_of: tuple[Location, ...],
    loops: str | None,
    values: tuple[str, ...],
    values_inputs: bool,
    rerunnable: tuple[str, ...],
    checkpoint: Path | None,
    values_limit: str,
    state: str | None,
    rows: tuple[str, ...],
    row_axes: str | None,
    rows_limit: str,
    kernels: str,
    compiled: str | None,
    against: Location | None,
    stop: bool,
    exit_code: bool,
    result: Path | None,
    force: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run CMD and record every op it runs, in all its processes.

    TRACE may be a URL of a bucket (s3://…, gs://…, az://…): the trace is written into the current folder, uploaded
    while CMD runs, and removed here when all of it is there. A network that is slow or fails costs CMD nothing; what is
    left in the end is uploaded within ten minutes, or later by rltrace push.

    With --nodes N each of N machines runs this command with the same URL, and one trace there has all their processes.

    Options come before CMD; everything after it belongs to CMD. Ends as CMD ends; with 125 where rltrace failed or
    nothing was recorded, 126 and 127 where CMD could not be started.

    What CMD compiles with torch.compile stays compiled, and each compiled region is one op. With --compile eager it
    runs op by op, and computes what it computes then.

    --check-links compares memory between its uses, and names every write that bypassed torch: the op that noticed it,
    the op that wrote the memory last, and the one that allocated it. Ends with 125 where a link rests on such memory.

    --values records the bytes of tensors, to be shown and injected: of the ops that SELECTOR matches, such as
    op=addmm,module=policy.*,step=100:110 (rltrace ops lists what a selector matches).

    --kernels asks the libraries, once CMD has ended and in a separate process, what they run for each kind of call of
    these steps (window: of --steps), and records with torch's profiler what ops launch on a GPU; rltrace kernels lists
    it, and diff names it.

    --rows records a digest of each activation row that modules and ops take and return, so that rltrace compare can
    compare two programs whatever their batches.

    --state records, at these optimizer steps, what each rank holds of parameters, gradients and optimizer state, so
    that rltrace compare --state can compare them as whole tensors with those of another sharding.

    --asleep only counts optimizer steps, which takes microseconds a step. While the program runs, rltrace arm TRACE
    wakes it for the steps that you choose then.

    --against A compares the run with A as it goes, in another process than CMD's: what both have committed. A may have
    ended (then the run records A's steps), still be recorded, not exist yet, or be at a URL; each of two jobs may be
    started against the other's trace. At the first op that differs CMD continues, or ends: --stop. --exit-code ends
    with 0 if the run is the same as A, 1 if not and 125 if that is not known, as git bisect run reads it.
    """
    if not command:
        raise UsageError("nothing to record: name a command, as in rltrace record -- python train.py")
    by = given_by(context, "steps", STEPS_DEFAULT)
    if asleep:
        _check_asleep(context, by)
    first, end = parse_steps(steps, by) if steps is not None else (0, None)
    if against is None and (stop or exit_code or result is not None):
        raise UsageError("--stop, --exit-code and --result need a live comparison: --against A")
    url = output if isinstance(output, TraceURL) else None
    if url is not None:
        _check_url(url, force=force)
    elif nodes > 1:
        raise UsageError("--nodes joins what several machines record at a URL: give one, as in -o s3://bucket/a.zarr")
    if isinstance(output, Path):
        trace = output
    else:
        trace = fresh_trace(Path(), trace_stem(command)) if url is None else local_copy(url, nodes)
    path = os.path.abspath(trace)  # noqa: PTH100  links stay
    options = RecordOptions(
        path,
        level,
        first,
        end,
        until,
        verify_inputs,
        check_links,
        engine,
        read_within=_read_within(fusions_of),
        loops=() if loops is None else parse_loops(loops),
        values=values,
        values_inputs=values_inputs,
        rerunnable=rerunnable,
        checkpoint="" if checkpoint is None else os.path.abspath(checkpoint),  # noqa: PTH100
        values_limit=parse_size("--values-limit", values_limit),
        state=None if state is None else parse_steps(state, "--state"),
        rows=rows,
        row_axes=None if row_axes is None else parse_axes(row_axes),
        rows_limit=parse_size("--rows-limit", rows_limit),
        kernels=parse_kernels(kernels, None if steps is None else (first, end)),
        compile=compiled,
        asleep=asleep,
        nodes=nodes,
        processes=parse_processes(processes, given_by(context, "processes", PROCESSES_DEFAULT))
        if processes is not None
        else (),
    )
    _check_combination(options, by if steps is not None else "")
    on_recorded: Callable[[], bool] | None = None
    meanwhile = comparison = None
    if against is not None:
        from rltrace.commands._live_diff import LiveComparison, live_options

        as_in_a = steps is None and context.get_parameter_source("level") is click.core.ParameterSource.DEFAULT
        options = live_options(options, against, stop=stop, as_in_a=as_in_a)
        comparison = LiveComparison(against, trace, stop=stop, quiet=quiet)
        on_recorded, meanwhile = partial(comparison.report, result), comparison.run
    if options.kernels is not None:
        on_recorded = query_after(on_recorded, trace, options.kernels, quiet=quiet)
    if check_links:
        on_recorded = _report_links(on_recorded, trace, url or trace)
    force = force and output is not None
    hint = _engine_hint(options)
    status = record_command(
        command,
        trace,
        options,
        force=force,
        quiet=quiet,
        on_recorded=on_recorded,
        hint=hint,
        url=url,
        meanwhile=meanwhile,
    )
    return comparison.status(status) if comparison is not None and exit_code else status


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


def _check_combination(options: RecordOptions, by_steps: str) -> None:
    """Raise UsageError where options need another one, or ops at level step. ``by_steps``: what gave steps, if any."""
    no_ops = options.level == "step"
    if by_steps and no_ops:
        raise UsageError(f"{by_steps} selects steps whose ops are recorded; --level step records no ops")
    if options.verify_inputs and not by_steps:
        raise UsageError("--verify-inputs digests every input of every op in a window: give its steps with --steps A:B")
    if options.check_links and no_ops:
        raise UsageError("--check-links compares memory between ops; --level step records no ops")
    check_values(options.values, options.values_inputs, options.level)
    parse_selectors(options.rerunnable)
    if options.rerunnable and no_ops:
        raise UsageError("--rerunnable records the memory of ops; --level step records no ops")
    if options.checkpoint and not options.rerunnable:
        raise UsageError("--checkpoint is for ops that are to be run again: give --rerunnable SELECTOR")
    parse_selectors(options.rows)
    if options.rows and no_ops:
        raise UsageError("--rows records activation rows of ops and modules; --level step records neither")
    if options.row_axes is not None and not options.rows:
        raise UsageError("--row-axes sets the axes along which --rows SELECTOR counts: give one")
    if options.kernels is not None and no_ops:
        raise UsageError("--kernels is about ops; --level step records no ops")


def _check_url(url: TraceURL, *, force: bool) -> None:
    """Raise UsageError where nothing can be recorded to this URL."""
    if url.scheme not in BUCKETS:
        raise UsageError(f"{url} is no bucket; record to s3://, gs:// or az://, or into a folder")
    if force:
        raise UsageError("--force replaces a trace in a folder, and none at a URL: choose another name there")


ASLEEP_WITH = {"output", "processes", "nodes", "asleep", "until", "engine", "compiled", "force", "quiet", "command"}
"""Options that --asleep allows; what to record is chosen with ``rltrace arm``."""


def _check_asleep(context: click.Context, by_steps: str) -> None:
    """Raise UsageError for an option that --asleep does not allow. ``by_steps``: what set the steps."""
    default = click.core.ParameterSource.DEFAULT
    for option in context.command.params:
        if option.name not in ASLEEP_WITH and context.get_parameter_source(option.name or "") is not default:
            given = by_steps if option.name == "steps" else option.opts[0]
            raise UsageError(
                f"--asleep records nothing until the run is armed, so leave out {given}: rltrace arm chooses steps,"
                " level and values while the program runs"
            )


def _report_links(before: Callable[[], bool] | None, trace: Path, shown: Location) -> Callable[[], bool]:
    """A function that names the faults of links; returns False where there are any. ``shown``: where it will be."""

    def report() -> bool:
        from rltrace.report.link_checks import fault_lines, missed_faults
        from rltrace.trace.read.reader import open_trace

        succeeded = before is None or before()
        missed = missed_faults(open_trace(trace))
        if missed:
            what = counted(len(missed), "fault") + " of links"
            complain("\n  ".join([what, *fault_lines(missed)]), hint=f"{line('info', shown)} lists them")
        return succeeded and not missed

    return report


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
    costly = f"{found.why_not}: recording small ops takes about twice as long; {line('build-engine')} compiles one"
    return costly if found.why_not else ""
