"""The log-probabilities of taken tokens on both sides, from the logits that the models gave.

Owns finding the logits, which token was taken after each, and which of A is which of B. How far they lie apart is for
``rltrace.parity.effects.gap``; log-probabilities that the programs computed themselves are found in
``rltrace.parity.effects.selected``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.parity.effects.gap import Floats, Gap, log_probabilities, measure
from rltrace.parity.effects.taken import NONE, Tokens, tokens_of
from rltrace.parity.rows.forwards import root_of
from rltrace.parity.rows.grids import Grid
from rltrace.parity.rows.keying import KeyedRows, Keying
from rltrace.parity.rows.pairing import Table, pair, table_of
from rltrace.parity.stretch import Stretch, flat_rows
from rltrace.row_keys import Numbers
from rltrace.select import escape
from rltrace.trace.tensor_rows import ModuleCall, Part

FLOATS = ("float64", "float32", "bfloat16", "float16")
HEADS = ("lm_head", "embed_out", "output_projection")
"""What the layer that gives logits is called where the model itself gives none."""
SOURCE = (
    "log-softmax in float64 of the logits of {a} (A) and {b} (B), at the next token of B's sequence; without what"
    " a sampler does to logits (temperature, top-k)"
)


@dataclass(frozen=True, eq=False)
class Logits:
    """What one forward pass gave."""

    call: ModuleCall
    rows: KeyedRows
    """Those that have a key."""


@dataclass(frozen=True, eq=False)
class Policy:
    """One side: its calls, whose rows are known, and the tokens that they were fed."""

    keying: Keying
    ranks: Numbers | None = None
    """Of each of its sequences the number of its partner in B; None: its own number."""

    @property
    def stretch(self) -> Stretch:
        return self.keying.stretch

    @cached_property
    def tokens(self) -> Tokens:
        return tokens_of(self.keying.grids)

    @cached_property
    def logits(self) -> tuple[Logits, ...]:
        """What the forward passes gave, in order."""
        return tuple(_logits(self))

    def passes_of(self, module: str) -> list[int]:
        """Numbers of the forward passes of the model that a module is part of."""
        root = root_of(module)
        return [number for number, grid in enumerate(self.keying.grids) if root_of(grid.anchor.module) == root]

    def tokens_at(self, table: Table) -> Numbers:
        """Of each row of a table the index of its token."""
        number = {id(grid): i for i, grid in enumerate(self.keying.grids)}
        found = np.full(len(table), NONE)
        for source, (_, rows) in enumerate(table.sources):
            own = table.source == source
            found[own] = self.tokens.index[number[id(rows.grid)]][rows.rows[table.at[own]]]
        return found


def gap_of_logits(a: Policy, b: Policy, names: Iterable[tuple[str, str]] = ()) -> Gap | str:
    """The gap, from logits; or one sentence why there is none to be had from them.

    ``names``: (A's path, B's) of modules that belong together: of several models, a reference beside the policy say,
    the logits of the first two are taken that do.
    """
    without = next((side for side in (a, b) if not side.logits), None)
    if without is not None:
        return _why_none(without)
    of_a, of_b = _of_one_model(a.logits, b.logits, names)
    table_a, whole_b = (
        table_of([(one.call, one.rows) for one in logits], side.ranks) for side, logits in ((a, of_a), (b, of_b))
    )
    given = a.tokens.given(a.passes_of(of_a[0].call.module))
    wanted = _taken(b.tokens, b.tokens_at(whole_b), given)
    table_b = part_of(whole_b, wanted)
    pairs = pair(table_a, table_b)
    rows_a, rows_b = pairs.a, pairs.b
    following = b.tokens.following[b.tokens_at(table_b)[rows_b]]
    ids = b.tokens.ids[following]
    found_a, found_b = (
        _log_probabilities(side.stretch, table, rows, ids)
        for side, table, rows in ((a, table_a, rows_a), (b, table_b, rows_b))
    )
    for side, found in ((a, found_a), (b, found_b)):
        if len(ids) and not found.read.any():
            return _why_no_values(side)
    both = np.flatnonzero(found_a.read & found_b.read)
    return measure(
        SOURCE.format(a=_told(of_a[0]), b=_told(of_b[0])),
        found_a.numbers[both],
        found_b.numbers[both],
        b.tokens.words(following[both]),
        ids[both].tolist(),
        only_a=int((~np.isin(table_a.keys, whole_b.keys)).sum()) + int((~found_b.read).sum()),
        only_b=len(wanted) - len(rows_b) + int((~found_a.read).sum()),
    )


def _of_one_model(
    a: Sequence[Logits], b: Sequence[Logits], names: Iterable[tuple[str, str]]
) -> tuple[Sequence[Logits], Sequence[Logits]]:
    """The logits of one model on each side; all of them where no two are known to belong together."""
    for own, other in dict.fromkeys((root_of(path_a), root_of(path_b)) for path_a, path_b in names):
        of_a = [one for one in a if root_of(one.call.module) == own]
        of_b = [one for one in b if root_of(one.call.module) == other]
        if of_a and of_b:
            return of_a, of_b
    return a, b


def _taken(tokens: Tokens, at: Numbers, given: frozenset[int]) -> Numbers:
    """At which of the tokens ``at`` another was taken: one follows in the sequence, none of those ``given``."""
    following = np.where(at == NONE, NONE, tokens.following[at])
    taken = [i for i, j in enumerate(following.tolist()) if j != NONE and int(tokens.keys[j]) not in given]
    return np.array(taken, np.int64)


def part_of(table: Table, rows: Numbers) -> Table:
    """Some rows of a table."""
    columns = ("keys", "steps", "ranks", "sequences", "places", "digests", "source", "at")
    return replace(table, **{name: getattr(table, name)[rows] for name in columns})


@dataclass(frozen=True, eq=False)
class _Found:
    numbers: Floats
    read: NDArray[np.bool_]
    """False: the value was not kept, or cannot be read."""


def _log_probabilities(stretch: Stretch, table: Table, rows: Numbers, ids: Numbers) -> _Found:
    """Of token ``ids[i]`` by the logits of row ``rows[i]`` of the table; one tensor is read at a time."""
    found, read = np.full(len(rows), np.nan), np.zeros(len(rows), bool)
    for source in np.unique(table.source[rows]).tolist():
        _, keyed = table.sources[source]
        whole = stretch.numbers(keyed.tensor)
        if whole is None:
            continue
        own = np.flatnonzero(table.source[rows] == source)
        parts = keyed.parts[table.at[rows[own]], 0]
        found[own] = log_probabilities(flat_rows(keyed.tensor, whole)[parts], ids[own])
        read[own] = True
    return _Found(found, read)


# --- finding logits ---------------------------------------------------------------------------------------------------


def _logits(side: Policy) -> Iterator[Logits]:
    for grid in side.keying.grids:
        call = next(reversed([grid.anchor, *side.stretch.around(grid.anchor)]))
        found = _named(side.keying, call) or _unnamed(side.keying, call, grid) or _of_head(side.keying, call, grid)
        if found is not None:
            yield found


def _named(keying: Keying, call: ModuleCall) -> Logits | None:
    """What a call gave under the name of logits."""
    return next(
        (Logits(call, rows.of_known()) for rows in _outputs(keying, call) if _last(rows.tensor.name) == "logits"), None
    )


def _unnamed(keying: Keying, call: ModuleCall, grid: Grid) -> Logits | None:
    """The one tensor that a model gave, where its rows can be nothing but logits: as long as the ids need, and no
    hidden states, which are as long as what the embedding gave."""
    outputs = [rows for rows in _outputs(keying, call) if rows.tensor.name in ("", "0")]
    hidden = {tensor.shape[-1] for tensor in grid.anchor.tensors if tensor.part is Part.OUTPUT and tensor.shape}
    if len(outputs) != 1 or grid.ids is None or not hidden or call is grid.anchor:
        return None
    size = outputs[0].tensor.shape[-1]
    return Logits(call, outputs[0].of_known()) if size > grid.ids.max(initial=0) and size not in hidden else None


def _of_head(keying: Keying, outermost: ModuleCall, grid: Grid) -> Logits | None:
    """What the layer gave that makes logits, within the model or beside it."""
    for call in keying.stretch.calls:
        if _last(call.module) in HEADS and keying.grid(call) is grid and call is not outermost:
            found = next(iter(_outputs(keying, call)), None)
            if found is not None:
                return Logits(call, found.of_known())
    return None


def _outputs(keying: Keying, call: ModuleCall) -> Iterator[KeyedRows]:
    """Floating-point outputs whose rows are known, one for each token."""
    for rows in keying.of(call):
        if not isinstance(rows, KeyedRows) or rows.parts.shape[1] != 1:
            continue
        tensor = rows.tensor
        if tensor.part is Part.OUTPUT and tensor.dtype in FLOATS and len(tensor.shape) > 1:
            yield rows


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _told(logits: Logits) -> str:
    """``the model's logits``, told by module and name."""
    name = logits.rows.tensor.name
    return f"{logits.call.module}{f' ({name})' if name else ''}"


def _why_none(side: Policy) -> str:
    name = side.stretch.side.upper()
    if not len(side.tokens) or not (side.tokens.ids != NONE).any():
        return f"no token ids of {name} are known; name its log-probabilities with --logprobs"
    return f"no logits were found among the outputs of {name}'s models; name its log-probabilities with --logprobs"


def _why_no_values(side: Policy) -> str:
    name, module = side.stretch.side.upper(), escape(side.logits[0].call.module)
    return f"the values of {name}'s logits were not recorded: record it with --values 'module={module}' as well"
