"""``rltrace replay --rows``: run a command, recorded, with rows of another program's trace put in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._recording import carry_out, other_trace
from rltrace.commands.console import complain, narrate, write_json


@dataclass(frozen=True)
class PatchArguments:
    """What the command line has."""

    a: Path
    """The trace whose rows are put in."""
    trace: Path
    """Where the replay is recorded to."""
    inject: tuple[str, ...]
    until: int | None
    result: Path | None
    """Where what happened is written to, as JSON."""
    names: Path | None
    """Lines that say which modules are which."""
    weights: bool


def replay_rows(command: tuple[str, ...], asked: PatchArguments, *, force: bool, quiet: bool) -> int:
    """Run ``command`` with the rows that were asked for put in; its status."""
    from rltrace.parity.module_names import read_map
    from rltrace.parity.patching.source import read_table
    from rltrace.parity.patching.start import options_of
    from rltrace.parity.patching.tally import account_in
    from rltrace.parity.report.patching import rows_lines
    from rltrace.report.replay import account_json
    from rltrace.selectors import parse_selectors
    from rltrace.trace.read.reader import open_trace

    a, trace, inject, weights = asked.a, asked.trace, asked.inject, asked.weights
    path, _ = other_trace(trace, a)
    trace_a = open_trace(a)
    if asked.names is not None:
        read_map(asked.names)  # raises before anything runs
    table = read_table(trace_a, parse_selectors(inject), inject, weights=weights)
    options = options_of(trace_a, path, inject, asked.until, weights=weights, names=asked.names)

    def tell() -> bool:
        account = account_in(open_trace(trace), table)
        text = "\n".join(rows_lines(account))
        if not account.complete:
            complain(text)
        elif not quiet:
            narrate(text)
        if asked.result is not None:
            where = {"a": str(a), "trace": str(trace)}
            write_json(asked.result, account_json(account, where, inject, weights=weights))
        return account.complete

    return carry_out(command, trace, options, force=force, quiet=quiet, also=tell)
