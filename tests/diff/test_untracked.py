"""Memory that no recorded op wrote: which change explains a difference, and how it is reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from views import both, compare_in, context_of, lose_rows, view_of, views_in

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.model import Cause
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes import inputs, untracked
from rltrace.diff.causes.inputs import match_inputs
from rltrace.diff.causes.untracked import (
    changes_text,
    is_known_unwritten,
    lost_link,
    repeats_for_certain,
    untracked_writes,
)
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.records import FaultKind, LinkFault, link_checks_record, link_fault_record
from rltrace.trace.format.schema import SLOT_UNKNOWN, RowFlag

ADD, MM = "aten.add.Tensor", "aten.mm.default"
PLAIN, TURNED = ("float32", (2, 2), (2, 1), "cpu"), ("float32", (2, 2), (1, 2), "cpu")


def op(*inputs: Any, name: str = MM, outputs: Any = ("y",), layout: Any = PLAIN, flags: int = 0) -> dict[str, Any]:
    return {"name": name, "inputs": inputs, "outputs": outputs, "layouts": [layout] * len(inputs), "flags": flags}


def side(path: Path, *ops: dict[str, Any], faults: tuple[LinkFault, ...] = (), checked: bool = False) -> StreamView:
    def build(trace: TraceBuilder) -> None:
        for fields in ops:
            trace.op(**fields)
        for record in [link_checks_record()] * checked + [link_fault_record(fault) for fault in faults]:
            trace.main.writer.append(record)

    return view_of(path, build)


def changes(a: StreamView, b: StreamView) -> list[tuple[str, int]]:
    """(side, place) of the changes that explain a difference of the last rows, of which all are matched."""
    last = row_at(a, a.rows - 1), row_at(b, b.rows - 1)
    context = context_of(a, b, [(row, row) for row in range(min(a.rows, b.rows))])
    return [(one.side, one.place) for one in untracked_writes(context, *last, match_inputs(context, *last))]


VIEW = op(0, name="aten.view.default", outputs=(), flags=RowFlag.VIEW)
DETACH = op(0, name="aten.detach.default", outputs=(), flags=RowFlag.VIEW)


@pytest.mark.parametrize(
    ("before", "last", "changed"),
    [
        ([op(outputs=["x"])], op(In(0, "x")), False),
        ([op(outputs=["x"])], op(In(0, "z")), True),
        ([op(outputs=["x"])], op(0), False),
        ([op(outputs=["p", "x"])], op(In(0, "z", slot=1)), True),
        ([op(outputs=["p", "x"])], op(In(0, "x", slot=1)), False),
        ([op(outputs=["x"])], op(In(0, "z", slot=SLOT_UNKNOWN)), False),
        ([op(outputs=[0])], op(In(0, "z")), False),
        ([op(outputs=["x"])], op(("outside", "z")), False),
        ([op(outputs=["x"]), VIEW], op(In(0, "z")), False),
        ([op(outputs=["x"]), DETACH], op(In(0, "z")), True),
        ([op(outputs=["x"]), op(outputs=["q"]), op(1, outputs=(), flags=RowFlag.VIEW)], op(In(0, "z")), True),
        ([op(outputs=["x"]), op(0, outputs=["q"])], op(In(0, "z")), True),
        ([op(outputs=["x"]), op(0, name="aten.add_.Tensor", outputs=["y"])], op(In(1, "z")), True),
        ([op(outputs=["x"]), op(0, name="aten.add_.Tensor", outputs=["y"], layout=TURNED)], op(In(1, "z")), False),
    ],
)
def test_found_by_digests(tmp_path: Path, before: list[Any], last: Any, changed: bool) -> None:
    """A row that read other bytes than their writer left, both digested in one layout; on one side, it is the cause."""
    a = side(tmp_path / "a.zarr", *before, last)
    plain = op(*(In(one.row, slot=one.slot) if isinstance(one, In) else one for one in last["inputs"]))
    b = side(tmp_path / "b.zarr", *before, plain)
    assert changes(a, b) == ([("A", 0)] if changed else [])
    assert changes(b, a) == ([("B", 0)] if changed else [])
    assert changes(a, a) == []


def test_views_that_cannot_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many rows lie between the write and the read, or some cannot be read, a view may explain the digest."""

    for trace, digest in both(tmp_path, "z", None):
        for row in range(6):
            trace.op(**op(outputs=[f"x{row}"]))
            trace.commit()
        trace.op(**op(In(0, digest)))
    a, b = views_in(tmp_path)
    monkeypatch.setattr(inputs, "MAX_SCANNED", 5)
    assert changes(a, b) == [("A", 0)]
    monkeypatch.setattr(inputs, "MAX_SCANNED", 4)
    assert changes(a, b) == []
    monkeypatch.undo()
    assert changes(lose_rows(tmp_path / "a.zarr", 3), b) == []


def test_in_words(tmp_path: Path) -> None:
    """The sentence names the input, the side, and the op that left other bytes there."""
    a = side(tmp_path / "a.zarr", op(outputs=["x"]), op("unknown", In(0, "z")))
    b = side(tmp_path / "b.zarr", op(outputs=["x"]), op("unknown", In(0)))
    rows = row_at(a, 1), row_at(b, 1)
    context = context_of(a, b, [(0, 0), (1, 1)])
    found = untracked_writes(context, *rows, match_inputs(context, *rows))
    assert changes_text(rows[0], found) == (
        "input 1 (float32[2,2]) changed without any recorded op: "
        f"in A its bytes are not those that {MM} at {rows[0].stack[0].file}:{rows[0].stack[0].line} "
        f"({rows[0].stack[0].function}) (row 0) left there"
    )


def fault(kind: FaultKind = FaultKind.WRITE, digest: int = 5, **places: Any) -> LinkFault:
    given: dict[str, Any] = {"found": (0, 2), "input": 1, "used": (0, 1), "writer": (0, 0), "allocation": None}
    return LinkFault(kind=kind, step=0, handed_out=False, bytes=16, digest=digest, **given | places)


AFTER, LAST = "it changed after", "had used it; {row} (row 0) wrote or allocated it last"
OPS = (op(outputs=["x"]), op(outputs=["w"]), op("unknown", 0))


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (fault(), f"{AFTER} {{row}} (row 1) {LAST}"),
        (fault(used=(0, 0)), f"{AFTER} {{row}} (row 0) had used it"),
        (fault(used=None), f"{AFTER} an op before the recording {LAST}"),
        (fault(writer=None), f"{AFTER} {{row}} (row 1) {LAST}".replace("{row} (row 0)", "an op before the recording")),
        (fault(used=(3, 1234)), f"{AFTER} row 1,234 of another thread {LAST}"),
        (fault(used=(0, 1234)), f"{AFTER} row 1,234 {LAST}"),
        (fault(found=None, input=None), f"{AFTER} {{row}} (row 1) {LAST}"),
        (fault(found=None, input=None, used=None), f"{AFTER} an op before the recording {LAST}"),
        (fault(FaultKind.OP, found=(0, 1), input=0, used=None), "{row} (row 1) wrote it against its schema"),
        (fault(input=7, writer=(0, 1)), None),
        (fault(found=(0, 1), writer=None), None),
        (fault(found=(1, 2), writer=(1, 0)), None),
        (fault(FaultKind.LINK), None),
        (fault(found=None, input=None, used=(0, 2)), None),
        (fault(found=None, input=None, writer=(0, 1)), None),
    ],
)  # fmt: skip
def test_found_by_the_recorder(tmp_path: Path, found: LinkFault, how: str | None) -> None:
    """A write that was noticed in the memory of an input: where the op read it, or before, since its writer."""
    a = side(tmp_path / "a.zarr", *OPS, faults=(found,), checked=True)
    b = side(tmp_path / "b.zarr", *OPS, checked=True)
    rows = row_at(a, 2), row_at(b, 2)
    context = context_of(a, b, [])
    changed = untracked_writes(context, *rows, match_inputs(context, *rows))
    if how is None:
        assert changed == []
        return
    (change,) = changed
    assert (change.place, change.side, change.content) == (1, "A", 5)
    assert change.how == how.replace("{row}", str(row_at(a, 0)))


def test_equal_changes_of_both_sides_explain_nothing(tmp_path: Path) -> None:
    """Both wrote the same; with other bytes both are reported. Of several the last one counts."""
    paths = iter(tmp_path / f"{number}.zarr" for number in range(9))
    of = lambda *digests: side(next(paths), *OPS, faults=tuple(fault(digest=d) for d in digests), checked=True)  # noqa: E731
    assert changes(of(5), of(5)) == []
    assert changes(of(5), of(6)) == [("A", 1), ("B", 1)]
    assert changes(of(5, 6), of(6)) == []


def test_lost_links(tmp_path: Path) -> None:
    """An input that a recorded op wrote and whose link leads nowhere, on either side."""
    plain = side(tmp_path / "a.zarr", *OPS)
    for number, (found, input_, said) in enumerate(
        [((0, 2), 1, 1), ((0, 2), None, 0), ((0, 1), 1, None), ((1, 2), 1, None)]
    ):
        lost = fault(FaultKind.LINK, found=found, input=input_)
        view = side(tmp_path / f"{number}.zarr", *OPS, faults=(fault(), lost), checked=True)
        texts = [lost_link(row_at(x, 2), row_at(y, 2)) for x, y in ((plain, view), (view, plain))]
        words = "in {} input {} (float32[2,2]) was written by a recorded op, and its link is lost"
        assert texts == [None if said is None else words.format(name, said) for name in "BA"]


@pytest.mark.parametrize(
    ("checked", "device", "known"),
    [
        ((True, True), "cpu", True),
        ((True, False), "cpu", False),
        ((False, True), "cpu", False),
        ((True, True), "cuda:0", False),
    ],
)
def test_what_is_known_of_unwritten_memory(
    tmp_path: Path, checked: tuple[bool, bool], device: str, known: bool
) -> None:
    """Only where links of both sides were checked, which only memory of the CPU can be."""
    layout = (*PLAIN[:3], device)
    rows = [
        row_at(side(tmp_path / f"{number}.zarr", op("unknown", layout=layout), checked=is_checked), 0)
        for number, is_checked in enumerate(checked)
    ]
    assert is_known_unwritten(*rows) is known


def test_more_faults_than_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where as many were found as are recorded, there may be one that is not known."""
    monkeypatch.setattr(untracked, "MAX_LINK_FAULTS", 2)
    for count in (1, 2):
        row = row_at(side(tmp_path / f"{count}.zarr", *OPS, faults=(fault(),) * count, checked=True), 2)
        assert is_known_unwritten(row, row) is (count < 2)


def test_ops_that_repeat_for_certain(tmp_path: Path) -> None:
    """Elementwise ones on a CPU, into memory that does not overlap itself."""
    view = side(
        tmp_path / "a.zarr",
        op("unknown", name=ADD),
        op("unknown", name="aten.add_.Tensor"),
        op("unknown", name=MM),
        op("unknown", name=ADD, flags=RowFlag.OVERLAPPING),
        op("unknown", name=ADD, layout=(*PLAIN[:3], "cuda:0")),
        {**op("unknown", "unknown", name=ADD), "layouts": [PLAIN, (*PLAIN[:3], "cuda:0")]},
    )
    certain: Callable[[RowAt], bool] = repeats_for_certain
    assert [certain(row_at(view, row)) for row in range(6)] == [True, True, False, False, False, False]


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_several_processes_another_may_have_written_it(tmp_path: Path, ranks: int) -> None:
    """Memory may be shared: what no op of this process wrote, one of another may have."""
    for trace, name in both(tmp_path):
        for rank in range(ranks):
            stream = trace.process(f"rank{rank}/main").stream()
            stream.op("aten.ones.default", outputs=["w"])
            stream.op(MM, inputs=[In(0, digest=f"{name}{rank}")], outputs=[f"of {name}{rank}"])
    found = compare_in(tmp_path)
    assert found.decisive is not None and found.decisive.cause is Cause.UNTRACKED_WRITE
    assert ("without any recorded op of this process" in found.decisive.explanation) is (ranks > 1)
