"""Which engine records a block of a program, and what the trace says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engines import cached, write_library

import rltrace
from rltrace.errors import UsageError
from rltrace.recorder.session.engine_choice import CONSTANTS, handed_facts
from rltrace.trace.read.reader import open_trace


def facts(path: Path) -> dict[str, Any]:
    """The facts of the engine, without their common beginning."""
    (process,) = open_trace(path).processes
    return {name[7:]: value for name, value in process.facts.items() if name.startswith("engine.")}


def record(path: Path, **options: Any) -> dict[str, Any]:
    """Record two ops, and read the facts."""
    with rltrace.record(path, **options):
        torch.ones(2).add_(1)
    return facts(path)


def test_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python records, and the reason is in the trace, without the home folder's path; where it is required, none is."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "home/cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = record(tmp_path / "a.zarr")
    assert found.pop("native.why_not").startswith("no native engine is built for torch ")
    assert found == {"native": False}
    write_library(cached(tmp_path / "home/cache"), content=b"damaged")
    assert "that in ~/cache/engine/torch" in record(tmp_path / "b.zarr")["native.why_not"]
    with pytest.raises(UsageError, match="the native engine is required: no native engine is built"):
        record(tmp_path / "c.zarr", engine="native")
    assert not (tmp_path / "c.zarr").exists()


def test_with_the_library(tmp_path: Path, native_library: Any) -> None:
    """It counts all ops of the block, and those that Python recorded."""
    assert record(tmp_path / "a.zarr", engine="native") == {"native": True, "native.ops": 2, "native.handed": 0}
    assert record(tmp_path / "b.zarr")["native"] is True
    assert native_library.constants() == CONSTANTS


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "mode"}, "--engine mode"),
        ({"steps": (0, None), "verify_inputs": True}, "--verify-inputs needs Python at every op"),
        ({"check_links": True}, "--check-links needs Python at every op"),
        ({"values": "all"}, "--values needs Python at every op"),
        ({"rows": ("op=ones", "all")}, "--rows needs Python at every op"),
    ],
)
def test_python_is_chosen(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    """By the option, or by one for which Python has to see every op: then the native engine cannot be required."""
    assert record(tmp_path / "a.zarr", **options) == {"native": False, "native.why_not": why}
    if "engine" not in options:
        with pytest.raises(UsageError, match=f"the native engine is required: {why}"):
            record(tmp_path / "b.zarr", **options, engine="native")


def test_other_levels_and_words(tmp_path: Path) -> None:
    """No engine is named where no ops are recorded."""
    assert record(tmp_path / "a.zarr", level="step") == {}
    for options, words in (
        ({"level": "step", "engine": "native"}, "with level step it cannot"),
        ({"engine": "x"}, "none of auto"),
    ):
        with pytest.raises(UsageError, match=words):
            record(tmp_path / "b.zarr", **options)


class Counts:
    """A stream's recorder in the library: what it counted."""

    def __init__(self, ops: int, handed: dict[tuple[str, str], int], run: int = 0) -> None:
        self.ops, self.handed, self.parts = ops, handed, {"run": run}


def test_counts_are_summed_over_streams() -> None:
    """Those that Python recorded by operator and reason, the three most frequent in words."""
    first = Counts(10, {("a", "an object"): 1, ("b", "sparse"): 2, ("c", "sparse"): 3})
    assert handed_facts([first, Counts(5, {("a", "an object"): 4, ("d", "sparse"): 1})]) == {
        "engine.native.ops": 15,
        "engine.native.handed": 11,
        "engine.native.handed.most": "a, an object: 5; c, sparse: 3; b, sparse: 2",
    }
    assert handed_facts([Counts(3, {})]) == {"engine.native.ops": 3, "engine.native.handed": 0}
    assert handed_facts([Counts(1, {}, 7), Counts(1, {}, 2)])["engine.native.parts"] == '{"run": 9}'
    assert handed_facts([]) == {}
