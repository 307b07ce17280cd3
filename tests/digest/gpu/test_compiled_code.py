"""What a compiler has made of the kernels, run instruction by instruction on a warp that is emulated."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial

import kernel_interpreter
import pytest
import torch
from warp import Warp

from rltrace.digest import PAGE_BYTES, digest_buffer, reference
from rltrace.digest.gpu import CHUNK_BYTES
from rltrace.recorder.digests import backend
from rltrace.recorder.digests.backend import constants
from rltrace.recorder.digests.torch_backend import condensed_words, finished

pytestmark = pytest.mark.skipif(not kernel_interpreter.HERE, reason="needs triton")

COMPILE = """
import json, sys
from rltrace.digest.gpu.compiler import compile_by_triton
print(json.dumps([
    {name: kernel.asm["ptx"] for name, kernel in compile_by_triton(int(version)).items()} for version in sys.argv[1:]
]))
"""


class Emulated:
    """Launches kernels on warps that take turns."""

    def __init__(self, code: dict[str, str]) -> None:
        self._one, self._many = Warp(code["rltrace_condense_one"]), Warp(code["rltrace_condense_many"])
        self._constants = constants(torch.device("cpu"))
        self._at = self._constants.data_ptr()

    def one(self, address: int, pages: int, rest: int, seed: int, into: int) -> None:
        tensor, words = (address, address + pages * PAGE_BYTES + rest), (into, into + pages * 8 + rest)
        for program in range(pages + -(-rest // CHUNK_BYTES)):
            given = (address, pages, rest, seed, into, self._at)
            self._one.run(program, given, [tensor, words, (self._at, self._at + 256)])

    def many(self, table: torch.Tensor) -> None:
        ends = [(self._at, self._at + 256), (table.data_ptr(), table.data_ptr() + table.nbytes)]
        for program, (address, _, rest, into) in enumerate(table.tolist()):
            mine = [(address, address + (rest or PAGE_BYTES)), (into, into + (rest or 8))]
            self._many.run(program, (table.data_ptr(), self._at), [*mine, *ends])


@pytest.fixture(scope="module")
def compiled() -> dict[int, dict[str, str]]:
    """The code for Ampere, and for Hopper."""
    command = [sys.executable, "-c", COMPILE, "80", "90"]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return dict(zip((80, 90), json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module", params=[80, 90])
def emulated(request: pytest.FixtureRequest, compiled: dict[int, dict[str, str]]) -> Emulated:
    return Emulated(compiled[request.param])


def _digests(emulated: Emulated, buffers: list[bytes], seeds: list[int]) -> list[int]:
    tensors = [torch.frombuffer(bytearray(data or b"-"), dtype=torch.uint8)[: len(data)] for data in buffers]
    counts = [condensed_words(len(data)) for data in buffers]
    into = torch.full((sum(counts) + 1,), -1)
    backend.condense_by_kernel(emulated, tensors, seeds, into, 0)
    assert into[-1] == -1
    parts = zip(into[:-1].split(counts), buffers, seeds, strict=True)
    return [finished(words.numpy(), len(data), seed) for words, data, seed in parts]


@pytest.mark.parametrize("fill", [0, 2**64 - 1, 2**63, 0xFFFFFFFF00000001])
def test_extreme_pages(emulated: Emulated, fill: int) -> None:
    """Pages on which sums and products wrap have the digest of the definition."""
    page = fill.to_bytes(8, "little") * (PAGE_BYTES // 8)
    assert _digests(emulated, [page], [2**64 - 1]) == [reference.xxh3_64(page, 2**64 - 1)]


@pytest.mark.parametrize("count", [1, 3, 14])
def test_random_tensors(emulated: Emulated, count: int) -> None:
    """Pages and rests, in launches of their own and together."""
    generator = random.Random(count)
    sizes = [(PAGE_BYTES, 2 * PAGE_BYTES + 1_500, 5, 0, 1_024)[k % 5] for k in range(count)]
    data = [generator.randbytes(size) for size in sizes]
    seeds = [generator.getrandbits(64) for _ in sizes]
    assert _digests(emulated, data, seeds) == [digest_buffer(*each) for each in zip(data, seeds, strict=True)]


def test_they_agree_with_the_torch_operations(emulated: Emulated) -> None:
    """What a device is asked before its kernels are believed holds here, and no word is read across two."""
    assert backend.agrees(partial(backend.condense_by_kernel, emulated), torch.device("cpu"))
