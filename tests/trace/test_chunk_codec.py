"""Chunks are encoded as zarr v3 says, and nothing but a whole chunk is ever decoded."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import zstd

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import CELLS, ROWS, STEPS, TABLES, ArraySpec


def some_chunk(spec: ArraySpec, seed: int, used: int) -> np.ndarray:
    """A chunk of random content in its first ``used`` elements, padding after."""
    chunk = np.zeros(chunk_codec.stored_shape(spec), spec.dtype)
    generator = np.random.default_rng(seed)
    flat = chunk.reshape(-1)
    flat[:used] = generator.integers(0, 200, min(used, flat.size), dtype=np.uint8)
    return chunk


@pytest.mark.parametrize("spec", [ROWS, CELLS, TABLES, STEPS], ids=lambda spec: spec.name)
@pytest.mark.parametrize("used", [0, 1, 1000])
def test_round_trip(spec: ArraySpec, used: int) -> None:
    """What is encoded comes back, padding included."""
    chunk = some_chunk(spec, used, used)
    assert np.array_equal(chunk_codec.decode(spec, chunk_codec.encode(spec, chunk)), chunk)


@given(st.integers(0, 2**32), st.integers(0, 1 << 18))
@settings(max_examples=20)
def test_round_trip_of_any_table_chunk(seed: int, used: int) -> None:
    """Incompressible bytes come back too, and stay below the bound that readers allow."""
    chunk = np.zeros(TABLES.chunk, np.uint8)
    chunk[:used] = np.random.default_rng(seed).integers(0, 256, used, dtype=np.uint8)
    encoded = chunk_codec.encode(TABLES, chunk)
    assert len(encoded) <= chunk_codec.max_bytes(TABLES)
    assert np.array_equal(chunk_codec.decode(TABLES, encoded), chunk)


@given(st.data())
@settings(max_examples=60)
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    """No bit of a chunk can be flipped unnoticed."""
    encoded = bytearray(chunk_codec.encode(STEPS, some_chunk(STEPS, 1, 900)))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(chunk_codec.CodecError):
        chunk_codec.decode(STEPS, bytes(encoded))


def test_a_frame_cut_short_with_a_right_checksum() -> None:
    """As long as it says that it unpacks to, and no longer all there."""
    body = chunk_codec.encode(STEPS, some_chunk(STEPS, 1, 900))[:200]
    with pytest.raises(chunk_codec.CodecError, match="it does not unpack: "):
        chunk_codec.decode(STEPS, body + google_crc32c.value(body).to_bytes(4, "little"))


def test_bomb_is_refused_before_it_unpacks() -> None:
    """A frame that unpacks to another size than a chunk has is refused by its header."""
    body = zstd.compress(bytes(1 << 26), 1)
    assert len(body) < 1 << 13
    with pytest.raises(chunk_codec.CodecError, match="size of a chunk"):
        chunk_codec.decode(TABLES, body + google_crc32c.value(body).to_bytes(4, "little"))


@pytest.mark.parametrize("size", [1, 200, 300, 70_000, 1 << 20])
def test_content_size_is_what_zstd_packed(size: int) -> None:
    """Every width of the size field is read right."""
    assert chunk_codec.content_size(zstd.compress(bytes(size), 1)) == size


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("20 07", 7),
        ("21 ff 07", 7),
        ("22 ff ff 07", 7),
        ("23 ff ff ff ff 07", 7),
        ("60 01 02", 0x201 + 256),
        ("a0 01 02 03 04", 0x04030201),
        ("e0 01 02 03 04 05 00 00 00", 0x0504030201),
        ("00 ff 07", None),
        ("40 ff 01 02", 0x201 + 256),
        ("41 ff ff 01 02", 0x201 + 256),
        ("80 ff 01 02 03 04", 0x04030201),
        ("c3 ff ff ff ff ff 01 02 03 04 05 00 00 00", 0x0504030201),
    ],
)
def test_content_size_in_every_header(header: str, size: int | None) -> None:
    """With a window or in a single segment, with or without the number of a dictionary; cut short it is none."""
    frame = bytes.fromhex("28b52ffd" + header)
    assert chunk_codec.content_size(frame) == size
    assert chunk_codec.content_size(frame[:-1]) is None
    assert chunk_codec.content_size(b"x" + frame) is None


def test_wrong_shape_is_refused() -> None:
    """A chunk is written whole or not at all."""
    with pytest.raises(ValueError, match="a chunk of tables"):
        chunk_codec.encode(TABLES, np.zeros(10, np.uint8))
