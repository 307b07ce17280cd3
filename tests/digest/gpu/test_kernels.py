"""The kernels of a GPU, run by Triton's interpreter: word for word the digests of the definition."""

import random
from collections.abc import Iterator
from concurrent.futures import Executor

import kernel_interpreter
import numpy as np
import pytest

from rltrace.digest import PAGE_BYTES, digest_buffer, reference

pytestmark = pytest.mark.skipif(not kernel_interpreter.HERE, reason="needs triton")

SEEDS = (0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B185EBCA87)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Executor]:
    """One process for all tests here: it takes seconds to come up."""
    with kernel_interpreter.interpreter() as process:
        yield process


def _digests(interpreter: Executor, buffers: list[bytes], seeds: list[int], offset: int = 0) -> list[int]:
    return interpreter.submit(kernel_interpreter.condensed, buffers, offset, seeds).result(120)


@pytest.mark.parametrize("fill", [0, 2**64 - 1, 2**63, 2**63 - 1, 0x80000000, 0x7F800000FF800000, 0xFFFFFFFF00000001])
def test_extreme_pages(interpreter: Executor, fill: int) -> None:
    """Sums and products that wrap: as the reference, which computes in whole numbers, has it."""
    page = fill.to_bytes(8, "little") * (PAGE_BYTES // 8)
    for seed in (SEEDS[fill % 2], SEEDS[-1 - fill % 3]):
        assert _digests(interpreter, [page], [seed]) == [reference.xxh3_64(page, seed)]


def test_random_pages_under_every_seed(interpreter: Executor) -> None:
    """Each in a launch of its own."""
    for number, seed in enumerate(SEEDS):
        page = np.random.default_rng(number).bytes(PAGE_BYTES)
        assert _digests(interpreter, [page], [seed]) == [digest_buffer(page, seed)]


@pytest.mark.parametrize("place", [0, 1, 8, 1_023, 1_024, 15 * 1024 + 959, 15 * 1024 + 960, PAGE_BYTES - 1])
def test_every_bit_counts(interpreter: Executor, place: int) -> None:
    """One bit more in an empty page, in its first and last stripes and blocks, which have keys of their own."""
    page = bytearray(PAGE_BYTES)
    page[place] = 0x40
    assert _digests(interpreter, [bytes(page)], [3]) == [digest_buffer(page, 3)]


@pytest.mark.parametrize("size", [1, 7, 1_023, 1_024, 1_025, PAGE_BYTES - 1, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 5_001])
def test_sizes_around_chunks_and_pages(interpreter: Executor, size: int) -> None:
    """From a word's begin and from the midst of one, in one launch."""
    data = np.random.default_rng(size).bytes(size)
    for offset in (0, 5):
        assert _digests(interpreter, [data], [11], offset) == [digest_buffer(data, 11)]


def test_many_tensors_in_one_launch(interpreter: Executor) -> None:
    """Tensors of any sizes are digested in one launch, each under its own seed, none of them copied."""
    generator = random.Random(5)
    for count, offset in ((14, 0), (13, 3)):
        sizes = [
            generator.choice((0, 1, 8, 300, 5_000, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES)) for _ in range(count)
        ]
        data = [generator.randbytes(size) for size in sizes]
        seeds = [generator.getrandbits(64) for _ in sizes]
        expected = [digest_buffer(each, seed) for each, seed in zip(data, seeds, strict=True)]
        assert _digests(interpreter, data, seeds, offset) == expected


@pytest.mark.parametrize("size", [1, 1_025, PAGE_BYTES, PAGE_BYTES + 5])
def test_nothing_is_read_behind_a_tensor(interpreter: Executor, size: int) -> None:
    """It may lie at the end of the device's memory."""
    data = np.random.default_rng(size).bytes(size)
    assert interpreter.submit(kernel_interpreter.condensed_at_the_end, data, 3).result(120) == digest_buffer(data, 3)


def test_they_agree_with_the_torch_operations(interpreter: Executor) -> None:
    """What a device is asked before its kernels are believed holds here."""
    assert interpreter.submit(kernel_interpreter.agrees).result(120)
