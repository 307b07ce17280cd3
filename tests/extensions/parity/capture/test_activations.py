"""``rows``: each row of tensors of module calls and ops has its digest, as it was then, and nothing else changes."""

import ctypes
import functools
import gc
import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from recorded import Record, Recorded
from torch import nn

import rltrace
from rltrace.digest import digest_buffer, seed_of
from rltrace.digest.activation_rows import row_digests
from rltrace.errors import SelectorError, UsageError
from rltrace.extensions.archive.verify import verify
from rltrace.extensions.parity.capture import activation_tensors
from rltrace.extensions.parity.capture.activation_tensors import RowDigests, named_tensors
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.schema import LIMIT
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.packers import TENSOR, bits_of


class Policy(nn.Module):
    """Tokens in, logits out; an operation in place on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
        self.head = nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        hidden = self.body(self.embed(ids))
        return {"logits": self.head(hidden), "hidden": (hidden, None)}


def training() -> None:
    """A call without gradient, two with, each with an optimizer's step."""
    torch.manual_seed(0)
    policy, ids = Policy(), torch.randint(0, 11, (2, 5))
    with torch.no_grad():
        policy(ids[:1], mask=torch.ones(1, 5, dtype=torch.bool))
    update(policy, ids, 2)


def update(policy: Policy, ids: torch.Tensor, steps: int) -> torch.Tensor:
    """Steps of an optimizer; the last logits."""
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(steps):
        logits = policy(ids)["logits"]
        logits.logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return logits


def rows_of(tensor: torch.Tensor, axes: tuple[int, ...] | None = None) -> np.ndarray:
    """Digests of rows by another way than the recorder's: each row taken out by its index."""
    axes = tuple(range(tensor.dim() - 1)) if axes is None else axes
    found = np.zeros([tensor.shape[axis] for axis in axes], np.uint64)
    for index in np.ndindex(found.shape):
        row = tensor.detach()
        for axis, at in sorted(zip(axes, index, strict=True), reverse=True):
            row = row.select(axis, at)
        plain = row.clone(memory_format=torch.contiguous_format)
        data = bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
        found[index] = digest_buffer(data, seed_of(str(tensor.dtype)[6:], row.shape))
    return found


def kept(call: ModuleCall, part: Part, name: str) -> ActivationRows:
    return next(tensor for tensor in call.tensors if (tensor.part, tensor.name) == (part, name))


def shown(call: ModuleCall) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(tensor.part.name, tensor.name, tensor.shape) for tensor in call.tensors]


def calls_of(found: Recorded) -> list[dict[str, Any]]:
    """All that is known of the calls, of their tensors the digest of each."""
    calls = found.process.activations.calls(0)
    return [{**vars(c), "tensors": [(t.part, t.name, t.shape, t.whole) for t in c.tensors]} for c in calls]


def test_calls_of_modules(record: Record) -> None:
    """Every call in the order of beginning, with its parent, its rows of the stream and its tensors by name."""
    found = record(training, rows="all")
    calls = found.process.activations.calls(0)
    assert [call.number for call in calls] == list(range(18))
    outer, embed, _, linear, relu, head = calls[:6]
    assert [(call.module, call.kind, call.parent) for call in calls[:6]] == [
        ("Policy", "Policy", None),
        ("Policy.embed", "Embedding", 0),
        ("Policy.body", "Sequential", 0),
        ("Policy.body.0", "Linear", 2),
        ("Policy.body.1", "ReLU", 2),
        ("Policy.head", "Linear", 0),
    ]
    assert shown(outer) == [
        ("INPUT", "ids", (1, 5)),
        ("INPUT", "mask", (1, 5)),
        ("OUTPUT", "logits", (1, 5, 3)),
        ("OUTPUT", "hidden.0", (1, 5, 6)),
    ]
    assert [call.grad for call in calls[::6]] == [False, True, True]
    assert [call.step for call in calls[::6]] == [0, 0, 1]
    assert [found.rows[row].name for row in range(embed.first_row, embed.end_row)] == ["embedding"]
    assert outer.first_row == embed.first_row
    assert head.end_row == outer.end_row
    assert not any(call.raised for call in calls)
    assert np.array_equal(kept(linear, Part.OUTPUT, "").digests, kept(relu, Part.INPUT, "input").digests)
    assert verify(found.path).sound


def test_rows_of_calls_need_no_python_at_ops(record: Record) -> None:
    """The native engine, where it is, records the ops; the calls are those of a recording in Python."""
    by_mode, found = (record(training, rows="module=*", engine=engine) for engine in ("mode", "auto"))
    assert calls_of(found) == calls_of(by_mode)
    assert "--rows" not in str(found.process.facts.get("engine.native.why_not"))


@dataclass
class Pair:
    first: torch.Tensor
    second: Any


class Named(NamedTuple):
    first: torch.Tensor
    second: Any


def test_the_library_finds_the_tensors_that_python_finds(record: Record) -> None:
    """Whatever holds them, under the same names; a large tensor, or one of a class of its own, is among them."""
    x, ids = torch.arange(6.0).view(2, 3), torch.arange(4)
    deep = functools.reduce(lambda inner, _: [inner], range(12), x)
    given: list[Any] = [
        (x, [ids, {"a": x, "b": (None, 1, 2.5, "x", b"x", True)}], object(), np.zeros(2)),
        {"": x, 3: ids, "long" * 40: x},
        [Pair(x, [ids]), Named(x, {"k": ids}), OrderedDict(a=x), Own(3)],
        [deep, x.as_subclass(Own), torch.nn.Parameter(x), x[:0], x.to_sparse(), torch.zeros(1 << 21)],
        [x] * 600,
        [[x]] * 1_100,
    ]

    class Returning(nn.Module):
        def forward(self, value: Any, *rest: Any, extra: Any = None) -> Any:
            return value

    def program() -> None:
        module = Returning()
        for value in given:
            module(value, value, ids, extra=x)
        module(value=x, extra=[ids])

    found = [record(program, rows="module=*", engine=engine) for engine in ("mode", "auto")]
    by_mode, by_library = map(calls_of, found)
    assert by_library == by_mode
    assert len(by_library[0]["tensors"]) == 11


BASE = torch.arange(48.0).view(2, 3, 8)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE.bfloat16()[:, 1:, 2:5],
        BASE.transpose(0, 2),
        BASE[:, :1].expand(2, 4, 8),
        BASE > 3,
        torch.empty(0),
        torch.empty(2, 0),
        torch.nn.Parameter(BASE[0].clone()),
    ],
)
def test_the_library_reads_what_python_reads(tensor: torch.Tensor, native_library: Any) -> None:
    """Tensors like one that it knows, wherever their bytes are; not those that only look like it."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    axes, seed = tuple(range(len(shape) - 1)), seed_of(dtype, shape)
    owner, places = Owner(), dict[Any, int]()
    reader = native_library.RowReader(owner, {"x": 7}, places)
    assert reader.take(Part.INPUT, "x", tensor, 0, False, False) is None
    row_seed, count = seed_of(dtype, shape[-1:]), math.prod(shape[:-1])
    reader.know(tensor, (3, bits_of(axes)), seed, row_seed, count, not tensor.is_floating_point())
    raw = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    whole = digest_buffer(raw, seed)
    expected = Part.INPUT, 7, 3, bits_of(axes), whole, PLACE, count
    assert TENSOR.unpack(reader.take(Part.INPUT, "x", tensor, 0, False, True)) == expected
    [(key, rows)] = owner.added
    assert key == (whole, bits_of(axes))
    assert np.array_equal(np.frombuffer(rows, np.uint64), row_digests(raw, dtype, shape, tensor.itemsize, axes).ravel())
    places[key] = 99
    again = TENSOR.unpack(reader.take(Part.INPUT, "y", tensor, 0, False, True))
    assert (again[1], again[-2], len(owner.added)) == (len("y"), 99, 1)
    others = [tensor[..., None], tensor.unsqueeze(0), tensor.to_sparse(), tensor.as_subclass(Own)]
    assert [reader.take(Part.INPUT, "x", other, 0, False, True) for other in others] == [None] * len(others)
    if tensor.is_floating_point():
        assert reader.take(Part.INPUT, "x", torch._neg_view(tensor), 0, False, True) is None


PLACE = 5


class Owner:
    """What a reader asks of its owner."""

    def __init__(self) -> None:
        self.added: list[tuple[Any, bytes]] = []

    def add(self, key: Any, rows: bytes) -> int:
        self.added.append((key, rows))
        return PLACE

    def name(self, text: str) -> int:
        return len(text)


class Own(torch.Tensor):
    pass


def test_parity_has_values_of_logits_alone(record: Record) -> None:
    """Besides the rows of every call, and what identifies rows."""
    process = record(training, parity=True).process
    outer, *_, head = process.activations.calls(0)[:6]
    logits = kept(outer, Part.OUTPUT, "logits").whole
    assert process.values.get(kept(outer, Part.INPUT, "ids").whole) is not None
    assert process.values.get(logits) is not None
    assert process.values.get(kept(outer, Part.OUTPUT, "hidden.0").whole) is None
    assert kept(head, Part.OUTPUT, "").whole == logits


def test_rows_are_read_without_what_the_program_may_have_replaced(record: Record) -> None:
    """Asking a tensor for its address counts as the program's own question."""
    asked = []
    with record.block(rows="module=*") as found, pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "data_ptr", lambda tensor: asked.append(tensor) or 0, raising=False)
        nn.Linear(2, 2)(torch.ones(2, 3).t())
    assert len(found.process.activations.calls(0)) == 1
    assert not asked


def test_each_row_has_its_digest(record: Record) -> None:
    """A row's digest is that of a tensor of that row alone; what is overwritten later was looked at before."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    x = torch.randn(2, 5, 4)
    with record.block(rows="all") as got:
        hidden = model[0](x).detach()
        before, after = hidden.clone(), model[1](hidden).clone()
    linear, relu = got.process.activations.calls(0)
    assert not torch.equal(before, after)
    assert np.array_equal(kept(linear, Part.INPUT, "input").digests, rows_of(x))
    assert np.array_equal(kept(linear, Part.OUTPUT, "").digests, rows_of(before))
    assert np.array_equal(kept(relu, Part.INPUT, "input").digests, rows_of(before))
    assert np.array_equal(kept(relu, Part.OUTPUT, "").digests, rows_of(after))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
def test_axes(record: Record, axes: tuple[int, ...]) -> None:
    """Rows are counted along the axes that were asked for, as far as a tensor has them."""
    x, y = torch.arange(24.0).reshape(2, 3, 4), torch.arange(3)
    number = torch.tensor(2.0)
    [call] = record(lambda: Takes()(number, x, y), rows="module=*", row_axes=axes).process.activations.calls(0)
    assert np.array_equal(kept(call, Part.INPUT, "1").digests, rows_of(x, axes))
    own = tuple(axis for axis in axes if axis < 1)
    assert np.array_equal(kept(call, Part.INPUT, "2").digests, rows_of(y, own))
    assert kept(call, Part.OUTPUT, "").digests.shape == ()


def test_rows_of_ops(record: Record) -> None:
    """Inputs by the operator's names, outputs by the schema's; the digests of whole tensors are the row's own."""
    x = torch.randn(2, 5, 4)
    with record.block(rows="all") as found:
        torch.topk(x * 2, 2)
        (x + 1).mul_(3).split(2, dim=1)
    ops = found.process.activations.ops(0)
    topk, mul_ = found.one("topk"), found.one("mul_")
    given, *outputs = ops[topk.index].tensors
    assert (given.part, given.name) == (Part.INPUT, "self")
    assert [(t.part, t.name) for t in outputs] == [(Part.OUTPUT, "values"), (Part.OUTPUT, "indices")]
    assert [t.whole for t in outputs] == topk.outputs
    for tensor, computed in zip(outputs, torch.topk(x * 2, 2), strict=True):
        assert np.array_equal(tensor.digests, rows_of(computed))
    before, after = ops[mul_.index].tensors
    assert np.array_equal(before.digests, rows_of(x + 1))
    assert np.array_equal(after.digests, rows_of((x + 1) * 3))
    assert found.one("split").index not in ops  # a view has no digest of its own


def test_memory_that_is_only_written_is_no_input(record: Record) -> None:
    """What an op overwrites without reading it may be anything, and has no rows."""
    found = record(lambda: torch.mul(torch.ones(3, 2), 2, out=torch.empty(3, 2)), rows="all")
    op = found.process.activations.ops(0)[found.one("mul").index]
    assert [(t.part.name, t.name) for t in op.tensors] == [("INPUT", "self"), ("OUTPUT", "out")]


def selected(record: Record, *rows: str) -> tuple[set[str], set[str]]:
    """(modules of the calls, names of the ops) whose rows were recorded."""
    found = record(training, rows=rows)
    store = found.process.activations
    return {call.module for call in store.calls(0)}, {found.rows[row].name for row in store.ops(0)}


def test_selectors(record: Record) -> None:
    """Calls are found by module, phase, step and stream, and alone where modules are asked for; a selector of anything
    else means ops; one that asks for neither means both."""
    assert selected(record, "module=*.head,step=0") == ({"Policy.head"}, set())
    assert selected(record, "module=*.head,step=0", "module=*.head,op=*mm") == ({"Policy.head"}, {"addmm", "mm"})
    assert selected(record, "op=aten.embedding") == (set(), {"embedding"})
    calls, ops = selected(record, "step=0")
    assert calls >= {"Policy", "Policy.head"}
    assert ops >= {"addmm", "mm"}
    calls, ops = selected(record, "phase=backward", "op=logsumexp")
    assert calls == set()
    assert "logsumexp" in ops
    assert "addmm" not in ops


def test_nothing_else_changes(record: Record) -> None:
    """Rows, links, steps and prefix digests are those of a recording without rows."""
    plain, keeping = record(training), record(training, rows="all")
    assert keeping.rows == plain.rows
    assert keeping.steps == plain.steps
    assert np.array_equal(keeping.stream.marks[-1], plain.stream.marks[-1])
    assert not plain.process.activations
    assert plain.process.activations.request is None
    assert plain.process.activations.calls(0) == ()


def test_values_of_ids_are_recorded_and_of_floats_are_not(record: Record) -> None:
    """Whole numbers and booleans that a module is called with; nothing says that values were asked for."""
    process = record(training, rows="module=*").process
    first, second = process.activations.calls(0)[:2]
    ids, mask = (process.values.get(kept(first, Part.INPUT, name).whole) for name in ("ids", "mask"))
    assert (ids.shape, ids.dtype, mask.dtype) == ((1, 5), "int64", "bool")
    assert mask.numbers.all()
    assert kept(second, Part.INPUT, "input").whole == ids.digest
    assert process.values.get(kept(first, Part.OUTPUT, "logits").whole) is None
    assert not process.values


def test_with_values(record: Record) -> None:
    """What both options find has its values, of calls and of ops; rows are those of a recording with values alone."""
    found, alone = (record(training, rows=rows, values="module=*.head") for rows in ("module=*.head", ()))
    values = found.process.values
    assert values
    for call in found.process.activations.calls(0):
        for tensor in call.tensors:
            value = values.get(tensor.whole)
            assert (value.dtype, value.shape) == (tensor.dtype, tensor.shape)
    for op in found.process.activations.ops(0).values():
        assert all(values.get(tensor.whole) is not None for tensor in op.tensors)
    assert found.rows == alone.rows
    assert set(alone.process.values.digests.tolist()) <= set(values.digests.tolist())
    assert verify(found.path).sound


class Point(NamedTuple):
    x: torch.Tensor
    y: list[Any]


def test_where_tensors_are_found(record: Record) -> None:
    """Tuples, named ones, lists, mappings and dataclasses are looked into; objects of another kind are not."""

    @dataclass
    class Output:
        logits: torch.Tensor
        past: tuple[Any, ...] = ()

    class Cache:
        hidden = torch.ones(3)

    class Model(nn.Module):
        def forward(self, point: Point, *more: torch.Tensor, **named: Any) -> Output:
            return Output(point.x + 1, ((point.x,), {7: point.x, "z": None, 2.5: point.x}))

    x = torch.ones(2)
    found = record(lambda: Model()(Point(x, [x, 3]), x, extra=x, cache=Cache()), rows="module=*")
    [call] = found.process.activations.calls(0)
    inputs, outputs = ([t.name for t in call.tensors if t.part is part] for part in (Part.INPUT, Part.OUTPUT))
    assert inputs == ["point.x", "point.y.0", "1", "extra"]
    assert outputs == ["logits", "past.0.0", "past.1.7", "past.1.2"]


def test_the_library_finds_tensors_where_python_does(native_library: Any) -> None:
    """In plain containers and dataclasses, by the same names; what is of another kind is left to Python."""

    @dataclass
    class Output:
        logits: torch.Tensor
        past: Any = None

        @property
        def broken(self) -> None:
            raise AssertionError("code of the program runs")

    class Wanting(Owner):
        fields_of = staticmethod(RowDigests.fields_of)

        def take(self, part: Part, name: str, tensor: torch.Tensor, row: int, *, with_value: bool) -> None:
            names.append(name)

    names: list[str] = []
    owner, x = Wanting(), torch.ones(2)
    reader = native_library.RowReader(owner, {}, {})
    unset = Output.__new__(Output)
    unset.past = [x, object()]
    for value in ({7: x, "a": (x, 3)}, Output(x, {"b": [Output(x)]}), unset, [None, "text", Odd(), x]):
        names.clear()
        assert reader.take_all(bytearray(), Part.INPUT, ("v",), (value,), 0, False)
        assert names == [name for name, _ in named_tensors(value, "v")] != []
    for value in ({2.5: x}, Point(x, []), Watching(x), OddList([x])):
        assert not reader.take_all(bytearray(), Part.INPUT, ("v",), (value,), 0, False)


class Odd:
    """An object whose attributes cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class OddList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class OddDict(dict[str, Any]):
    items = keys = values = OddList.__iter__


class Watching(torch.Tensor):
    """Notes what is done with it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


class Takes(nn.Module):
    """Takes anything."""

    def forward(self, *given: Any) -> Any:
        return given[0]


def test_nothing_of_the_program_runs(record: Record) -> None:
    """Containers are read by Python's own means, strange objects are left alone, a tensor's class is not asked."""
    takes, x = Takes(), torch.ones(2, 3)
    looped: list[Any] = [x]
    looped.append(looped)
    with record.block(rows="module=Takes") as got:
        for given in (Odd(), OddList([x]), OddDict(a=x), x.as_subclass(Watching), looped):
            Watching.seen.clear()
            takes(given)
            assert Watching.seen == []
    calls = got.process.activations.calls(0)
    names = [[tensor.name for tensor in call.tensors if tensor.part is Part.INPUT] for call in calls]
    assert names[:4] == [[], ["0.0"], ["0.a"], ["0"]]
    assert names[4][:2] == ["0.0", "0.1.0"]


def test_what_is_too_much_is_reported(record: Record) -> None:
    """A call with thousands of tensors, or of things to look through, ends the search, and says so."""
    takes, x = Takes(), torch.ones(1)
    wide: list[Any] = []
    for _ in range(6):
        wide = [wide] * 10
    store = record(lambda: (takes([x] * 2_000), takes(wide)), rows="module=Takes").process.activations
    assert [len(call.tensors) for call in store.calls(0)] == [2_048, 0]
    assert sum(entry.values for entry in store.left_out) == 4


def test_modules_without_names_for_their_arguments(record: Record) -> None:
    """A forward of the object's own goes by its own names; where none can be had, by place."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forward = lambda given: given + 1

    script, x = torch.jit.script(nn.Tanh()), torch.ones(2)
    found = record(lambda: (Own()(x), script(x)), rows=("module=Own", "module=RecursiveScriptModule"))
    own, scripted = found.process.activations.calls(0)
    assert [call.tensors[0].name for call in (own, scripted)] == ["given", "0"]


def test_a_checkpointed_forward_is_called_again_in_backward(record: Record) -> None:
    """Both times are calls of their own, with equal rows, the later one in phase backward."""
    x = torch.ones(2, 3, requires_grad=True)
    with record.block(rows="module=Tanh") as got:
        torch.utils.checkpoint.checkpoint(nn.Tanh(), x, use_reentrant=True).sum().backward()
    first, again = got.process.activations.calls(0)
    assert (first.phase, again.phase) == ("forward", "backward")
    assert (first.grad, again.grad) == (False, True)
    assert kept(first, Part.OUTPUT, "").whole == kept(again, Part.OUTPUT, "").whole


def test_inside_of_a_compiled_region_no_calls_are_seen(record: Record) -> None:
    """The call of the whole is there, those of the modules that were compiled into it are not."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled, x = torch.compile(model, backend="eager"), torch.randn(3, 4)
    calls = record(lambda: compiled(x), rows="all").process.activations.calls(0)
    assert calls[0].kind == "OptimizedModule"
    assert {"Sequential", "Linear", "Tanh"}.isdisjoint(call.kind for call in calls)
    torch._dynamo.reset()


def test_an_interrupt_leaves_the_calls_in_order(record: Record) -> None:
    """One that comes within nested calls ends them, with the inputs that they had; the next call is in none of them."""

    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    with record.block(rows="all") as got:
        model, x = nn.Sequential(nn.Tanh(), Interrupted()), torch.ones(2, 3)
        with pytest.raises(KeyboardInterrupt):
            model(x)
        nn.Tanh()(x)
    outer, tanh, inner, after = got.process.activations.calls(0)
    assert [call.raised for call in (outer, tanh, inner, after)] == [True, False, True, False]
    assert (outer.parent, tanh.parent, inner.parent, after.parent) == (None, 0, 0, None)
    assert shown(inner) == [("INPUT", "x", (2, 3))]


def test_other_threads(record: Record) -> None:
    """Calls on another thread are those of its stream."""
    with record.block(rows="all") as found:
        layer, x = nn.Tanh(), torch.ones(2, 3)
        layer(x)
        thread = threading.Thread(target=layer, args=(x,))
        thread.start()
        thread.join()
    store = found.process.activations
    assert [len(store.calls(stream.index)) for stream in found.process.streams] == [1, 1]
    assert verify(found.path).sound


def test_tensors_without_rows(record: Record) -> None:
    """Of sparse, meta and vmapped tensors there are none, which is said; all others of the call are there."""
    takes, x = Takes(), torch.ones(2, 3)
    with record.block(rows="module=Takes") as got:
        takes(x, x.to_sparse(), torch.ones(2, device="meta"))
        torch.vmap(takes)(x)
    store = got.process.activations
    first, second = store.calls(0)
    assert shown(first) == [("INPUT", "0", (2, 3)), ("OUTPUT", "", (2, 3))]
    assert shown(second) == []
    left_out = {entry.why: entry.values for entry in store.left_out}
    assert sum(left_out.values()) == 4
    assert any("vmap" in why for why in left_out)
    assert store.why_missing(0, 0, 1 << 20) in left_out


def test_the_limit(record: Record) -> None:
    """From the first tensor on that goes beyond it nothing more is recorded, and the trace says how much is not."""
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    asked = "module=Sequential*", "module=Sequential*,op=*"
    store = record(lambda: model(torch.ones(100, 2)), rows=asked, rows_limit=1_500).process.activations
    assert store.digest_count == 100  # the input of three, which was there already for the second and third
    assert {entry.why for entry in store.left_out} == {LIMIT}
    there = [tensor for owner in (*store.calls(0), *store.ops(0).values()) for tensor in owner.tensors]
    assert [tensor.name for tensor in there] == ["input", "input", "self"]
    assert sum(entry.values for entry in store.left_out) + len(there) == 3 * 2 + 2 * 2


def test_rows_that_are_there_already_count_as_well(record: Record) -> None:
    """Digests that a hundred calls share are written once, but each call has its entry."""
    model, given = nn.Tanh(), torch.zeros(1, 2)
    store = record(lambda: [model(given) for _ in range(100)], rows="module=*", rows_limit=1_500).process.activations
    assert {entry.why for entry in store.left_out} == {LIMIT}
    assert 1 < sum(len(call.tensors) for call in store.calls(0)) < 1_500 / activation_tensors.OVERHEAD


def test_what_identifies_rows_is_outside_of_the_limit_of_values(record: Record) -> None:
    """Values of activations are beyond the limit from the first on; the token ids of every call are there."""
    process = record(training, rows="module=*", values="module=*", values_limit=1).process
    calls = [call for call in process.activations.calls(0) if call.module == "Policy"]
    assert len(calls) == 3
    assert all(process.values.get(kept(call, Part.INPUT, "ids").whole) is not None for call in calls)
    assert process.values.get(kept(calls[0], Part.OUTPUT, "logits").whole) is None


@pytest.mark.parametrize("copied", [0, activation_tensors.MAX_COPIED_BYTES])
def test_large_tensors_are_read_where_they_are(record: Record, monkeypatch: pytest.MonkeyPatch, copied: int) -> None:
    """Whether they are copied first or not, whatever their layout, rows and values are the same."""
    monkeypatch.setattr(activation_tensors, "MAX_COPIED_BYTES", copied)
    takes, x = Takes(), torch.randn(6, 4)
    given = [x, x.t(), x[::2], torch.complex(x, x).conj(), x > 0, x.bfloat16(), torch.arange(3), torch.tensor(2.0)]
    given += [torch.ones(0, 3), torch.ones(2, 0)]  # no rows, or rows without elements
    [call] = record(lambda: takes(given), rows="module=Takes").process.activations.calls(0)
    for tensor, found in zip(given, call.tensors, strict=False):
        assert np.array_equal(found.digests, rows_of(tensor.resolve_conj()))


def test_a_tensor_that_changes_while_it_is_read(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes to it: there are no rows of it then, and the trace says so."""
    x = torch.ones(4, 8_192)  # a small one is copied

    def written(*given: Any) -> Any:
        (ctypes.c_float * 1).from_address(x.data_ptr())[0] += 1
        return row_digests(*given)

    monkeypatch.setattr(activation_tensors, "MAX_COPIED_BYTES", 0)
    monkeypatch.setattr(activation_tensors, "row_digests", written)
    store = record(lambda: Takes()(x), rows="module=Takes").process.activations
    assert shown(store.calls(0)[0]) == []
    assert {entry.why for entry in store.left_out} == {activation_tensors.CHANGED}


def test_weights_are_the_same(tmp_path: Path) -> None:
    """The program computes the same bits, keeps no output alive and moves no version."""

    def run(**options: Any) -> tuple[list[torch.Tensor], bool, int, torch.Tensor]:
        with rltrace.record(tmp_path / "w.zarr", force=True, **options):
            torch.manual_seed(0)
            policy = Policy()
            logits = update(policy, torch.randint(0, 11, (2, 5)), 3)
            reference, version = weakref.ref(logits), logits._version
            del logits
            gc.collect()
            return list(policy.parameters()), reference() is None, version, torch.get_rng_state()

    plain, rows = run(), run(rows="all", values="all")
    assert all(torch.equal(a, b) for a, b in zip(plain[0], rows[0], strict=True))
    assert plain[1:3] == rows[1:3] == (True, 0)
    assert torch.equal(plain[3], rows[3])


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    """A selector that is none, axes that are none, no ops."""
    for error, options in (
        (SelectorError, {"rows": "colour=red"}),
        (UsageError, {"rows": "all", "row_axes": (-1,)}),
        (UsageError, {"rows": "all", "level": "step"}),
    ):
        with pytest.raises(error), rltrace.record(tmp_path / "x.zarr", **options):
            pass


def test_what_the_trace_says_was_asked(tmp_path: Path) -> None:
    """Selectors, axes and limit, in the process and in the launch's options."""
    with rltrace.record(tmp_path / "a.zarr", rows=("module=*", "op=mm"), row_axes=(1, 0)):
        torch.ones(2)
    trace = open_trace(tmp_path / "a.zarr")
    asked = trace.processes[0].activations.request
    assert (asked.selectors, asked.axes) == (("module=*", "op=mm"), (0, 1))
    assert trace.launch["options"]["rows"] == ["module=*", "op=mm"]
    assert Recorded(tmp_path / "a.zarr").ops == ["ones"]
