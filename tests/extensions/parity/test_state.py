"""State compared as whole tensors: assembly from shards, and what another order of sums explains."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rltrace.errors import UsageError
from rltrace.extensions.parity.report.state import state_document
from rltrace.extensions.parity.state import (
    RankShard,
    ShardedState,
    StateComparison,
    StateOptions,
    StateSource,
    StateVerdict,
    TensorId,
    compare_states,
    order_bound,
    summands_for,
)
from rltrace.report.text import document_text
from rltrace.trace.format.shards import Shard, ShardKind, parse_placement
from rltrace.trace.read.values import Value

BEFORE, GRADIENT, STATE, AFTER = ShardKind
Array = NDArray[Any]


def shard(rank: int, array: Array, whole: tuple[int, ...], placement: str = "", size: int = 2, at: int = -1) -> Any:
    """A rank's shard; ``placement`` on a mesh of ``size`` ranks at coordinate ``at``, else that of the rank."""
    data = array.tobytes()
    found = Value(hash(data) & (2**64 - 1), str(array.dtype), array.shape, memoryview(data))
    on_mesh = ((parse_placement(placement),), (size,), (rank if at < 0 else at,)) if placement else ((), (), ())
    return RankShard(rank, Shard(GRADIENT, "Net.w", "", found.digest, "", whole, *on_mesh), {found.digest: found}.get)


def source(tensors: dict[ShardKind, list[RankShard]], name: str = "Net.w", path: str = "a.zarr") -> StateSource:
    ranks = {one.rank: f"rank{one.rank}/main" for shards in tensors.values() for one in shards}
    state = ShardedState(len(ranks), ranks, {TensorId(kind, name, ""): shards for kind, shards in tensors.items()})
    return StateSource(path, {0: state})


def plain(**arrays: Array) -> StateSource:
    """A program of one process, with these tensors by kind."""
    return source({ShardKind(kind): [shard(0, array, array.shape)] for kind, array in arrays.items()})


def compared(a: StateSource, b: StateSource, reference: StateSource | None = None, **options: Any) -> StateComparison:
    return compare_states(a, b, StateOptions(**options), reference)


WHOLE = np.arange(15, dtype=np.float32).reshape(5, 3)


def test_shards_of_two_sizes_form_the_whole() -> None:
    """Rank 0 has three of five rows, as ``torch.chunk`` divides."""
    b = source({GRADIENT: [shard(0, WHOLE[:3], (5, 3), "S(0)"), shard(1, WHOLE[3:], (5, 3), "S(0)")]})
    assert compared(plain(gradient=WHOLE), b).verdict is StateVerdict.BITWISE


@pytest.mark.parametrize(
    ("shards", "why"),
    [
        ([shard(0, WHOLE[:3], (5, 3), "S(0)")], "leave 6 of 15 elements open"),
        ([shard(0, WHOLE[:2], (5, 3), "S(0)"), shard(1, WHOLE[2:], (5, 3), "S(0)")], r"rank 0 has \[2, 3\] of it"),
        ([shard(0, WHOLE, (5, 3)), shard(1, WHOLE[:3], (5, 3), "S(0)", at=0)], "rank 1 overlaps another one"),
        ([shard(0, WHOLE[:3], (3, 3)), shard(1, WHOLE[3:], (2, 3))], "only DTensors and whole tensors"),
        ([shard(0, WHOLE[:4], (4, 3))], r"\[5, 3\] in A and \[4, 3\] in B"),
    ],
)
def test_shards_that_form_no_tensor_are_refused(shards: list[RankShard], why: str) -> None:
    """The error says which rank has what."""
    with pytest.raises(UsageError, match=why):
        compared(plain(gradient=WHOLE), source({GRADIENT: shards}))


def test_other_steps_are_refused() -> None:
    """Nothing can be compared where no step is in both."""
    later = StateSource("b.zarr", {3: plain(gradient=WHOLE).states[0]})
    with pytest.raises(UsageError, match=r"a.zarr has step 0, b.zarr has step 3"):
        compared(plain(gradient=WHOLE), later)


def test_terms_of_a_sum_are_not_compared() -> None:
    """Adding them up would be a sum that the program has not taken."""
    b = source({GRADIENT: [shard(0, WHOLE, (5, 3), "P(sum)"), shard(1, WHOLE, (5, 3), "P(sum)")]})
    found = compared(plain(gradient=WHOLE), b)
    assert found.verdict is StateVerdict.UNDECIDED
    assert "Partial" in found.uncompared[0].why


def test_copies_that_differ_between_ranks_are_reported() -> None:
    """Though the first rank's copy equals A's."""
    b = source({GRADIENT: [shard(0, WHOLE, (5, 3), "R"), shard(1, WHOLE + 1, (5, 3), "R")]})
    found = compared(plain(gradient=WHOLE), b)
    assert (found.verdict, found.equal, found.replicas[0].ranks) == (StateVerdict.DIFFERS, 1, (0, 1))
    assert "ranks 0 and 1 of B" in document_text(state_document(found))


def test_parameters_are_matched_without_wrappers() -> None:
    """DistributedDataParallel has the model as ``module``."""
    b = source({GRADIENT: [shard(0, WHOLE, (5, 3))]}, name="DistributedDataParallel.module.w")
    found = compared(plain(gradient=WHOLE), b)
    assert (found.verdict, found.only_a, found.only_b) == (StateVerdict.BITWISE, (), ())


@pytest.mark.parametrize("count", [64, 4096])
def test_every_order_of_a_sum_is_within_the_bound(count: int) -> None:
    """Sums of float32 taken one by one, in 200 pairs of orders, which differ."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal(count).astype(np.float32)
    sums = [float(np.cumsum(random.permutation(numbers))[-1]) for _ in range(400)]
    bound = order_bound(count, 2.0**-24, 200) * float(np.abs(numbers).sum())
    distances = [abs(x - y) for x, y in zip(sums[::2], sums[1::2], strict=True)]
    assert 0 < max(distances) <= bound


def test_the_bound_and_its_inverse_agree() -> None:
    """The number of summands for the distance that a number of summands explains is that number."""
    share = order_bound(10_000, 2.0**-24, 100)
    assert summands_for(share, 2.0**-24, 100, 10_000) == pytest.approx(10_000, rel=0.01)


def update(gradient: Array, rate: float) -> dict[str, Array]:
    """A first step of Adam from zero: each number moves by the rate, against the sign of its gradient."""
    before = np.zeros_like(gradient)
    return {"before": before, "gradient": gradient, "after": (before - rate * np.sign(gradient)).astype(np.float32)}


def test_an_update_is_judged_by_its_gradient() -> None:
    """A gradient that is nothing but rounding may have either sign; another rate is explained by no gradient."""
    gradient = np.array([1.0, -0.5, 1e-9], np.float32)
    other = np.array([1.0 + 2**-22, -0.5, -1e-9], np.float32)
    flipped = compared(plain(**update(gradient, 0.1)), plain(**update(other, 0.1)))
    assert flipped.verdict is StateVerdict.EXPLAINED
    assert [tensor.kind for tensor in flipped.tensors] == [GRADIENT, AFTER]
    faster = compared(plain(**update(gradient, 0.1)), plain(**update(other, 0.11)))
    assert (faster.verdict, faster.first.kind) == (StateVerdict.DIFFERS, AFTER)


def test_fewer_summands_explain_less() -> None:
    """A difference of 1e-5 of the largest number: within sums of 65,536 numbers, not of 16."""
    a, b = plain(gradient=WHOLE), plain(gradient=WHOLE * np.float32(1 + 1e-5))
    assert compared(a, b).verdict is StateVerdict.EXPLAINED
    assert compared(a, b, summands=16).verdict is StateVerdict.DIFFERS
    assert compared(a, b, summands=16, precision="bfloat16").verdict is StateVerdict.EXPLAINED


def test_a_nan_on_one_side_is_explained_by_no_order() -> None:
    """Nor is an infinity."""
    broken = WHOLE.copy()
    broken[1, 2] = np.nan
    found = compared(plain(gradient=WHOLE), plain(gradient=broken))
    assert (found.verdict, found.first.index, found.first.excess) == (StateVerdict.DIFFERS, (1, 2), None)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_nan_of_both_sides_hides_no_bound(odd: float) -> None:
    """What rounding explains of the other numbers it explains, whether it is measured or assumed; no more than that."""
    gradient = np.array([1.0, odd, -0.5], np.float32)
    other = gradient * np.array([1 + 2**-22, 1, 1], np.float32)
    a, b = (plain(**update(numbers, 0.1)) for numbers in (gradient, other))
    far = plain(**update(gradient, 0.11))
    for reference in (None, plain(gradient=gradient.astype(np.float64))):
        assert compared(a, b, reference).verdict is StateVerdict.EXPLAINED
        assert compared(a, far, reference).verdict is StateVerdict.DIFFERS
    exact = plain(gradient=np.array([1.0, 2.0, -0.5]))
    assert (
        compared(plain(gradient=gradient), plain(gradient=gradient * np.float32(1.1)), exact).verdict
        is StateVerdict.DIFFERS
    )


def test_before_the_first_step_nothing_is_explained() -> None:
    """Programs that begin with other parameters differ, however little."""
    found = compared(plain(before=WHOLE), plain(before=np.nextafter(WHOLE, np.float32(99))))
    assert found.verdict is StateVerdict.DIFFERS
    assert "begin with other parameters" in document_text(state_document(found))
