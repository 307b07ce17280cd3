"""On a CUDA device: the rows of a CPU and the same results, digests of the bytes whatever streams and graphs do."""

import ctypes
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from op_programs import actor_critic, policy_update
from recorded import Record, Recorded
from torch import nn

import rltrace
from rltrace.digest import seed_of
from rltrace.digest.reference import digest
from rltrace.recorder import current_session
from rltrace.trace.format.schema import Origin, RowFlag
from rltrace.trace.kernels.evidence import LAUNCHES

pytestmark = pytest.mark.gpu


def _digest(tensor: torch.Tensor) -> int:
    """By the definition, from a copy on the host."""
    data = tensor.detach().cpu().contiguous()
    dtype = str(data.dtype).removeprefix("torch.")
    size = data.element_size() * data.numel()
    return digest(ctypes.string_at(data.data_ptr(), size) if size else b"", seed_of(dtype, data.shape))


def _outputs(found: Recorded, name: str) -> list[int]:
    return [output for row in found.named(name) for output in row.outputs]


@contextmanager
def _synchronisation_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():  # that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_each_result_has_the_digest_of_its_bytes(record: Record) -> None:
    """Of sizes around a page and far above, strides, dtypes; each overwritten as soon as the op has returned."""
    kept: list[torch.Tensor] = []
    with record.block() as found:
        for size in (1, 7, 4_095, 4_096, 4_097, 50_001, 3_000_000):
            result = torch.arange(size, device="cuda", dtype=torch.float32).mul(0.5)
            with torch._C._DisableTorchDispatch():
                kept.append(result.clone().cpu())
            result.zero_()
        square = torch.arange(3_600, device="cuda", dtype=torch.float32).view(60, 60)
        for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.float64):
            result = square.to(dtype).t().mul(1)  # keeps the strides of what it is given
            with torch._C._DisableTorchDispatch():
                kept.append(result.clone().cpu())
            result.zero_()
    assert _outputs(found, "mul") == [_digest(tensor) for tensor in kept]
    assert not any(row.marked for row in found.named("mul"))


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_an_update_has_the_digests_it_has_when_each_is_waited_for(options: dict[str, bool], tmp_path: Path) -> None:
    """PPO's update, recorded twice: digests read back later, and taken at once since every value is recorded."""
    found = []
    for n, values in enumerate(("", "all")):
        path = tmp_path / f"{n}.zarr"
        parts = actor_critic("cuda", **options)
        torch.cuda.manual_seed(3)
        with rltrace.record(path, values=values or ()):
            for _ in range(2):
                policy_update(*parts)
        found.append(Recorded(path).raw)
    later, at_once = found
    assert later.digests.tolist() == at_once.digests.tolist()
    assert later.columns[:, 9].tolist() == at_once.columns[:, 9].tolist()


def test_no_op_waits_for_the_device(record: Record) -> None:
    """torch itself would raise an error at a synchronising call made in an op's path."""
    (body, _, actor, _), _, observations, _ = actor_critic("cuda")
    with record.block() as found:
        torch.ones(1, device="cuda").add(1)  # memory for the digests is made once
        with _synchronisation_is_an_error():
            for _ in range(3):
                actor(torch.tanh(body(observations))).sum().backward()
                torch.arange(300_000, device="cuda").mul(2)
    assert not any(row.marked for row in found.rows if row.name not in ("empty", "new_empty_strided", "empty_strided"))


def test_streams_of_the_program_s_own(record: Record) -> None:
    """A digest is taken on the stream on which its op ran, behind it, and before what comes next on that stream."""
    kept: list[torch.Tensor] = []
    with record.block() as found:
        streams = [torch.cuda.Stream() for _ in range(6)]
        for n in range(120):
            with torch.cuda.stream(streams[n % 6]):
                torch.cuda._sleep(100_000)
                result = torch.full((500 * (n % 9 + 1),), float(n), device="cuda").mul(3)
                kept.append(result.clone())
                result.zero_()
        torch.cuda.synchronize()
    assert _outputs(found, "mul") == [_digest(tensor) for tensor in kept]


def test_memory_that_is_given_back_and_used_again_at_once(record: Record) -> None:
    """The allocator hands out the memory of a result that was dropped while its digest may still be on its way."""
    expected: list[int] = []
    with record.block() as found:
        for n in range(400):
            torch.full((2_000,), float(n), device="cuda").add(1)  # dropped
            expected.append(n + 1)
    assert _outputs(found, "add") == [_digest(torch.full((2_000,), float(n))) for n in expected]


def test_a_copy_to_the_host_that_does_not_wait(record: Record) -> None:
    """Its row has the digest of what is copied; the program that waited reads the same."""
    kept: list[torch.Tensor] = []
    with record.block() as found:
        there = torch.full((1_000_000,), 2.0, device="cuda").mul(2)
        torch.cuda._sleep(50_000_000)
        here = there.to("cpu", non_blocking=True)
        pinned = torch.empty(1_000_000, pin_memory=True)
        pinned.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        kept.extend((here.neg(), pinned.exp()))
    four = _digest(torch.full((1_000_000,), 4.0))
    assert found.one("_to_copy").outputs == [four] and found.one("copy_").outputs == [four]
    for name in ("neg", "exp"):
        assert [link.digest for link in found.one(name).inputs] == [four]


def test_a_graph_is_captured_and_replayed_as_without_the_recorder(record: Record) -> None:
    """The capture holds none of the recorder's work; what is read after a replay is digested, its writer not named."""
    kept: list[torch.Tensor] = []

    def work(given: torch.Tensor) -> torch.Tensor:
        return torch.tanh(given @ given) + torch.rand_like(given)

    with record.block() as found:
        given = torch.randn(64, 64, device="cuda")
        for _ in range(3):
            work(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work(given)
        for n in range(3):
            given.copy_(torch.full((64, 64), n / 10, device="cuda"))
            graph.replay()
            kept.append(result.clone())
    clones = found.named("clone")
    assert [row.outputs[0] for row in clones] == [_digest(tensor) for tensor in kept]
    for row, tensor in zip(clones, kept, strict=True):
        [link] = row.inputs
        assert (link.origin, link.digest) == (Origin.UNKNOWN, _digest(tensor))
    captured = found.named("tanh")[3]
    assert captured.marked and captured.outputs == [0]
    assert not any(row.marked for row in found.named("tanh")[:3])


def test_a_graph_that_another_thread_s_commits_would_break(record: Record) -> None:
    """CUDA's default mode lets no thread wait while a graph is captured: rows are committed all the while."""
    values = torch.randn(32, 32, device="cuda")
    with record.block() as found:
        committer = current_session()._committer
        for _ in range(30):
            for _ in range(20):
                torch.tanh(values)
            committer.request_commit()  # its thread reads back what is pending, or waits for the gate
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    torch.tanh(values)
    rows = found.named("tanh")
    assert len(rows) == 1_200
    expected = _digest(torch.tanh(values))
    assert {row.outputs[0] for row in rows if not row.marked} == {expected}
    assert sum(row.marked for row in rows) == 600


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two_devices(record: Record) -> None:
    """A result on another device than the current one."""
    kept: list[torch.Tensor] = []
    with record.block() as found:
        for n in range(50):
            kept.append(torch.full((3_000,), float(n), device=f"cuda:{n % 2}").mul(2))
            kept.append(kept[-1].to(f"cuda:{(n + 1) % 2}"))
    digests = iter(zip(_outputs(found, "mul"), _outputs(found, "_to_copy"), strict=True))
    for pair in zip(kept[::2], kept[1::2], strict=True):
        assert next(digests) == tuple(_digest(tensor) for tensor in pair)


def _run(program: str, trace: Path, *, recorded: bool = True) -> subprocess.CompletedProcess[str]:
    script = trace.with_suffix(".py")
    script.write_text(textwrap.dedent(program))
    command = [sys.executable, str(script)]
    if recorded:
        command = [sys.executable, "-m", "rltrace", "record", "--quiet", "-o", str(trace), "--", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ}, timeout=1200)


def test_a_device_side_assert_is_the_program_s_own(tmp_path: Path) -> None:
    """Its error and its exit status are those without the recorder, and the rows up to it are in the trace."""
    program = """
        import torch
        values = torch.arange(10, device="cuda").mul(2)
        values[torch.tensor([100], device="cuda")]
        values.add(1).cpu()
    """
    plain = _run(program, tmp_path / "plain.zarr", recorded=False)
    found = _run(program, tmp_path / "a.zarr")
    assert plain.returncode == found.returncode != 0
    errors = [ran.stderr.strip().splitlines() for ran in (plain, found)]
    assert errors[0] and errors[0][-1].partition(":")[0] in {line.partition(":")[0] for line in errors[1]}
    recorded = Recorded(tmp_path / "a.zarr")
    assert {"arange", "mul", "index"} <= set(recorded.ops)


def test_a_child_that_is_forked_touches_no_device(tmp_path: Path) -> None:
    """CUDA cannot be used in it; the recorder does not try, and the child ends as it would."""
    program = """
        import os, torch
        values = torch.arange(10, device="cuda").mul(2)
        child = os.fork()
        if not child:
            torch.ones(3).add(1)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert values.sum().item() == 90
    """
    assert _run(program, tmp_path / "a.zarr").returncode == 0
    assert [row.name for row in Recorded(tmp_path / "a.zarr").rows][-1] == "_local_scalar_dense"


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
        assert found.digests.reshape(-1).tolist() == [_digest(row) for row in tensor.reshape(-1, tensor.shape[-1])]


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
