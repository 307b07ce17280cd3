"""``docs/stories/stale_rows.md``: one rank of four reads rows of an older batch, at one step."""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shown import PAGES, ROOT, expect, run, shown_on


@pytest.fixture(scope="module")
def program() -> Any:
    """The example as a module: it trains only under torchrun."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "stale_rows.py")))


def test_the_only_difference(program: Any) -> None:
    """A batch that is used again is the fresh one, but for rank 2 at step 40: three rows of step 39."""
    for rank in range(4):
        shard = program.samples(rank)
        fresh = [batch.copy() for batch in program.batches(shard, False)]
        reused = [batch.copy() for batch in program.batches(shard, True)]
        other = [step for step, (a, b) in enumerate(zip(fresh, reused, strict=True)) if not np.array_equal(a, b)]
        assert (len(fresh), other) == (41, [40] if rank == 2 else [])
        if other:
            assert np.array_equal(reused[40][:13], fresh[40][:13])
            assert np.array_equal(reused[40][13:], fresh[39][13:]) and not fresh[40][13:].any()


@pytest.mark.skipif(os.environ.get("EXAMPLES") != "new", reason="sixteen processes of torch: with EXAMPLES=new")
def test_page(folder: Path) -> None:
    """The step, then the rank and the op, then the rows."""
    shown = shown_on(PAGES / "stale_rows.md")
    now = [run(one.command, folder) for one in shown]
    assert [one.status for one in now] == [1 if one.command.startswith("rltrace diff") else 0 for one in shown]
    expect(shown, now)
