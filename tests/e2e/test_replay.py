"""A program under two CPU kernel settings: with A's values injected, B becomes A; the ops that differ are found so.

Most of them are masked in a plain comparison, which sees receivers after the first one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def test_every_masked_origin_is_found_and_is_needed(cli: Any, kernel_setting: str) -> None:
    """With all of A's values injected B is A, and the operators with other values are reported. Injecting those alone
    suffices; without the last of them, B diverges from A at that very op."""
    cli.record("a.zarr", "ppo.py", "--values", "all", "--values-inputs")
    found = replay(cli, kernel_setting, "all.zarr", ["all"])
    assert found["outcome"] == "injected"
    assert found["selected"] > 2_000
    assert cli.diff("a.zarr", "all.zarr")[1]["verdict"] == "identical"
    origins = found["other"]
    assert origins
    chosen = [f"op={origin['op']}" for origin in origins]
    again = replay(cli, kernel_setting, "origins.zarr", chosen)
    assert (again["outcome"], again["other"]) == ("injected", origins)
    assert cli.diff("a.zarr", "origins.zarr")[1]["verdict"] == "identical"
    if len(chosen) > 1:
        last = max(origins, key=lambda origin: origin["row"])
        rest = [text for text in chosen if text != f"op={last['op']}"]
        assert replay(cli, kernel_setting, "fewer.zarr", rest)["outcome"] == "injected"
        compared = cli.diff("a.zarr", "fewer.zarr")[1]
        assert compared["verdict"] == "diverged"
        assert (compared["first_value"]["op"], compared["first_value"]["a_index"]) == (last["op"], last["row"])


def replay(cli: Any, setting: str, trace: str, selectors: list[str]) -> Any:
    """Run the program under ``setting`` with A's values injected; the outcome of the injections."""
    result = f"{trace}.json"
    options = [word for text in selectors for word in ("--inject", text)]
    command = (sys.executable, Path(__file__).parent / "programs" / "ppo.py")
    done = cli.rltrace(
        "replay", "a.zarr", *options, "--quiet", "-o", trace, "--result", result, "--", *command, setting=setting
    )
    assert done.returncode == 7, done.stderr  # the program's own
    return json.loads((cli.folder / result).read_text())
