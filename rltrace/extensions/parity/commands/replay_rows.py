"""``rltrace replay-rows``: run a command, recorded, with activation rows of another program's trace injected."""

from __future__ import annotations

from pathlib import Path

import click

from rltrace.commands._option_types import TraceFirst, TraceLocation, injecting_options
from rltrace.commands._recording import distinct_paths, record_command
from rltrace.commands.console import complain, narrate, write_json
from rltrace.errors import UsageError


@click.command(name="replay-rows", cls=TraceFirst, context_settings={"allow_interspersed_args": False})
@click.option("--trace-a", "a", hidden=True, type=TraceLocation(only_folder=True))
@click.option("--inject", multiple=True, metavar="SELECTOR", help="Inject A's rows at these places; repeatable.")
@click.option("--weights", is_flag=True, help="With a choice (topk), inject its values, too.")
@click.option(
    "--map", "names", type=click.Path(path_type=Path), metavar="FILE", help="Lines of A-GLOB = GLOB of modules."
)
@click.option(
    "-o", "--output", type=TraceLocation(written=True), metavar="TRACE", help="Trace to write; default: a new name."
)
@injecting_options
def command(
    a: Path | None,
    inject: tuple[str, ...],
    weights: bool,
    names: Path | None,
    output: Path | None,
    until: int | None,
    result: Path | None,
    force: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run CMD under the recorder and inject activation rows of trace A.

    A may be another program that computes the same tokens in batches of other shapes: each activation row of A that
    SELECTOR matches (of an op, or of the modules' outputs if it names none) replaces the program's row of the same
    token, forward and backward. A must hold rows and values (rltrace record --rows SELECTOR --values SELECTOR).
    Options come after A and before CMD. The run is recorded like any other.

    Ends as CMD ends; with 125 where rltrace failed, or where not every injection happened: such a run proves nothing.

    \b
      rltrace replay-rows gen.zarr --inject 'op=aten.topk,module=*gate*' -- python train.py
    """
    from rltrace.extensions.parity.module_names import read_map
    from rltrace.extensions.parity.patching.source import read_table
    from rltrace.extensions.parity.patching.start import options_of
    from rltrace.extensions.parity.patching.tally import account_in
    from rltrace.extensions.parity.report.patching import rows_lines
    from rltrace.launch.command import fresh_trace, trace_stem
    from rltrace.report.replay import account_json
    from rltrace.selectors import parse_selectors
    from rltrace.trace.read.reader import open_trace

    usage = "as in rltrace replay-rows a.zarr --inject op=aten.topk -- python train.py"
    if a is None:
        raise UsageError(f"name the trace whose rows are injected first, {usage}")
    if not inject:
        raise UsageError(f"give the places with --inject SELECTOR, {usage}")
    if not command:
        raise UsageError(f"nothing to run: name a command, {usage}")
    trace = output if output is not None else fresh_trace(Path(), trace_stem(command))
    path, _ = distinct_paths(trace, a)
    trace_a = open_trace(a)
    if names is not None:
        read_map(names)  # report its errors before anything runs
    table = read_table(trace_a, parse_selectors(inject), inject, weights=weights)
    options = options_of(trace_a, path, inject, until, weights=weights, names=names)

    def report() -> bool:
        account = account_in(open_trace(trace), table)
        text = "\n".join(rows_lines(account))
        if not account.complete:
            complain(text)
        elif not quiet:
            narrate(text)
        if result is not None:
            where = {"a": str(a), "trace": str(trace)}
            write_json(result, account_json(account, where, inject, weights=weights))
        return account.complete

    force = force and output is not None
    return record_command(command, trace, options, force=force, quiet=quiet, on_recorded=report)
