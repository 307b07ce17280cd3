"""Without any one of the shortcuts that a comparison takes, its result is the same.

All pairs that tests of tests/e2e compare are compared that way, too (tests/e2e/conftest.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from comparisons import CASES
from edits import Editor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Do, Machine, training
from shortcuts import unlike

from rltrace.diff import Comparison, compare
from rltrace.diff.base.view import Shortcuts
from rltrace.testing import TraceBuilder
from scripts import Writer

EDITS = ("value", "argument", "shape", "outside", "seed", "alias", "log", "again", "draw", "live", "overflow")
EDITS += ("reorder", "rename")


def again(a: Path, b: Path) -> Callable[[Shortcuts], Comparison]:
    return lambda shortcuts: compare(a, b, shortcuts=shortcuts)


def in_pieces(path: Path, program: list[Do], rows: int) -> Path:
    """Record with a commit every so many instructions."""
    trace = TraceBuilder(path)
    machine = Machine(trace)
    for start in range(0, len(program), rows):
        machine.run(program[start : start + rows])
        trace.commit()
    return trace.finish("complete")


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_comparison(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert unlike(CASES[name](), again(Path("a.zarr"), Path("b.zarr"))) == {}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_random_programs(random: Random) -> None:
    """With up to four edits of any kind."""
    ran = Writer(random).script().run()
    editor = Editor(random, ran)
    for _ in range(random.randint(0, 4)):
        editor.edit(EDITS)
    with tempfile.TemporaryDirectory() as folder:
        a = in_pieces(Path(folder) / "a.zarr", ran, random.randint(20, 120))
        b = in_pieces(Path(folder) / "b.zarr", [item.do for item in editor.items], random.randint(20, 120))
        assert unlike(compare(a, b), again(a, b)) == {}


def chunks(a: Path, b: Path, **switches: bool) -> int:
    return compare(a, b, shortcuts=replace(Shortcuts(), **switches)).search.chunks_read


def test_what_they_save(tmp_path: Path) -> None:
    """Without bisection, and without digests of steps, rows are read that are not read otherwise."""
    program = training(40)
    late = [k for k, do in enumerate(program) if do.name == "aten.sub.Tensor"][-2]
    log = Do("aten.mean.default", ("e",), "log", 50, source="print(e.mean())")
    early = next(k for k, do in enumerate(program) if do.name == "aten.sub.Tensor") + 1
    plain = in_pieces(tmp_path / "a.zarr", program, 20)
    changed = in_pieces(
        tmp_path / "b.zarr", [*program[:late], replace(program[late], line=99), *program[late + 1 :]], 20
    )
    logged = in_pieces(tmp_path / "c.zarr", [*program[:early], log, *program[early:]], 20)
    assert chunks(plain, changed) * 3 < chunks(plain, changed, bisection=False)
    assert chunks(plain, logged) * 3 < chunks(plain, logged, step_digests=False, any_order=False)


def test_a_wrong_shortcut_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hashes are trusted that do not tell rows apart, the result without them is another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rltrace.diff.align.window.candidates", lambda a, at_a, b, at_b: at_a < 0)
    found = unlike(CASES["kernel"](), again(Path("a.zarr"), Path("b.zarr")))
    assert "verdict" in found["row_hashes"]
