"""What ``--repeat`` found is said by ``record``, ``info``, ``diff`` and pytest."""

import json
import sys
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.testing import TraceBuilder
from rltrace.trace.kernels.evidence import Evidence

pytest_plugins = ["pytester"]

KERNEL: Evidence = {"library": "ATen", "isa": "AVX2", "threads": 4}


def trace(path: Path, output: str, kinds: int, left_out: int = 0, at_once: int = 0, *, repeated: bool = True) -> Path:
    """A run with one op, which gave ``output``; ``kinds``: whether it did not repeat itself."""
    builder = TraceBuilder(path)
    first = builder.op("aten.mm.default", inputs=[("outside", "x")], outputs=["h"], kernel=KERNEL)
    row = builder.op("aten.index_put_.default", inputs=[first], outputs=[output], kernel=KERNEL)
    found = {"stream": 0, "row": row, "results": [0], "calls": 32, "differing": 7, "of": 1}
    found |= {"dtype": "float32", "elements": 10, "unequal": 8, "ulp": 30, "absolute": 0.5}
    record = {"type": "repeats", "times": 3, "calls": 33, "kinds": [found] * kinds}
    record["at_once"] = ["aten.index_put_.default"] * at_once
    if repeated:
        builder.main.writer.append({**record, "left_out": [["aten.index_put_.default", "why", 1]] * left_out})
    return builder.finish()


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"kinds": 1}, {"kinds": 0}, "within A it did not repeat itself in 7 of 32 calls: 8 of 10 float32, by up to"),
        ({"kinds": 1}, {"kinds": 0}, "within B it repeated itself when it was called again (3 times), one after the"),
        ({"kinds": 0}, {"kinds": 0}, "within A and B it repeated itself"),
        ({"kinds": 0}, {"kinds": 0, "at_once": 1}, "(3 times), large ones two at once"),
        ({"kinds": 0, "left_out": 1}, {"kinds": 0, "repeated": False}, "whether it is deterministic was not tried"),
    ],
    ids=["not in A", "but in B", "in both", "at once", "not tried"],
)
def test_a_difference_says_whether_its_op_repeats_itself(
    tmp_path: Path, a: dict[str, int], b: dict[str, int], said: str
) -> None:
    """Beside the cause ``same-kernel``; where a call of the operator was left out, nothing is known."""
    traces = trace(tmp_path / "a.zarr", "s", **a), trace(tmp_path / "b.zarr", "t", **b)  # type: ignore[arg-type]
    found = compare(*traces).first
    assert found.cause is Cause.SAME_KERNEL
    assert said in found.explanation


def test_a_recording_names_the_op_and_ends_with_1(
    tmp_path: Path, toy_ops: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--exit-code``; and ``info`` has it as JSON, too."""
    monkeypatch.chdir(tmp_path)
    program = f"import torch\ntorch.ops.load_library({str(toy_ops)!r})\ntorch.ops.toy_ops.count(torch.zeros(4))\n"
    Path("train.py").write_text(program)
    assert main(["record", "-o", "a.zarr", "--repeat", "--exit-code", "--", sys.executable, "train.py"]) == 1
    errors = capfd.readouterr().err
    assert "toy_ops.count.default at train.py:3 (<module>)" in errors
    assert "did not repeat itself in 1 of 1 call" in errors
    assert "2 ops called 1 more, one after the other: 1 op did not repeat itself" in errors
    assert main(["info", "a.zarr", "--format", "json"]) == 0
    (process,) = json.loads(capfd.readouterr().out)["processes"]
    (found,) = process["found"]
    assert found["unequal"][0]["differing"] == 1


def test_an_exit_status_is_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every op repeats itself; without ``--repeat`` or ``--against`` there is nothing to end with."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\ntorch.zeros(4).add_(1)\nraise SystemExit(5)\n")
    assert main(["record", "-o", "a.zarr", "--repeat=2", "--exit-code", "--", sys.executable, "train.py"]) == 5
    assert main(["record", "-o", "b.zarr", "--exit-code", "--", sys.executable, "train.py"]) == 125


def test_the_fixture_fails_where_an_op_does_not_repeat_itself(pytester: pytest.Pytester, toy_ops: Path) -> None:
    """And returns what the function does."""
    pytester.makepyfile(
        f"""
        import torch
        torch.ops.load_library({str(toy_ops)!r})
        def test_equal(repeat_ops):
            assert repeat_ops(lambda: torch.ones(3).sum(), times=2) == 3
        def test_unequal(repeat_ops):
            repeat_ops(lambda: torch.ops.toy_ops.count(torch.zeros(4)))
        def test_nothing(repeat_ops):
            repeat_ops(lambda: None)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(["*toy_ops.count.default at *", "*no op was called again*"])
