"""Tensors condensed by the kernels of ``rltrace.digest.gpu``: one launch for one tensor, or for many.

Owns what is launched: where pages and rests lie, and where what becomes of them goes. How a kernel is launched belongs
to whoever gives ``Launches``: a GPU (``launching``), or Triton's interpreter in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES
from rltrace.digest.gpu import CHUNK_BYTES
from rltrace.record.device.by_operations import PAGES_AT_ONCE
from rltrace.record.device.condensed import WORD, bytes_of, condensed_words, signed, to_device

ONE_BY_ONE = 12
"""Up to so many tensors have a launch each. More of them have one together, whose table takes the host about as long to
make and to send as so many launches (docs/internals/benchmarks.md)."""

ALONE = 256
"""From so many pages on a tensor has a launch of its own: a table of its pages would be long, and saves nothing."""


class Launches(Protocol):
    """Launches kernels on the current stream. Addresses are of bytes on the device."""

    def one(self, address: int, pages: int, rest: int, seed: int, into: int) -> None:
        """``rltrace_condense_one``: whole pages from a word's address on, then less than a page of bytes."""

    def many(self, table: torch.Tensor) -> None:
        """``rltrace_condense_many``: a table on the device, int64 [programs, 4]."""


class Job(NamedTuple):
    """One tensor's part."""

    address: int
    pages: int
    rest: int
    seed: int
    """As a signed number."""
    into: int
    """Address of its first word."""


def condense(
    launches: Launches, tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int
) -> None:
    """Enqueue on the current stream, without waiting: as ``by_operations.condense``."""
    jobs = []
    few = len(tensors) <= ONE_BY_ONE
    place = into.data_ptr() + WORD * at
    for tensor, seed in zip(tensors, seeds, strict=True):
        size = tensor.numel() * tensor.element_size()
        pages, rest = divmod(size, PAGE_BYTES)
        address = tensor.data_ptr()
        if pages and address % WORD:
            _condense_copied(launches, tensor, Job(address, pages, rest, signed(seed), place))
        elif few or pages >= ALONE:
            if size:
                launches.one(address, pages, rest, signed(seed), place)
        elif size:
            jobs.append(Job(address, pages, rest, signed(seed), place))
        place += WORD * condensed_words(size)
    if jobs:
        launches.many(to_device(torch.from_numpy(programs(jobs)), into.device))


def programs(jobs: Sequence[Job]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """What each program of one launch does, int64 [programs, 4]: address, seed, bytes to copy (0: a page), place."""
    address, pages, rest, seed, into = np.array(jobs, np.int64).T
    counts = pages + -(-rest // CHUNK_BYTES)
    starts = np.cumsum(counts) - counts
    job = np.repeat(np.arange(len(jobs)), counts)
    page = np.arange(len(job)) - starts[job]
    chunk = page - pages[job]
    is_page = chunk < 0
    done = pages[job] * PAGE_BYTES + chunk * CHUNK_BYTES
    return np.stack(
        [
            address[job] + np.where(is_page, page * PAGE_BYTES, done),
            seed[job],
            np.where(is_page, 0, np.minimum(rest[job] - chunk * CHUNK_BYTES, CHUNK_BYTES)),
            into[job] + np.where(is_page, page * WORD, pages[job] * WORD + chunk * CHUNK_BYTES),
        ],
        axis=1,
    )


def _condense_copied(launches: Launches, tensor: torch.Tensor, job: Job) -> None:
    """One that begins in the midst of a word, as slices of bytes may: its pages are copied to where they do not.

    So much at a time, and each copy goes back to the allocator as soon as the launch that reads it is enqueued: what
    the allocator gives out next on this stream is written behind it.
    """
    data = bytes_of(tensor)
    for first in range(0, job.pages, PAGES_AT_ONCE):
        pages = min(PAGES_AT_ONCE, job.pages - first)
        copy = data[first * PAGE_BYTES : (first + pages) * PAGE_BYTES].clone()
        launches.one(copy.data_ptr(), pages, 0, job.seed, job.into + WORD * first)
    if job.rest:
        whole = job.pages * PAGE_BYTES
        launches.one(job.address + whole, 0, job.rest, job.seed, job.into + WORD * job.pages)
