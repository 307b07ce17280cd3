"""Checkpoint files: what they hold is found by digest, whatever wrote them, and nothing in them is run."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from argparse import Namespace
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as sharded

from rltrace.errors import RecordError, UsageError
from rltrace.trace.format.checkpoint import (
    CheckpointEntry,
    CheckpointFiles,
    digest_of,
    entries_from_json,
    entries_to_json,
    load_entries,
    read_entries,
    write_entries,
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


def test_names(tmp_path: Path) -> None:
    """The shortest path to a tensor, also through objects that refer to each other; too far inside it has a number."""
    trainer, deep = Namespace(best=(torch.zeros(2), torch.ones(2))), [torch.full((9,), 1.0)]
    trainer.workers = [Namespace(trainer=trainer, weight=torch.full((3,), float(number))) for number in range(4)]
    for _ in range(60):
        deep = [deep]
    for name, content in (("a.pt", {"trainer": trainer, "deep": deep}), ("b.pt", torch.ones(7))):
        torch.save(content, tmp_path / name)
    names = [entry.key for entry in read_entries(tmp_path).values()]
    paths = ["trainer.best.0", "trainer.best.1", *(f"trainer.workers.{number}.weight" for number in range(4))]
    assert sorted(names) == sorted(["data/6", *paths, "tensor"])


def test_names_in_containers_of_other_classes(tmp_path: Path) -> None:
    """As a mapping or a sequence of that class has them."""
    stack, one = deque([torch.full((2,), 1.0), torch.full((2,), 2.0)]), deque([torch.full((2,), 3.0)])
    state = defaultdict(dict, {"exp_avg": torch.full((2,), 4.0)})
    torch.save({"stack": stack, "one": one, "state": state}, tmp_path / "a.pt")
    names = {entry.key for entry in read_entries(tmp_path / "a.pt").values()}
    assert names == {"stack.0", "stack.1", "one.0", "state.exp_avg"}


def test_a_pickle_that_cannot_be_read(tmp_path: Path) -> None:
    """Its tensors have the numbers of their storages."""
    torch.save({"weight": torch.ones(3)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as whole, zipfile.ZipFile(tmp_path / "b.pt", "w") as broken:
        for name in whole.namelist():
            broken.writestr(name, b"no pickle" if name.endswith("data.pkl") else whole.read(name))
    assert [entry.key for entry in read_entries(tmp_path / "b.pt").values()] == ["data/0"]


def test_another_checkpoint(tmp_path: Path) -> None:
    """Another checkpoint is an error that names it, the tensor and, where it is there, its digest."""
    torch.save({"weight": torch.ones(3), "bias": torch.zeros(3)}, tmp_path / "a.pt")
    recorded = {entry.key: entry for entry in read_entries(tmp_path).values()}
    torch.save({"weight": torch.full((3,), 2.0)}, tmp_path / "a.pt")
    other = digest_of(torch.full((3,), 2.0).numpy().tobytes())
    files = CheckpointFiles(tmp_path)
    for key, why in (("weight", f"weight has the digest {other:016x} there"), ("bias", r"it has no bias in a\.pt$")):
        with pytest.raises(UsageError, match=f"is not the checkpoint that the step was recorded with: {why}"):
            files.read(recorded[key])


def test_the_list_in_a_trace(tmp_path: Path) -> None:
    """The list is read as it was written; a folder that cannot take it is an error that names it."""
    (tmp_path / "journal").mkdir()
    entries = {7: CheckpointEntry("a.pt", "weight", 12, 7)}
    write_entries(tmp_path, entries)
    assert load_entries(tmp_path) == entries
    with pytest.raises(RecordError, match=r"journal/checkpoint\.json cannot be written to \S+/none: No such file"):
        write_entries(tmp_path / "none", entries)


def test_tensors_of_one_name(tmp_path: Path) -> None:
    """As of an object that was made of two: the bytes of each are read."""
    torch.save({"pair": slice(torch.zeros(2), torch.ones(2))}, tmp_path / "a.pt")
    files = CheckpointFiles(tmp_path / "a.pt")
    found = read_entries(tmp_path / "a.pt").values()
    assert [entry.key for entry in found] == ["pair", "pair"]
    assert {bytes(files.read(entry)) for entry in found} == {bytes(8), torch.ones(2).numpy().tobytes()}


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
    """A damaged list is an error, never another list."""
    with pytest.raises(ValueError, match="is not what was written"):
        entries_from_json(text)
