"""The injections of ``rltrace replay-rows``: what is written as JSON, and the lines that are narrated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rltrace.extensions.parity.patching.tally import ModuleRows, RowAccount
from rltrace.report.replay import MAX_KINDS


@dataclass(frozen=True)
class RowReplayReport:
    """What a replay of rows was to inject, and what came of it."""

    SCHEMA: ClassVar = "rltrace.replay/1"
    MERGED: ClassVar = ("account",)
    COMPUTED: ClassVar = ("outcome",)

    a: str
    """Path of the trace with the rows."""
    trace: str
    """That of the replay."""
    inject: tuple[str, ...]
    """Selectors."""
    weights: bool
    """Whether the values of a choice were injected, too."""
    account: RowAccount

    @property
    def outcome(self) -> str:
        """``injected`` or ``unresolved``."""
        return "injected" if self.account.complete else "unresolved"


def _place(module: ModuleRows) -> str:
    return f"{module.module}, {module.op or 'output'}"


def rows_lines(account: RowAccount) -> Iterator[str]:
    """A line for the outcome, then what was not injected, or is unmatched."""
    if account.complete:
        injected = sum(module.injected for module in account.modules)
        places = f"{len(account.modules):,} places" if len(account.modules) > 1 else "one place"
        yield f"injected A's rows at {places}: {account.injected:,} rows, {injected:,} of them different here"
    else:
        lacking = len(account.lacking)
        yield (
            f"UNRESOLVED: at {lacking:,} of {len(account.modules):,} places A's rows were not injected, or not all "
            "of them; this run proves nothing"
        )
        for module, why in account.lacking[:MAX_KINDS]:
            yield f"  {_place(module)}: {why}"
        if lacking > MAX_KINDS:
            yield f"  and {lacking - MAX_KINDS:,} more"
    if account.unmatched:
        named = next(module for module in account.modules if module.unmatched)
        yield (
            f"  {account.unmatched:,} rows are unmatched in A and were left unchanged, first "
            f"{named.first_unmatched[0]} ({_place(named)})"
        )
    if several := sum(module.several for module in account.modules):
        yield f"  {several:,} rows were computed several times in A, with different results: the first was injected"
