"""The digest of a tensor, however it is laid out: that of its logical bytes, and nothing of it changes."""

import random
import warnings
from typing import Any

import pytest
import torch
from recorded import digest_of
from torch import nn

from rltrace.digest import digest_pages, reference, seed_of
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests.layouts import Layouts, dtype_name
from rltrace.recorder.digests.tensor_digest import TensorDigests

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not dtype_name(d).startswith(("qint", "quint"))},
    key=str,
)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def expected(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return reference.digest(data, seed_of(dtype_name(dtype), shape))


def made(dtype: torch.dtype, shape: tuple[int, ...], key: int = 1) -> tuple[torch.Tensor, bytes]:
    """A contiguous tensor of random bits, and its bytes."""
    size = torch.Size(shape).numel() * dtype.itemsize
    data = random.Random(key).randbytes(size)
    if dtype is torch.bool:
        data = bytes(b & 1 for b in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).view(shape), data


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """Element by element, in row-major order, through indexing alone."""
    size = tensor.element_size()
    if size == 16:
        tensor, size = torch.view_as_real(tensor), 8
    bits = tensor.view(BITS[size])
    flat = [bits[tuple(at)].item() for at in torch.ones(bits.shape).nonzero().tolist()] if bits.numel() else []
    return b"".join((int(v) & ((1 << 8 * size) - 1)).to_bytes(size, "little") for v in flat)


# --- every dtype, every layout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_every_dtype_has_the_digest_of_its_bytes(dtype: torch.dtype) -> None:
    """Dense, and with strides: the seed knows the dtype, the bytes are what they are."""
    tensor, data = made(dtype, (6, 8))
    assert digest_of(tensor) == expected(data, dtype, (6, 8))
    assert digest_of(tensor.t()) == expected(logical_bytes(tensor.t()), dtype, (8, 6))
    assert digest_of(tensor[1:5:2, ::3]) == expected(logical_bytes(tensor[1:5:2, ::3]), dtype, (2, 3))


def views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "transposed": x.t(),
        "sliced": x[1:, 2:5],
        "strided": x[::2, ::3],
        "expanded": x[:1].expand(4, 10),
        "expanded inside": x[:, :1].expand(12, 3),
        "permuted": x.view(3, 4, 10).permute(2, 0, 1),
        "flattened": x.view(-1),
        "0-dimensional": x[3, 4],
        "no elements": x[:0],
        "no columns": x[:, 5:5],
        "one element of odd stride": x.view(-1)[::120],
        "one column of odd stride": x[:, 3:4],
        "one row of odd stride": x[5:6, ::2],
        "channels last": x.view(1, 3, 4, 10).contiguous(memory_format=torch.channels_last),
        "overlapping": x.view(-1).as_strided((3, 4), (1, 2)),
        "diagonal": x.diagonal(),
    }


VIEWS = tuple(views(torch.zeros(12, 10)))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=dtype_name)
def test_strides_and_offsets_take_no_part(dtype: torch.dtype, view: str) -> None:
    """A view has the digest of its elements in row-major order."""
    tensor = views(made(dtype, (12, 10))[0])[view]
    assert digest_of(tensor) == expected(logical_bytes(tensor), dtype, tuple(tensor.shape))
    assert digest_of(tensor) == digest_of(tensor.clone(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=dtype_name)
def test_lazy_conjugation_is_carried_out(dtype: torch.dtype) -> None:
    """The digest of the conjugated numbers, real then imaginary; lazy or done, dense or transposed."""
    tensor = torch.complex(torch.randn(3, 4), torch.randn(3, 4)).to(dtype)
    parts = [x for z in tensor.to(torch.complex64).view(-1).tolist() for x in (z.real, -z.imag)]
    real = {4: torch.float16, 8: torch.float32, 16: torch.float64}[dtype.itemsize]
    data = logical_bytes(torch.tensor(parts, dtype=real))
    assert digest_of(tensor.conj()) == expected(data, dtype, (3, 4))
    assert digest_of(tensor.conj()) == digest_of(tensor.conj().resolve_conj())
    assert digest_of(tensor.t().conj()) == digest_of(tensor.conj().t().resolve_conj().contiguous())
    assert digest_of(tensor.conj().conj()) == digest_of(tensor) != digest_of(tensor.conj())


def test_lazy_negation_is_carried_out() -> None:
    """The imaginary part of a conjugate is a negated view."""
    tensor = torch.randn(4, 4, dtype=torch.complex64)
    negated = tensor.conj().imag
    assert negated.is_neg()
    assert digest_of(negated) == digest_of(negated.resolve_neg()) != digest_of(tensor.imag.clone())
    dense = torch._neg_view(torch.arange(5.0))
    assert dense.is_neg() and dense.is_contiguous()
    assert digest_of(dense) == digest_of(-torch.arange(5.0))


# --- tensors that are not a stretch of memory ---------------------------------------------------------------------


def test_quantised_tensors_differ_by_numbers_and_by_scale() -> None:
    """Equal integers under another scale are other numbers; strides take no part here either."""
    integers = torch.arange(12, dtype=torch.uint8).view(3, 4)
    a = torch._make_per_tensor_quantized_tensor(integers, 0.1, 3)
    assert digest_of(a) == digest_of(torch._make_per_tensor_quantized_tensor(integers.clone(), 0.1, 3))
    assert digest_of(a) == digest_of(a.t().contiguous().t())
    assert digest_of(a) != digest_of(torch._make_per_tensor_quantized_tensor(integers, 0.2, 3))
    assert digest_of(a) != digest_of(torch._make_per_tensor_quantized_tensor(integers + 1, 0.1, 3))
    scales, points = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64)
    channels = torch._make_per_channel_quantized_tensor(integers, scales, points, 0)
    assert digest_of(channels) != digest_of(
        torch._make_per_channel_quantized_tensor(integers, scales.flip(0), points, 0)
    )


SPARSE = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "mkldnn": torch.Tensor.to_mkldnn,
}


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors_differ_by_values_and_by_places(layout: str) -> None:
    """Equal ones agree; another number, and the same number elsewhere, do not."""
    to = SPARSE[layout]
    x = torch.zeros(4, 6)
    x[1, 2], x[3, 5] = 5.0, -1.0
    other, moved = x.clone(), x.roll(1, 0)
    other[1, 2] = 5.5
    assert digest_of(to(x)) == digest_of(to(x.clone()))
    assert len({digest_of(to(x)), digest_of(to(other)), digest_of(to(moved))}) == 3


def test_sparse_scalars_are_not_taken_for_dense_ones() -> None:
    """They have the dtype, shape and strides of a dense scalar, and no memory to read."""
    digests = TensorDigests(Layouts(Tables()))
    sparse = torch.eye(2).to_sparse()
    for dense in (torch.tensor(2.0), torch.tensor(2.0).expand(1), torch.tensor(2.0).expand(1, 1)):
        digests.of(dense)
        found = {digests.of(sparse.sum() * n if dense.dim() == 0 else dense.to_sparse() * n) for n in (1, 2)}
        assert len(found) == 2


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_differ_by_values_and_by_lengths(layout: torch.layout) -> None:
    """Of the old kind and of the jagged one."""

    def nested(*lengths: int, fill: float = 1.0) -> int:
        return digest_of(torch.nested.nested_tensor([torch.full((n, 3), fill) for n in lengths], layout=layout))

    assert nested(2, 4) == nested(2, 4)
    assert len({nested(2, 4), nested(4, 2), nested(2, 4, fill=2.0), nested(3, 3)}) == 4


class Dispatching(torch.Tensor):
    """A subclass with memory of its own and a say in every op; digesting must not ask it."""

    asked = 0

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked += 1
        raise RuntimeError("the recorder asked")


class Overriding(torch.Tensor):
    """A subclass with a say in every torch function and attribute."""

    asked = 0
    __torch_function__ = vars(Dispatching)["__torch_dispatch__"]


@pytest.mark.parametrize("kind", [Dispatching, Overriding])
def test_subclasses_are_read_without_being_asked(kind: Any) -> None:
    """The digest of what is in them, dense or not; their own code, which may do anything, does not run."""
    data = torch.randn(4, 5)
    before = kind.asked
    assert digest_of(torch.Tensor._make_subclass(kind, data)) != digest_of(torch.Tensor._make_subclass(kind, data + 1))
    assert digest_of(torch.Tensor._make_subclass(kind, data.t())) != digest_of(
        torch.Tensor._make_subclass(kind, data.t() + 1)
    )
    assert kind.asked == before


def test_a_subclass_of_no_behaviour_has_the_digest_of_its_bytes() -> None:
    """``as_subclass`` of a class that changes nothing."""

    class Named(torch.Tensor):
        pass

    data = torch.randn(3, 4)
    assert digest_of(data.as_subclass(Named)) == digest_of(data)
    assert digest_of(data.t().as_subclass(Named)) == digest_of(data.t())


def test_wrappers_differ_by_what_they_wrap() -> None:
    """A traceable wrapper names its inner tensors; those are digested."""
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.randn(3), torch.randn(3)
    assert digest_of(TwoTensor(a, b)) == digest_of(TwoTensor(a.clone(), b.clone()))
    assert len({digest_of(TwoTensor(*pair)) for pair in ((a, b), (b, a), (a, a))}) == 3


def test_tensors_without_bytes_have_a_digest() -> None:
    """Meta and fake tensors, lazy parameters, storages given back: by dtype and shape alone, and without a crash.

    Autograd's zero tensors, which have no memory either, are zeros.
    """
    from torch._subclasses import FakeTensorMode

    freed = torch.randn(3, 4)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.empty(3, 4)
    nothing = expected(b"", torch.float32, (3, 4))
    assert digest_of(torch.empty(3, 4, device="meta")) == digest_of(freed) == nothing
    assert digest_of(fake) == digest_of(fake)
    assert digest_of(nn.LazyLinear(3).weight) == digest_of(nn.LazyLinear(4).weight)
    assert digest_of(torch._efficientzerotensor((3, 4))) == digest_of(torch.zeros(3, 4))


def test_nothing_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    """A warning that the program did not cause would stand on its stderr."""
    halves = torch.view_as_complex(torch.randn(4, 4, 2)).to(torch.complex32)
    tensors = [halves, made(torch.float8_e8m0fnu, (4, 6))[0], torch.eye(4).to_sparse_csr()]
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    recwarn.clear()
    torch.set_warn_always(True)
    try:
        warnings.simplefilter("always")
        for tensor in (*tensors, nested, halves.t(), tensors[1].t()):
            digest_of(tensor)
    finally:
        torch.set_warn_always(False)
    assert [str(w.message) for w in recwarn] == []


# --- independence and sensitivity ---------------------------------------------------------------------------------


def test_autograd_takes_no_part() -> None:
    """Leaves, parameters, results with a history, inference tensors."""
    data = torch.randn(4, 5)
    with torch.inference_mode():
        inference = data.clone()
    history = (data.clone().requires_grad_() * 1.0).view(4, 5)
    assert history.grad_fn is not None
    same = [data.clone().requires_grad_(), nn.Parameter(data.clone()), inference, inference.t().t(), history]
    assert {digest_of(tensor) for tensor in same} == {digest_of(data)}


def test_position_sign_of_zero_and_payload_count() -> None:
    """Differences that ``==`` and ``allclose`` do not see."""
    x = torch.zeros(6)
    minus = x.clone()
    minus[2] = -0.0
    nans = torch.full((6,), float("nan"))
    other = nans.clone()
    other.view(torch.int32)[4] ^= 1
    assert digest_of(x) != digest_of(minus)
    assert digest_of(nans) != digest_of(other)
    assert digest_of(torch.arange(6.0)) != digest_of(torch.arange(6.0).flip(0))


def test_dtype_and_shape_count() -> None:
    """Equal bytes under another name."""
    x = torch.zeros(4, 6)
    others = [x.view(6, 4), x.view(24), x.view(1, 4, 6), x.view(torch.int32), x.view(torch.complex64)]
    assert len({digest_of(tensor) for tensor in (x, *others)}) == 6
    assert digest_of(torch.zeros(0, 3)) != digest_of(torch.zeros(3, 0)) != digest_of(torch.zeros(0))


def test_a_storage_may_begin_and_end_anywhere() -> None:
    """Bytes around a view do not leak into its digest."""
    x = torch.randn(100)
    before = digest_of(x[10:20])
    x[9] = x[20] = 7.0
    assert digest_of(x[10:20]) == before
    x[19] += 1
    assert digest_of(x[10:20]) != before


def test_compound_digests_are_made_of_their_parts() -> None:
    """The rule for what is no stretch of memory: the parts' digests, digested like pages."""
    x = torch.eye(3).to_sparse()
    parts = [digest_of(x._indices()), digest_of(x._values())]
    assert digest_of(x) == digest_pages(parts, seed_of("float32", (3, 3)))


# --- watching changes nothing ---------------------------------------------------------------------------------------


def test_digesting_leaves_no_mark_on_a_tensor() -> None:
    """Version, gradient, history, storage and the generator are what they were."""
    leaf = torch.randn(4, 4, requires_grad=True)
    (leaf * 2).sum().backward()
    result = (leaf * 3).t()
    state, grad, pointer = torch.get_rng_state(), leaf.grad, leaf.data_ptr()
    for tensor in (leaf, result, leaf.detach()[::2], leaf.grad, nn.Parameter(leaf.detach())):
        version, node = tensor._version, tensor.grad_fn
        digest_of(tensor)
        assert tensor._version == version
        assert tensor.grad_fn is node
    assert leaf.grad is grad and leaf.data_ptr() == pointer
    assert torch.equal(torch.get_rng_state(), state)
    result.sum().backward()


# --- again and again --------------------------------------------------------------------------------------------------


def test_a_list_digested_again_has_the_digests_of_its_tensors(engine: str, request: pytest.FixtureRequest) -> None:
    """Whatever has happened to them: written, moved, of another layout or kind, without memory, with others."""
    library = request.getfixturevalue("native_library") if engine == "native" else None
    digests = TensorDigests(Layouts(Tables()), library)
    repeated, plain = digests.repeated(), 5 * [torch.ones(3, 4)]
    lists: list[list[torch.Tensor | None]] = [
        [torch.ones(3, 4), nn.Parameter(torch.ones(5)), torch.ones(3 * 16_384 + 5), torch.ones(64, 64)],
        [torch.ones(4, 3).t()],
        [torch._neg_view(torch.ones(3, 4))],
        [torch.ones(3, 4).as_subclass(type("Sub", (torch.Tensor,), {}))],
        [torch.ones(3, 4).to_sparse()],
        [torch.ones(0)],
        [torch.ones(3, 4, dtype=torch.int32)],
        [torch.ones(3, 4, dtype=torch.complex64)],
        [torch.ones(3, 4, device="meta")],
        [torch.ones(()).expand(3, 4)],
        [None, torch.ones(3, 4)],
        [],
    ]
    for tensors in [plain[:1], *lists, plain]:
        for change in (lambda: None, lambda: None, lambda: lists[0][0].add_(1), lambda: lists[0][0].data.add_(1)):
            for now in (tensors, tensors, plain[:1]):
                change()
                assert repeated.of(now) in (None, digest_pages(digests.several(now), 0))
    assert repeated.of(lists[0]) is None
    assert repeated.of(lists[0]) is not None
    lists[0][0].untyped_storage().resize_(0)
    assert repeated.of(lists[0]) is None
