"""Operators that write memory with code of their own: recorded as one op, their results written and linked."""

from __future__ import annotations

import pytest
import torch
from recorded import Record

from rltrace.recorder.session.torch_patches import NAMES


def draws(scramble: bool) -> list[torch.Tensor]:
    engine = torch.quasirandom.SobolEngine(3, scramble=scramble, seed=1)
    points = [engine.draw(5)]
    engine.fast_forward(2)
    points.append(engine.draw(4))
    engine.reset()
    return [*points, engine.draw(3, dtype=torch.float64)]


@pytest.mark.parametrize("scramble", [False, True])
def test_a_sobol_engine(record: Record, scramble: bool) -> None:
    """No mark on what it draws, every read of its state linked to what wrote it, and the same points as ever."""
    plain, drawn = draws(scramble), []
    with record.block() as got:
        for points in draws(scramble):
            drawn.append(points)
            points.sin()
    assert all(torch.equal(a, b) for a, b in zip(plain, drawn, strict=True))
    assert not any(row.marked for row in got.rows)
    draw = got.named("_sobol_engine_draw")
    assert [len(row.outputs) for row in draw] == [2, 2, 2]
    forward = got.one("_sobol_engine_ff_")
    assert forward.inputs[0].row == draw[0].index
    assert draw[1].inputs[0].row == forward.index
    state = got.named("_sobol_engine_scramble_" if scramble else "_sobol_engine_initialize_state_")[-1]
    assert [row.inputs[1].row for row in draw] == [state.index] * 3
    assert got.named("sin")[1].inputs[0].row == draw[1].index


def test_replacements_are_restored(record: Record) -> None:
    """After the recording torch is as before."""
    before = [getattr(torch, name) for name in NAMES]
    record(lambda: torch.ones(1))
    assert [getattr(torch, name) for name in NAMES] == before
