"""``rltrace series``: what it lists and compares, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from scaler_traces import GOOD, OVERFLOW, scaled
from views import both

from rltrace.commands.main import main
from rltrace.testing import TraceBuilder

WIDTH = 80


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["series", *arguments]) == status
    return capsys.readouterr().out


def build(path: str, late: float = 0.0, more: bool = False) -> None:
    """Ten updates that read a loss out and watch a return."""
    builder = TraceBuilder(Path(path))
    for step in range(10):
        row = builder.op("aten.gelu.default", outputs=[f"{step}{late if step > 2 else 0}"])
        value = step + (late if step > 4 else 0)
        site = ("train.py", 7, "train", "losses.append(value_loss.item())")
        builder.op("aten._local_scalar_dense.default", inputs=[row], value=float(value), site=site)
        builder.sample("return", -step)
        if more:
            builder.sample("fps", 100.0 + step)
        builder.end_step()
    builder.finish()


def test_scalers_that_diverge_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The finding, what each scaler did and its rates, then every series with its course, within 80 columns."""
    scaled(Path("a.zarr"), {0: [GOOD] * 4, 1: [GOOD, OVERFLOW, GOOD, GOOD]})
    shown = run(capsys, "a.zarr")
    text = " ".join(shown.split())
    same = "Scalers 0 and 1 are the same for 1 update (1024)"
    assert f"{same} and diverge at update 2 (steps 2 and 3): infinities" in text
    assert "SGD #1 skipped 1 of 4 steps, learning rate 0.5, 0.375 on average" in text
    assert "optimizer:1/group:0/effective-lr SGD █▁██ 4: 0.5 … 0.5" in text
    assert "scaler:1/found_inf ▁█▁▁ 4: 1 of them 1" in text
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []


def test_names_choose(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not asked for is neither listed nor counted; that a name chooses nothing is no error, and is said."""
    scaled(Path("a.zarr"), {0: [GOOD], 1: [OVERFLOW]})
    assert "diverge" in run(capsys, "a.zarr", "--name", "scaler:*")
    assert main(["series", "a.zarr", "--name", "*lr"]) == 0
    shown, said = capsys.readouterr()
    assert "scaler:" not in shown and "optimizer:0/group:0/lr" in shown and "diverge" not in shown and said == ""
    assert main(["series", "a.zarr", "--name", "nothing"]) == 0
    shown, said = capsys.readouterr()
    assert shown.strip() == "a.zarr  0 series: no such number was recorded" and "no series matches nothing" in said


def test_two_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """Series that differ with both courses and the distance, then equal ones, then those of one side."""
    build("a.zarr")
    build("b.zarr", late=1e-3, more=True)
    shown = run(capsys, "a.zarr", "b.zarr")
    text = " ".join(shown.split())
    assert "1 of 2 series differ" in text and "losses.append(value_loss.item()) train.py:7" in text
    assert "A ▁▁▂▃▄▅▆▇██ 10: 0 … 9" in text
    assert "Differs from step 5 (5.0 | 5.001); the difference stays below the threshold" in text
    assert "Equal return 10 numbers Only in B fps 10 numbers" in text
    visible = " ".join(run(capsys, "a.zarr", "b.zarr", "--tolerance", "0.00001").split())
    assert "Differs from step 5 (5.0 | 5.001); the difference exceeds the threshold" in visible
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []


def test_several_traces_are_held_against_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Each by itself."""
    for name, late in (("a.zarr", 0.0), ("b.zarr", 0.0), ("c.zarr", 5.0)):
        build(name, late)
    shown = run(capsys, "a.zarr", "b.zarr", "c.zarr")
    assert shown.count("  A        a.zarr") == 2 and "0 of 2 series differ" in shown and "1 of 2 series differ" in shown


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with every series, scaler and divergence, and how each series diverges; fields as documented."""
    scaled(Path("a.zarr"), {0: [GOOD] * 3, 1: [GOOD, OVERFLOW, GOOD]})
    scaled(Path("b.zarr"), {0: [GOOD] * 3, 1: [GOOD, OVERFLOW, OVERFLOW]})
    found: dict[str, Any] = json.loads(run(capsys, "a.zarr", "b.zarr", "--format", "json"))
    assert found["schema"] == "rltrace.series/1"
    trace = found["traces"][0]
    assert [scaler["overflows"] for scaler in trace["scalers"]] == [0, 1]
    assert trace["divergences"][0]["cause"] == "found_inf" and trace["divergences"][0]["sides"][1]["scalers"] == [1]
    one = next(series for series in trace["series"] if series["name"] == "scaler:1/scale")
    assert one["points"] == [[1, 1024.0], [1, 1024.0], [3, 512.0], [5, 512.0]]
    assert (one["min"], one["count"]) == (512, 4)
    (pair,) = found["comparisons"]
    apart = {drift["name"]: drift["first"] for drift in pair["drift"] if drift["first"]}
    assert apart["scaler:1/scale"] == {"step": 5, "a": 512.0, "b": 256.0}
    page = (Path(__file__).parents[3] / "docs" / "reference" / "json.md").read_text()
    fields = {key for part in (found, trace, one, pair, *trace["scalers"], *trace["divergences"]) for key in part}
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """What is no trace, and no trace at all."""
    for wrong in (["nothing.zarr"], []):
        run(capsys, *wrong, status=2)


def test_damage_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """What can be read is shown; what cannot is named; listing ends with 0."""
    builder = TraceBuilder(Path("a.zarr"))
    builder.sample("return", 1.0)
    builder.finish()
    Path("a.zarr/processes/0/series/c.0.0").write_bytes(b"?")
    assert "samples 0 to 0: processes/0/series/c.0.0 has 1 bytes" in " ".join(run(capsys, "a.zarr").split())


def test_ranks_that_log_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Where several processes have a series, each line names the process, in a trace and between two."""
    line = "losses.append(total_value_loss_of_this_update_and_of_all_minibatches_in_it.item())"
    for trace, late in both(Path(), 0.0, 1.0):
        for rank in range(2):
            stream = trace.process(f"rank{rank}/main").stream()
            stream.sample("return", 2.0)
            stream.sample("loss", 1.0 + late * rank)
            stream.op("aten._local_scalar_dense.default", value=late * rank, site=("train.py", 7, "train", line))
    one = run(capsys, "a.zarr")
    two = run(capsys, "a.zarr", "b.zarr")
    for rank in range(2):
        assert f"\n  loss  rank{rank}/main  " in one
        assert f"…  train.py:7  rank{rank}/main  " in one
        assert f"\n  return  rank{rank}/main " in two and two.count("  1 number\n") == 4
    assert "2 of 6 series differ, the first from step 0: loss (rank1/main)," in two
    assert "\nloss  rank1/main\n" in two
    assert "…  train.py:7  rank1/main\n" in two
    assert max(map(len, (*one.splitlines(), *two.splitlines()))) <= WIDTH
