"""One call by itself, and inputs at an address that is asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rltrace.rerun.runner import Memory, OpCall, RngState, TensorSpec, aligned, prepare_call

TENSORS = (
    TensorSpec("float32", (4,), (1,)),
    TensorSpec("float32", (2,), (1,), offset=8),
    TensorSpec("float64", (2,), (1,), storage=1),
)
CONTENTS = {0: np.arange(16, dtype=np.uint8), 1: np.arange(16, dtype=np.uint8)}


@pytest.mark.parametrize("alignment", [4, 8, 16, 32, 64])
def test_inputs_begin_where_they_are_asked_to(alignment: int) -> None:
    """At that multiple and no higher one, as far as their own size lets them; memory that is shared stays shared."""
    op = OpCall("op", lambda tensors, generator: None, TENSORS, contents=CONTENTS)
    chosen = aligned(op, alignment)
    inputs = tuple(replace(spec, alignment=chosen[spec.storage]) for spec in TENSORS)
    single, part, double = Memory().arguments(replace(op, inputs=inputs))
    assert single.data_ptr() % 64 == alignment % 64
    assert part.data_ptr() == single.data_ptr() + 8
    assert double.data_ptr() % 64 == max(alignment, 8) % 64
    assert single.numpy().tobytes() == bytes(range(16))


def test_a_call_by_itself_is_the_op_and_nothing_else() -> None:
    """Its inputs are there before it is made; the generator is put back when it has been."""
    drawn: list[torch.Tensor] = []
    state = RngState("cpu", torch.Generator().manual_seed(3).get_state().numpy(), False)
    op = OpCall("op", lambda tensors, generator: drawn.append(torch.rand(3)), (), generator=state)
    before = torch.default_generator.get_state()
    call = prepare_call(op)
    assert drawn == []
    call()
    assert torch.equal(drawn[0], torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.default_generator.get_state(), before)
