"""Checkpoint files: which bytes they hold, and the file of a trace that says which of these a rerunnable step reads.

Owns how ``torch.save`` files, ``safetensors`` files and folders of ``torch.distributed.checkpoint`` are read without
torch and without running anything that their pickles name. Bytes are found by digest: names of tensors are for people.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from rltrace.digest import digest_buffer, seed_of
from rltrace.errors import UsageError
from rltrace.trace.format.files import write_whole
from rltrace.trace.format.root import record_error

CHECKPOINT: Final = "journal/checkpoint.json"
"""File of a trace: the contents of the checkpoint by digest."""

MAX_CHECKPOINT_BYTES: Final = 1 << 30
"""Length of that file at most."""

PICKLED: Final = (".pt", ".pth", ".bin", ".ckpt")
SAFETENSORS: Final = ".safetensors"
METADATA: Final = ".metadata"
"""Of a folder that ``torch.distributed.checkpoint`` wrote."""

MAX_DEPTH: Final = 40
"""Containers within containers that are searched for names."""


@dataclass(frozen=True)
class CheckpointEntry:
    """Bytes that a checkpoint holds: those of a storage or of a contiguous tensor."""

    file: str
    """Within the checkpoint; empty: it is one file."""
    key: str
    """Name of the tensor: ``model.0.weight``. Others may have it, too."""
    nbytes: int
    digest: int
    """As of a uint8 tensor of these bytes."""


# --- what a trace says of it ------------------------------------------------------------------------------------------


def entries_to_json(entries: Mapping[int, CheckpointEntry]) -> bytes:
    """The text of CHECKPOINT."""
    rows = [[f"{entry.digest:016x}", entry.nbytes, entry.file, entry.key] for entry in entries.values()]
    return json.dumps({"schema": "rltrace.checkpoint/1", "entries": rows}).encode()


def entries_from_json(text: bytes) -> dict[int, CheckpointEntry]:
    """What ``entries_to_json`` wrote, by digest. Raises ValueError where it is not that."""
    try:
        rows = json.loads(text)["entries"]
        found = [CheckpointEntry(str(file), str(key), int(size), int(digest, 16)) for digest, size, file, key in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{CHECKPOINT} is not what was written: {error}") from None
    return {entry.digest: entry for entry in found}


def write_entries(trace: Path, entries: Mapping[int, CheckpointEntry]) -> None:
    """Write CHECKPOINT into the folder of a trace. Raises RecordError."""
    try:
        write_whole(os.fspath(trace / CHECKPOINT), entries_to_json(entries))
    except OSError as error:
        raise record_error(f"{CHECKPOINT} cannot be written to {trace}", error) from error


def load_entries(trace: str | Path) -> dict[int, CheckpointEntry]:
    """What ``write_entries`` wrote, by digest. Raises OSError, ValueError."""
    return entries_from_json(Path(trace, CHECKPOINT).read_bytes())


# --- what it holds ----------------------------------------------------------------------------------------------------


def read_entries(path: Path) -> dict[int, CheckpointEntry]:
    """What a checkpoint holds, by digest. Reads all of it. Raises UsageError where it cannot be read."""
    found: dict[int, CheckpointEntry] = {}
    for file, key, data in _contents(path):
        entry = CheckpointEntry(file, key, len(data), digest_of(data))
        if entry.nbytes:
            found.setdefault(entry.digest, entry)
    if not found:
        raise UsageError(f"{path} holds no tensor that could be read")
    return found


class CheckpointFiles:
    """A checkpoint whose bytes are read by entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, list[tuple[str, memoryview]]] = {}

    def read(self, entry: CheckpointEntry) -> memoryview:
        """The bytes of an entry. Raises UsageError where they are not there, or others."""
        if entry.file not in self._files:
            self._files[entry.file] = [(key, data) for _, key, data in _contents(self.path, entry.file)]
        named = {digest_of(data): data for key, data in self._files[entry.file] if key == entry.key}
        other = f"{self.path} is not the checkpoint that the step was recorded with"
        if not named:
            raise UsageError(f"{other}: it has no {entry.key}{f' in {entry.file}' if entry.file else ''}")
        if entry.digest not in named:
            raise UsageError(
                f"{other}: {entry.key} has the digest {min(named):016x} there, recorded was {entry.digest:016x}"
            )
        return named[entry.digest]


def digest_of(data: bytes | memoryview) -> int:
    """Digest of the bytes of a storage."""
    return digest_buffer(data, seed_of("uint8", (len(data),)))


Content = tuple[str, str, memoryview]
"""File, key and bytes."""


def _contents(path: Path, only: str | None = None) -> Iterator[Content]:
    """All that a checkpoint holds; ``only``: of one file."""
    if path.is_file():
        yield from _of_file(path, "")
        return
    if not path.is_dir():
        raise UsageError(f"the checkpoint {path} does not exist: --checkpoint PATH says where it is")
    if (path / METADATA).is_file():
        yield from _of_shards(path, only)
        return
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.suffix in (*PICKLED, SAFETENSORS))
    for name in names:
        if only in (None, name):
            yield from _of_file(path / name, name)


def _of_file(file: Path, name: str) -> Iterator[Content]:
    try:
        whole = _mapped(file)
        if file.suffix == SAFETENSORS:
            yield from ((name, key, data) for key, data in _of_safetensors(whole))
        else:
            with file.open("rb") as opened:
                yield from ((name, key, data) for key, data in _of_archive(whole, opened))
    except (OSError, ValueError, LookupError, struct.error, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{file} cannot be read as a checkpoint: {error}; torch.save writes what can, and so do safetensors and "
            "torch.distributed.checkpoint"
        ) from None


def _mapped(file: Path) -> memoryview:
    """The bytes of a file, which are read as they are used."""
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _of_safetensors(whole: memoryview) -> Iterator[tuple[str, memoryview]]:
    [size] = struct.unpack("<Q", whole[:8])
    header = json.loads(bytes(whole[8 : 8 + size]))
    for name, tensor in header.items():
        if name != "__metadata__":
            first, end = tensor["data_offsets"]
            yield name, whole[8 + size + first : 8 + size + end]


def _of_archive(whole: memoryview, file: IO[bytes]) -> Iterator[tuple[str, memoryview]]:
    """The storages of what ``torch.save`` wrote: ``whole``, from which they are taken, and the same as a file."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        names = _storage_names(archive.read(members["data.pkl"])) if "data.pkl" in members else {}
        for member, info in members.items():
            if member.startswith("data/"):
                start = info.header_offset
                name_length, extra_length = struct.unpack("<HH", whole[start + 26 : start + 30])
                start += 30 + name_length + extra_length
                key = member.removeprefix("data/")
                yield names.get(key, member), whole[start : start + info.file_size]


def _of_shards(folder: Path, only: str | None) -> Iterator[Content]:
    """The tensors of a folder of ``torch.distributed.checkpoint``: each as it was on the rank that wrote it."""
    try:
        items: dict[str, list[tuple[int, int, str]]] = {}
        for index, info in _load((folder / METADATA).read_bytes()).state["storage_data"].items():
            offset = index.state.get("offset")
            key = index.state["fqn"] + (f"[{', '.join(map(str, offset.args[0]))}]" if offset is not None else "")
            stored = info.state
            items.setdefault(stored["relative_path"], []).append((stored["offset"], stored["length"], key))
        for name in sorted(items) if only is None else items.keys() & {only}:
            whole = _mapped(folder / name)
            for start, length, key in sorted(items[name]):
                item = whole[start : start + length]
                if bytes(item[:2]) == b"PK":  # else an object that is no tensor
                    yield from ((name, key, data) for _, data in _of_archive(item, io.BytesIO(item)))
    except (AttributeError, IndexError, KeyError, TypeError, OSError, pickle.UnpicklingError) as error:
        raise UsageError(f"{folder} is no folder of torch.distributed.checkpoint: {error!r}") from None


# --- names ------------------------------------------------------------------------------------------------------------
#
# A checkpoint's pickle names its storages, and may name anything else. Nothing of it is imported or called.


class _Unknown:
    """An object of any class: what it was made of."""

    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # a pickle may call it and never ``__init__``
        made = super().__new__(cls)
        made.args, made.state, made.items = (*args, *kwargs.values()), {}, {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        self.items[len(self.items)] = value

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


@dataclass(frozen=True)
class _StorageKey:
    text: str


class _Names(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else type(name, (_Unknown,), {})

    def persistent_load(self, pid: Any) -> Any:
        return _StorageKey(str(pid[2]))


def _load(data: bytes) -> Any:
    return _Names(io.BytesIO(data)).load()


def _storage_names(data: bytes) -> dict[str, str]:
    """By key of a storage, the shortest path to a tensor in it."""
    names: dict[str, str] = {}
    try:
        found = [(_load(data), "", 0)]
        seen: set[int] = set()  # objects that refer to each other would have more paths than can be followed
        for value, path, depth in found:
            if isinstance(value, _StorageKey):
                names.setdefault(value.text, path or "tensor")
            elif depth < MAX_DEPTH and id(value) not in seen:
                seen.add(id(value))
                for name, item in _items(value):
                    found.append((item, f"{path}.{name}" if path and name else path or name, depth + 1))
    except Exception:  # a pickle of any class: its tensors go by their numbers then
        names.clear()
    return names


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, (list, set, tuple)):
        yield from ((str(i), item) for i, item in enumerate(value))
    elif isinstance(value, _Unknown):
        yield from (("", item) for item in _flat(value.args))
        yield from _items(value.items)
        yield from _items(value.state)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments of a call, those of one that it wraps included."""
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value
