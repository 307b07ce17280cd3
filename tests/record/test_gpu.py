"""On a CUDA device: rows as on a CPU, digests of the same bytes, the same results recorded and not."""

from __future__ import annotations

import pytest
import torch
from recorded import Record
from torch import nn

from rltrace.digest import seed_of
from rltrace.digest.reference import digest

pytestmark = pytest.mark.gpu


def _update(device: str) -> list[torch.Tensor]:
    """One clipped policy-gradient update of a small actor-critic; returns its parameters."""
    torch.manual_seed(1)
    body, actor, critic = nn.Linear(8, 64), nn.Linear(64, 4), nn.Linear(64, 1)
    net = nn.ModuleList([body, actor, critic]).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    observations, returns = torch.randn(256, 8, device=device), torch.randn(256, device=device)
    for _ in range(2):
        hidden = torch.tanh(body(observations))
        policy = torch.distributions.Categorical(logits=actor(hidden))
        actions = policy.sample()
        ratio = (policy.log_prob(actions) - policy.log_prob(actions).detach()).exp()
        surrogate = torch.min(ratio * returns, ratio.clamp(0.8, 1.2) * returns)
        loss = (critic(hidden).squeeze(1) - returns).pow(2).mean() - surrogate.mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


def test_an_update_computes_the_same_bits_recorded_and_not(record: Record) -> None:
    """PPO's update, twice unrecorded and once recorded: equal parameters."""
    plain, again = _update("cuda"), _update("cuda")
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True)), "this device does not repeat itself"
    kept: list[torch.Tensor] = []
    recording = record(lambda: kept.extend(_update("cuda")))
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert any("cuda" in str(layout) for layout in recording.process.tables["layouts"].payloads)


def test_backward_ops_on_the_device_are_rows(record: Record) -> None:
    """The autograd engine runs CUDA's backward on a thread of its own; its ops are in the trace all the same."""
    recording = record(lambda: _update("cuda"))
    assert any("_backward" in name for name in recording.process.tables["ops"].payloads)


def test_rows_of_tensors_on_the_device(record: Record) -> None:
    """Calls and ops have the rows that the same bytes have on a CPU."""
    layer, x = nn.Linear(8, 4).cuda(), torch.randn(2, 3, 8, device="cuda")
    kept: list[torch.Tensor] = []
    [call] = record(lambda: kept.append(layer(x)), rows="module=Linear").process.kept_rows.calls(0)
    for tensor, found in zip((x, *kept), call.tensors, strict=True):
        rows = tensor.detach().cpu().reshape(-1, tensor.shape[-1])
        wanted = [digest(row.numpy().tobytes(), seed_of("float32", row.shape)) for row in rows]
        assert found.digests.reshape(-1).tolist() == wanted


def test_digests_in_the_trace_are_those_of_the_same_bytes_on_a_cpu(record: Record) -> None:
    """The digest of what an op returned on the device, beside the reference on a copy of it."""
    kept: list[torch.Tensor] = []

    def work() -> None:
        kept.append(torch.arange(70_000, device="cuda", dtype=torch.float32).mul(0.5))

    recording = record(work)
    expected = digest(kept[0].cpu().numpy().tobytes(), seed_of("float32", [70_000]))
    stream = recording.process.streams[0]
    rows = stream.read(0, stream.rows)
    assert expected in {output for i in range(len(rows)) for output in rows.outputs(i)}
