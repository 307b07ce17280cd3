"""The stories of GPUs on a real one: kernels with their names, what chose them, and what does not repeat itself.

Two kinds of GPU, and two installations, are not to be had on one machine: their stories are in
``tests/diff/test_on_a_gpu.py`` from traces with the names and grids that such machines have.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import rltrace
from rltrace.diff.base.model import Cause, Comparison, Finding, InputsMatch
from rltrace.diff.compare import compare
from rltrace.extensions.repro.commands.repro import find, prepare
from rltrace.extensions.repro.explain import Tried, explain
from rltrace.extensions.repro.folder import SCRIPT, write_folder
from rltrace.extensions.repro.kernel_settings import KernelSetting, parse_setting
from rltrace.trace.kernels.evidence import launches, whole_names
from rltrace.trace.read.reader import open_trace

pytestmark = pytest.mark.gpu

EVERY_STEP = (0, None)
ATTEMPTS = 30
"""Recordings until two of them differ: what atomic operations add up comes out otherwise now and then."""

Program = Callable[[], object]


def recorded(path: Path, program: Program, **options: object) -> Path:
    """The program run once in this process, with the kernels of every op."""
    with rltrace.record(path, kernels=EVERY_STEP, **options):  # type: ignore[arg-type]
        program()
        torch.cuda.synchronize()
    return path


def two_that_differ(folder: Path, program: Program, **options: object) -> Comparison:
    """The program recorded until a run gives other values than the first one did."""
    for number in range(ATTEMPTS):  # one call of it: where an op was called from is part of what it is
        run = recorded(folder / f"{number}.zarr", program, **options)
        found = compare(folder / "0.zarr", run) if number else None
        if found is not None and found.first_value is not None:
            return found
    pytest.skip(f"this GPU gave the same bits in {ATTEMPTS} runs")


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Products in float32, as that flag has them."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def critic() -> None:
    """A critic that is regressed on returns, for two steps."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(384, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)]
    net = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    observations, returns = torch.randn(512, 384, device="cuda"), torch.randn(512, 1, device="cuda")
    for _ in range(2):
        optimizer.zero_grad()
        (net(observations) - returns).pow(2).mean().backward()
        optimizer.step()


def first_of(found: Comparison) -> Finding:
    assert found.first_value is not None
    return found.first_value


def tried(folder: Path, a: Path, b: Path, *settings: KernelSetting, times: int = 5) -> list[Tried]:
    """The first op that differs, run again under these settings."""
    write_folder(folder / "op", prepare(*find(a, None, b), (), "explain"))
    return list(explain(folder / "op" / SCRIPT, settings, times))


def test_another_kernel_by_a_flag(tmp_path: Path) -> None:
    """Stories 1 and 11: the critic's product is named, both kernels by their names, and the flag that chose them."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    a, b = tmp_path / "a.zarr", tmp_path / "b.zarr"
    for path, allowed in ((a, False), (b, True)):
        with tf32(allowed):
            recorded(path, critic, values="op=*mm", values_inputs=True)
    found = compare(a, b)
    first = first_of(found)
    assert (first.cause, first.op) == (Cause.KERNEL, "aten.addmm.default")
    assert first.inputs_match in (InputsMatch.READ, InputsMatch.INFERRED)
    assert first.kernel_names.a and first.kernel_names.b and first.kernel_names.a != first.kernel_names.b
    assert first.kernel.a != first.kernel.b
    assert "flag.cuda.matmul.tf32 chooses: False against True" in first.explanation
    assert "flag.cuda.matmul.tf32" in {difference.name for difference in found.system}
    here, on, off = tried(tmp_path, a, b, KernelSetting(), parse_setting("tf32=on"), parse_setting("tf32=off"))
    assert [one.trouble for one in (here, on, off)] == ["", "", ""]
    assert "a" in here.gives and "a" in off.gives and "b" in on.gives
    assert set(on.kernels) != set(off.kernels) and on.kernels and off.kernels


def test_a_scan_is_blamed_and_not_the_action_that_it_gave(tmp_path: Path) -> None:
    """Story 9: sums of CUB's scan depend on the order in which blocks come; what follows only receives them."""
    weights = (torch.arange(4_000_037) * 7919 % 100_003).float().cuda() / 100_003

    def sample() -> None:
        sums = weights.softmax(0).cumsum(0)
        torch.searchsorted(sums, torch.linspace(0, 1, 4_096, device="cuda"))

    first = first_of(two_that_differ(tmp_path, sample))
    assert (first.op, first.cause) == ("aten.cumsum.default", Cause.SAME_KERNEL)
    assert first.kernel_names.a == first.kernel_names.b
    assert any("scan" in name.lower() for name in first.kernel_names.a or ())


def test_atomic_additions_do_not_repeat_themselves(tmp_path: Path) -> None:
    """``index_add_``: the same kernel on both sides; called again it has several results, or one if so required."""
    source = (torch.arange(2_000_003) * 7919 % 10_007).float().cuda() / 3
    index = torch.arange(2_000_003, device="cuda") % 7

    def add() -> None:
        torch.zeros(7, device="cuda").index_add_(0, index, source)

    found = two_that_differ(tmp_path, add, values="op=index_add_", values_inputs=True)
    first = first_of(found)
    assert (first.op, first.cause) == ("aten.index_add_.default", Cause.SAME_KERNEL)
    assert any("does not promise that aten.index_add_.default is deterministic" in note for note in found.notes)
    a, b = Path(found.a.path), Path(found.b.path)
    here, deterministic = tried(tmp_path, a, b, KernelSetting(), KernelSetting("deterministic"), times=100)
    assert here.repeats is False
    assert deterministic.repeats is True


def test_random_numbers_have_a_grid(tmp_path: Path) -> None:
    """Story 10, as far as one card shows it: one kernel draws few numbers and many, on more blocks."""

    def draw() -> None:
        torch.manual_seed(3)
        torch.randn(1_000, device="cuda")
        torch.randn(1_000_000, device="cuda")

    (process,) = open_trace(recorded(tmp_path / "a.zarr", draw)).processes
    evidence = [payload for payload in process.tables["kernels"].payloads if isinstance(payload, dict)]
    drawn = [one for one in evidence if any("distribution" in name for name in whole_names(one) or ())]
    assert len(drawn) == 2
    few, many = (launches(one) for one in drawn)
    assert few and many and few[0][0] < many[0][0] and few[0][1] == many[0][1]


def test_doctor_knows_the_gpu() -> None:
    """A fresh Python reports the device, its libraries, and the obstacles there."""
    done = subprocess.run(
        [sys.executable, "-m", "rltrace", "doctor", "--format", "json"], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    facts = report["facts"]
    assert torch.cuda.get_device_name() in facts["cuda.devices"]
    assert facts["cuda.multiprocessors"] and facts["cuda.cudnn"] and facts["cuda.cublas"]
    assert facts.get("cuda.driver") or facts.get("cuda.driver_api")
    assert not [name for name in facts if name.startswith("unreadable.")]
    assert "deterministic algorithms are off" in {one["what"] for one in report["obstacles"]}
