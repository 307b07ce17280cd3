"""One model under tensor parallelism with FSDP2, and in one process: its state compared as whole tensors."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from rltrace.trace.read.reader import open_trace

PROGRAM = Path(__file__).parent / "programs" / "shardings.py"
OPTIONS = ("--level", "step", "--state", ":")

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this build of torch has no torch.distributed")


@dataclass(frozen=True)
class Runs:
    """The program, recorded under several shardings."""

    cli: Any

    def record(self, name: str, *command: object) -> None:
        result = self.cli.rltrace("record", "--quiet", *OPTIONS, "-o", f"{name}.zarr", "--", *command)
        assert result.returncode == 0, result.stderr

    def compare(self, a: str, b: str, *options: str, status: int = 0) -> dict[str, Any]:
        result = self.cli.rltrace("compare", f"{a}.zarr", f"{b}.zarr", "--state", "--format", "json", *options)
        assert result.returncode == status, result.stdout + result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found


@pytest.fixture(scope="module")
def runs(new_cli: Callable[[], Any]) -> Runs:
    runs = Runs(new_cli())
    for name in ("whole", "double"):
        runs.record(name, sys.executable, PROGRAM, name)
    for twist in ("init", "scale"):
        runs.record(twist, sys.executable, PROGRAM, "whole", twist)
    runs.cli.record_ranks("mesh.zarr", 4, OPTIONS, sys.executable, PROGRAM, "mesh")
    return runs


def test_shards_form_the_tensors_of_one_process(runs: Runs) -> None:
    """Also of a dimension of 7 in two parts of two, and every difference can be explained by another order of sums."""
    found = runs.compare("whole", "mesh")
    assert found["verdict"] in ("explained", "bitwise")
    assert found["compared"] == 66
    assert (found["only_a"], found["only_b"], found["uncompared"], found["replicas"]) == ([], [], [], [])
    assert found["b"]["ranks"] == 4
    divided = {f"mesh [2, 2], {how}" for how in ("_S(0, 2), S(0)", "S(0), S(1)", "S(0), R")}
    assert set(found["b"]["meshes"]) == {*divided, "mesh [2], S(0)"}
    assert all(tensor["explained"] for tensor in found["tensors"])
    sizes = [
        tuple(len(part) for part in shard.indices())
        for process in open_trace(runs.cli.folder / "mesh.zarr").processes
        for one in process.shards[:1]
        for shard in one.shards
        if shard.name.endswith("up.weight") and not shard.key
    ]
    assert {size for size, _ in sizes} == {1, 2}


def test_another_initialization_is_named(runs: Runs) -> None:
    """As the first difference: no sum had been taken then."""
    found = runs.compare("mesh", "init", status=1)
    first = found["first"]
    assert (first["kind"], first["name"]["b"], first["step"]) == ("before", "Net.down.weight", 0)
    assert (first["index"], first["differing"], first["explained"]) == ([4, 5], 1, False)


def test_a_scale_is_outside_of_what_order_explains(runs: Runs) -> None:
    """One factor of 1.01 in the forward pass is more than another order of sums explains."""
    first = runs.compare("mesh", "scale", status=1)["first"]
    assert (first["kind"], first["name"]["b"].split(".", 1)[1]) == ("gradient", "up.weight")
    assert first["excess"] > 10
    assert first["summands"] > 1_000_000


def test_a_reference_in_double_precision_measures_what_rounding_does(runs: Runs) -> None:
    """With it the same differences are explained, and the same scale is thousands of times outside."""
    reference = ("--reference", "double.zarr")
    assert runs.compare("whole", "mesh", *reference)["verdict"] in ("explained", "bitwise")
    first = runs.compare("whole", "scale", *reference, status=1)["first"]
    assert (first["kind"], first["name"]["a"]) == ("gradient", "Net.up.weight")
    assert first["excess"] > 1000
