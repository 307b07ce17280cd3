"""``rltrace explain``: the setting under which another run was made is found on this machine, from the traces alone."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

PROGRAM = """
import torch

x = torch.linspace(-3, 3, 64 * 784).reshape(64, 784)
for op in (torch.sigmoid, lambda x: x.softmax(-1), lambda x: torch.nn.functional.layer_norm(x, (784,)), torch.exp):
    op(x)
torch.nn.functional.gelu(x)
x @ x.t()
torch.nn.functional.batch_norm(x, None, None, training=True)
"""


def test_the_setting_is_found(cli: Any, kernel_setting: str) -> None:
    """B was made under one setting, which is not recorded: under it this machine gives B's bits, and A's without it."""
    program = cli.folder / "train.py"
    program.write_text(PROGRAM)
    for trace, setting, options in (
        ("a.zarr", "", ("--values", "all", "--values-inputs")),
        ("b.zarr", kernel_setting, ()),
    ):
        cli.rltrace("record", "-o", trace, *options, "--", sys.executable, program, setting=setting)
    finding = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    if finding is None:
        pytest.skip(f"{kernel_setting} changes none of these ops on this processor")
    name, _, value = kernel_setting.partition("=")
    asked = f"threads={value}" if name == "OMP_NUM_THREADS" else kernel_setting
    done = cli.rltrace("explain", "a.zarr", "b.zarr", "--times", 2, "--setting", asked, "--format", "json")
    report = json.loads(done.stdout)
    assert report["op"] == finding["op"]
    assert [(one["setting"], one["gives"]) for one in report["settings"]] == [("as is", ["a"]), (asked, ["b"])]
    assert report["found"][1] == f"With {asked} this machine gives B's bits."


STATEFUL = """
import torch

library, calls = torch.library.Library("mine", "DEF"), []
library.define("shifted(Tensor x) -> Tensor")


@torch.library.impl(library, "shifted", "CPU")
def shifted(x):
    calls.append(x)
    return x + (len(calls) == 1)


if __name__ == "__main__":
    torch.ops.mine.shifted(torch.ones(3))
"""


def test_a_first_call_counts(cli: Any) -> None:
    """What an op gives in the first call of a process, and in no later one, is found, and is no setting's work."""
    (cli.folder / "stateful.py").write_text(STATEFUL)
    options = ("--values", "op=mine.shifted", "--values-inputs")
    cli.rltrace("record", "-o", "a.zarr", *options, "--", sys.executable, "stateful.py")
    asked = ("--setting", "threads=1", "--times", 3, "--import", "stateful")
    done = cli.rltrace("explain", "a.zarr", "--at", "op=mine.shifted.default", *asked, PYTHONPATH=str(cli.folder))
    assert "  threads=1  first call A's, later calls neither: " in done.stdout, done
    assert "In 2 of 2 processes the first call gave a result that no later call gave." in done.stdout
    assert done.stdout.endswith("A's bits came out in some of the first calls.\n")
