"""``rltrace replay-rows``: run a command, recorded, with activation rows of another program's trace injected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    InjectingArguments,
    TraceFirst,
    option,
    verb,
)
from rltrace.commands._recording import Destination, distinct_paths, record_command
from rltrace.commands.console import write_json
from rltrace.commands.replay import narrate_account
from rltrace.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReplayRowsArguments(InjectingArguments):
    inject: tuple[str, ...] = option(metavar="SELECTOR", help="Inject A's rows at these places; repeatable.")
    weights: bool = option(help="With a choice (topk), inject its values, too.")
    names: Path | None = option("--map", metavar="FILE", help="Lines of A-GLOB = GLOB of modules.")


@verb(ReplayRowsArguments, cls=TraceFirst, context_settings=BEFORE_COMMAND)
def command(arguments: ReplayRowsArguments) -> int:
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
    from rltrace.extensions.parity.patching.source import options_of, read_table
    from rltrace.extensions.parity.patching.tally import account_of
    from rltrace.extensions.parity.report.patching import RowReplayReport, rows_lines
    from rltrace.selectors import parse_selectors
    from rltrace.trace.read.reader import open_trace

    a, inject, weights, command = arguments.a, arguments.inject, arguments.weights, arguments.command
    usage = "as in rltrace replay-rows a.zarr --inject op=aten.topk -- python train.py"
    if a is None:
        raise UsageError(f"name the trace whose rows are injected first, {usage}")
    if not inject:
        raise UsageError(f"give the places with --inject SELECTOR, {usage}")
    if not command:
        raise UsageError(f"nothing to run: name a command, {usage}")
    to = Destination.here(arguments.output, command, force=arguments.force)
    path, _ = distinct_paths(to.trace, a)
    trace_a = open_trace(a)
    if arguments.names is not None:
        read_map(arguments.names)  # report its errors before anything runs
    table = read_table(trace_a, parse_selectors(inject), inject, weights=weights)
    options = options_of(trace_a, path, inject, arguments.until, weights=weights, names=arguments.names)

    def report() -> bool:
        account = account_of(open_trace(to.trace), table)
        if arguments.result is not None:
            write_json(arguments.result, RowReplayReport(str(a), str(to.trace), inject, weights, account))
        narrate_account(rows_lines(account), complete=account.complete, quiet=arguments.quiet)
        return account.complete

    return record_command(command, to, options, quiet=arguments.quiet, on_recorded=report)
