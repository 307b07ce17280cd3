"""What became of the rows of a replay: for each module how many were put in, were equal, or have no partner.

Owns the counts, the journal record in which a process leaves its own, and when a replay has done what it was to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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

    asked: int
    """Rows that A has as well."""
    put_in: int
    """Of these, those that were other ones here; the rest was equal already."""
    several: int
    """Of those asked for, rows that A computed several times, not alike: the first was taken."""
    alone: Numbers
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
    asked: int = 0
    """Rows that A has as well; of them, …"""
    put_in: int = 0
    """… those that were other ones here, and are A's now, …"""
    equal: int = 0
    """… those that were A's already, …"""
    failed: int = 0
    """… and those that could not be put in (all rows of a tensor of which it is not known which rows they are)."""
    without: int = 0
    """Rows that A has not."""
    several: int = 0
    """Rows that A computed several times, not alike: the first was taken."""
    again: int = 0
    """Rows put in once more, or found equal, where a module was computed anew in a backward pass; in no other count."""
    unmatched: tuple[str, ...] = ()
    """The first rows that A has not, in words."""
    why: Mapping[str, int] = field(default_factory=dict)
    """Why rows could not be put in, and how many."""


@dataclass(frozen=True)
class RowAccount:
    """All rows of a replay."""

    modules: tuple[ModuleRows, ...]

    @property
    def asked(self) -> int:
        return sum(module.asked for module in self.modules)

    @property
    def done(self) -> int:
        return sum(module.put_in + module.equal for module in self.modules)

    @property
    def without(self) -> int:
        return sum(module.without for module in self.modules)

    @property
    def lacking(self) -> tuple[tuple[ModuleRows, str], ...]:
        """What was selected and not put in, or not all of it, and why."""
        return tuple((module, why) for module in self.modules if (why := why_lacking(module)))

    @property
    def complete(self) -> bool:
        """Whether all that was selected was put in wherever the program has the same row."""
        return not self.lacking


def why_lacking(module: ModuleRows) -> str:
    """Why what was asked for of a module did not happen; "": it did."""
    if module.failed:
        return "; ".join(f"{count:,} rows: {why}" for why, count in module.why.items())
    if module.asked:
        return ""
    return NO_PARTNER if module.without else NEVER


class PatchCounts:
    """Counts while the program runs; used by one thread at a time."""

    def __init__(self, selected: Iterable[tuple[str, str]]) -> None:
        """``selected``: (module, op) of all that A has rows of."""
        self._found = {key: ModuleRows(key[0], (), key[1]) for key in sorted(selected)}

    def done(self, module: str, op: str, here: str, done: PatchResult, words: Sequence[str], *, again: bool) -> None:
        """Rows of one tensor of ``here``, the program's name for the module; ``words`` for rows without a partner."""
        own = self._found[module, op]
        if again:
            self._found[module, op] = replace(own, again=own.again + done.asked)
            return
        self._found[module, op] = replace(
            own,
            modules_b=tuple(dict.fromkeys((*own.modules_b, here))),
            tensors=own.tensors + bool(done.asked),
            asked=own.asked + done.asked,
            put_in=own.put_in + done.put_in,
            equal=own.equal + done.asked - done.put_in,
            without=own.without + len(done.alone),
            several=own.several + done.several,
            unmatched=(*own.unmatched, *words)[:NAMED],
        )

    def failed(self, module: str, op: str, here: str, rows: int, why: str) -> None:
        own = self._found[module, op]
        self._found[module, op] = replace(
            own,
            modules_b=tuple(dict.fromkeys((*own.modules_b, here))),
            asked=own.asked + rows,
            failed=own.failed + rows,
            why={**own.why, why: own.why.get(why, 0) + rows},
        )

    def wants_words(self, module: str, op: str) -> int:
        """How many more rows without partner are to be named."""
        return NAMED - len(self._found[module, op].unmatched)

    def account(self) -> RowAccount:
        return RowAccount(tuple(self._found.values()))


def record_of(account: RowAccount) -> dict[str, Any]:
    """The journal record of one process's part."""
    return {"type": TYPE, "modules": [asdict(module) for module in account.modules]}


def parse_record(record: Mapping[str, Any]) -> RowAccount | None:
    """What a process left; None: it makes no sense."""
    try:
        return RowAccount(tuple(_module(entry) for entry in record["modules"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _module(entry: Mapping[str, Any]) -> ModuleRows:
    counts = ("tensors", "asked", "put_in", "equal", "failed", "without", "several", "again")
    return ModuleRows(
        module=str(entry["module"]),
        modules_b=tuple(map(str, entry["modules_b"])),
        op=str(entry["op"]),
        unmatched=tuple(map(str, entry["unmatched"])),
        why={str(why): int(count) for why, count in entry["why"].items()},
        **{name: int(entry[name]) for name in counts},
    )


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
        a.asked + b.asked,
        a.put_in + b.put_in,
        a.equal + b.equal,
        a.failed + b.failed,
        a.without + b.without,
        a.several + b.several,
        a.again + b.again,
        (*a.unmatched, *b.unmatched)[:NAMED],
        {why: a.why.get(why, 0) + b.why.get(why, 0) for why in (*a.why, *b.why)},
    )
