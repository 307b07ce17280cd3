"""The gap between the log-probabilities of sampled tokens on both sides, and its computation from logits.

Owns finding the logits, the token sampled after each, and the partner in B of each of A. ``chosen_logprobs`` finds
log-probabilities that the programs computed themselves.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.parity.call_range import FLOATS, CallRange, flat_rows, inputs_of, outputs_of
from rltrace.extensions.parity.impact.token_order import Tokens, tokens_of
from rltrace.extensions.parity.matching.row_keying import KeyedRows, Keying
from rltrace.extensions.parity.matching.row_pairs import KeyedTable, pair, table_of
from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.module_names import HEADS, root_of
from rltrace.extensions.parity.token_keys import NONE, Numbers
from rltrace.selectors import escape
from rltrace.trace.format.activation_rows import ModuleCall, Part

# --- gap --------------------------------------------------------------------------------------------------------------
#
# A is the policy that sampled the tokens (the generator), B the one that is trained on them. KL(A || B) is estimated
# as in Schulman, "Approximating KL Divergence" (2020), with r = p_B / p_A: k1 = -log r and k3 = (r - 1) - log r are
# both unbiased, and k3 is never negative.


Floats = NDArray[np.float64]

LISTED = 10
"""Tokens that are listed one by one."""
PORTIONS = (0.01, 0.1)
"""Shares of the tokens, those with the largest differences first, whose share of the whole difference is reported."""
BLOCK = 1 << 20
"""Logits that are converted to float64 at a time."""
SMALL = 1e-3
"""Below it, k3 of one token is a series: ``expm1(d) - d`` loses digits."""


@dataclass(frozen=True)
class TokenPair:
    """One sampled token or action on both sides."""

    place: str
    """In B, in words: ``token 12 of sequence 3``, ``row 5 of call 8``."""
    token: int | None
    """Its id; None: unknown, or an action."""
    a: float
    b: float
    """Log-probabilities."""


@dataclass(frozen=True)
class Portion:
    """The sampled tokens with the largest differences."""

    of: float
    """Share of the tokens, rounded up: 0.01 for the 1 % with the largest differences."""
    tokens: int
    carries: float
    """Their share of the sum of all absolute differences."""


@dataclass(frozen=True)
class NoGap:
    """Log-probabilities that could not be compared."""

    why: str
    """One sentence."""


@dataclass(frozen=True)
class Gap:
    """The distance between the log-probabilities of two programs."""

    COMPUTED: ClassVar = ("share_equal",)

    source: str
    """One sentence: what the log-probabilities are and where they come from."""
    n: int
    """Sampled tokens with a log-probability on both sides."""
    equal: int
    """Those whose log-probabilities are equal."""
    unmeasured: int
    """Unequal ones of which a side is NaN or infinite; the numbers below exclude them."""
    mean: float | None
    """Of the absolute differences; None: there are none."""
    largest: float | None
    k1: float | None
    k3: float | None
    """Estimates of KL(A || B): A sampled the tokens."""
    portions: tuple[Portion, ...] = ()
    """Empty where nothing differs."""
    furthest: tuple[TokenPair, ...] = ()
    """Those with the largest differences, unmeasured ones first; none that are equal."""
    only_a: int = 0
    only_b: int = 0
    """Log-probabilities without a partner."""

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
    """The gap between log-probabilities at the same index of ``a`` and ``b``."""
    same = a == b
    finite = np.isfinite(a) & np.isfinite(b)
    unmeasured = ~finite & ~same
    difference = np.where(finite, b, 0.0) - np.where(finite, a, 0.0)
    order = np.lexsort((np.arange(len(a)), -np.abs(difference), ~unmeasured, same))[: int((~same).sum())]
    known, distances = difference[finite], np.abs(difference[finite])
    return Gap(
        source,
        len(a),
        int(same.sum()),
        int(unmeasured.sum()),
        mean=float(distances.mean()) if len(known) else None,
        largest=float(distances.max()) if len(known) else None,
        k1=0.0 - float(known.mean()) if len(known) else None,
        k3=float(k3_terms(known).mean()) if len(known) else None,
        portions=portions(distances),
        furthest=tuple(TokenPair(places[i], tokens[i], float(a[i]), float(b[i])) for i in order[:LISTED].tolist()),
        only_a=only_a,
        only_b=only_b,
    )


def k3_terms(log_r: Floats) -> Floats:
    """``(r - 1) - log r``; infinite where it exceeds the range of a double."""
    with np.errstate(over="ignore"):
        terms: Floats = np.where(
            np.abs(log_r) < SMALL,
            log_r * log_r * (0.5 + log_r * (1 / 6 + log_r * (1 / 24 + log_r / 120))),
            np.expm1(log_r) - log_r,
        )
    return terms


def portions(distances: Floats) -> tuple[Portion, ...]:
    """The share of the largest ``PORTIONS`` in the sum of these distances; empty where it is 0."""
    whole = float(distances.sum())
    if not whole > 0:
        return ()
    descending = np.sort(distances)[::-1]
    counts = [ceil(len(distances) * of) for of in PORTIONS]
    return tuple(
        Portion(of, count, float(descending[:count].sum()) / whole) for of, count in zip(PORTIONS, counts, strict=True)
    )


def log_probabilities(logits: NDArray[np.floating], tokens: Numbers) -> Floats:
    """[rows]: of one token in each row of ``logits`` [rows, vocabulary], by a log-softmax in float64.

    NaN where a token is not in the vocabulary.
    """
    rows, vocabulary = logits.shape
    found = np.full(rows, np.nan)
    step = max(1, BLOCK // max(1, vocabulary))
    for start in range(0, rows if vocabulary else 0, step):
        block = logits[start : start + step].astype(np.float64)
        own = tokens[start : start + step]
        known = (own >= 0) & (own < vocabulary)
        sampled = block[np.arange(len(block)), np.where(known, own, 0)]
        highest = block.max(axis=1)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            whole = highest + np.log(np.exp(block - highest[:, None]).sum(axis=1))
            found[start : start + step] = np.where(known, sampled - whole, np.nan)
    return found


# --- logprobs ---------------------------------------------------------------------------------------------------------


SAMPLED = "sampled_token_ids"
"""Name of what a sampler returns."""
TEMPERATURE = "temperature"
"""Name of what a sampler is given."""
SOURCE = (
    "log-softmax in float64 of the logits of {a} (A) and {b} (B), at the next token of B's sequence; without what"
    " a sampler does to logits (temperature, top-k); of logits of 16 bits, what float32 does not distinguish is equal"
)


@dataclass(frozen=True, eq=False)
class Logits:
    """The logits of one forward pass."""

    call: ModuleCall
    rows: KeyedRows
    """Those that have a key."""


@dataclass(frozen=True, eq=False)
class Policy:
    """One side: its keyed calls, and their tokens."""

    keying: Keying
    ranks: Numbers | None = None
    """For each of its sequences the number of its partner in B; None: its own number."""

    @property
    def call_range(self) -> CallRange:
        return self.keying.call_range

    @cached_property
    def tokens(self) -> Tokens:
        return tokens_of(self.keying.grids)

    @cached_property
    def logits(self) -> tuple[Logits, ...]:
        """The logits of the forward passes, in order."""
        return tuple(_logits(self))

    @cached_property
    def last_sampled(self) -> Mapping[int, int]:
        """By key of a token that no token of this side follows, the id that its sampler returned after it; without keys
        after which it returned several."""
        found: dict[int, set[int]] = {}
        given = {one.rows.tensor.whole: one.rows for one in self.logits}
        for call in self.call_range.calls:
            rows = next((given[tensor.whole] for tensor in inputs_of(call) if tensor.whole in given), None)
            ids = next((self.call_range.numbers(one) for one in outputs_of(call) if _last(one.name) == SAMPLED), None)
            if rows is None or ids is None or ids.size != rows.tensor.digests.size:
                continue
            for key, token in zip(rows.keys.tolist(), ids.ravel()[rows.tensor_rows[:, 0]].tolist(), strict=True):
                found.setdefault(key, set()).add(token)
        followed = set(self.tokens.keys[self.tokens.following != NONE].tolist())
        return {key: min(ids) for key, ids in found.items() if len(ids) == 1 and key not in followed}

    def passes_of(self, module: str) -> list[int]:
        """Numbers of the forward passes of the model of a module."""
        root = root_of(module)
        return [number for number, grid in enumerate(self.keying.grids) if root_of(grid.anchor.module) == root]

    def tokens_at(self, table: KeyedTable) -> Numbers:
        """For each row of a table the index of its token."""
        number = {id(grid): i for i, grid in enumerate(self.keying.grids)}
        found = np.full(len(table), NONE)
        for source, (_, rows) in enumerate(table.sources):
            own = table.source == source
            found[own] = self.tokens.index[number[id(rows.grid)]][rows.tokens[table.at[own]]]
        return found


def gap_of_logits(a: Policy, b: Policy, names: Iterable[tuple[str, str]] = ()) -> Gap | str:
    """The gap, from logits; or one sentence why there is none.

    ``names``: (A's path, B's path) of partners. Where there are several models, such as a policy and its reference, the
    first pair of partners counts.
    """
    without = next((side for side in (a, b) if not side.logits), None)
    if without is not None:
        return _no_logits_reason(without)
    of_a, of_b = _partner_logits(a.logits, b.logits, names)
    table_a, whole_b = (
        table_of([(one.call, one.rows) for one in logits], side.ranks) for side, logits in ((a, of_a), (b, of_b))
    )
    prompts = a.tokens.prompts(a.passes_of(of_a[0].call.module))
    padding = _padding(b.tokens, a.tokens)
    sampled = _sampled(b.tokens, b.tokens_at(whole_b), prompts, a.last_sampled, padding)
    table_b = rows_of(whole_b, sampled)
    pairs = pair(table_a, table_b)
    rows_a, rows_b = pairs.a, pairs.b
    before = b.tokens_at(table_b)[rows_b]
    following = b.tokens.following[before]
    last = [a.last_sampled.get(key, NONE) for key in b.tokens.keys[before].tolist()]
    ids = np.where(following == NONE, last, b.tokens.ids[following])
    found_a, found_b = (
        _log_probabilities(side.call_range, table, rows, ids)
        for side, table, rows in ((a, table_a, rows_a), (b, table_b, rows_b))
    )
    for side, found in ((a, found_a), (b, found_b)):
        if len(ids) and not found.read.any():
            return _no_values_reason(side)
    both = np.flatnonzero(found_a.read & found_b.read)
    numbers_a, numbers_b = found_a.numbers[both], found_b.numbers[both]
    if {of_a[0].rows.tensor.dtype, of_b[0].rows.tensor.dtype} <= {"bfloat16", "float16"}:
        numbers_b = np.where(numbers_a.astype(np.float32) == numbers_b.astype(np.float32), numbers_a, numbers_b)
    return measure(
        SOURCE.format(a=_described(of_a[0]), b=_described(of_b[0])),
        numbers_a,
        numbers_b,
        [
            word if known else f"after {word}"
            for word, known in zip(
                b.tokens.words(np.where(following == NONE, before, following)[both]),
                following[both] != NONE,
                strict=True,
            )
        ],
        ids[both].tolist(),
        only_a=int((~np.isin(table_a.keys, whole_b.keys)).sum()) + int((~found_b.read).sum()),
        only_b=len(sampled) - len(rows_b) + int((~found_a.read).sum()),
    )


def temperature_of(side: Policy) -> str:
    """The temperatures that a side's samplers were given, in words; empty: they are not known."""
    samplers = [call for call in side.call_range.calls if any(_last(one.name) == SAMPLED for one in outputs_of(call))]
    given = [one for call in samplers for one in inputs_of(call) if _last(one.name) == TEMPERATURE]
    values = [numbers.ravel() for one in given if (numbers := side.call_range.numbers(one)) is not None]
    if not values:
        return ""
    each = np.unique(np.concatenate(values))
    return f"{each[0]:g}" if len(each) == 1 else f"{each[0]:g} to {each[-1]:g}"


def _partner_logits(
    a: Sequence[Logits], b: Sequence[Logits], names: Iterable[tuple[str, str]]
) -> tuple[Sequence[Logits], Sequence[Logits]]:
    """The logits of one model on each side; of all models where none are partners."""
    for own, other in dict.fromkeys((root_of(path_a), root_of(path_b)) for path_a, path_b in names):
        of_a = [one for one in a if root_of(one.call.module) == own]
        of_b = [one for one in b if root_of(one.call.module) == other]
        if of_a and of_b:
            return of_a, of_b
    return a, b


def _sampled(
    tokens: Tokens, at: Numbers, prompts: frozenset[int], last: Collection[int], padding: NDArray[np.bool_]
) -> Numbers:
    """Indices into ``at`` of tokens that a sampled one follows: one whose key is not in ``prompts``, or one that no
    model was given, after a token whose key is in ``last``; none of ``padding``."""
    following = np.where(at == NONE, NONE, tokens.following[at])
    found = [
        i
        for i, (own, j) in enumerate(zip(at.tolist(), following.tolist(), strict=True))
        if own == NONE or not padding[own]
        if (int(tokens.keys[j]) not in prompts if j != NONE else own != NONE and int(tokens.keys[own]) in last)
    ]
    return np.array(found, np.int64)


def _padding(tokens: Tokens, other: Tokens) -> NDArray[np.bool_]:
    """Which tokens are of a sequence that is one token again and again, and of which the other side has none."""
    own = tokens.sequences >= 0
    sequences, ids = tokens.sequences[own], tokens.ids[own]
    size = int(sequences.max(initial=-1)) + 1
    lowest, highest, shared = np.full(size, np.iinfo(np.int64).max), np.full(size, NONE), np.zeros(size, bool)
    np.minimum.at(lowest, sequences, ids)
    np.maximum.at(highest, sequences, ids)
    shared[sequences[np.isin(tokens.keys[own], other.keys)]] = True
    return own & ((lowest == highest) & ~shared)[tokens.sequences] if size else own


def rows_of(table: KeyedTable, rows: Numbers) -> KeyedTable:
    """Some rows of a table."""
    columns = ("keys", "steps", "ranks", "sequences", "places", "digests", "source", "at")
    return replace(table, **{name: getattr(table, name)[rows] for name in columns})


@dataclass(frozen=True, eq=False)
class _Found:
    numbers: Floats
    read: NDArray[np.bool_]
    """False: the value was not recorded, or cannot be read."""


def _log_probabilities(call_range: CallRange, table: KeyedTable, rows: Numbers, ids: Numbers) -> _Found:
    """Of token ``ids[i]`` by the logits of row ``rows[i]`` of the table, tensor by tensor."""
    found, read = np.full(len(rows), np.nan), np.zeros(len(rows), bool)
    for source in np.unique(table.source[rows]).tolist():
        _, keyed = table.sources[source]
        whole = call_range.numbers(keyed.tensor)
        if whole is None:
            continue
        own = np.flatnonzero(table.source[rows] == source)
        at = keyed.tensor_rows[table.at[rows[own]], 0]
        found[own] = log_probabilities(flat_rows(keyed.tensor, whole)[at], ids[own])
        read[own] = True
    return _Found(found, read)


# --- finding logits ---------------------------------------------------------------------------------------------------


def _logits(side: Policy) -> Iterator[Logits]:
    for grid in side.keying.grids:
        call = next(reversed([grid.anchor, *side.call_range.around(grid.anchor)]))
        found = _named_logits(side.keying, call) or _only_output(side.keying, call, grid)
        yield from _head_logits(side.keying, call, grid) if found is None else [found]


def _named_logits(keying: Keying, call: ModuleCall) -> Logits | None:
    """The output of a call that is named logits."""
    return next(
        (Logits(call, rows.drop_unkeyed()) for rows in _outputs(keying, call) if _last(rows.tensor.name) == "logits"),
        None,
    )


def _only_output(keying: Keying, call: ModuleCall, grid: TokenGrid) -> Logits | None:
    """The only output of a model, where its rows must be logits: longer than the largest id, and not as long as hidden
    states, which are as long as the output of the embedding."""
    outputs = [rows for rows in _outputs(keying, call) if rows.tensor.name in ("", "0")]
    hidden = {tensor.shape[-1] for tensor in grid.anchor.tensors if tensor.part is Part.OUTPUT and tensor.shape}
    if len(outputs) != 1 or grid.ids is None or not hidden or call is grid.anchor:
        return None
    size = outputs[0].tensor.shape[-1]
    return Logits(call, outputs[0].drop_unkeyed()) if size > grid.ids.max(initial=0) and size not in hidden else None


def _head_logits(keying: Keying, outermost: ModuleCall, grid: TokenGrid) -> Iterator[Logits]:
    """The outputs of the first layer of ``HEADS``, within the model or beside it: several where a loss is computed in
    chunks."""
    module = ""
    for call in keying.call_range.calls:
        if _last(call.module) in HEADS and keying.grid(call) is grid and call is not outermost:
            found = next(iter(_outputs(keying, call)), None)
            if found is not None and module in ("", call.module):
                module = call.module
                yield Logits(call, found.drop_unkeyed())


def _outputs(keying: Keying, call: ModuleCall) -> Iterator[KeyedRows]:
    """Floating-point outputs with one identified row for each token."""
    for rows in keying.of(call):
        if not isinstance(rows, KeyedRows) or rows.tensor_rows.shape[1] != 1:
            continue
        tensor = rows.tensor
        if tensor.part is Part.OUTPUT and tensor.dtype in FLOATS and len(tensor.shape) > 1:
            yield rows


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _described(logits: Logits) -> str:
    """Module and name of the logits."""
    name = logits.rows.tensor.name
    return f"{logits.call.module}{f' ({name})' if name else ''}"


def _no_logits_reason(side: Policy) -> str:
    name = side.call_range.side.upper()
    if not len(side.tokens) or not (side.tokens.ids != NONE).any():
        return f"no token ids of {name} are known; name its log-probabilities with --logprobs"
    return f"no logits were found among the outputs of {name}'s models; name its log-probabilities with --logprobs"


def _no_values_reason(side: Policy) -> str:
    name, module = side.call_range.side.upper(), escape(side.logits[0].call.module)
    return f"the values of {name}'s logits were not recorded: record it with --values 'module={module}' as well"
