"""On a CUDA device: rows as on a CPU, digests of the same bytes, the same results recorded and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from op_programs import actor_critic, policy_update
from recorded import Record
from torch import nn

from rltrace.digest import seed_of
from rltrace.digest.reference import digest
from rltrace.trace.format.schema import RowFlag
from rltrace.trace.kernels.evidence import LAUNCHES

pytestmark = pytest.mark.gpu


def _update(device: str) -> list[torch.Tensor]:
    """Two updates of a small actor-critic; returns its parameters."""
    parts = actor_critic(device)
    for _ in range(2):
        policy_update(*parts)
    return [p.detach().cpu() for p in parts[0].parameters()]


def test_an_update_computes_the_same_bits_recorded_and_not(record: Record) -> None:
    """PPO's update, twice unrecorded, recorded, and recorded beside the profiler: equal parameters. Backward passes,
    which the autograd engine runs on a thread of its own, are in the trace."""
    plain, again = _update("cuda"), _update("cuda")
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True)), "this device does not repeat itself"
    for options in ({}, {"kernels": (0, None)}):
        recording = record(lambda: _update("cuda"), **options)
        assert all(torch.equal(a, b) for a, b in zip(plain, recording.returned, strict=True))
    assert any("cuda" in str(layout) for layout in recording.process.tables["layouts"].payloads)
    assert any("_backward" in name for name in recording.process.tables["ops"].payloads)


def test_rows_of_tensors_on_the_device(record: Record) -> None:
    """Calls and ops have the rows that the same bytes have on a CPU."""
    layer, x = nn.Linear(8, 4).cuda(), torch.randn(2, 3, 8, device="cuda")
    got = record(lambda: layer(x), rows="module=Linear")
    [call] = got.process.activations.calls(0)
    for tensor, found in zip((x, got.returned), call.tensors, strict=True):
        rows = tensor.detach().cpu().reshape(-1, tensor.shape[-1])
        wanted = [digest(row.numpy().tobytes(), seed_of("float32", row.shape)) for row in rows]
        assert found.digests.reshape(-1).tolist() == wanted


# --- kernels ----------------------------------------------------------------------------------------------------------


def _transformer(device: str) -> None:
    """Two updates of two layers with attention, embeddings and a loss over tokens, clipped, by AdamW."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    model = nn.ModuleList([nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 100)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 100, (8, 17), device=device)
    for _ in range(2):
        embedded = model[0](tokens[:, :-1])
        mask = nn.Transformer.generate_square_subsequent_mask(16, device=torch.device(device))
        logits = model[2](model[1](embedded, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.reshape(-1, 100), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()


@pytest.mark.parametrize("update", [_update, _transformer])
def test_every_op_of_an_update_has_its_kernels(record: Record, update: Callable[[str], object]) -> None:
    """Each row that computes on the device names what was launched for it, with grids, and nothing is unknown."""
    update("cuda")  # libraries choose, allocate and compile at their first calls
    torch.cuda.synchronize()
    recording = record(lambda: update("cuda"), kernels=(0, None))
    launches = recording.process.launches
    assert launches.unknown == [], "; ".join(entry.why for entry in launches.unknown)
    idle = RowFlag.VIEW | RowFlag.ALLOCATION
    rows = [row for row in recording.rows if "device" in row.kernel and not row.flags & idle]
    bare = sorted({row.op for row in rows if not row.kernel.get("names")})
    assert not bare, f"of {len(rows)} rows on the device these launched nothing: {bare}"
    kernels = [
        (name, geometry)
        for row in rows
        for name, geometry in zip(row.kernel["names"], row.kernel[LAUNCHES], strict=True)
    ]
    assert all(all(geometry) for name, geometry in kernels if not name.startswith(("Memcpy", "Memset")))
    assert not any(name.startswith("_Z") for name, _ in kernels)
    mine = {stray: count for stray, count in launches.strays.items() if not stray[1].endswith("in another thread")}
    assert not mine, "nothing of the program's is launched outside of an op"


def test_what_is_captured_into_a_graph_is_unknown_and_its_replay_is_counted(record: Record) -> None:
    """Rows of a capture launched nothing yet; the replay's kernels belong to no row."""
    x = torch.randn(256, 256, device="cuda")
    (x @ x).relu()
    graph = torch.cuda.CUDAGraph()
    with record.block(kernels=(0, None)) as got:
        with torch.cuda.graph(graph):
            (x @ x).relu()
        for _ in range(3):
            graph.replay()
        x.relu()
    launches = got.process.launches
    assert any(count == 3 for (_, launcher), count in launches.strays.items() if "GraphLaunch" in launcher), (
        launches.strays
    )
    assert launches.unknown
