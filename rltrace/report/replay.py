"""What ``rltrace replay`` says of its injections: text, and one JSON object, ``rltrace.replay/1``. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rltrace.follow.account import MOST, Account, Missed, OtherKind, by_reason

SCHEMA = "rltrace.replay/1"

SHOWN = 5
"""Kinds of injections, in the text."""


def account_json(account: Account, where: Mapping[str, str], selectors: Sequence[str]) -> dict[str, Any]:
    """``where``: paths of the trace whose values were put in ("a") and of the replay's own ("trace")."""
    return {
        "schema": SCHEMA,
        "outcome": "injected" if account.complete else "unresolved",
        **where,
        "inject": list(selectors),
        "asked": account.asked,
        "done": account.done,
        "missed": [asdict(entry) for entry in account.missed[:MOST]],
        "other": [asdict(kind) for kind in account.other],
    }


def account_lines(account: Account) -> Iterator[str]:
    """A line for the outcome, and, where not everything happened, one for each kind of what did not."""
    if account.complete:
        yield (
            f"put in A's values at all {account.asked:,} ops that were asked for"
            if account.asked > 1
            else ("put in A's values at the op that was asked for")
        )
        yield from _other_lines(account.other)
        return
    left = account.asked - account.done
    yield f"UNRESOLVED: {left:,} of {account.asked:,} injections did not happen; this run proves nothing"
    kinds = by_reason(account.missed)
    for entry, count in kinds[:SHOWN]:
        yield f"  {_entry(entry)}{f' (and {count - 1:,} more like it)' if count > 1 else ''}"
    if len(kinds) > SHOWN:
        yield f"  and {len(kinds) - SHOWN} more kinds"


def _other_lines(other: Sequence[OtherKind]) -> Iterator[str]:
    """Where the program had other values of its own, most of them first."""
    if not other:
        yield "  the program had these very values already"
        return
    yield f"  at {sum(kind.count for kind in other):,} of them the program had other ones:"
    ranked = sorted(other, key=lambda kind: -kind.count)
    for kind in ranked[:SHOWN]:
        yield f"  {kind.count:>7,}  {kind.op}, first at op {kind.row:,} of {kind.stream} in A, step {kind.step:,}"
    if len(ranked) > SHOWN:
        yield f"           and {len(ranked) - SHOWN} more operators"


def _entry(entry: Missed) -> str:
    return f"{entry.op}, op {entry.row:,} of {entry.stream} in A, step {entry.step:,}: {entry.why}"
