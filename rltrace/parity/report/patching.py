"""What ``rltrace replay --rows`` reports of activation rows: text, and one JSON object. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rltrace.parity.patching.tally import ModuleRows, RowAccount, why_lacking
from rltrace.report.replay import SCHEMA, SHOWN


def _place(module: ModuleRows) -> str:
    return f"{module.module}, {module.op or 'output'}"


def rows_json(
    account: RowAccount, where: Mapping[str, str], selectors: Sequence[str], *, weights: bool
) -> dict[str, Any]:
    """The same object for a replay by rows: what is counted are rows, module by module."""
    return {
        "schema": SCHEMA,
        "outcome": "injected" if account.complete else "unresolved",
        **where,
        "inject": list(selectors),
        "asked": account.asked,
        "done": account.done,
        "missed": [],
        "other": [],
        "received": 0,
        "verdict": None,
        "weights": weights,
        "rows": [
            {
                "module": {"a": module.module, "b": list(module.modules_b)},
                "what": module.op or "output",
                "tensors": module.tensors,
                "asked": module.asked,
                "put_in": module.put_in,
                "equal": module.equal,
                "failed": module.failed,
                "without": module.without,
                "several": module.several,
                "again": module.again,
                "unmatched": list(module.unmatched),
                "why": why_lacking(module) or None,
            }
            for module in account.modules
        ],
    }


def rows_lines(account: RowAccount) -> Iterator[str]:
    """A line for the outcome of a replay by rows, then what was not put in, or which rows were other ones."""
    if account.complete:
        put_in = sum(module.put_in for module in account.modules)
        places = f"{len(account.modules):,} places" if len(account.modules) > 1 else "one place"
        yield f"injected A's rows at {places}: {account.done:,} rows, {put_in:,} of them different here"
    else:
        lacking = len(account.lacking)
        yield (
            f"UNRESOLVED: at {lacking:,} of {len(account.modules):,} places A's rows were not injected, or not all "
            "of them; this run proves nothing"
        )
        for module, why in account.lacking[:SHOWN]:
            yield f"  {_place(module)}: {why}"
        if lacking > SHOWN:
            yield f"  and {lacking - SHOWN:,} more"
    if account.without:
        named = next(module for module in account.modules if module.without)
        yield (
            f"  {account.without:,} rows are unmatched in A and were left unchanged, first {named.unmatched[0]} "
            f"({_place(named)})"
        )
    if several := sum(module.several for module in account.modules):
        yield f"  {several:,} rows were computed several times in A, with different results: the first was injected"
