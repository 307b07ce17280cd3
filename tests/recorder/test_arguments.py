"""Arguments that are no tensors: exactly what they were, and no table that grows with every step."""

import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from recorded import Record, Recorded, Row

OP = torch.ops.aten


def arguments(row: Row) -> tuple[str, list[int], list[bytes]]:
    """Everything a row says of its arguments; floats by their bits."""
    return str(row.scalars), row.integers, [struct.pack("<d", f) for f in row.floats]


def test_labels_for_people_are_no_arguments(record: Record) -> None:
    """What a program calls a stretch of itself for the profiler, the time of day for one, changes nothing."""

    def program(name: str) -> None:
        for i in range(3):
            with torch.profiler.record_function(f"{name} {i}"):
                torch.ones(3).sin()

    one, two = (record(lambda name=name: program(name)) for name in ("at noon", "at night"))
    assert one.chains == two.chains
    assert len(one.named("_record_function_enter_new")) == 3
    assert not [payload for payload in one.table("scalars") if "noon" in str(payload)]


SCALARS: list[Any] = [
    *(1, True, 1.0, 0, False, 0.0, -0.0, -1, 2**31, 2**63 - 1, -(2**63)),
    *(1e300, math.inf, -math.inf, math.nan, 1 + 0j, 0j),
]


def test_no_two_scalars_fall_together(record: Record) -> None:
    """``1``, ``True``, ``1.0``, zeros of both signs, NaN, huge numbers, complex ones: each row says which."""
    with record.block() as got:
        x = torch.ones(2, dtype=torch.complex64)
        for scalar in SCALARS:
            OP.mul.Scalar(x, scalar)
    rows = got.named("mul")
    assert len(rows) == len(SCALARS)
    assert len({str(arguments(row)) for row in rows}) == len(SCALARS)
    for scalar, row in zip(SCALARS, rows, strict=True):
        if type(scalar) is int:
            assert row.integers == [scalar]
        elif type(scalar) is float:
            assert struct.pack("<d", row.floats[0]) == struct.pack("<d", scalar)


def test_every_kind_of_argument_has_its_place(record: Record) -> None:
    """Lists, None, booleans, names, dtypes, devices, layouts, optional tensors."""
    with record.block() as got:
        x = torch.ones(4, 4)
        OP.sum.dim_IntList(x, [0, 1], True, dtype=torch.float64)
        OP.index.Tensor(x, [None, torch.tensor([1, 2])])
        OP.linalg_vector_norm.default(x, 2.0, None, False)
        OP.div.Tensor_mode(x, x, rounding_mode="floor")
        OP._to_copy.default(x, dtype=torch.bfloat16, device=torch.device("cpu"), memory_format=torch.preserve_format)
    total = got.one("sum")
    assert total.scalars == ["T", ["i", "i"], True, ["dtype=", {"dtype": "float64"}]]
    assert total.integers == [0, 1]
    assert got.one("index").scalars == ["T", [None, "T"]]
    assert len(got.one("index").inputs) == 2
    assert got.one("linalg_vector_norm").scalars == ["T", "f"]
    assert got.one("div").scalars == ["T", "T", ["rounding_mode=", {"str": "floor"}]]
    assert ["dtype=", {"dtype": "bfloat16"}] in got.one("_to_copy").scalars


def _tables(got: Recorded) -> dict[str, int]:
    return {name: len(got.table(name)) for name in ("scalars", "structures", "layouts", "sites", "ops", "frames")}


def test_numbers_that_change_each_step_grow_no_table(record: Record) -> None:
    """A learning rate schedule, step counts, NaN: the tables of a long run are those of a short one."""

    def program(steps: int) -> Callable[[], None]:
        def run() -> None:
            p = torch.ones(3)
            for i in range(steps):
                p.mul_(0.1 / (i + 1)).add_(1, alpha=1e-3 / (i + 1))
                p.clamp_(-i - 1, i + 1.0)
                p.pow(math.nan if i % 2 else -0.0)
                torch.full((2,), i)

        return run

    assert _tables(record(program(3))) == _tables(record(program(300)))


def test_objects_are_never_written_out(record: Record) -> None:
    """A storage among the arguments would print every byte it has."""
    with record.block() as got:
        torch.empty(0).set_(torch.ones(100_000).untyped_storage(), 0, (3,), (1,))
    assert len(str(got.one("set_").scalars)) < 200


def test_names_of_arguments_count(record: Record) -> None:
    """The same value under another name is another argument."""
    with record.block() as got:
        x = torch.ones(4)
        OP.clamp.default(x, min=1.0)
        OP.clamp.default(x, max=1.0)
    first, second = got.named("clamp")
    assert arguments(first) != arguments(second)


def test_integers_beyond_64_bits_do_not_end_a_recording(record: Record) -> None:
    """Whatever the op makes of them."""

    def program() -> list[object]:
        x, outcomes = torch.ones(2), list[object]()
        for huge in (2**63, 2**64 - 1, -(2**63) - 1):
            try:
                outcomes.append(OP.mul.Scalar(x, huge).tolist())
            except (RuntimeError, OverflowError, TypeError) as error:
                outcomes.append(type(error).__name__)
        x + 1
        return outcomes

    got = record(program)
    assert got.ops[-1] == "add"
    assert got.returned == program()
