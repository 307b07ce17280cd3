"""Without any one of the shortcuts that a comparison takes, its result is the same.

Recordings of real programs are compared without all of them at once, and without each, in tests/e2e: two versions of a
program (test_changes.py), runs that were resumed (test_resumed.py), threads (test_threads.py), ranks (test_ranks.py).
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from comparisons import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Do, in_parts, pieces, training
from random_scripts import Editor, Writer
from rank_programs import reducing
from shortcuts import ALL_AT_ONCE, EACH, NAMES, again, compare_checked, unlike
from views import both, paths_in

from rltrace.diff import compare
from rltrace.diff.align.blocks import Block
from rltrace.diff.base.view import RowRange, Shortcuts

EDITS = ("value", "argument", "shape", "outside", "seed", "alias", "log", "again", "draw", "live", "overflow")
EDITS += ("reorder", "rename")


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_comparison(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert unlike(CASES[name](), again(Path("a.zarr"), Path("b.zarr"))) == {}


@pytest.mark.parametrize("begins", [None, 1, 4])
def test_several_processes(tmp_path: Path, begins: int | None) -> None:
    """Ranks are equal, or one of them receives a difference from the other: no shortcut decides."""
    compare_checked(reducing(tmp_path / "a"), reducing(tmp_path / "b", begins), EACH)


@settings(max_examples=8)
@given(st.integers(0, 1 << 32))
def test_random_programs(seed: int) -> None:
    """The shortcuts do not decide about programs with up to four edits of any kind."""
    random = Random(seed)
    ran = Writer(random).script().run()
    editor = Editor(random, ran)
    for _ in range(random.randint(0, 4)):
        editor.edit(EDITS)
    with tempfile.TemporaryDirectory() as folder:
        a = in_parts(Path(folder) / "a.zarr", pieces(ran, random.randint(20, 120)))
        b = in_parts(Path(folder) / "b.zarr", pieces([item.do for item in editor.items], random.randint(20, 120)))
        compare_checked(a, b)


def chunks(a: Path, b: Path, **switches: bool) -> int:
    return compare(a, b, shortcuts=replace(Shortcuts(), **switches)).search.chunks_read


def test_what_they_save(tmp_path: Path) -> None:
    """Without bisection, and without digests of steps, rows are read that are not read otherwise."""
    program = training(40)
    late = [k for k, do in enumerate(program) if do.name == "aten.sub.Tensor"][-2]
    log = Do("aten.mean.default", ("e",), "log", 50, source="print(e.mean())")
    early = next(k for k, do in enumerate(program) if do.name == "aten.sub.Tensor") + 1
    plain = in_parts(tmp_path / "a.zarr", pieces(program, 20))
    changed = in_parts(
        tmp_path / "b.zarr", pieces([*program[:late], replace(program[late], line=99), *program[late + 1 :]], 20)
    )
    logged = in_parts(tmp_path / "c.zarr", pieces([*program[:early], log, *program[early:]], 20))
    assert chunks(plain, changed) * 3 < chunks(plain, changed, bisection=False)
    assert chunks(plain, logged) * 3 < chunks(plain, logged, step_digests=False, any_order=False)


def logged_and_changed(logs: range) -> list[list[Do]]:
    """Two programs with a log line each in these steps; the second has another value in the fifth one."""
    found = []
    for line, name in ((50, "mean"), (51, "norm")):
        program: list[Do] = []
        step = 0
        for do in training(8):
            is_error = do.name == "aten.sub.Tensor"
            program.append(replace(do, noise="x") if is_error and step == 5 and name == "norm" else do)
            if is_error and step in logs:
                program.append(Do(f"aten.{name}.default", ("e",), "log", line, source=f"print(e.{name}())"))
            step += do.name == "step"
        found.append(program)
    return found


def other_rows(whole: RowRange, start: int, stop: int) -> RowRange:
    return RowRange(whole.view, whole.rows.cut(0, stop - start))


WRONG: dict[str, tuple[str, object]] = {
    "bisection": ("base.bisect.Bisection._equal", lambda *_: True),
    "first_step": ("align.blocks.first_block", lambda a, b, at: Block(at, a.rows, at, b.rows, False, True, True)),
    "step_digests": ("align.blocks.ROW_DIGESTS", []),
    "any_order": ("align.blocks._same_in_any_order", lambda a, b: np.ones(len(a), bool)),
    "batches": ("stream.walk.StreamWalk._add_batch", lambda _, batch: len(batch) > 1),
    "row_hashes": ("align.window.candidates", lambda a, at_a, b, at_b: at_a < 0),
    "links": ("causes.inputs._are_matched", lambda *_: True),
    "caches": ("base.view.RowRange.cut", other_rows),
}
"""What takes each shortcut, and a wrong answer of it."""


def written_by_two(folder: Path) -> tuple[Path, Path]:
    """An op that reads, without a digest, what another op wrote on the other side."""
    for trace, writer in both(folder, 0, 1):
        trace.op("aten.sin.default")
        trace.op("aten.cos.default")
        trace.op("aten.mm.default", inputs=[writer], outputs=[writer])
        trace.end_step()
    return paths_in(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_shortcut_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the result without it is another."""
    if name == "links":
        a, b = written_by_two(tmp_path)
    else:
        logs = {"bisection": range(0), "batches": range(8), "caches": range(8)}.get(name, range(1))
        programs = logged_and_changed(logs)
        a, b = (in_parts(tmp_path / f"{k}.zarr", pieces(program, 40)) for k, program in enumerate(programs))
    alone = ((name,),)
    assert unlike(compare(a, b), again(a, b), alone) == {}
    monkeypatch.setattr(f"rltrace.diff.{WRONG[name][0]}", WRONG[name][1])
    assert {*unlike(compare(a, b), again(a, b), alone)} == {*alone}
    assert {*unlike(compare(a, b), again(a, b), ALL_AT_ONCE)} == {*ALL_AT_ONCE}


def test_an_extra_op_at_the_end_of_a_step(tmp_path: Path) -> None:
    """What the other side continues with is the first row of its next step, whether that is read or not."""
    for trace, side in both(tmp_path):
        for step in range(3):
            trace.op("aten.mm.default", outputs=[step])
            if side == "a" and step == 1:
                trace.op("aten.sum.default", ("log.py", 1, "log", "print(x.sum())"), outputs=["s"])
            trace.end_step()
    found = compare_checked(*paths_in(tmp_path), EACH)
    assert found.first.explanation == "only A runs it; there B continues with aten.mm.default at train.py:12 (train)"
