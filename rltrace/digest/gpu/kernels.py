"""The Triton kernels that condense tensors: whole pages digested, the rest copied, in one launch.

Owns the arithmetic on a GPU. Imports triton, so only the process that compiles it may import this module
(``compiler``). Parameters are integers, not pointers: addresses of pages of any tensor.

One program of one warp digests a page. A thread has one lane and a quarter of the blocks, so all sixteen stripes of a
block add up in its registers; a warp's load is a stripe of four blocks each, in whole sectors. Threads synchronize only
where a block's sums join the chain of scrambling steps, which each of them computes. Loads are of eight bytes: with
sixteen, a thread has two lanes, and so twice the keys and twice the chain (docs/internals/findings.md).

The names of the kernels identify rltrace in the program's profiles.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# (Triton would take annotations as part of the kernel.)

import triton
import triton.language as tl

from rltrace.digest import PAGE_BYTES
from rltrace.digest.gpu import CHUNK_BYTES, LANES_AT

PAGE = tl.constexpr(PAGE_BYTES)
BLOCKS = tl.constexpr(PAGE_BYTES // 1024)
STRIPES = tl.constexpr(16)
LANES = tl.constexpr(8)
BLOCK_WORDS = tl.constexpr(128)
CHUNK = tl.constexpr(CHUNK_BYTES)
START = tl.constexpr(LANES_AT)

PRIME32_1 = tl.constexpr(0x9E3779B1)
PRIME_MX1 = tl.constexpr(0x165667919E3779F9)
LENGTH = tl.constexpr(PAGE_BYTES * 0x9E3779B185EBCA87 % 2**64)


@triton.jit
def rltrace_condense_one(address, pages, rest, seed, into, constants):
    """``pages`` whole pages from ``address`` on, then ``rest`` bytes, to the words from ``into`` on.

    Programs: one a page, one a chunk of the rest. ``constants``: where the secret's words and the start values lie.
    """
    program = tl.program_id(0)
    if program < pages:
        page = program.to(tl.int64)
        _digest(address + page * PAGE, seed, into + page * 8, constants)
    else:
        done = (program - pages).to(tl.int64) * CHUNK
        whole = pages.to(tl.int64)
        _copy(address + whole * PAGE + done, rest - done, into + whole * 8 + done)


@triton.jit
def rltrace_condense_many(table, constants):
    """What each row of the table says, one program each: address, seed, bytes to copy (none: a page), destination."""
    row = table.to(tl.pointer_type(tl.int64)) + tl.program_id(0) * 4
    address, seed, rest, into = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if rest == 0:
        _digest(address, seed, into, constants)
    else:
        _copy(address, rest, into)


@triton.jit
def _digest(address, seed, into, constants):
    """XXH3-64 of the page at ``address``, which is a word's, to the word at ``into``."""
    page = address.to(tl.pointer_type(tl.int64))
    constants = constants.to(tl.pointer_type(tl.int64))
    seed = seed.to(tl.int64).to(tl.uint64, bitcast=True)
    block = tl.arange(0, BLOCKS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    products = tl.zeros([BLOCKS, LANES], tl.uint64)
    plain = tl.zeros([BLOCKS, LANES], tl.uint64)
    for stripe in tl.static_range(STRIPES):
        values = tl.load(page + (block * BLOCK_WORDS + stripe * LANES + lane)).to(tl.uint64, bitcast=True)
        keys = _keys(constants, lane + stripe, seed)
        if stripe == STRIPES - 1:  # a page's last stripe has its own keys, a byte further on
            last = (keys >> 8) | (_keys(constants, lane + STRIPES, seed) << 56)
            keys = tl.where(block == BLOCKS - 1, last, keys)
        keyed = values ^ keys
        products += (keyed & 0xFFFFFFFF) * (keyed >> 32)
        plain += values
    even, odd = tl.split(tl.reshape(plain, [BLOCKS, LANES // 2, 2]))
    sums = products + tl.reshape(tl.join(odd, even), [BLOCKS, LANES])  # each lane's values go to its neighbour

    scramble = _keys(constants, lane + 16, seed)
    lanes = tl.load(constants + START + lane).to(tl.uint64, bitcast=True)
    for step in tl.static_range(BLOCKS):
        if step > 0:
            lanes = (lanes ^ (lanes >> 47) ^ scramble) * PRIME32_1
        lanes += tl.sum(tl.where(block == step, sums, 0), 0, keep_dims=True)

    mixed = lanes ^ ((_keys(constants, lane + 1, seed) >> 24) | (_keys(constants, lane + 2, seed) << 40))
    first, second = tl.split(tl.reshape(mixed, [LANES // 2, 2]))
    total = tl.sum((first * second) ^ tl.umulhi(first, second), 0) + LENGTH
    total = (total ^ (total >> 37)) * PRIME_MX1
    total = total ^ (total >> 32)
    tl.store(into.to(tl.pointer_type(tl.int64)), total.to(tl.int64, bitcast=True))


@triton.jit
def _keys(constants, places, seed):
    """Words of the secret under the seed: even ones plus the seed, odd ones minus it."""
    words = tl.load(constants + places).to(tl.uint64, bitcast=True)
    return tl.where(places % 2 == 0, words + seed, words - seed)


@triton.jit
def _copy(address, rest, into):
    """The first chunk of ``rest`` bytes, from any address to any."""
    place = tl.arange(0, CHUNK)
    here = place < rest
    data = tl.load(address.to(tl.pointer_type(tl.uint8)) + place, mask=here)
    tl.store(into.to(tl.pointer_type(tl.uint8)) + place, data, mask=here)
