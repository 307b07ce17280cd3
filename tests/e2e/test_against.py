"""``record --against``: under another kernel setting a program is stopped at the very op that a comparison names."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

PROGRAM = """
import torch

torch.manual_seed(0)
x = ((torch.arange(64 * 784) * 7919 % 1009).float() - 500).div(128).reshape(64, 784)
for op in (torch.sigmoid, lambda x: x.softmax(-1), lambda x: torch.nn.functional.layer_norm(x, (784,)), torch.exp):
    op(x)
torch.nn.functional.gelu(x)
x @ x.t()
torch.nn.functional.batch_norm(x, None, None, training=True)
torch.randn(100).mul(2)
"""


@pytest.mark.processor
def test_another_kernel(cli: Any, kernel_setting: str) -> None:
    """It ends there, with the op called again: it repeats itself, and never gives A's result."""
    program = cli.folder / "train.py"
    program.write_text(PROGRAM)
    for trace, setting in (("a.zarr", ""), ("b.zarr", kernel_setting)):
        cli.rltrace("record", "-o", trace, "--", sys.executable, program, setting=setting)
    wanted = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    if wanted is None:
        pytest.skip(f"{kernel_setting} changes none of these ops on this processor")
    asked = ("record", "-o", "c.zarr", "--against", "a.zarr", "--stop", "--result", "found.json")
    done = cli.rltrace(*asked, "--", sys.executable, program, setting=kernel_setting)
    told = json.loads((cli.folder / "found.json").read_text())
    first = told["processes"][0]["first"]
    assert told["verdict"] == "differs"
    names = ("a_index", "b_index", "stream", "op", "cause", "inputs_match", "outputs")
    assert [first[name] for name in names] == [wanted[name] for name in names]
    assert (first["again"]["repeats"], first["again"]["of_a"]) == (True, 0)
    assert first["again"]["of_b"] == first["again"]["times"]
    assert done.returncode == 0
    assert f"rltrace: differs from a.zarr at op {first['b_index']:,} of rank0/main" in done.stderr
    assert f"rltrace repro c.zarr --at rank0/main:{first['b_index']} --against a.zarr" in done.stderr
    assert cli.diff("a.zarr", "c.zarr")[1]["b"]["ops"] == first["b_index"] + 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stop",), "--against A"),
        (("--against", sys.executable), "no trace"),
    ],
)
def test_what_does_not_go_together(cli: Any, options: tuple[str, ...], told: str) -> None:
    """Said before anything runs."""
    done = cli.rltrace("record", "-o", "c.zarr", *options, "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 125
    assert told in done.stderr
    assert done.stdout == ""
    assert not (cli.folder / "c.zarr").exists()
