"""The account of a replay: for each module, how many rows were injected, were equal, or are unmatched.

Owns the counts, and the rule when a replay is complete.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from rltrace.extensions.parity.patching.row_table import RowTable
from rltrace.rerun.account import account_in
from rltrace.trace.read.reader import Trace

PROVIDER = "rows"
"""Names the account in a journal."""

NAMED = 5
"""Unmatched rows of each module that are listed."""

NEVER = "the program never reached it in a forward pass whose rows are identified"
NO_PARTNER = "the program's rows are unmatched in A: other tokens, or another tokenisation"


@dataclass(frozen=True)
class ModuleRows:
    """Rows of one module, or of its ops of one name."""

    module: str
    """A's path."""
    modules_b: tuple[str, ...]
    """Its paths in this program."""
    op: str
    """``aten.topk.default``; empty: outputs of the module."""
    tensors: int = 0
    """Tensors with selected rows."""
    selected: int = 0
    """Rows that A has too; of them, …"""
    injected: int = 0
    """… those that differed, and are A's now, …"""
    equal: int = 0
    """… those that were equal, …"""
    failed: int = 0
    """… and those that could not be injected (all rows of a tensor whose rows are not identified)."""
    unmatched: int = 0
    """Rows that A lacks."""
    several: int = 0
    """Rows that A computed several times with different results: the first was injected."""
    recomputed: int = 0
    """Rows that a backward pass recomputed; in no other count."""
    first_unmatched: tuple[str, ...] = ()
    """The first rows that A lacks, in words."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Why rows could not be injected, and how many."""

    COMPUTED: ClassVar = ("why",)

    @property
    def why(self) -> str:
        """Why what was selected was not injected, or not all of it; empty: it was."""
        if self.failed:
            return "; ".join(f"{count:,} rows: {why}" for why, count in self.failures.items())
        if self.selected:
            return ""
        return NO_PARTNER if self.unmatched else NEVER


_COUNTS = tuple(each.name for each in fields(ModuleRows) if each.default == 0)


@dataclass(frozen=True)
class RowAccount:
    """All rows of a replay."""

    modules: tuple[ModuleRows, ...]

    COMPUTED: ClassVar = ("selected", "injected")

    @property
    def selected(self) -> int:
        """Rows of all of them that A has as well."""
        return sum(module.selected for module in self.modules)

    @property
    def injected(self) -> int:
        """Those of them that are A's now."""
        return sum(module.injected + module.equal for module in self.modules)

    @property
    def unmatched(self) -> int:
        return sum(module.unmatched for module in self.modules)

    @property
    def lacking(self) -> tuple[tuple[ModuleRows, str], ...]:
        """What was not injected, or not all of it, and why."""
        return tuple((module, module.why) for module in self.modules if module.why)

    @property
    def complete(self) -> bool:
        """Whether all selected rows of the program are A's."""
        return not self.lacking


class PatchCounts:
    """Counts while the program runs; used by one thread at a time."""

    def __init__(self, selected: Iterable[tuple[str, str]]) -> None:
        """``selected``: (module, op) of all of A's rows."""
        self._found = {key: ModuleRows(key[0], (), key[1]) for key in sorted(selected)}

    def add(self, rows: ModuleRows) -> None:
        """Add the rows of one tensor."""
        self._found[rows.module, rows.op] = _joined(self._found[rows.module, rows.op], rows)

    def unlisted(self, module: str, op: str) -> int:
        """How many more unmatched rows are to be listed."""
        return NAMED - len(self._found[module, op].first_unmatched)

    def account(self) -> RowAccount:
        return RowAccount(tuple(self._found.values()))


def account_of(trace: Trace, table: RowTable) -> RowAccount:
    """The account of a whole replay, of all its processes. One without an account has injected nothing."""
    counts = PatchCounts(table.selected)
    for process in trace.processes:
        account = account_in(process, PROVIDER, RowAccount)
        for rows in () if account is None else account.modules:
            counts.add(rows)
    return counts.account()


def _joined(a: ModuleRows, b: ModuleRows) -> ModuleRows:
    return replace(
        a,
        modules_b=tuple(dict.fromkeys((*a.modules_b, *b.modules_b))),
        first_unmatched=(*a.first_unmatched, *b.first_unmatched)[:NAMED],
        failures={why: a.failures.get(why, 0) + b.failures.get(why, 0) for why in (*a.failures, *b.failures)},
        **{name: getattr(a, name) + getattr(b, name) for name in _COUNTS},
    )
