"""A stream is read in parts: what a part says is what the whole says."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from views import both, lose_rows, opened, random_sides, view_of, views_in

from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import PLACEMENT_SHIFT, Kind, Step, ValueKind
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.packers import NewValue, NewValues

TOKENS = ("identity", "structure", "values", "computation", "operator", "has_values", "draws", "links", "link_offsets")


def test_a_part_of_cached_rows(tmp_path: Path) -> None:
    """Has the hashes and tokens that it has where it is read alone; rows beside the cached ones are read."""
    (cached, plain), random = random_sides(tmp_path, Random(5), 60, 7), Random(6)
    plain = StreamView(cached.process, cached.stream)
    whole = cached.read(10, 50)
    _ = whole.hashes
    cached.cache(whole)
    at_random = [sorted(random.sample(range(60), 2)) for _ in range(9)]
    for start, stop in [(10, 50), (10, 10), (9, 20), (40, 51), *at_random]:
        part, alone = cached.read(start, stop), plain.read(start, stop)
        assert (part.first, part.end, len(part)) == (start, stop, stop - start)
        assert ("tokens" in part.__dict__) == (start >= 10 and stop <= 50)
        for name in TOKENS:
            assert np.array_equal(getattr(part.tokens, name), getattr(alone.tokens, name)), name
        assert np.array_equal(part.tokens.sources, alone.tokens.sources)
        for of_part, of_alone in zip(part.hashes, alone.hashes, strict=True):
            assert np.array_equal(of_part, of_alone)
        assert np.array_equal(part.computation, alone.computation)


def test_attempts_around_a_row(tmp_path: Path) -> None:
    """The last one that ended before it and the first that ends after it, found in few parts or read in all."""
    random, trace = Random(7), TraceBuilder(tmp_path / "a.zarr")
    other = trace.stream("rank0/main/worker")
    for _ in range(14):
        for stream in (trace.stream(), other):
            for _ in range(random.choice((0, 1, 3))):
                stream.op("aten.mm.default")
            if random.random() < (0.5 if stream is other else 0.7):
                stream.end_step(ordinal=int(stream is other))
        for stream in random.choice(((trace.stream(),), (other,), (other, trace.stream()))):
            stream.commit()
    process = open_trace(trace.finish("killed")).processes[0]  # its steps are in no chunk, but where committed
    assert len(process.step_parts) > 5
    for stream in process.streams:
        view = StreamView(process, stream)
        ends = view.steps[:, Step.END_ROW].tolist()
        assert ends == sorted(ends)
        for row in range(view.rows + 2):
            before = [step.tolist() for step in view.steps if step[Step.END_ROW] <= row]
            after = [step.tolist() for step in view.steps if step[Step.END_ROW] > row]
            found = view.attempt_before(row), view.attempt_after(row)
            assert (None if found[0] is None else found[0].tolist()) == (before[-1] if before else None)
            assert (None if found[1] is None else found[1].tolist()) == (after[0] if after else None)


def test_holes(tmp_path: Path) -> None:
    """The first of those that a range touches, and the row up to which it can be read."""

    def build(trace: TraceBuilder) -> None:
        for number in range(20):
            trace.op("aten.mm.default", outputs=[number])
            if number % 4 == 3:
                trace.commit()

    for number in (1, 3):
        view = view_of(tmp_path / f"{number}.zarr", build)
        assert (view.readable(2, 20), view.hole(0, 20)) == (20, None)
    for number in (3, 1):
        file = view.stream.segments[number].files[0]
        (tmp_path / "1.zarr" / "processes/0" / file.key).write_bytes(bytes(file.length))
    broken = opened(tmp_path / "1.zarr")
    with pytest.raises(HoleError):
        broken.row(13)
    assert broken.hole(0, 20)[:2] == (12, 4)  # the only one that anyone came upon
    assert [broken.readable(*bounds) for bounds in ((0, 4), (2, 20), (5, 7), (8, 12))] == [4, 4, 5, 12]
    assert broken.hole(0, 20)[:2] == broken.hole(7, 20)[:2] == broken.hole(0, 5)[:2] == (4, 4)
    assert broken.hole(8, 20)[:2] == (12, 4) and broken.hole(8, 12) is None and broken.hole(0, 4) is None
    rows, place = broken.row(9)
    assert rows.first + place == 9


def test_opening_digests(tmp_path: Path) -> None:
    """They are those of each window's opening rows, and of no op after them."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    trace.window(0, 1)
    trace.op("", outputs=["weight"], kind=Kind.WINDOW)
    trace.op("", outputs=["bias"], kind=Kind.WINDOW)
    first = trace.op("aten.mm.default", outputs=["x"])
    trace.end_step()
    trace.window(3, None)
    trace.op("", outputs=["later"], kind=Kind.WINDOW)
    assert first == 2
    view = opened(trace.finish())
    wanted = {digest for row in (0, 1, 3) for digest in view.row(row)[0].outputs(view.row(row)[1])}
    assert len(wanted) == 3 and view.opening_digests == wanted
    assert view_of(tmp_path / "b.zarr", lambda trace: trace.op("aten.mm.default")).opening_digests == set()
    assert len(lose_rows(tmp_path / "a.zarr").opening_digests) == 1  # of the window that can be read


def test_alignments(tmp_path: Path) -> None:
    """The largest power of two that divides where an input begins, up to 64, which is left out."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for _ in range(3):
        builder.op("aten.mm.default")
    builder.value(np.zeros(4, np.float32), kind=ValueKind.INPUT)
    builder.op("aten.mm.default")
    builder.commit()
    places = [(0, 0), (0, 4), (16, 8), (32, 32), (48, 0), (32, 128), (16, 48)]
    new = [
        NewValue(ValueKind.PLACEMENT, 0, 0, row, place, alignment << PLACEMENT_SHIFT, b"", offset)
        for row in (1, 2)
        for place, (alignment, offset) in enumerate(places if row == 1 else places[:1])
    ]
    builder.main.request_values()
    builder.main.writer.commit(0, None, values=NewValues(new))
    view = opened(builder.finish())
    assert [view.alignments(row) for row in range(4)] == [None, {1: 4, 2: 8, 4: 16, 5: 32}, {}, {}]


def test_cached_rows_after_a_line_was_learned(tmp_path: Path) -> None:
    """Their tokens are those of the sites as they are known then."""
    for trace, side in both(tmp_path):
        for line in ("x", "y"):
            trace.op("aten.mm.default", ("train.py", 3, "train", f"{line} of {side}"))
    a, b = views_in(tmp_path)
    b.use_site_names_of(a)
    b.cache(b.read(0, 2))
    assert not np.isin(a.read(0, 2).tokens.identity, b.read(0, 2).tokens.identity).any()
    assert b.learn(1, 1)
    assert (a.read(0, 2).tokens.identity == b.read(0, 2).tokens.identity).tolist() == [True, False]
