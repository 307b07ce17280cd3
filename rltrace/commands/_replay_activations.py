"""``rltrace replay --rows``: run a command, recorded, with activation rows of another program's trace injected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._recording import distinct_paths, record_command
from rltrace.commands.console import complain, narrate, write_json


@dataclass(frozen=True)
class PatchArguments:
    """Arguments and options of the command line."""

    a: Path
    """The trace whose rows are injected."""
    trace: Path
    """The trace to write."""
    inject: tuple[str, ...]
    until: int | None
    result: Path | None
    """The file for the report as JSON."""
    names: Path | None
    """The file of ``--map``, which matches modules."""
    weights: bool


def replay_rows(command: tuple[str, ...], arguments: PatchArguments, *, force: bool, quiet: bool) -> int:
    """Run ``command`` with the selected rows injected; returns the exit status."""
    from rltrace.parity.module_names import read_map
    from rltrace.parity.patching.source import read_table
    from rltrace.parity.patching.start import options_of
    from rltrace.parity.patching.tally import account_in
    from rltrace.parity.report.patching import rows_lines
    from rltrace.report.replay import account_json
    from rltrace.selectors import parse_selectors
    from rltrace.trace.read.reader import open_trace

    a, trace, inject, weights = arguments.a, arguments.trace, arguments.inject, arguments.weights
    path, _ = distinct_paths(trace, a)
    trace_a = open_trace(a)
    if arguments.names is not None:
        read_map(arguments.names)  # report its errors before anything runs
    table = read_table(trace_a, parse_selectors(inject), inject, weights=weights)
    options = options_of(trace_a, path, inject, arguments.until, weights=weights, names=arguments.names)

    def report() -> bool:
        account = account_in(open_trace(trace), table)
        text = "\n".join(rows_lines(account))
        if not account.complete:
            complain(text)
        elif not quiet:
            narrate(text)
        if arguments.result is not None:
            where = {"a": str(a), "trace": str(trace)}
            write_json(arguments.result, account_json(account, where, inject, weights=weights))
        return account.complete

    return record_command(command, trace, options, force=force, quiet=quiet, on_recorded=report)
