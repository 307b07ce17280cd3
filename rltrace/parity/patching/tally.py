"""What became of the rows of a replay: for each module how many were put in, were equal, or have no partner.

Owns the counts, the journal record in which a process leaves its own, and when a replay has done what it was to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rltrace.json import JsonError, from_json, to_json
from rltrace.parity.patching.row_table import RowTable
from rltrace.token_keys import Numbers
from rltrace.trace.read.reader import Trace

TYPE = "patching"
"""Of the journal record."""

NAMED = 5
"""Rows without a partner that are told one by one, of each module."""

NEVER = "the program never reached it in a forward pass whose rows are identified"
NO_PARTNER = "the program's rows are unmatched in A: other tokens, or another tokenisation"


@dataclass(frozen=True)
class PatchResult:
    """What became of the rows of one tensor."""

    selected: int
    """Rows that A has as well."""
    injected: int
    """Of these, those that were other ones here; the rest was equal already."""
    several: int
    """Of those asked for, rows that A computed several times, not alike: the first was taken."""
    unmatched: Numbers
    """Rows of the forward pass that A has not."""


@dataclass(frozen=True)
class ModuleRows:
    """Rows of one module, or of its ops of one name."""

    module: str
    """A's path."""
    modules_b: tuple[str, ...]
    """Paths here."""
    op: str
    """``aten.topk.default``; "": the module's own outputs."""
    tensors: int = 0
    """Tensors that rows were put into."""
    selected: int = 0
    """Rows that A has as well; of them, …"""
    injected: int = 0
    """… those that were other ones here, and are A's now, …"""
    equal: int = 0
    """… those that were A's already, …"""
    failed: int = 0
    """… and those that could not be put in (all rows of a tensor of which it is not known which rows they are)."""
    unmatched: int = 0
    """Rows that A has not."""
    several: int = 0
    """Rows that A computed several times, not alike: the first was taken."""
    recomputed: int = 0
    """Rows put in once more, or found equal, where a module was computed anew in a backward pass; in no other count."""
    first_unmatched: tuple[str, ...] = ()
    """The first rows that A has not, in words."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Why rows could not be put in, and how many."""

    COMPUTED: ClassVar = ("why",)

    @property
    def why(self) -> str:
        """Why what was selected was not injected, or not all of it; empty: it was."""
        if self.failed:
            return "; ".join(f"{count:,} rows: {why}" for why, count in self.failures.items())
        if self.selected:
            return ""
        return NO_PARTNER if self.unmatched else NEVER


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
        """What was selected and not put in, or not all of it, and why."""
        return tuple((module, module.why) for module in self.modules if module.why)

    @property
    def complete(self) -> bool:
        """Whether all that was selected was put in wherever the program has the same row."""
        return not self.lacking


class PatchCounts:
    """Counts while the program runs; used by one thread at a time."""

    def __init__(self, selected: Iterable[tuple[str, str]]) -> None:
        """``selected``: (module, op) of all that A has rows of."""
        self._found = {key: ModuleRows(key[0], (), key[1]) for key in sorted(selected)}

    def done(self, module: str, op: str, here: str, done: PatchResult, words: Sequence[str], *, again: bool) -> None:
        """Rows of one tensor of ``here``, the program's name for the module; ``words`` for rows without a partner."""
        own = self._found[module, op]
        if again:
            self._found[module, op] = replace(own, recomputed=own.recomputed + done.selected)
            return
        self._found[module, op] = replace(
            own,
            modules_b=tuple(dict.fromkeys((*own.modules_b, here))),
            tensors=own.tensors + bool(done.selected),
            selected=own.selected + done.selected,
            injected=own.injected + done.injected,
            equal=own.equal + done.selected - done.injected,
            unmatched=own.unmatched + len(done.unmatched),
            several=own.several + done.several,
            first_unmatched=(*own.first_unmatched, *words)[:NAMED],
        )

    def failed(self, module: str, op: str, here: str, rows: int, why: str) -> None:
        own = self._found[module, op]
        self._found[module, op] = replace(
            own,
            modules_b=tuple(dict.fromkeys((*own.modules_b, here))),
            selected=own.selected + rows,
            failed=own.failed + rows,
            failures={**own.failures, why: own.failures.get(why, 0) + rows},
        )

    def wants_words(self, module: str, op: str) -> int:
        """How many more rows without partner are to be named."""
        return NAMED - len(self._found[module, op].first_unmatched)

    def account(self) -> RowAccount:
        return RowAccount(tuple(self._found.values()))


def record_of(account: RowAccount) -> dict[str, Any]:
    """The journal record of one process's part."""
    return {"type": TYPE, **to_json(account)}


def parse_record(record: Mapping[str, Any]) -> RowAccount | None:
    """What a process left; None: it makes no sense."""
    try:
        return from_json(RowAccount, record)
    except JsonError:
        return None


def account_in(trace: Trace, table: RowTable) -> RowAccount:
    """The account of a whole replay, from what its processes left. One that left none has put nothing in."""
    nothing = PatchCounts(table.selected).account()
    records = [record for process in trace.processes for record in process.journal.records]
    told = [parse_record(record) for record in records if record["type"] == TYPE]
    return added([nothing, *(account for account in told if account is not None)])


def added(parts: Sequence[RowAccount]) -> RowAccount:
    """The accounts of several processes as one."""
    found: dict[tuple[str, str], ModuleRows] = {}
    for part in parts:
        for module in part.modules:
            known = found.get((module.module, module.op))
            found[module.module, module.op] = module if known is None else _joined(known, module)
    return RowAccount(tuple(found.values()))


def _joined(a: ModuleRows, b: ModuleRows) -> ModuleRows:
    return ModuleRows(
        a.module,
        tuple(dict.fromkeys((*a.modules_b, *b.modules_b))),
        a.op,
        a.tensors + b.tensors,
        a.selected + b.selected,
        a.injected + b.injected,
        a.equal + b.equal,
        a.failed + b.failed,
        a.unmatched + b.unmatched,
        a.several + b.several,
        a.recomputed + b.recomputed,
        (*a.first_unmatched, *b.first_unmatched)[:NAMED],
        {why: a.failures.get(why, 0) + b.failures.get(why, 0) for why in (*a.failures, *b.failures)},
    )
