"""What the recorder asks a device for besides digests of rows, while the program captures a graph: nothing."""

from __future__ import annotations

import pytest
import torch
from recorded import Record, digest_of

from rltrace.recorder.digests import rng_state, tensor_digest
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.rng_state import RngUse
from rltrace.recorder.session import optimizer_steps
from rltrace.trace.format.schema import Generator, Step, StepFlag


def test_a_generator_is_not_asked_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that is given nor the device's own; its number is not said, and the row has the digest 0."""
    monkeypatch.setattr(rng_state, "is_captured", lambda _: True)
    assert RngUse().before_op((), {"generator": torch.Generator()}) == (0, Generator.UNKNOWN)
    assert RngUse().before_op((), {"device": torch.device("meta")}) == (0, Generator.UNKNOWN)


def test_an_attempt_within_a_capture_has_no_digests(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer's step that is captured computes nothing: its parameters have no digest, which is said."""
    parameter = torch.ones(3, requires_grad=True, device="meta")  # any device that is not the CPU
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    captured: list[bool] = []
    monkeypatch.setattr(optimizer_steps, "is_captured", lambda _: bool(captured))
    with record.block(level="step") as got:
        for _ in range(2):
            parameter.sum().backward()
            optimizer.step()
            captured.append(True)
    first, second = got.steps
    assert first[Step.FLAGS] & StepFlag.DIGESTED and first[Step.PARAMETERS]
    assert not second[Step.FLAGS] & StepFlag.DIGESTED and not second[Step.PARAMETERS]


def test_a_tensor_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 stands in place of a digest. A device that can no longer be asked counts as one that must not be."""
    monkeypatch.setattr(tensor_digest, "is_captured", lambda _: True)
    assert digest_of(torch.ones(3, device="meta")) == 0  # any tensor that is not the CPU's
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", _failing)
    assert is_captured(torch.device("cuda")) and not is_captured(torch.device("cpu"))


def _failing() -> bool:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")
