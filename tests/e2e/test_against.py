"""``record --against``: under another kernel setting a program is stopped at the very op that a comparison names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "ppo.py"


def test_another_kernel(cli: Any, kernel_setting: str) -> None:
    """It ends there, with the op called again: it repeats itself, and never gives A's result. Without the setting the
    same command finds nothing, and ends as the program does."""
    cli.record("a.zarr", "ppo.py")
    cli.record("b.zarr", "ppo.py", setting=kernel_setting)
    wanted = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    done, told = held(cli, "c.zarr", "--stop", setting=kernel_setting)
    first = told["processes"][0]["first"]
    assert told["verdict"] == "differs"
    names = ("a_index", "b_index", "stream", "op", "cause", "inputs_match", "outputs")
    assert [first[name] for name in names] == [wanted[name] for name in names]
    assert (first["again"]["repeats"], first["again"]["of_a"]) == (True, 0)
    assert first["again"]["of_here"] == first["again"]["times"]
    assert done.returncode == 0
    assert f"rltrace: differs from a.zarr at op {first['b_index']:,} of rank0/main" in done.stderr
    assert cli.diff("a.zarr", "c.zarr")[1]["b"]["ops"] == first["b_index"] + 1


def test_the_same_again(cli: Any) -> None:
    """Nothing differs: said, with the program's own status."""
    program = cli.folder / "train.py"
    program.write_text("import sys, torch\ntorch.manual_seed(0)\ntorch.randn(3).exp()\nsys.exit(7)\n")
    cli.rltrace("record", "-o", "a.zarr", "--", sys.executable, program)
    done, told = held(cli, "c.zarr", program=program)
    assert (done.returncode, told["verdict"]) == (7, "equal")
    assert "equal to a.zarr: all 2 ops gave the same" in done.stderr


def held(cli: Any, trace: str, *options: str, setting: str = "", program: Path = PROGRAM) -> tuple[Any, Any]:
    """Run the program held against a.zarr; how it ended, and what was found."""
    asked = ("record", "-o", trace, "--against", "a.zarr", "--result", "found.json", *options)
    done = cli.rltrace(*asked, "--", sys.executable, program, setting=setting)
    return done, json.loads((cli.folder / "found.json").read_text())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stop",), "--against A"),
        (("--against", "nowhere.zarr"), "no trace"),
        (("--against", "a.zarr", "--values", "all"), "leave out --values"),
    ],
)
def test_what_does_not_go_together(cli: Any, options: tuple[str, ...], told: str) -> None:
    """Said before anything runs."""
    done = cli.rltrace("record", "-o", "c.zarr", *options, "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 125
    assert told in done.stderr
    assert done.stdout == ""
    assert not (cli.folder / "c.zarr").exists()
