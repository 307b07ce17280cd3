"""``docs/stories/scaler_drift.md``: one of several gradient scalers skips steps; both ways out of it work."""

import json
from pathlib import Path

from shown import PAGES, expect, run, shown_on


def test_page(folder: Path) -> None:
    """The scalers diverge where infinities are found in one; shared it cannot part, and alone each does as it did."""
    shown = shown_on(PAGES / "scaler_drift.md")
    now = [run(one.command, folder) for one in shown]
    assert [one.status for one in now] == [1 if one.command.endswith("--check") else 0 for one in shown]
    expect(shown, now)

    (trace,) = json.loads(run("rltrace series drift.zarr --format json", folder).output)["traces"]
    (first,) = trace["divergences"]
    assert first["cause"] == "found_inf"
    assert {tuple(side["scalers"]): side["found_inf"] for side in first["sides"]} == {(0, 2): False, (1,): True}
    calm, nervous, other = (scaler["optimizers"][0] for scaler in trace["scalers"])
    assert calm["skipped"] == other["skipped"] == 0 < nervous["skipped"]
    assert nervous["effective"] < nervous["rate"] == calm["effective"]

    alone = json.loads(run("rltrace series alone0.zarr alone1.zarr --format json", folder).output)
    among = {s["name"]: s["points"] for s in trace["series"]}
    for number, trace in enumerate(alone["traces"]):
        scale = next(series["points"] for series in trace["series"] if series["name"] == "scaler:0/scale")
        assert [value for _, value in scale] == [value for _, value in among[f"scaler:{number}/scale"]]
    shared = json.loads(run("rltrace series shared.zarr --format json", folder).output)["traces"][0]
    assert len(shared["scalers"]) == 1 and shared["divergences"] == []
