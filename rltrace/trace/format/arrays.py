"""The zarr arrays of a trace: shapes, chunk names and ``zarr.json``.

Owns what a zarr reader sees of a trace. Every array grows by whole chunks along its first axis. Its ``zarr.json`` is
rewritten for each new chunk; chunks never are. Imports neither zarr nor NumPy.
"""

import json
from collections.abc import Mapping
from enum import IntEnum
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from rltrace.trace.format.schema import (
    CALL_CHUNK,
    DIGEST_CHUNK,
    FORMAT,
    INDEX_CHUNK,
    SAMPLE_CHUNK,
    SEGMENT_CELLS,
    SEGMENT_ROWS,
    STEP_CHUNK,
    TABLE_CHUNK,
    TENSOR_CHUNK,
    VALUE_CHUNK,
    ActivationColumn,
    Column,
    ModuleCallColumn,
    Sample,
    Step,
    ValueIndex,
)


class ArraySpec(NamedTuple):
    """One array of the format."""

    name: str
    dtype: str
    """A zarr v3 data type; always little endian."""
    chunk: tuple[int, ...]
    """Shape of one chunk, as a reader of the array sees it."""
    level: int
    """zstd level, chosen by measurement (docs/reference/trace-format.md)."""
    order: tuple[int, ...] | None = None
    """Axes of a chunk in stored order; None: the order of ``chunk``."""
    attributes: Mapping[str, object] = MappingProxyType({})

    @property
    def itemsize(self) -> int:
        return {"uint8": 1, "uint32": 4, "uint64": 8}[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of one decoded chunk."""
        return prod(self.chunk) * self.itemsize

    def key(self, chunk: int) -> str:
        """File name of one chunk in the folder of the array."""
        return ".".join(["c", str(chunk), *(["0"] * (len(self.chunk) - 1))])

    def document(self, chunks: int) -> bytes:
        """``zarr.json`` of the array with this number of chunks."""
        codecs: list[dict[str, object]] = []
        if self.order:
            codecs.append({"name": "transpose", "configuration": {"order": list(self.order)}})
        codecs.append(
            {"name": "bytes", "configuration": {"endian": "little"}} if self.itemsize > 1 else {"name": "bytes"}
        )
        codecs.append({"name": "zstd", "configuration": {"level": self.level, "checksum": False}})
        codecs.append({"name": "crc32c"})
        return _document(
            node_type="array",
            shape=[chunks * self.chunk[0], *self.chunk[1:]],
            data_type=self.dtype,
            chunk_grid={"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            chunk_key_encoding={"name": "default", "configuration": {"separator": "."}},
            fill_value=0,
            codecs=codecs,
            attributes=dict(self.attributes),
        )


def _table(name: str, columns: type[IntEnum], length: int, dtype: str = "uint64") -> ArraySpec:
    """A table, stored column by column; ``length``: rows of a chunk."""
    names = [column.name.lower() for column in columns]
    return ArraySpec(name, dtype, (length, len(columns)), level=1, order=(1, 0), attributes={"columns": names})


ROWS: Final = _table("rows", Column, SEGMENT_ROWS, "uint32")
CELLS: Final = ArraySpec("cells", "uint64", (SEGMENT_CELLS,), level=3)
TABLES: Final = ArraySpec("tables", "uint8", (TABLE_CHUNK,), level=3)
STEPS: Final = _table("steps", Step, STEP_CHUNK)
SERIES: Final = _table("series", Sample, SAMPLE_CHUNK)
VALUE_BYTES: Final = ArraySpec("values/bytes", "uint8", (VALUE_CHUNK,), level=1)
VALUE_INDEX: Final = _table("values/index", ValueIndex, INDEX_CHUNK)
ACTIVATION_CALLS: Final = _table("activations/calls", ModuleCallColumn, CALL_CHUNK)
ACTIVATION_TENSORS: Final = _table("activations/tensors", ActivationColumn, TENSOR_CHUNK)
ACTIVATION_DIGESTS: Final = ArraySpec("activations/digests", "uint64", (DIGEST_CHUNK,), level=1)
ACTIVATION_ARRAYS: Final = (ACTIVATION_CALLS, ACTIVATION_TENSORS, ACTIVATION_DIGESTS)


def _document(**fields: object) -> bytes:
    return (json.dumps({"zarr_format": 3, **fields}, indent=1) + "\n").encode()


def group_document(attributes: Mapping[str, object] | None = None) -> bytes:
    """``zarr.json`` of a group."""
    return _document(node_type="group", attributes=dict(attributes or {}))


def root_document() -> bytes:
    """``zarr.json`` of the root of a trace."""
    return group_document({"rltrace": {"format": list(FORMAT)}})


def folder_document(holds: str) -> bytes:
    """``zarr.json`` of a folder of plain files: an empty array, so that zarr ignores the files."""
    return _document(
        node_type="array",
        shape=[0],
        data_type="uint8",
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1]}},
        chunk_key_encoding={"name": "default", "configuration": {"separator": "."}},
        fill_value=0,
        codecs=[{"name": "bytes"}],
        attributes={"holds": holds},
    )


JOURNAL_FOLDER: Final = folder_document("log: framed records, see docs/reference/trace-format.md of rltrace")
STARTS_FOLDER: Final = folder_document("one small file for every process that started, and one for every name taken")
