"""``rltrace replay --rows``: run a command, recorded, with rows of another program's trace put in."""

from __future__ import annotations

import json
from pathlib import Path

from rltrace.commands.console import complain, narrate
from rltrace.commands.recording import carry_out
from rltrace.commands.replay import other_trace


def replay_rows(
    a: Path,
    trace: Path,
    inject: tuple[str, ...],
    command: tuple[str, ...],
    until: int | None,
    result: Path | None,
    *,
    weights: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Run ``command`` with the rows of ``a`` put in that ``inject`` finds, recorded into ``trace``; its status."""
    from rltrace.follow.rows.source import read_table
    from rltrace.follow.rows.start import options_of
    from rltrace.follow.rows.tally import account_in
    from rltrace.report.replay import rows_json, rows_lines
    from rltrace.select import parse_selectors
    from rltrace.trace.reader import open_trace

    path, _ = other_trace(trace, a)
    trace_a = open_trace(a)
    table = read_table(trace_a, parse_selectors(inject), inject, weights=weights)
    options = options_of(trace_a, path, inject, until, weights=weights)

    def tell() -> bool:
        account = account_in(open_trace(trace), table)
        text = "\n".join(rows_lines(account))
        if not account.complete:
            complain(text)
        elif not quiet:
            narrate(text)
        if result is not None:
            found = rows_json(account, {"a": str(a), "trace": str(trace)}, inject, weights=weights)
            result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return account.complete

    return carry_out(command, trace, options, force=force, quiet=quiet, also=tell)
