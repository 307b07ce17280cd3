"""A's rows, looked up by key: which of several is meant, and their values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.errors import HoleError
from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.patching.forward_tracker import ForwardPass, ForwardTracker, TrackedCall
from rltrace.extensions.parity.patching.row_table import OUTPUT, RowSource, RowTable, TensorPlace
from rltrace.extensions.parity.token_keys import NONE
from rltrace.trace.format.activation_rows import ModuleCall
from rltrace.trace.read.values import Value

SPOT = TensorPlace("Policy.router", OUTPUT, 0, "")


def source(
    keys: list[int],
    rows: Any,
    *,
    step: int = 0,
    order: int = 0,
    sequences: list[int] | None = None,
    parts: Any = None,
    axes: tuple[int, ...] = (0,),
) -> RowSource:
    """Rows of a tensor of float32."""
    values = np.asarray(rows, np.float32)
    value = Value(0, "float32", values.shape, memoryview(values.tobytes()))
    parts = np.arange(len(keys))[:, None] if parts is None else np.asarray(parts)
    flat = np.moveaxis(values, axes, range(len(axes))).reshape(-1, values.shape[-1])
    digests = np.array([hash(flat[own].tobytes()) & (1 << 63) - 1 for own in parts], np.uint64)
    return RowSource(
        SPOT,
        1000 * step + order,
        "float32",
        values.shape,
        axes,
        np.array(keys, np.uint64),
        parts,
        digests,
        np.array(sequences if sequences is not None else [NONE] * len(keys)),
        step,
        order,
        lambda _digest: value,
    )


def look_up(
    table: RowTable, keys: list[int], *, sequences: Any = None, step: int = 0
) -> list[tuple[float | None, bool]]:
    """The first number of each row that was found, and whether others may be meant."""
    wanted = np.full(len(keys), NONE) if sequences is None else np.array(sequences)
    found = table.find(SPOT, np.array(keys, np.uint64), wanted, step)
    return [
        (None if s == NONE else float(table.rows(int(s), np.array([r]))[0, 0, 0]), bool(several))
        for s, r, several in zip(found.source, found.row, found.several, strict=True)
    ]


def test_rows_are_found_by_key_whatever_tensor_they_are_in() -> None:
    """One prefill and two steps of a generator; a key that A lacks, and one of padding, have no partner."""
    table = RowTable([source([5, 6], [[1], [2]]), source([7], [[3]], order=1), source([8], [[4]], order=2)])
    found = look_up(table, [8, 6, 9, 0, 5, 7])
    assert [value for value, _ in found] == [4.0, 2.0, None, None, 1.0, 3.0]
    assert not any(several for _, several in found)


def test_of_several_alike_there_is_no_question() -> None:
    """The same bits computed twice are one row."""
    assert look_up(RowTable([source([5], [[1]]), source([5], [[1]], order=1)]), [5]) == [(1.0, False)]


def test_of_several_the_first_is_taken_and_named() -> None:
    """A computed a row anew for each token: what it sampled from came first."""
    assert look_up(RowTable([source([5], [[2]], order=1), source([5], [[1]], order=0)]), [5]) == [(1.0, True)]


def test_of_several_those_of_its_own_sequence_are_meant() -> None:
    """A prompt that several sequences begin with: each goes with its own continuation."""
    table = RowTable([source([5, 5], [[1], [2]], sequences=[0, 1])])
    assert look_up(table, [5, 5, 5], sequences=[1, 0, 7]) == [(2.0, False), (1.0, False), (1.0, True)]


@pytest.mark.parametrize(("step", "found"), [(0, 1.0), (1, 1.0), (2, 3.0), (3, 3.0), (9, 6.0)])
def test_of_several_steps_the_last_one_before_is_meant(step: int, found: float) -> None:
    """Weights change from step to step: rows of the step, else of the last one before it, else of the first."""
    table = RowTable([source([5], [[1]], step=1), source([5], [[3]], step=2), source([5], [[6]], step=6)])
    assert look_up(table, [5], step=step) == [(found, False)]


def test_rows_of_several_parts_and_of_other_axes() -> None:
    """A token's heads make up its row; rows may lie along any axes."""
    heads = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    grouped = RowTable([source([5, 6], heads, axes=(0, 1), parts=[[0, 1, 2], [3, 4, 5]])])
    assert grouped.rows(0, np.array([1])).tolist() == [heads[1].tolist()]
    first = RowTable([source([5, 6, 7], heads, axes=(1,), parts=[[0], [1], [2]])])
    assert first.rows(0, np.array([1])).ravel().tolist() == heads[:, 1].ravel().tolist()


def test_a_value_that_is_not_there_is_a_hole() -> None:
    """Named, not read as something else."""
    lost = source([5], [[1]])
    table = RowTable([RowSource(**{**vars(lost), "fetch": lambda _digest: None})])
    with pytest.raises(HoleError, match="no value"):
        table.rows(0, np.array([0]))


def test_sequences_are_those_that_go_on_alike() -> None:
    """By the last token that A has too; of sequences alike, each is given to one."""
    keys = np.array([1, 2, 3, 1, 2, 4, 1, 2, 4], np.uint64)
    numbers, steps = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2]), np.zeros(9, np.int64)
    table = RowTable([], sequences=(keys, numbers, steps))
    wanted = np.array([[1, 2, 4, 9], [1, 2, 3, 0], [1, 2, 4, 0], [1, 2, 4, 0], [8, 9, 0, 0]], np.uint64)
    assert table.like(wanted, 0).tolist() == [1, 0, 2, 2, NONE]
    later = RowTable([], sequences=(keys, numbers, np.array([0, 0, 0, 0, 0, 0, 3, 3, 3])))
    assert later.like(wanted, 3).tolist() == [2, 0, 2, 2, NONE]
    assert later.like(wanted, 2).tolist() == [1, 0, 1, 1, NONE]


ROWS = st.lists(st.tuples(st.integers(1, 6), st.integers(NONE, 2), st.integers(0, 2)), min_size=1, max_size=5)
"""(key, sequence, value) of each row of a tensor."""


@given(
    st.lists(st.tuples(ROWS, st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 7), st.integers(NONE, 4)), max_size=8),
    st.integers(0, 4),
)
def test_look_up_is_a_search_through_all(tensors: Any, wanted: list[tuple[int, int]], step: int) -> None:
    """As said in words, one row after the other."""
    sources = []
    for i, (rows, of_step) in enumerate(tensors):
        of_rows, numbers, values = map(list, zip(*rows, strict=True))
        sources.append(source(of_rows, [[v] for v in values], sequences=numbers, step=of_step, order=i))
    table = RowTable(sources)
    keys, sequences = [key for key, _ in wanted], [sequence for _, sequence in wanted]
    for (key, sequence), (found, several) in zip(
        wanted, look_up(table, keys, sequences=sequences, step=step), strict=True
    ):
        entries = [(s, q, value) for rows, s in tensors for k, q, value in rows if k == key and key]
        before = [s for s, _, _ in entries if s <= step]
        of_step = max(before) if before else min((s for s, _, _ in entries), default=None)
        own = [(q, value) for s, q, value in entries if s == of_step]
        same = [value for q, value in own if q == sequence and q != NONE]
        left = same or [value for _, value in own]
        assert found == (float(left[0]) if left else None)
        assert several == (len(set(left)) > 1)


# --- forward passes ---------------------------------------------------------------------------------------------------


ANCHOR = ModuleCall(0, None, "M.embed", "Embedding", 0, "forward", False, 0, 0, ())


class Program:
    """Calls of modules, one after the other; each of ``M.embed`` begins a forward pass."""

    def __init__(self) -> None:
        self.tracker = ForwardTracker({"M.embed"})
        self._passes = 0

    def begin(self, path: str) -> TrackedCall:
        call = TrackedCall(path, path)
        self.tracker.begin(call, lambda: self._new() if path == "M.embed" else None)
        return call

    def run(self, path: str) -> TrackedCall:
        call = self.begin(path)
        self.tracker.end(call)
        return call

    def _new(self) -> ForwardPass:
        grid = TokenGrid.of_keys(ANCHOR, (1,), np.ones(1, np.uint64))
        self._passes += 1
        return ForwardPass(self._passes - 1, grid, grid.sequences)


def place(call: TrackedCall) -> tuple[int, int] | None:
    """(forward pass, occurrence of the module in it)."""
    if call.traversal is None or call.nth is None:
        return None
    return call.traversal.forward_pass.number, call.nth


def test_calls_belong_to_the_last_forward_pass_of_their_model() -> None:
    """The call around the embedding too; a call of another model, or before any tokens, to none."""
    program = Program()
    assert place(program.run("M.head")) is None
    for number in range(2):
        outer = program.begin("M")
        early = program.run("M.rotary")
        inner = [program.run(path) for path in ("M.embed", "M.layer", "M.layer")]
        program.tracker.end(outer)
        assert [place(call) for call in (outer, *inner)] == [(number, 0), (number, 0), (number, 0), (number, 1)]
        assert place(early) is None
        assert place(program.run("N")) is None
    assert place(program.run("M.head")) == (1, 0)


def test_a_call_with_two_forward_passes_belongs_to_neither() -> None:
    """The first is only known to be one of several when the second begins."""
    program = Program()
    outer = program.begin("M")
    program.run("M.embed")
    assert place(outer) == (0, 0)
    program.run("M.embed")
    assert place(outer) is None


def test_a_call_that_may_begin_a_forward_pass_belongs_to_none_until_it_does() -> None:
    """Modules that a forward pass began in before: called with embeddings, what they compute is unknown."""
    program = Program()
    outer = program.begin("M")
    program.run("M.embed")
    program.tracker.end(outer)
    outer = program.begin("M")
    assert place(program.run("M.layer")) is None
    program.tracker.end(outer)
    assert place(outer) is None
