"""Arguments that are only overwritten: nothing an op returns or writes may depend on what they held."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from overloads import Example, examples, filled, flat, overloads, same_bytes
from torch._ops import OpOverload

from rltrace.recorder.core.op_info import ALLOCATIONS, OVERWRITES, SHAPE_ONLY, make_plan

GIVEN_NONSENSE = {
    "aten::_convert_indices_from_csr_to_coo",
    "aten::_embedding_bag_forward_only",
    "aten::_weight_norm_interface",
    "aten::_weight_norm_interface_backward",
}
"""Do not check arguments that no caller gives them together, and then leave part of their result as it was."""

TRIES = 8

DOES_NOT_FIT = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What ops raise for arguments that were guessed wrong."""

pytestmark = pytest.mark.filterwarnings("ignore")


def outcomes(op: OpOverload, example: Example, out: dict[str, torch.dtype]) -> Iterator[tuple[Any, Any]]:
    """What ``op`` writes and returns over memory of one byte and of another."""
    args, kwargs = example.fresh()
    sized = {name: torch.empty(0, dtype=dtype) for name, dtype in out.items()}
    op(*args, **kwargs, **sized)
    for byte in (0x55, 0xAA):
        args, kwargs = example.fresh()
        given = {name: filled(t.shape, t.dtype, byte) for name, t in sized.items()}
        torch.manual_seed(0)
        yield op(*args, **kwargs, **given), list(given.values())


def out_overloads() -> Iterator[tuple[OpOverload, list[str]]]:
    for op in overloads():
        names = [a.name for a in op._schema.arguments if a.is_out]
        single = all(str(a.type) == "Tensor" for a in op._schema.arguments if a.is_out)
        if names and single and op._schema.name not in ALLOCATIONS | GIVEN_NONSENSE:
            yield op, names


def tried(op: OpOverload, names: list[str]) -> bool | None:
    """Whether both outcomes are equal; None where no call was found that works.

    What reads old bytes differs each time. A few ops (``linalg_lstsq``) do not always repeat themselves.
    """
    for example in examples(op):
        for dtypes in ([example.dtype] * len(names), [example.dtype, *[torch.int64] * len(names)], [torch.bool]):
            pairs = (tuple(outcomes(op, example, dict(zip(names, dtypes, strict=False)))) for _ in range(TRIES))
            try:
                pair = next(pairs)
            except DOES_NOT_FIT:
                continue
            if sum(t.numel() for t in flat(pair[0])):
                return same_bytes(*pair) or any(same_bytes(*again) for again in pairs)
    return None


def test_no_out_argument_is_read() -> None:
    """Every ``out=`` overload that torch has and that a call can be guessed for: hundreds."""
    found = {str(op): tried(op, names) for op, names in out_overloads()}
    assert [name for name, equal in found.items() if equal is False] == []
    assert sum(equal is True for equal in found.values()) > 500


def pairs_over(op: OpOverload, places: list[int]) -> Iterator[list[tuple[Any, list[Any]]]]:
    """Of each call that works, over memory of one byte and of another at these places: what it returns, and they."""
    for example in examples(op):
        pair = []
        for byte in (0x55, 0xAA):
            args, kwargs = example.fresh()
            for place in places:
                given = [filled(t.shape, t.dtype, byte) for t in flat(args[place])]
                args[place] = given if isinstance(args[place], list) else given[0]
            torch.manual_seed(0)
            with contextlib.suppress(*DOES_NOT_FIT):
                pair.append((op(*args, **kwargs), [args[place] for place in places]))
        if len(pair) == 2:
            yield pair


def test_the_table_of_overwrites_is_right() -> None:
    """Every overload of every op in it gives the same over other bytes."""
    seen = set()
    for op in overloads():
        if op._schema.name not in OVERWRITES or any(a.is_out for a in op._schema.arguments):
            continue
        written = [name for name, unread in make_plan(0, op).writes.items() if unread]
        for pair in pairs_over(op, [i for i, a in enumerate(op._schema.arguments) if a.name in written]):
            assert same_bytes(*pair), op
            seen.add(op._schema.name)
    assert seen == OVERWRITES


def test_the_table_of_ops_that_read_only_a_shape_is_right() -> None:
    """Every overload of every op in it gives the same whatever its first tensor holds."""
    seen = set()
    for op in overloads():
        if not make_plan(0, op).shape_only or any(a.is_out for a in op._schema.arguments):
            continue
        for (one, _), (other, _) in pairs_over(op, [0]):
            assert same_bytes(one, other), op
            seen |= SHAPE_ONLY & {op._schema.name, f"{op._schema.name}.{op._schema.overload_name}"}
    assert seen == SHAPE_ONLY


@pytest.mark.parametrize(
    "name",
    ["add_.Tensor", "mul_.Tensor", "masked_fill_.Scalar", "index_put_.default", "scatter_.value", "tril_.default"],
)
def test_ops_that_are_not_in_it_read_what_they_write(name: str) -> None:
    """What is left of the old bytes shows, so they are inputs."""
    base, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, base), overload)
    assert not any(make_plan(0, op).writes.values())
    old, new = torch.zeros(3, 3), torch.ones(3, 3)
    args: dict[str, tuple[Any, ...]] = {
        "masked_fill_.Scalar": (torch.eye(3) == 1, 2.0),
        "index_put_.default": ([torch.tensor([1])], torch.ones(3)),
        "scatter_.value": (0, torch.zeros(1, 3, dtype=torch.int64), 2.0),
        "tril_.default": (),
    }
    given = args.get(name, (torch.full((3, 3), 2.0),))
    assert not torch.equal(op(old, *given), op(new, *given))
