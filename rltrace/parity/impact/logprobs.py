"""The log-probabilities of taken tokens on both sides, from the logits that the models gave.

Owns finding the logits, which token was taken after each, and which of A is which of B. How far they lie apart is for
``rltrace.parity.impact.logprobs``; log-probabilities that the programs computed themselves are found in
``rltrace.parity.impact.chosen_logprobs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from rltrace.parity.call_range import CallRange, flat_rows
from rltrace.parity.impact.token_order import NONE, Tokens, tokens_of
from rltrace.parity.matching.row_keying import KeyedRows, Keying
from rltrace.parity.matching.row_pairs import KeyedTable, pair, table_of
from rltrace.parity.matching.token_grids import TokenGrid
from rltrace.parity.module_names import root_of
from rltrace.selectors import escape
from rltrace.token_keys import Numbers
from rltrace.trace.format.activation_rows import ModuleCall, Part

# --- gap --------------------------------------------------------------------------------------------------------------
#
# How far two programs' log-probabilities of the same taken tokens or actions lie apart, and which of them carry it.
#
# Owns the numbers; whose log-probabilities they are, and which belong together, is found elsewhere
# (``rltrace.parity.impact.logprobs``). Pure functions of NumPy arrays.
#
# A is the policy that took the tokens (the generator), B the one that is trained on them. KL(A || B) is estimated from
# the tokens that A took by the estimators of Schulman, "Approximating KL Divergence" (2020), with r = p_B / p_A: k1 =
# -log r, which is unbiased and may come out negative, and k3 = (r - 1) - log r, which is unbiased too and never
# negative.


Floats = NDArray[np.float64]
GapNumbers = NDArray[np.int64]

LISTED = 10
"""Tokens that are listed one by one."""
PORTIONS = (0.01, 0.1)
"""Of the tokens that lie furthest apart: how much of the whole distance they carry is told."""
BLOCK = 1 << 20
"""Logits that are widened to float64 at a time."""
SMALL = 1e-3
"""Below it, k3 of one token is summed as a series: ``expm1(d) - d`` would leave few digits."""


@dataclass(frozen=True)
class TokenPair:
    """One taken token or action on both sides."""

    place: str
    """Where it stands in B, in words: ``token 12 of sequence 3``, ``row 5 of call 8``."""
    token: int | None
    """Its id; None: not known, or an action that is no token."""
    a: float
    b: float
    """Log-probabilities."""


@dataclass(frozen=True)
class Portion:
    """The taken tokens that lie furthest apart."""

    of: float
    """Share of the tokens: 0.01 are those 1 % of them that lie furthest apart (rounded up)."""
    tokens: int
    carries: float
    """Share of the sum of all absolute differences that is theirs."""


@dataclass(frozen=True)
class Gap:
    """The distance between the log-probabilities of two programs."""

    source: str
    """One sentence: what the log-probabilities are and where they come from."""
    n: int
    """Taken tokens that both sides have a log-probability of."""
    equal: int
    """Those whose log-probabilities are the same number."""
    unmeasured: int
    """Those of which one is NaN or infinite, and that are not equal; in no mean and no largest below."""
    mean: float | None
    """Of the absolute differences; None: nothing could be measured."""
    largest: float | None
    k1: float | None
    k3: float | None
    """Estimates of KL(A || B): A took the tokens."""
    portions: tuple[Portion, ...] = ()
    """Empty where nothing differs."""
    furthest: tuple[TokenPair, ...] = ()
    """Those that lie furthest apart, what cannot be measured first; none that are equal."""
    only_a: int = 0
    only_b: int = 0
    """Log-probabilities that the other side has no counterpart of."""

    @property
    def share_equal(self) -> float | None:
        return self.equal / self.n if self.n else None


def measure(
    source: str,
    a: Floats,
    b: Floats,
    places: Sequence[str],
    tokens: Sequence[int | None],
    *,
    only_a: int = 0,
    only_b: int = 0,
) -> Gap:
    """The gap between log-probabilities that stand at the same index in ``a`` and ``b``."""
    same = a == b
    finite = np.isfinite(a) & np.isfinite(b)
    unmeasured = ~finite & ~same
    apart = np.where(finite, b, 0.0) - np.where(finite, a, 0.0)
    order = np.lexsort((np.arange(len(a)), -np.abs(apart), ~unmeasured, same))[: int((~same).sum())]
    gap = Gap(
        source,
        len(a),
        int(same.sum()),
        int(unmeasured.sum()),
        None,
        None,
        None,
        None,
        furthest=tuple(TokenPair(places[i], tokens[i], float(a[i]), float(b[i])) for i in order[:LISTED].tolist()),
        only_a=only_a,
        only_b=only_b,
    )
    known = apart[finite]
    if not len(known):
        return gap
    distances = np.abs(known)
    return replace(
        gap,
        mean=float(distances.mean()),
        largest=float(distances.max()),
        k1=0.0 - float(known.mean()),
        k3=float(k3_terms(known).mean()),
        portions=portions(distances),
    )


def k3_terms(apart: Floats) -> Floats:
    """``(r - 1) - log r`` of each ``log r``; infinite where a double cannot hold it."""
    with np.errstate(over="ignore"):
        terms: Floats = np.where(
            np.abs(apart) < SMALL,
            apart * apart * (0.5 + apart * (1 / 6 + apart * (1 / 24 + apart / 120))),
            np.expm1(apart) - apart,
        )
    return terms


def portions(distances: Floats) -> tuple[Portion, ...]:
    """What the tokens that lie furthest apart carry; nothing where none lies apart."""
    whole = float(distances.sum())
    if not whole > 0:
        return ()
    descending = np.sort(distances)[::-1]
    counts = [ceil(len(distances) * of) for of in PORTIONS]
    return tuple(
        Portion(of, count, float(descending[:count].sum()) / whole) for of, count in zip(PORTIONS, counts, strict=True)
    )


def log_probabilities(logits: NDArray[np.floating], tokens: GapNumbers) -> Floats:
    """Of one token in each row of ``logits`` [rows, vocabulary], by a log-softmax in float64.

    NaN where a token is not in the vocabulary.
    """
    rows, vocabulary = logits.shape
    found = np.full(rows, np.nan)
    step = max(1, BLOCK // max(1, vocabulary))
    for start in range(0, rows if vocabulary else 0, step):
        block = logits[start : start + step].astype(np.float64)
        own = tokens[start : start + step]
        known = (own >= 0) & (own < vocabulary)
        taken = block[np.arange(len(block)), np.where(known, own, 0)]
        highest = block.max(axis=1)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            whole = highest + np.log(np.exp(block - highest[:, None]).sum(axis=1))
            found[start : start + step] = np.where(known, taken - whole, np.nan)
    return found


# --- logprobs ---------------------------------------------------------------------------------------------------------


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
    def call_range(self) -> CallRange:
        return self.keying.call_range

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

    def tokens_at(self, table: KeyedTable) -> Numbers:
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
        _log_probabilities(side.call_range, table, rows, ids)
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


def part_of(table: KeyedTable, rows: Numbers) -> KeyedTable:
    """Some rows of a table."""
    columns = ("keys", "steps", "ranks", "sequences", "places", "digests", "source", "at")
    return replace(table, **{name: getattr(table, name)[rows] for name in columns})


@dataclass(frozen=True, eq=False)
class _Found:
    numbers: Floats
    read: NDArray[np.bool_]
    """False: the value was not kept, or cannot be read."""


def _log_probabilities(call_range: CallRange, table: KeyedTable, rows: Numbers, ids: Numbers) -> _Found:
    """Of token ``ids[i]`` by the logits of row ``rows[i]`` of the table; one tensor is read at a time."""
    found, read = np.full(len(rows), np.nan), np.zeros(len(rows), bool)
    for source in np.unique(table.source[rows]).tolist():
        _, keyed = table.sources[source]
        whole = call_range.numbers(keyed.tensor)
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
        call = next(reversed([grid.anchor, *side.call_range.around(grid.anchor)]))
        found = _named(side.keying, call) or _unnamed(side.keying, call, grid) or _of_head(side.keying, call, grid)
        if found is not None:
            yield found


def _named(keying: Keying, call: ModuleCall) -> Logits | None:
    """What a call gave under the name of logits."""
    return next(
        (Logits(call, rows.of_known()) for rows in _outputs(keying, call) if _last(rows.tensor.name) == "logits"), None
    )


def _unnamed(keying: Keying, call: ModuleCall, grid: TokenGrid) -> Logits | None:
    """The one tensor that a model gave, where its rows can be nothing but logits: as long as the ids need, and no
    hidden states, which are as long as what the embedding gave."""
    outputs = [rows for rows in _outputs(keying, call) if rows.tensor.name in ("", "0")]
    hidden = {tensor.shape[-1] for tensor in grid.anchor.tensors if tensor.part is Part.OUTPUT and tensor.shape}
    if len(outputs) != 1 or grid.ids is None or not hidden or call is grid.anchor:
        return None
    size = outputs[0].tensor.shape[-1]
    return Logits(call, outputs[0].of_known()) if size > grid.ids.max(initial=0) and size not in hidden else None


def _of_head(keying: Keying, outermost: ModuleCall, grid: TokenGrid) -> Logits | None:
    """What the layer gave that makes logits, within the model or beside it."""
    for call in keying.call_range.calls:
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
    name = side.call_range.side.upper()
    if not len(side.tokens) or not (side.tokens.ids != NONE).any():
        return f"no token ids of {name} are known; name its log-probabilities with --logprobs"
    return f"no logits were found among the outputs of {name}'s models; name its log-probabilities with --logprobs"


def _why_no_values(side: Policy) -> str:
    name, module = side.call_range.side.upper(), escape(side.logits[0].call.module)
    return f"the values of {name}'s logits were not recorded: record it with --values 'module={module}' as well"
