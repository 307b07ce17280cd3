"""What digests say of whole steps, and many steps taken at once, never change what is found."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import KERNEL, Do, recorded
from views import both, compare_in, lose_rows

from rltrace.diff import compare
from rltrace.diff.align import blocks, window
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.diff.stream import walk
from rltrace.errors import HoleError
from rltrace.trace.format import row_hashes

ITEMS = 4
"""Members of the set that a step walks."""

OTHER = tuple({**KERNEL, "threads": 8}.items())


def step(order: Sequence[int]) -> list[Do]:
    """A step that does the same for every item of a set, in the order that the set happens to have."""
    program = [Do("outside", (), "o", noise="observation")]
    for item in order:
        program += [
            Do("aten.mm.default", ("w1", f"c{item}"), f"h{item}", 40),  # whichever is first digests w1 for the others
            Do("aten.mul.Tensor", (f"h{item}", "o"), f"y{item}", 41),
        ]
    program.append(Do("aten.add.Tensor", ("y0", "y1"), "e", 50))
    program += [Do("aten.add.Tensor", ("e", f"y{item}"), "e", 51 + item) for item in range(2, ITEMS)]
    return [*program, Do("aten.add_.Tensor", ("w1", "e"), "w1", 60), Do("step")]


def looped(orders: Sequence[Sequence[int]]) -> list[Do]:
    names = ["w1", *(f"c{item}" for item in range(ITEMS))]
    setup = [Do("aten.randn.default", (), name, 1 + k) for k, name in enumerate(names)]
    return [*setup, *(do for order in orders for do in step(order))]


def logged(program: Sequence[Do], steps: set[int], name: str = "e") -> list[Do]:
    """The program with a log line at the end of these steps."""
    done, number = [], 0
    for do in program:
        if do.name == "aten.add_.Tensor" and number in steps:
            done.append(Do("aten.norm.default", (name,), "log", 99))
        number += do.name == "step"
        done.append(do)
    return done


def found(
    a: Sequence[Do], b: Sequence[Do], *, digests: bool = True, look: bool = True, batches: bool = True
) -> Comparison:
    """The comparison of two programs. ``digests``: steps carry digests in any order; ``look``: the first steps that
    these describe are read all the same; ``batches``: steps may be taken together."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if not digests:
            patch.setattr(row_hashes, "MAX_STEP_ROWS", -1)
        if not look:
            patch.setattr(walk, "CHUNKS_FOR_ORDER", 0)
        if not batches:
            patch.setattr(blocks, "WINDOW_ROWS", 0)
        paths = [recorded(Path(folder) / name, program).path for name, program in (("a.zarr", a), ("b.zarr", b))]
        return compare(*paths)


def facts(comparison: Comparison) -> tuple[object, ...]:
    """All that must not depend on a shortcut."""
    structure = comparison.structure
    findings = comparison.first, comparison.first_value, comparison.decisive
    return comparison.verdict, *findings, structure.only_a, structure.only_b, comparison.compared


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Do], list[Do]]:
    """Two programs that walk a set in orders of their own, with up to two edits in the second."""
    random = Random(draw(st.integers(0, 1 << 20)))
    steps = draw(st.integers(2, 4))
    straight = list(range(ITEMS))
    orders = [random.sample(straight, ITEMS) if draw(st.integers(0, 3)) else straight for _ in range(steps)]
    a, b = looped([straight] * steps), looped(orders)
    if draw(st.booleans()):
        b = logged(b, set(draw(st.lists(st.integers(0, steps - 1)))))
    if draw(st.booleans()):
        places = [p for p, do in enumerate(b) if do.name.startswith("aten.add") or do.line == 41]
        place = draw(st.sampled_from(places))
        b[place] = replace(b[place], kernel=OTHER) if draw(st.booleans()) else replace(b[place], noise="x")
    return a, b


@settings(max_examples=10)
@given(cases())
def test_shortcuts_never_change_what_is_found(case: tuple[list[Do], list[Do]]) -> None:
    """With digests in any order, read or not, and without, one by one or together: the same verdict and findings."""
    whole = found(*case, digests=False, batches=False)
    read, unread = found(*case), found(*case, look=False)
    assert facts(read) == facts(unread) == facts(whole)
    assert read.structure.reordered == whole.structure.reordered
    assert read.structure.reordered_steps == 0
    assert (unread.structure.reordered_steps > 0) <= (whole.structure.reordered > 0)


def test_steps_in_another_order_are_reported_without_reading_them() -> None:
    """Each step but the one where the runs diverge is known from its digest alone, which the report says."""
    steps = 12
    a, b = looped([range(ITEMS)] * steps), looped([[1, 0, 3, 2]] * steps)
    unread, read = found(a, b, look=False), found(a, b)
    assert unread.verdict is read.verdict is Verdict.SAME_VALUES
    assert unread.structure.reordered_steps == steps - 1
    assert (read.structure.reordered, read.structure.reordered_steps) == (4 * steps, 0)
    assert unread.search.chunks_read <= read.search.chunks_read


def test_only_the_first_hunks_are_read() -> None:
    """Once there are as many hunks as are shown, digests do."""
    steps = 110
    comparison = found(looped([range(ITEMS)] * steps), looped([[1, 0, 2, 3]] * steps))
    assert len(comparison.structure.hunks) == 100
    assert comparison.structure.reordered_steps == steps - 100
    assert comparison.structure.reordered == 2 * 100


def test_the_writer_of_an_input_is_found_in_a_step_that_was_not_read() -> None:
    """A difference behind reordered steps is judged as if they had been read."""
    a, b = looped([range(ITEMS)] * 5), looped([[3, 2, 1, 0]] * 5)
    last = max(p for p, do in enumerate(b) if do.line == 50)
    b[last] = replace(b[last], noise="x")
    comparison = found(a, b, look=False)
    assert comparison.structure.reordered_steps == 3
    assert (comparison.first_value.cause, comparison.first_value.op) == (Cause.UNKNOWN, "aten.add.Tensor")
    assert comparison.first_value == found(a, b, digests=False).first_value


def test_a_hole_in_a_reordered_step_hides_nothing(tmp_path: Path) -> None:
    """Digests show that it computes the same; damage there is named and changes no verdict."""
    for builder, orders in both(tmp_path, [[0, 1], [0, 1], [0, 1]], [[1, 0], [1, 0], [0, 1]]):
        for number, order in enumerate(orders):
            for item in order:
                builder.op("aten.add.Tensor", inputs=[("outside", item)], outputs=[f"{number}.{item}"])
            builder.end_step()
            builder.commit()
    with pytest.raises(HoleError):
        lose_rows(tmp_path / "a.zarr", 1).read(2, 4)
    comparison = compare_in(tmp_path)
    assert comparison.first_value is None
    assert comparison.structure.reordered_steps == 1
    assert comparison.holes and comparison.verdict in (Verdict.SAME_VALUES, Verdict.UNKNOWN)


def test_a_log_line_in_every_step_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one side merely has a line more, no step is aligned by itself but the one where the runs diverge."""
    aligned = []
    whole = window.align
    monkeypatch.setattr(window, "align", lambda *a, **k: aligned.append(len(a[0])) or whole(*a, **k))
    a = looped([range(ITEMS)] * 10)
    comparison = found(a, logged(a, set(range(10))))
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b) == (0, 10)
    assert len(aligned) == 1


@pytest.mark.parametrize("name", ["w1", "h0"])
def test_a_log_line_that_writes_what_others_use(name: str) -> None:
    """An extra line that changes a tensor is no log line, however many steps are taken at once."""
    a = looped([range(ITEMS)] * 6)
    b = logged(a, {3}, name)
    place = next(p for p, do in enumerate(b) if do.line == 99)
    b[place] = replace(b[place], name="aten.mul_.Tensor", writes=name)
    assert facts(found(a, b)) == facts(found(a, b, batches=False))
