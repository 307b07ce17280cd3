"""Digests of activation rows, from a tensor's logical bytes.

A row's digest is that of a tensor of the same dtype with the shape of the axes along which rows are not counted.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from struct import iter_unpack

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from rltrace.digest import PAGE_BYTES, digest_buffer, seed_of

MAX_COPIED_BYTES = 1024
"""Bytes of a row up to which a copy is faster than a view: 85 ns a row of 64 bytes, not 135."""
BATCH_ROWS = 1 << 16
"""Rows whose digests are in a list at a time, in which they take four times their size."""

_seed_of = lru_cache(maxsize=1_024)(seed_of)


def row_digests(
    data: bytes | memoryview, dtype: str, shape: Sequence[int], itemsize: int, axes: Sequence[int]
) -> NDArray[np.uint64]:
    """Digests of the rows along ``axes`` (ascending), shaped as their lengths.

    ``data``: the logical bytes of a tensor of this dtype (torch's name without ``torch.``) and shape.
    """
    lengths = [shape[axis] for axis in axes]
    others = [axis for axis in range(len(shape)) if axis not in axes]
    inner = [shape[axis] for axis in others]
    seed, size, count = _seed_of(dtype, tuple(inner)), prod(inner) * itemsize, prod(lengths)
    view = memoryview(data).cast("B")
    if count and size and [*axes, *others] != list(range(len(shape))):
        elements = np.frombuffer(view, np.dtype((np.void, itemsize))).reshape(shape)
        view = memoryview(np.ascontiguousarray(elements.transpose(*axes, *others)).tobytes())
    if not size:
        return np.full(lengths, digest_buffer(b"", seed), np.uint64)
    digests = array("Q")  # filled from lists three times as fast as a NumPy array
    for first in range(0, len(view), BATCH_ROWS * size):
        digests.extend(_digests(view[first : first + BATCH_ROWS * size], size, seed))
    return np.frombuffer(digests, np.uint64).reshape(lengths)


def _digests(view: memoryview, size: int, seed: int) -> list[int]:
    """Digests of consecutive rows of ``size`` bytes."""
    if size <= MAX_COPIED_BYTES:
        return [xxh3_64_intdigest(row, seed) for (row,) in iter_unpack(f"{size}s", view)]
    digest = xxh3_64_intdigest if size <= PAGE_BYTES else digest_buffer
    return [digest(view[at : at + size], seed) for at in range(0, len(view), size)]
