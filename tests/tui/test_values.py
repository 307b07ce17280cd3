"""Recorded values on the screen of an op: what differs, as numbers and as bits; how to get what was not recorded."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tui_support import at_terminal, press

from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import Bin, measure
from rltrace.query.values import OpValues, ValuePair
from rltrace_tui import op_text
from rltrace_tui.diff_app import DiffApp
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.pane import Pane


async def test_values_side_by_side(valued: tuple[Path, Path]) -> None:
    """The finding's op shows how many values differ, how far, a histogram, and the elements in decimal and hex."""
    async with at_terminal(DiffApp(*valued)) as (pilot, app):
        await press(pilot, app, "3", "v")
        assert isinstance(app.screen, OpScreen)
        text = app.screen.query_one("#values", Pane).text
        assert "≠ output 0  float32[2,3]" in text
        assert "2 of 6 elements differ, by at most 4 ULP" in text
        lines = [line.split() for line in text.splitlines()]
        assert ["[1,2]", "1.6666666", "1.6666671", "4", "3fd55555", "3fd55559"] in lines
        assert next(line for line in lines if "ULP" in line and "█" in "".join(line))[:2] == ["1", "ULP"]
        await press(pilot, app, "y")
        assert "3fd55559" in app.clipboard


async def test_how_to_record_them(diverged: tuple[Path, Path]) -> None:
    """Where none were recorded, the commands that would are shown, and copied on one line each."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "3", "y")
        commands = [line for line in app.clipboard.splitlines() if "--values op=aten.mm.default" in line]
        assert len(commands) == 2 and all(line.rstrip().endswith("-- python train.py)") for line in commands)


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_histogram_fits_whatever_it_holds(width: int) -> None:
    """Any distances become a few lines within the width, and no element of the histogram is lost."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal(5_000)
    b = np.where(generator.random(5_000) < 0.5, a * (1 + 10.0 ** -generator.integers(1, 16, 5_000)), -a)
    apart = measure("float64", a, b)
    lines = [line.plain for line in op_text.histogram_lines(apart, width)]
    assert 1 <= len(lines) <= op_text.MAX_BINS
    assert sum(int(line.rsplit(" ", 1)[1].replace(",", "")) for line in lines) == sum(x.count for x in apart.histogram)
    assert max(map(len, lines)) <= max(width, 46)


def test_merged_bins() -> None:
    """Neighbouring bins are added up where there are too many, and empty ones below the first are left out."""
    bins = [Bin(1 << k, (2 << k) - 1, k) for k in range(20)]
    merged = op_text.merged(bins)
    assert len(merged) <= op_text.MAX_BINS
    assert sum(x.count for x in merged) == sum(x.count for x in bins) and merged[0].low == 2
    assert all(x.high + 1 == y.low for x, y in pairwise(merged))


def test_what_differs_comes_first() -> None:
    """Of an op with many outputs those that differ are shown first, a few elements of each."""
    equal = ValuePair("output 0", Pair("float64[50]", "float64[50]"), True, None, (), "")
    apart = measure("float64", np.zeros(50), np.ones(50))
    pairs = tuple(replace(equal, what=f"output {k}", equal=False, distances=apart) for k in (1, 2))
    lines = [line.plain for line in op_text.values_lines(OpValues((equal, *pairs), True), (), 80)]
    heads = [line for line in lines if "output" in line]
    assert [head.split()[:3] for head in heads] == [["≠", "output", "1"], ["≠", "output", "2"], ["=", "output", "0"]]
    assert sum("3ff0000000000000" in line for line in lines) == 2 * op_text.MAX_ELEMENTS
