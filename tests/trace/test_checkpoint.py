"""Checkpoint files: what they hold is found by digest, whoever wrote them, and nothing in them is run."""

from __future__ import annotations

import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as sharded

from rltrace.errors import UsageError
from rltrace.trace.format.checkpoint import (
    CheckpointFiles,
    digest_of,
    entries_from_json,
    entries_to_json,
    read_entries,
)

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))


def save_sharded(content: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        sharded.save(content, checkpoint_id=path)


WRITERS = {
    "whole.pt": lambda path: torch.save({"model": MODEL.state_dict(), "epoch": 3, "of": Path("x")}, path),
    "model.safetensors": lambda path: save_file({f"model.{k}": v for k, v in MODEL.state_dict().items()}, path),
    "sharded": lambda path: save_sharded({"model": MODEL.state_dict(), "epoch": 3}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_it_holds(name: str, tmp_path: Path) -> None:
    """Every tensor by the digest of its bytes, with its name; the bytes are read by it."""
    WRITERS[name](tmp_path / name)
    found = read_entries(tmp_path / name)
    files = CheckpointFiles(tmp_path / name)
    for key, tensor in MODEL.state_dict().items():
        data = tensor.numpy().tobytes()
        entry = found[digest_of(data)]
        assert entry.key.partition("[")[0] == f"model.{key}" and entry.nbytes == len(data)
        assert bytes(files.read(entry)) == data
    assert len(found) == 3
    assert entries_from_json(entries_to_json(found)) == found


def test_a_folder_of_files(tmp_path: Path) -> None:
    """As each rank writes its own: all of them count."""
    for rank in range(2):
        torch.save([torch.full((3,), float(rank))], tmp_path / f"rank{rank}.pt")
    found = read_entries(tmp_path)
    assert {(entry.file, entry.key) for entry in found.values()} == {("rank0.pt", "0"), ("rank1.pt", "0")}


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('it ran')",)


def test_nothing_of_it_runs(tmp_path: Path) -> None:
    """What its pickle would call is not called, and its tensors are found."""
    torch.save({"evil": Evil(), "good": torch.ones(5)}, tmp_path / "evil.pt")
    [entry] = read_entries(tmp_path / "evil.pt").values()
    assert (entry.key, entry.nbytes) == ("good", 20)


BROKEN = {
    "pickle.pt": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "empty.pt": lambda path: path.write_bytes(b""),
    "cut.safetensors": lambda path: path.write_bytes(struct.pack("<Q", 10**9)),
    "old.pt": lambda path: torch.save(torch.ones(3), path, _use_new_zipfile_serialization=False),
    "nothing": lambda path: path.mkdir(),
    "other": lambda path: (path.mkdir(), (path / ".metadata").write_bytes(pickle.dumps([1]))),
    "missing.pt": lambda path: None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_checkpoint(name: str, tmp_path: Path) -> None:
    """An error that names the file."""
    BROKEN[name](tmp_path / name)
    with pytest.raises(UsageError, match=name):
        read_entries(tmp_path / name)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"entries": [[1]]}', b'{"entries": [["x", 1, "", ""]]}'])
def test_a_damaged_list(text: bytes) -> None:
    """Is an error, never another list."""
    with pytest.raises(ValueError, match="is not what was written"):
        entries_from_json(text)
