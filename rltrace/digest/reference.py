"""Reference implementation of the digest: slow and obvious, on plain integers, independent of the fast paths.

Where a fast path and this file disagree, the fast path is wrong. Follows the XXH3 specification
(github.com/Cyan4973/xxHash, doc/xxhash_spec.md) step by step. For tests; never for recording.
"""

from rltrace.digest import PAGE_BYTES, SECRET

_MASK = (1 << 64) - 1
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_PRIME_MX1, _PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25


def digest(data: bytes, seed: int) -> int:
    """Digest of ``data`` under ``seed``, by the rule in ``rltrace.digest``."""
    if len(data) <= PAGE_BYTES:
        return xxh3_64(data, seed)
    pages = [data[i : i + PAGE_BYTES] for i in range(0, len(data), PAGE_BYTES)]
    return digest(b"".join(xxh3_64(page, seed).to_bytes(8, "little") for page in pages), seed)


def xxh3_64(data: bytes, seed: int) -> int:
    """XXH3-64 of ``data`` with ``seed``."""
    n = len(data)
    if n == 0:
        return _avalanche_xxh64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))
    if n <= 3:
        return _up_to_3(data, seed)
    if n <= 8:
        return _up_to_8(data, seed)
    if n <= 16:
        return _up_to_16(data, seed)
    if n <= 128:
        return _up_to_128(data, seed)
    if n <= 240:
        return _up_to_240(data, seed)
    return _long(data, seed)


def _up_to_3(data: bytes, seed: int) -> int:
    n = len(data)
    combined = (data[n - 1]) | (n << 8) | (data[0] << 16) | (data[n >> 1] << 24)
    return _avalanche_xxh64(((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & _MASK) ^ combined)


def _up_to_8(data: bytes, seed: int) -> int:
    n = len(data)
    seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
    combined = _u32(data, n - 4) | (_u32(data, 0) << 32)
    value = ((_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & _MASK) ^ combined
    value ^= _rotate(value, 49) ^ _rotate(value, 24)
    value = value * _PRIME_MX2 & _MASK
    value ^= (value >> 35) + n
    value = value * _PRIME_MX2 & _MASK
    return value ^ (value >> 28)


def _up_to_16(data: bytes, seed: int) -> int:
    n = len(data)
    low = ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & _MASK) ^ _u64(data, 0)
    high = ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & _MASK) ^ _u64(data, n - 8)
    total = n + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _fold(low, high)
    return _avalanche(total & _MASK)


def _up_to_128(data: bytes, seed: int) -> int:
    n = len(data)
    total = n * _PRIME64_1
    for i in range((n - 1) // 32 + 1):
        total += _mix16(data, 16 * i, SECRET, 32 * i, seed)
        total += _mix16(data, n - 16 * (i + 1), SECRET, 32 * i + 16, seed)
    return _avalanche(total & _MASK)


def _up_to_240(data: bytes, seed: int) -> int:
    n = len(data)
    total = n * _PRIME64_1 + sum(_mix16(data, 16 * i, SECRET, 16 * i, seed) for i in range(8))
    total = _avalanche(total & _MASK)
    total += sum(_mix16(data, 16 * i, SECRET, 16 * (i - 8) + 3, seed) for i in range(8, n // 16))
    total += _mix16(data, n - 16, SECRET, 136 - 17, seed)
    return _avalanche(total & _MASK)


def _long(data: bytes, seed: int) -> int:
    secret = b"".join(
        ((_u64(SECRET, i) + seed) & _MASK).to_bytes(8, "little")
        + ((_u64(SECRET, i + 8) - seed) & _MASK).to_bytes(8, "little")
        for i in range(0, 192, 16)
    )
    lanes = [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1]
    n = len(data)
    whole_blocks = (n - 1) // 1024
    for block in range(whole_blocks):
        for stripe in range(16):
            _accumulate(lanes, data, 1024 * block + 64 * stripe, secret, 8 * stripe)
        for i in range(8):
            lanes[i] = ((lanes[i] ^ (lanes[i] >> 47) ^ _u64(secret, 128 + 8 * i)) * _PRIME32_1) & _MASK
    for stripe in range((n - 1 - 1024 * whole_blocks) // 64):
        _accumulate(lanes, data, 1024 * whole_blocks + 64 * stripe, secret, 8 * stripe)
    _accumulate(lanes, data, n - 64, secret, 192 - 64 - 7)
    total = n * _PRIME64_1
    for i in range(4):
        total += _fold(lanes[2 * i] ^ _u64(secret, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(secret, 19 + 16 * i))
    return _avalanche(total & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret: bytes, secret_at: int) -> None:
    for i in range(8):
        value = _u64(data, at + 8 * i)
        keyed = value ^ _u64(secret, secret_at + 8 * i)
        lanes[i ^ 1] = (lanes[i ^ 1] + value) & _MASK
        lanes[i] = (lanes[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & _MASK


def _mix16(data: bytes, at: int, secret: bytes, secret_at: int, seed: int) -> int:
    low = _u64(data, at) ^ (_u64(secret, secret_at) + seed & _MASK)
    high = _u64(data, at + 8) ^ (_u64(secret, secret_at + 8) - seed & _MASK)
    return _fold(low, high)


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _PRIME_MX1 & _MASK
    return value ^ (value >> 32)


def _avalanche_xxh64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _MASK
    value ^= value >> 29
    value = value * _PRIME64_3 & _MASK
    return value ^ (value >> 32)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK
