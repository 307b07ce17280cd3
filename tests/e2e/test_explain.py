"""The settings under which another run was made are found on this machine, from the traces alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrace
from rltrace.extensions.repro.commands.repro import find, prepare
from rltrace.extensions.repro.explain import Tried, explain
from rltrace.extensions.repro.folder import SCRIPT, write_folder
from rltrace.extensions.repro.kernel_settings import parse_setting
from rltrace.extensions.repro.report import explanation
from rltrace.json import to_json
from rltrace.query.locate import locate
from rltrace.trace.read.reader import open_trace

PLANTED = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "2",
}
"""All of them at once, in the run that stands for the other machine."""

TIMES = 2

Explained = Callable[..., list[Tried]]


def program() -> None:
    """Ops that depend on one of these settings each; their inputs depend on none."""
    x = ((torch.arange(64 * 64) % 1021 - 510).float() / 170).reshape(64, 64)
    torch.nn.functional.gelu(x)
    x.softmax(-1)
    torch.addmm(torch.ones(64), x, x.t())


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """``explained(op, *settings)``: the op under these settings, A's run as it is and B's under all that is planted."""
    folder = tmp_path_factory.mktemp("explained")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with rltrace.record(folder / "a.zarr", values="all", values_inputs=True):
            program()
    finally:
        torch.set_num_threads(before)
    code = f"import rltrace, test_explain as t\nwith rltrace.record({str(folder / 'b.zarr')!r}): t.program()"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **PLANTED, "PYTHONPATH": path}, check=True)

    def run(op: str, *settings: str) -> list[Tried]:
        row = locate(open_trace(folder / "a.zarr"), f"op={op}").row  # the call stacks differ, the rows do not
        a, b = find(folder / "a.zarr", f"{row} (A), {row} (B) of rank0/main", folder / "b.zarr")
        repro = prepare(a, b, (), "explain")
        results = repro.ops[0].call.results
        if results["a"] == results["b"]:
            pytest.skip(f"{op} comes to the same on this processor")
        write_folder(folder / op, repro)
        return list(explain(folder / op / SCRIPT, [parse_setting(setting) for setting in settings], TIMES))

    return run


@pytest.mark.parametrize(
    ("op", "setting"),
    [
        pytest.param("gelu", "ONEDNN_MAX_CPU_ISA=SSE41", marks=pytest.mark.processor),
        ("_softmax", "ATEN_CPU_CAPABILITY=default"),
        ("addmm", "MKL_CBWR=COMPATIBLE"),
    ],
)
def test_the_planted_setting_gives_the_other_bits(explained: Explained, op: str, setting: str) -> None:
    """By itself, though the other run had others as well; and what the library ran under it is reported."""
    (found,) = explained(op, setting)
    assert found.trouble == ""
    assert "b" in found.gives and "a" not in found.gives
    (row,) = to_json(explanation(op, {"a": "", "b": ""}, [found]))["settings"]
    assert (row["setting"], row["gives"], row["kernels"]) == (setting, ["b"], list(found.kernels))
    assert any("sse41" in name for name in found.kernels) == (op == "gelu" and torch.backends.mkldnn.is_available())


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_setting_is_found(cli: Any, kernel_setting: str) -> None:
    """B was made under one setting, which is not recorded: under it this machine gives B's bits, and A's without it."""
    cli.record("a.zarr", "op_kinds.py", "--values", "all", "--values-inputs")
    cli.record("b.zarr", "op_kinds.py", setting=kernel_setting)
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
