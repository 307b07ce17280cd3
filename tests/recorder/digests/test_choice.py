"""By what tensors of a device are condensed, and what is said of it."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rltrace.digest import PAGE_BYTES, digest_buffer
from rltrace.digest.gpu import compiler
from rltrace.digest.gpu.compiler import Binaries, UnavailableError
from rltrace.recorder.digests import backend, torch_backend
from rltrace.recorder.digests.backend import condense, facts
from rltrace.recorder.digests.torch_backend import condensed_words, finished

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not condensed anything."""
    monkeypatch.setattr(backend, "_backends", {})
    monkeypatch.setattr(backend, "_descriptions", {})


def test_a_cpu_has_no_kernels_and_nothing_is_said_of_it() -> None:
    """Nor is triton looked for."""
    tensor, into = torch.arange(2.0), torch.zeros(1, dtype=torch.int64)
    condense([tensor], [7], into, 0)
    assert finished(into.numpy(), 8, 7) == digest_buffer(tensor.numpy(), 7)
    assert facts() == {}


def test_a_device_of_another_kind_takes_torch_operations() -> None:
    """Said once for it, with the reason."""
    for _ in range(2):
        condense([torch.empty(2, device="meta")], [7], torch.empty(1, dtype=torch.int64, device="meta"), 0)
    assert facts() == {"digest.device": "torch operations: the kernels are for CUDA"}


def _of_a_gpu(monkeypatch: pytest.MonkeyPatch, made: Binaries | Exception) -> backend.Condense:
    """What is chosen for a GPU whose kernels are these."""

    def compiled(architecture: int) -> Binaries:
        assert architecture == 89
        if isinstance(made, Exception):
            raise made
        return made

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(compiler, "compiled", compiled)
    return backend._choose(GPU)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (UnavailableError("triton is not installed"), "triton is not installed"),
        (UnavailableError(""), "UnavailableError"),
        (OSError(13, "Permission denied", str(Path.home() / "kernels")), "[Errno 13] Permission denied: '~/kernels'"),
        (RuntimeError("CUDA error: no kernel image\nCompile with `TORCH_USE_CUDA_DSA`"), "CUDA error: no kernel image"),
    ],
)
def test_without_kernels_it_takes_torch_operations(
    failure: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever stands in the way, the trace has a line on it and the program prints nothing."""
    assert _of_a_gpu(monkeypatch, failure) is torch_backend.condense
    assert facts() == {"digest.device": f"torch operations: {said}"}
    assert capfd.readouterr() == ("", "")


def test_a_torch_without_the_launcher_takes_torch_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for a CPU, or another release."""
    monkeypatch.delattr(torch._C, "_StaticCudaLauncher", raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.inference_mode(mode=False))
    monkeypatch.setattr("rltrace.recorder.digests.backend.constants", lambda device: torch.zeros(32))
    kernels = {name: compiler.Binary(name, b"", 0, 2) for name in compiler.SIGNATURES}
    assert _of_a_gpu(monkeypatch, Binaries("Triton 3.7.1", kernels)) is torch_backend.condense
    assert "_StaticCudaLauncher" in facts()["digest.device"]


@pytest.mark.parametrize("wrong", [0, 1, 3, -1])
def test_kernels_that_come_to_something_else_are_not_believed(wrong: int) -> None:
    """One wrong word is enough, whether the first, a digest of a page or the last."""

    def condense(tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int) -> None:
        torch_backend.condense(tensors, seeds, into, at)
        into[wrong] ^= 1

    assert backend.agrees(torch_backend.condense, torch.device("cpu"))
    assert not backend.agrees(condense, torch.device("cpu"))


@pytest.mark.gpu
def test_a_gpu_takes_the_kernels() -> None:
    """Where triton is installed; each tensor has the digest that it has on a CPU, whichever stream it is written on."""
    sizes = (0, 1, 300, PAGE_BYTES, 5 * PAGE_BYTES + 77, 3_000_001, 300 * PAGE_BYTES + 9)
    plain = [torch.randint(0, 256, (size + 13,), dtype=torch.uint8) for size in sizes]
    counts = [condensed_words(size) for size in sizes]
    for offset in (0, 8, 13):
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                there = [each.cuda()[offset : offset + size] for each, size in zip(plain, sizes, strict=True)]
                into = torch.zeros(sum(counts), dtype=torch.int64, device="cuda")
                condense(there[:2], [0, 1], into, 0)
                condense(there[2:], range(2, len(sizes)), into, sum(counts[:2]))
                for each in there:
                    each.zero_()
                words = into.cpu().split(counts)
            for seed, (size, mine, data) in enumerate(zip(sizes, words, plain, strict=True)):
                expected = digest_buffer(data[offset : offset + size].numpy(), seed)
                assert finished(mine.numpy(), size, seed) == expected
    if importlib.util.find_spec("triton") is not None:
        assert facts()["digest.device"].startswith("Triton")


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for() -> None:
    """While it is busy with other work, hundreds of tensors are condensed behind that."""
    tensors = [torch.randn(n * 97, device="cuda") for n in range(1, 200)]
    into = torch.zeros(sum(condensed_words(t.nbytes) for t in tensors), dtype=torch.int64, device="cuda")
    condense(tensors[:1], [0], into, 0)
    condense(tensors, range(len(tensors)), into, 0)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    busy = torch.cuda.Event()
    at = 0
    for seed, tensor in enumerate(tensors[:100]):
        condense([tensor], [seed], into, at)
        at += condensed_words(tensor.nbytes)
    condense(tensors[100:], range(100, len(tensors)), into, at)
    busy.record()
    assert not busy.query()
    words = into.cpu().split([condensed_words(t.nbytes) for t in tensors])
    for seed, (tensor, mine) in enumerate(zip(tensors, words, strict=True)):
        assert finished(mine.numpy(), tensor.nbytes, seed) == digest_buffer(tensor.cpu().numpy(), seed)


@pytest.mark.gpu
def test_a_gpu_that_is_not_the_current_one() -> None:
    """Its tensors are condensed on it, and the program's current device stays."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    tensor = torch.randn(50_000, device="cuda:1")
    into = torch.zeros(condensed_words(tensor.nbytes), dtype=torch.int64, device="cuda:1")
    condense([tensor], [5], into, 0)
    assert torch.cuda.current_device() == 0
    assert finished(into.cpu().numpy(), tensor.nbytes, 5) == digest_buffer(tensor.cpu().numpy(), 5)
