"""Checkpoints: an event with a digest of all that was loaded, and nothing of it changes what is loaded."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from children import in_thread
from recorded import Record, Recorded
from torch import nn
from toy_environments import events

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.recorder.integrations import checkpoints
from rltrace.recorder.integrations.checkpoints import entries
from rltrace.trace.format.schema import Kind

LOADED = (Kind.CHECKPOINT,)


def saved(path: Path, weight: float) -> Path:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(weight)
        model.bias.fill_(0.5)
    torch.save({"model": model.state_dict(), "step": 12, "name": "best"}, path)
    return path


def test_a_load_is_an_event_with_a_digest_of_what_was_loaded(record: Record, tmp_path: Path) -> None:
    before = torch.load, torch.serialization.load
    one, same, other = (saved(tmp_path / f"{k}.pt", weight) for k, weight in enumerate((1.0, 1.0, 2.0)))
    kept: list[Any] = []

    def load(path: Path) -> Any:
        found = record(lambda: kept.append(torch.load(path, weights_only=True)))
        (event,) = events(found, LOADED)
        return event

    first, again, differs = map(load, (one, same, other))
    assert (first.what, first.cells["tensors"], first.cells["bytes"]) == ("torch.load", 2, 24)
    assert first.compared == again.compared != differs.compared
    assert kept[0]["model"]["weight"].tolist() == [[1.0, 1.0]] * 2
    assert (torch.load, torch.serialization.load) == before


@pytest.mark.parametrize(
    ("loaded", "names"),
    [
        ({"a": {"b": [1, 2], "c": 3}, "d": {}}, ["d", "a.c", "a.b.0", "a.b.1"]),
        ({"many": [0] * 96, "few": (1, 2), "none": None}, ["many", "none", "few.0", "few.1"]),
        ([0] * 96, []),
        (5, []),
    ],
)
def test_its_entries_have_names(loaded: Any, names: list[str]) -> None:
    """Nested ones, as far as they are not too many."""
    assert [name for name, _ in entries(loaded)] == names


def test_files_of_safetensors(record: Record, tmp_path: Path) -> None:
    """Known from the moment on at which the program imports it; put back at the end."""
    safetensors = pytest.importorskip("safetensors.torch")
    before, path = safetensors.load_file, tmp_path / "a.safetensors"
    found = []
    for weight in (1.0, 1.0, 2.0):
        safetensors.save_file({"weight": torch.full((2, 2), weight)}, path)
        (event,) = events(record(lambda: safetensors.load_file(path)), LOADED)
        assert (event.what, event.cells["tensors"], event.cells["bytes"]) == ("safetensors.torch.load_file", 1, 16)
        found.append(event.compared["content"])
    assert found[0] == found[1] != found[2]
    assert safetensors.load_file is before


def test_runs_from_other_weights_diverge_where_those_are_loaded(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"

    def program() -> None:
        model = nn.Linear(2, 2)
        model.load_state_dict(torch.load(path, weights_only=True)["model"])
        model(torch.ones(1, 2)).sum()

    paths = []
    for weight in (1.0, 2.0):
        saved(path, weight)
        torch.manual_seed(0)
        paths.append(record(program).path)
    found = compare(*paths)
    first = found.first_value
    assert (first.cause, first.op) == (Cause.OUTSIDE, "checkpoint")
    assert first.explanation.startswith("what torch.load loaded differs in model.weight of its 4 entries")


def saves(recorded: Recorded) -> list[list[object]]:
    """Steps and digests of what the process saved, as its last state has them."""
    (last,) = [record for record in recorded.process.journal.records if record["type"] == "state"]
    return last["saved"]  # type: ignore[no-any-return]


def test_what_is_saved_is_digested(record: Record, tmp_path: Path) -> None:
    """With the step at which it was: only its tensors, wherever they are in it, and of a module its own. Files without
    tensors have none, nor have those of another thread."""
    safetensors = pytest.importorskip("safetensors.torch")

    def program(weight: float, note: str) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            average = {"weight": torch.full((2, 2), weight)}
            torch.save({"note": note}, tmp_path / "note.pt")
            torch.save({"average": [average], "note": note}, tmp_path / "average.pt")
            in_thread("saver", lambda: torch.save(average, tmp_path / "average.pt"))
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            safetensors.save_file(average, tmp_path / "average.safetensors")
            buffer = io.BytesIO()
            torch.save(obj=model, f=buffer)

        return run

    first, again, other = (saves(record(program(*each))) for each in ((1.0, "a"), (1.0, "b"), (2.0, "a")))
    assert [step for step, _ in first] == [0, 1, 1]
    assert first == again
    assert [one == two for one, two in zip(first, other, strict=True)] == [False, False, True]


def test_what_cannot_be_digested_is_saved(record: Record, tmp_path: Path) -> None:
    """The recording goes on; contents that are too large have no digest."""
    path, stranger = tmp_path / "large.pt", nn.Module()
    stranger._parameters = None  # type: ignore[assignment]

    def program() -> None:
        torch.save(torch.ones(2), path)
        torch.save(stranger, path)

    with mock.patch.object(checkpoints, "MAX_BYTES", 8):
        found = record(program)
    assert found.process.state == "complete"
    assert path.exists()
    assert not [each for each in found.process.journal.records if each["type"] == "state" and each["saved"]]
