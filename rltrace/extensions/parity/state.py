"""Parameters, gradients and optimizer state of two programs, compared as whole tensors, however they were sharded.

Owns the assembly of whole tensors from the shards of all ranks, their order (steps; in a step parameters before,
gradients, optimizer state, parameters after; in each of these modules' order), and how much of a distance can be
explained by sums taken in another order.

*Bound.* A sum of n numbers, in any order and in a dtype of unit roundoff u, is within gamma(n) Σ|x| of the exact one:
gamma(n) = nu / (1 - nu) for certain, and gamma(n) = exp(λ √n u + nu² / (1 - u)) - 1 with a probability of at least
1 - 2n exp(-λ² (1 - u)² / 2) where rounding errors are random (Higham and Mary, "A New Approach to Probabilistic
Rounding Error Analysis", SIAM J. Sci. Comput. 41(5), 2019). Here the smaller one is used, twice (for two orders), λ
such that all numbers of a tensor are within it with a probability of 0.999. Σ|x| is not recorded: the tensor's largest
number takes its place, n is what the user says.

*Reference.* With a third recording, of A's program in a higher precision, the distance of A from that is what rounding
does. B is then explained where it differs from A by no more than ``FACTOR`` times as much.

An update is computed element by element, without sums: what it is allowed follows from the gradient's bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import expm1, inf, log, log1p, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import FLOATS, Distances, measure
from rltrace.errors import HoleError, UsageError
from rltrace.extensions.parity.distances import largest_magnitude
from rltrace.extensions.parity.module_names import match_names
from rltrace.trace.format import dtypes
from rltrace.trace.format.shards import Shard, ShardKind
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.values import Value

SUMMANDS = 65_536
"""Numbers that are added up to one number of a gradient, unless the user says otherwise."""

FACTOR = 10.0
"""Distance of B from A that is explained, in distances of A from the reference."""

FAILURE = 1e-3
"""Probability of a tensor with a number outside of the bound."""

UPDATE_ROUNDINGS = 16
"""Roundings in an optimizer's update of one number, at most."""

Numbers = NDArray[np.float64]


# --- results ----------------------------------------------------------------------------------------------------------


class StateVerdict(StrEnum):
    BITWISE = "bitwise"
    """All compared tensors are equal."""
    EXPLAINED = "explained"
    """Some differ, each by no more than another order of sums can explain."""
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    """Nothing differs by more, and something could not be compared."""


@dataclass(frozen=True)
class StateSide:
    """One program."""

    path: str
    """Of the trace, as on the command line."""
    ranks: int
    meshes: tuple[str, ...]
    """Meshes and placements of its tensors, as in ``mesh [2], S(0)``; empty: no tensor is a DTensor."""


@dataclass(frozen=True)
class StateTensor:
    """One tensor that differs."""

    step: int
    kind: ShardKind
    name: Pair[str]
    """Path of the parameter."""
    key: str
    """Which tensor of the optimizer state; else empty."""
    shape: tuple[int, ...]
    dtype: Pair[str]
    differing: int
    """Elements that differ."""
    absolute: float | None
    """The largest difference; None: none is finite."""
    relative: float | None
    """The largest |A - B| / max(|A|, |B|)."""
    ulp: int | None
    """The largest distance in ULP, where both have one dtype."""
    share: float | None
    """The largest difference, divided by the tensor's largest number."""
    excess: float | None
    """The largest difference divided by what is explained of it; above 1 not all is. None: nothing can be explained."""
    summands: int | None
    """How many numbers a sum must have for its order to explain the difference; None: no sum explains it."""
    index: tuple[int, ...]
    """Of the element that exceeds what is explained by most."""
    values: Pair[str]
    """Its values."""

    @property
    def explained(self) -> bool:
        """Whether another order of sums can explain the difference."""
        return self.excess is not None and self.excess <= 1

    COMPUTED: ClassVar = ("explained",)


@dataclass(frozen=True)
class Replicas:
    """A tensor of which ranks hold copies that should be equal and are not."""

    side: str
    """``a`` or ``b``."""
    step: int
    kind: ShardKind
    name: str
    key: str
    ranks: tuple[int, ...]
    """Two ranks whose copies differ."""


@dataclass(frozen=True)
class UncomparedState:
    """A tensor that could not be compared."""

    step: int
    kind: ShardKind
    name: str
    key: str
    why: str


@dataclass(frozen=True)
class StateComparison:
    """The result: the contract ``rltrace.compare-state/1``."""

    verdict: StateVerdict
    why: str
    """One sentence."""
    a: StateSide
    b: StateSide
    reference: str | None
    """Path of the third trace."""
    summands: int
    """Numbers in a sum, as assumed; not used where there is a reference."""
    precision: str
    """dtype of the sums, as assumed; empty: that of each tensor."""
    steps: tuple[int, ...]
    """Steps that were compared."""
    compared: int
    """Tensors that were compared, those of each step counted."""
    equal: int
    """Of these, the ones that are bitwise equal."""
    first: StateTensor | None
    """The first one that no order of sums explains; else the first one that differs."""
    tensors: tuple[StateTensor, ...]
    """All that differ, in order."""
    replicas: tuple[Replicas, ...]
    only_a: tuple[str, ...]
    """Parameters without a partner."""
    only_b: tuple[str, ...]
    renamed: tuple[Pair[str], ...]
    """What A's paths begin with where B's begin otherwise."""
    uncompared: tuple[UncomparedState, ...]
    notes: tuple[str, ...]

    SCHEMA: ClassVar = "rltrace.compare-state/1"


# --- assembly ---------------------------------------------------------------------------------------------------------


class TensorId(NamedTuple):
    kind: ShardKind
    name: str
    key: str

    def __str__(self) -> str:
        """``gradient of Net.up.weight``."""
        return {
            ShardKind.BEFORE: f"parameter {self.name} before the step",
            ShardKind.GRADIENT: f"gradient of {self.name}",
            ShardKind.STATE: f"optimizer state {self.key} of {self.name}",
            ShardKind.AFTER: f"parameter {self.name} after the step",
        }[self.kind]


@dataclass(frozen=True)
class RankShard:
    """A shard with its rank, and where its value is looked up."""

    rank: int
    shard: Shard
    find: Callable[[int], Value | None]


class NotComparableError(Exception):
    """A tensor cannot be assembled; the message is the reason."""


@dataclass(frozen=True, eq=False)
class WholeTensor:
    """A tensor, assembled."""

    dtype: str
    raw: NDArray[Any]
    """As stored."""
    digests: tuple[int, ...]
    """Of its shards."""
    differing: tuple[int, ...] = ()
    """Two ranks whose copies differ; empty: none do."""

    @cached_property
    def numbers(self) -> Numbers:
        found: Numbers = dtypes.numbers(self.dtype, self.raw).astype(np.float64)
        return found


@dataclass
class ShardedState:
    """The shards of all ranks at one step."""

    world_size: int
    ranks: dict[int, str] = field(default_factory=dict)
    """Names of the processes by rank."""
    tensors: dict[TensorId, list[RankShard]] = field(default_factory=dict)


def read_states(trace: Trace, path: str) -> dict[int, ShardedState]:
    """The state at every recorded step. Raises UsageError where there is none, or a rank is missing."""
    states: dict[int, ShardedState] = {}
    for process in trace.processes:
        for one in process.shards:
            state = states.setdefault(one.step, ShardedState(one.world_size))
            twin = state.ranks.setdefault(one.rank, process.name)
            if twin != process.name or one.world_size != state.world_size:
                raise UsageError(
                    f"{path}: at step {one.step} {twin} is rank {one.rank} of {state.world_size} and {process.name}"
                    f" rank {one.rank} of {one.world_size}: record one program, whose ranks form one process group"
                )
            for shard in one.shards:
                identity = TensorId(shard.kind, shard.name, shard.key)
                own = RankShard(one.rank, shard, process.values.get)
                state.tensors.setdefault(identity, []).append(own)
    if not states:
        raise UsageError(
            f"{path} holds no parameters, gradients and optimizer state to compare; record them with: rltrace record"
            " --state : -- python …"
        )
    for step, state in sorted(states.items()):
        missing = [str(rank) for rank in range(state.world_size) if rank not in state.ranks]
        if missing:
            raise UsageError(
                f"{path}: step {step} lacks the shards of rank {', '.join(missing)} of {state.world_size}: record every"
                " rank to its end"
            )
    return states


def assemble(identity: TensorId, shards: Sequence[RankShard], step: int, path: str) -> WholeTensor:
    """The whole tensor. Raises UsageError where shards do not form one, NotComparableError where one is not known."""
    where = f"{path}: {identity} at step {step}"
    shapes = {one.shard.shape: one.rank for one in shards}
    if len(shapes) > 1:
        (x, rank), (y, other) = list(shapes.items())[:2]
        raise UsageError(
            f"{where} has the shape {list(x)} on rank {rank} and {list(y)} on rank {other}, and no placements: only"
            " DTensors and whole tensors can be assembled"
        )
    whole: NDArray[Any] | None = None
    filled = np.zeros(shards[0].shard.shape, bool)
    known: dict[tuple[bytes, ...], RankShard] = {}
    dtype = ""
    differing: tuple[int, ...] = ()
    for one in shards:
        shard = one.shard
        if any(placement.is_partial for placement in shard.placements):
            raise NotComparableError("its ranks hold terms of a sum (Partial) that the program has not taken")
        if shard.digest is None:
            raise NotComparableError(f"{shard.why} (rank {one.rank})")
        indices = shard.indices()
        twin = known.setdefault(tuple(part.tobytes() for part in indices), one)
        if twin is not one:
            differing = differing or ((twin.rank, one.rank) if twin.shard.digest != shard.digest else ())
            continue
        value = _value(one, shard.digest)
        if value.shape != tuple(len(part) for part in indices):
            raise UsageError(
                f"{where}: rank {one.rank} has {list(value.shape)} of it, where {_placed(shard)} means"
                f" {[len(part) for part in indices]}"
            )
        if whole is None:
            whole, dtype = np.empty(shard.shape, value.raw.dtype), value.dtype
        at = np.ix_(*indices)
        if value.dtype != dtype:
            raise UsageError(f"{where} is {dtype} on rank {shards[0].rank} and {value.dtype} on rank {one.rank}")
        if filled[at].any():
            raise UsageError(f"{where}: the shard of rank {one.rank} overlaps another one ({_placed(shard)})")
        whole[at], filled[at] = value.raw, True
    assert whole is not None
    if not filled.all():
        raise UsageError(
            f"{where}: the shards of rank {', '.join(str(one.rank) for one in shards)} leave"
            f" {int((~filled).sum()):,} of {filled.size:,} elements open ({_placed(shards[0].shard)})"
        )
    return WholeTensor(dtype, whole, tuple(one.shard.digest or 0 for one in shards), differing)


def _value(one: RankShard, digest: int) -> Value:
    try:
        value = one.find(digest)
    except HoleError as error:
        raise NotComparableError(str(error)) from None
    if value is None:
        raise NotComparableError(f"the value of rank {one.rank} is not in the trace")
    return value


def _placed(shard: Shard) -> str:
    """``mesh [2], S(0)``."""
    if not shard.placements:
        return "a whole tensor"
    return f"mesh {list(shard.mesh)}, {', '.join(one.text for one in shard.placements)}"


# --- bound ------------------------------------------------------------------------------------------------------------


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one rounding; 0 for integers."""
    return 2.0 ** -(FLOATS[dtype].fraction + 1) if dtype in FLOATS else 0.0


def _confidence(summands: int, elements: int) -> float:
    """λ of the bound."""
    return sqrt(2 * log(2 * summands * max(elements, 1) / FAILURE))


def order_bound(summands: int, unit: float, elements: int) -> float:
    """Distance of two orders of a sum, divided by the sum of the magnitudes; for all ``elements`` of a tensor."""
    if not unit:
        return 0.0
    certain = summands * unit / (1 - summands * unit) if summands * unit < 1 else inf
    exponent = _confidence(summands, elements) * sqrt(summands) * unit + summands * unit**2 / (1 - unit)
    likely = expm1(exponent) if exponent < log(1e300) else inf
    return 2 * min(certain, likely)


def summands_for(share: float, unit: float, elements: int, summands: int) -> int | None:
    """How many numbers a sum must have for ``order_bound`` to reach ``share``; None: it never does."""
    if not unit or share == inf:
        return None
    return max(1, round((log1p(share / 2) / (_confidence(summands, elements) * unit)) ** 2))


# --- comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateOptions:
    """How to compare."""

    summands: int = SUMMANDS
    precision: str = ""
    """dtype of the sums; empty: that of each tensor."""
    mapped: Mapping[str, str] = field(default_factory=dict)
    """Of A's parameters to B's, where names do not match."""


@dataclass(frozen=True)
class StateSource:
    """The states of one program."""

    path: str
    states: Mapping[int, ShardedState]


def compare_states(
    a: StateSource, b: StateSource, options: StateOptions, reference: StateSource | None = None
) -> StateComparison:
    """Raises UsageError where the two cannot be compared."""
    steps = sorted(set(a.states) & set(b.states))
    if not steps:
        raise UsageError(f"no step is in both: {a.path} has {_steps(a)}, {b.path} has {_steps(b)}")
    found = _Comparison(a, b, options, reference)
    for step in steps:
        found.compare(step)
    return found.result(tuple(steps))


def _steps(source: StateSource) -> str:
    listed = sorted(source.states)
    return f"step {listed[0]}" if len(listed) == 1 else f"steps {listed[0]} to {listed[-1]}"


@dataclass(frozen=True, eq=False)
class WholePair:
    """One tensor of both sides."""

    a: WholeTensor
    b: WholeTensor


Wholes = Mapping[tuple[ShardKind, str], WholePair]
"""The tensors of one parameter at one step, by kind and key."""


class _Comparison:
    """What has been compared so far."""

    def __init__(self, a: StateSource, b: StateSource, options: StateOptions, reference: StateSource | None) -> None:
        self._a, self._b, self._options, self._reference = a, b, options, reference
        self._tensors: list[StateTensor] = []
        self._replicas: list[Replicas] = []
        self._uncompared: list[UncomparedState] = []
        self._only_a: dict[str, None] = {}
        self._only_b: dict[str, None] = {}
        self._renamed: dict[Pair[str], None] = {}
        self._notes: dict[str, None] = {}
        self._compared = self._equal = 0
        self._last: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """By A's name, digests of the parameter after the last compared step."""

    def compare(self, step: int) -> None:
        a, b = self._a.states[step], self._b.states[step]
        found = [tensor for names in self._pairs(a, b) for tensor in self._parameter(step, Pair(*names), a, b)]
        order = {kind: place for place, kind in enumerate(ShardKind)}
        self._tensors += sorted(found, key=lambda tensor: order[tensor.kind])

    def _pairs(self, a: ShardedState, b: ShardedState) -> list[tuple[str, str]]:
        names = [list(dict.fromkeys(identity.name for identity in state.tensors)) for state in (a, b)]
        naming = match_names(names[0], names[1], self._options.mapped)
        self._renamed |= dict.fromkeys(naming.renamed)
        self._notes |= dict.fromkeys(naming.ambiguous)
        partners = dict(naming.pairs)
        self._only_a.update(dict.fromkeys(name for name in names[0] if name not in partners))
        self._only_b.update(dict.fromkeys(name for name in names[1] if name not in set(partners.values())))
        return [(name, partners[name]) for name in names[0] if name in partners]

    def _parameter(self, step: int, name: Pair[str], a: ShardedState, b: ShardedState) -> Iterator[StateTensor]:
        """The tensors of one parameter that differ."""
        keys = [[(i.kind, i.key) for i in state.tensors if i.name == own] for state, own in ((a, name.a), (b, name.b))]
        for kind, key in [*keys[0], *(one for one in keys[1] if one not in keys[0])]:
            if (kind, key) not in keys[0] or (kind, key) not in keys[1]:
                side = "A" if (kind, key) in keys[0] else "B"
                self._leave_out(step, TensorId(kind, str(name.a), key), f"only {side} has it")
        wholes: dict[tuple[ShardKind, str], WholePair] = {}
        for kind, key in (one for one in keys[0] if one in keys[1]):
            pair = self._whole_pair(step, kind, key, name, a, b)
            if pair is not None:
                wholes[kind, key] = pair
        for (kind, key), pair in wholes.items():
            digests = (pair.a.digests, pair.b.digests)
            if kind is ShardKind.BEFORE and self._last.get(str(name.a)) == digests:
                continue  # compared as the end of the step before
            if kind is ShardKind.AFTER:
                self._last[str(name.a)] = digests
            self._compared += 1
            if _same(pair):
                self._equal += 1
            else:
                yield self._judged(step, kind, key, name, wholes)

    def _whole_pair(
        self, step: int, kind: ShardKind, key: str, name: Pair[str], a: ShardedState, b: ShardedState
    ) -> WholePair | None:
        found: list[WholeTensor] = []
        for side, source, state, own in (("a", self._a, a, name.a), ("b", self._b, b, name.b)):
            identity = TensorId(kind, str(own), key)
            try:
                whole = assemble(identity, state.tensors[identity], step, source.path)
            except NotComparableError as error:
                self._leave_out(step, identity, f"{side.upper()}: {error}")
                return None
            if whole.differing:
                self._replicas.append(Replicas(side, step, kind, str(own), key, whole.differing))
            found.append(whole)
        if found[0].raw.shape != found[1].raw.shape:
            raise UsageError(
                f"{TensorId(kind, str(name.a), key)} has the shape {list(found[0].raw.shape)} in A and"
                f" {list(found[1].raw.shape)} in B: these are not shardings of one model"
            )
        return WholePair(found[0], found[1])

    def _leave_out(self, step: int, identity: TensorId, why: str) -> None:
        self._uncompared.append(UncomparedState(step, *identity, why))

    def _judged(self, step: int, kind: ShardKind, key: str, name: Pair[str], wholes: Wholes) -> StateTensor:
        pair = wholes[kind, key]
        x, y = pair.a.numbers, pair.b.numbers
        with np.errstate(invalid="ignore"):
            difference = np.asarray(np.abs(x - y))
        unlike = ~np.isfinite(difference) & ~_same_numbers(pair)
        difference[~np.isfinite(difference)] = 0.0
        largest = largest_magnitude(x, y)
        allowed = self._allowed(step, kind, key, name, wholes)
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(difference > 0, difference / allowed, 0.0)
        excess = np.asarray(excess)
        excess[unlike] = inf
        worst = np.unravel_index(int(np.argmax(excess)), excess.shape) if excess.shape else ()
        most = float(excess[worst])
        share = float(difference.max()) / largest if largest else None
        unit = self._unit(pair)
        is_sum = kind in (ShardKind.GRADIENT, ShardKind.STATE) or (kind is ShardKind.BEFORE and step > 0)
        known = is_sum and share is not None and not unlike.any()
        measured = _measured(pair)
        return StateTensor(
            step=step,
            kind=kind,
            name=name,
            key=key,
            shape=pair.a.raw.shape,
            dtype=Pair(pair.a.dtype, pair.b.dtype),
            differing=measured.differing,
            absolute=measured.largest_absolute,
            relative=measured.largest_relative,
            ulp=measured.largest if pair.a.dtype == pair.b.dtype else None,
            share=share,
            excess=most if most != inf else None,
            summands=summands_for(share or 0.0, unit, difference.size, self._options.summands) if known else None,
            index=tuple(int(place) for place in worst),
            values=Pair(f"{x[worst]:.9g}", f"{y[worst]:.9g}"),
        )

    def _unit(self, pair: WholePair) -> float:
        names = (self._options.precision,) if self._options.precision else (pair.a.dtype, pair.b.dtype)
        return max(unit_roundoff(name) for name in names)

    def _relative_bound(self, step: int, pair: WholePair) -> float:
        """Of a gradient, relative to its largest number: errors of earlier steps go into it, too."""
        return order_bound(self._options.summands * (step + 1), self._unit(pair), pair.a.raw.size)

    def _allowed(self, step: int, kind: ShardKind, key: str, name: Pair[str], wholes: Wholes) -> Numbers:
        """Of each element, the difference that another order of sums can explain; 0 where nothing was summed yet."""
        pair = wholes[kind, key]
        if kind is ShardKind.BEFORE and step == 0:
            return np.zeros(pair.a.raw.shape)
        measured = self._from_reference(step, kind, key, name, pair)
        if kind is ShardKind.AFTER:
            update = self._allowed_update(step, name, wholes)
            return update if measured is None else np.maximum(update, measured)
        if measured is None:
            factor = 2.0 if kind is ShardKind.STATE else 1.0  # it may hold squares
            measured = factor * self._relative_bound(step, pair) * largest_magnitude(pair.a.numbers, pair.b.numbers)
        return np.full(pair.a.raw.shape, measured)

    def _from_reference(self, step: int, kind: ShardKind, key: str, name: Pair[str], pair: WholePair) -> float | None:
        """``FACTOR`` distances of A from the reference, and at least a few roundings; None: there is no reference."""
        source = self._reference
        state = None if source is None else source.states.get(step)
        identity = TensorId(kind, str(name.a), key)
        if source is None or state is None or identity not in state.tensors:
            return None
        try:
            exact = assemble(identity, state.tensors[identity], step, source.path)
        except NotComparableError:
            return None
        if exact.raw.shape != pair.a.raw.shape:
            raise UsageError(f"{source.path} (the reference) has another shape of {name.a} than A")
        with np.errstate(invalid="ignore"):
            distance = largest_magnitude(pair.a.numbers - exact.numbers)
        return FACTOR * max(distance, self._unit(pair) * largest_magnitude(pair.a.numbers))

    def _allowed_update(self, step: int, name: Pair[str], wholes: Wholes) -> Numbers:
        """Of each element of a parameter after the step, what the differences before it and of the gradient explain.

        An optimizer may divide a gradient by its magnitude (Adam), so an element whose gradient is no larger than its
        error may have any update; else an update has the relative error of the gradient.
        """
        after, before = wholes[ShardKind.AFTER, ""], wholes.get((ShardKind.BEFORE, ""))
        gradient = wholes.get((ShardKind.GRADIENT, ""))
        unit = max(unit_roundoff(after.a.dtype), unit_roundoff(after.b.dtype))
        size = np.maximum(np.abs(after.a.numbers), np.abs(after.b.numbers))
        if before is None:
            return self._relative_bound(step, after) * np.full(size.shape, largest_magnitude(size))
        with np.errstate(invalid="ignore"):
            either = np.abs(after.a.numbers - before.a.numbers) + np.abs(after.b.numbers - before.b.numbers)
            found = 4 * unit * size + UPDATE_ROUNDINGS * unit * either + np.abs(before.a.numbers - before.b.numbers)
        if gradient is None or _same(gradient):
            return found
        numbers = np.maximum(np.abs(gradient.a.numbers), np.abs(gradient.b.numbers))
        largest = largest_magnitude(numbers)
        measured = self._from_reference(step, ShardKind.GRADIENT, "", name, gradient)
        error = self._relative_bound(step, gradient) * largest if measured is None else measured
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(numbers > error, error / numbers, 1.0)
        overall = min(1.0, error / largest) if largest else 1.0
        allowed: Numbers = found + either * relative + largest_magnitude(either) * overall
        return allowed

    def result(self, steps: tuple[int, ...]) -> StateComparison:
        beyond = next((tensor for tensor in self._tensors if not tensor.explained), None)
        first = beyond or next(iter(self._tensors), None)
        missing = len(self._uncompared) + len(self._only_a) + len(self._only_b)
        if beyond is not None or self._replicas:
            verdict = StateVerdict.DIFFERS
        elif missing or not self._compared:
            verdict = StateVerdict.UNDECIDED
        else:
            verdict = StateVerdict.EXPLAINED if self._tensors else StateVerdict.BITWISE
        notes = list(self._notes)
        for source, other in ((self._a, self._b), (self._b, self._a)):
            extra = len(set(source.states) - set(other.states))
            notes += [f"{source.path} has {extra} more recorded steps, which were not compared"] if extra else []
        return StateComparison(
            verdict=verdict,
            why=self._why(verdict, beyond, missing),
            a=_side(self._a, steps),
            b=_side(self._b, steps),
            reference=None if self._reference is None else self._reference.path,
            summands=self._options.summands,
            precision=self._options.precision,
            steps=steps,
            compared=self._compared,
            equal=self._equal,
            first=first,
            tensors=tuple(self._tensors),
            replicas=tuple(self._replicas),
            only_a=tuple(self._only_a),
            only_b=tuple(self._only_b),
            renamed=tuple(self._renamed),
            uncompared=tuple(self._uncompared),
            notes=tuple(notes),
        )

    def _why(self, verdict: StateVerdict, beyond: StateTensor | None, missing: int) -> str:
        if verdict is StateVerdict.BITWISE:
            return f"all {self._compared:,} tensors are bitwise equal"
        if verdict is StateVerdict.UNDECIDED:
            return f"{missing:,} tensors or parameters could not be compared"
        differing = self._compared - self._equal
        if verdict is StateVerdict.EXPLAINED:
            return (
                f"{differing:,} of {self._compared:,} tensors differ, each by no more than can be explained by another"
                " order of sums"
            )
        if beyond is None:
            one = self._replicas[0]
            return (
                f"ranks {one.ranks[0]} and {one.ranks[1]} of {one.side.upper()} hold different copies of the"
                f" {TensorId(one.kind, one.name, one.key)}"
            )
        unexplained = sum(not tensor.explained for tensor in self._tensors)
        what = TensorId(beyond.kind, str(beyond.name.b), beyond.key)
        return (
            f"the {what}, at step {beyond.step}, is the first of {unexplained:,} tensors whose difference cannot be"
            " explained by another order of sums"
        )


def _side(source: StateSource, steps: Sequence[int]) -> StateSide:
    state = source.states[steps[0]]
    shards = (one.shard for own in state.tensors.values() for one in own if one.shard.placements)
    return StateSide(source.path, state.world_size, tuple(dict.fromkeys(_placed(shard) for shard in shards)))


def _same(pair: WholePair) -> bool:
    """Whether two tensors have the same bytes, or, in two dtypes, the same numbers."""
    if pair.a.dtype == pair.b.dtype:
        return pair.a.raw.tobytes() == pair.b.raw.tobytes()
    return bool(_same_numbers(pair).all())


def _same_numbers(pair: WholePair) -> NDArray[np.bool_]:
    x, y = pair.a.numbers, pair.b.numbers
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _measured(pair: WholePair) -> Distances:
    if pair.a.dtype == pair.b.dtype:
        return measure(pair.a.dtype, pair.a.raw, pair.b.raw, listed=1)
    return measure("float64", pair.a.numbers, pair.b.numbers, listed=1)
