"""``verify_inputs``: every op of a window digests what it reads, so nothing rests on a link."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded import Record
from torch import nn

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import InputsMatch
from rltrace.errors import UsageError
from rltrace.trace.format.schema import Kind, Origin, RowFlag


def training() -> None:
    """Layers, views, an optimizer, a buffer filled by slices."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    buffer = torch.zeros(4, 4)
    for step in range(3):
        buffer[step] = torch.randn(4)
        loss = model(buffer.t()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_every_input_is_read(record: Record) -> None:
    """Each input of each op that computes has a digest; rows and links are those of a recording without."""
    steps = (1, 3)
    plain, verified = record(training, steps=steps), record(training, steps=steps, verify_inputs=True)
    assert verified.ops == plain.ops
    assert [row.outputs for row in verified.rows] == [row.outputs for row in plain.rows]
    computing = [r for r in verified.rows if r.kind is Kind.OP and not r.flags & (RowFlag.VIEW | RowFlag.ALLOCATION)]
    inputs = [i for row in computing for i in row.inputs if i.origin is not Origin.OVERWRITTEN]
    assert len(inputs) > 100
    assert all(i.digest is not None and not i.known for i in inputs)
    for row, other in zip(plain.rows, verified.rows, strict=True):
        for link, checked in zip(row.inputs, other.inputs, strict=True):
            if not link.known and not row.flags & RowFlag.VIEW:
                assert (link.row, link.origin, link.slot) == (checked.row, checked.origin, checked.slot)


def test_every_verdict_rests_on_what_was_read(record: Record) -> None:
    """An op that computes otherwise in B: its inputs match by digest on both sides."""
    scale = [1.0]

    @torch.library.custom_op("verify_inputs::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * scale[0]

    def program() -> None:
        scaled(torch.ones(3) + 1).sum()

    found = {}
    for verify in (False, True):
        paths = []
        for scale[0] in (1.0, 2.0):
            paths.append(record(program, steps=(0, None), verify_inputs=verify).path)
        first = compare(*paths).first
        assert first.op == "verify_inputs.scaled.default"
        found[verify] = first.inputs_match
    assert found == {False: InputsMatch.INFERRED, True: InputsMatch.READ}


def test_a_window_is_needed(tmp_path: Path) -> None:
    """It costs as much again as recording, so it is asked for a few steps; without them it is refused."""
    with pytest.raises(UsageError, match="window"), rltrace.record(tmp_path / "a.zarr", verify_inputs=True):
        pass
    assert not (tmp_path / "a.zarr").exists()
