"""Records of a journal read as they were written, and are refused where a field cannot be."""

from collections.abc import Callable
from typing import Any

import pytest

from rltrace.trace.format.records import (
    MAX_TIME,
    ArrayPart,
    FaultKind,
    LeftOut,
    LinkFault,
    OptimizerStart,
    StepPart,
    ValuePart,
    ValueRequest,
    add_step_part,
    add_up,
    add_values,
    axes_of,
    by_reason,
    check_facts,
    check_launch,
    link_fault_record,
    parse_generators,
    parse_left_out,
    parse_link_fault,
    parse_optimizer,
    parse_parameters,
    parse_value_request,
)
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.format.schema import GENERATORS, STEP_CHUNK

FAULT = LinkFault(FaultKind.WRITE, (0, 5), 1, 2, (0, 4), None, (1, 3), True, 64, 0xABC)


@pytest.mark.parametrize(
    "fault",
    [FAULT, FAULT._replace(kind=FaultKind.OP, found=None, input=None, used=None, writer=(7, 8), allocation=None)],
)
def test_faults_of_links(fault: LinkFault) -> None:
    """Faults are read back with every place, and with none."""
    assert parse_link_fault(link_fault_record(fault)) == fault


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"handed_out": 1},
        {"input": -1},
        {"input": "1"},
        {"step": None},
        {"bytes": -1},
        {"found": [0]},
        {"found": [0, -1]},
        {"writer": [1 << 40, 0]},
        {"digest": "xyz"},
    ],
)
def test_faults_that_cannot_be(change: dict[str, Any]) -> None:
    """A fault with one field of another type or out of its range is refused."""
    with pytest.raises((ValueError, TypeError)):
        parse_link_fault({**link_fault_record(FAULT), **change})


@pytest.mark.parametrize("created", [0, 1.5, "2026-01-01T00:00:00", MAX_TIME])
def test_launches(created: object) -> None:
    """A launch begins at a number of seconds, or at a time in ISO 8601."""
    check_launch({"type": "launch", "command": [], "created": created})
    check_launch({"type": "launch"})


@pytest.mark.parametrize("change", [{"created": v} for v in (-1, None, [], float("nan"), 1e300)] + [{"command": "x"}])
def test_launches_that_cannot_be(change: dict[str, Any]) -> None:
    """Another type, or a time that is none."""
    with pytest.raises(ValueError, match=r"."):
        check_launch({"type": "launch", **change})


def test_facts() -> None:
    """Facts are plain values."""
    check_facts({"a": None, "b": 1, "c": 0.5, "d": "x", "e": True})
    with pytest.raises(ValueError, match='fact "b" is not a plain value'):
        check_facts({"a": 1, "b": {}})


def test_what_was_left_out_is_added_up() -> None:
    """Values left out are added up by reason and stream, over all rows, or by reason alone."""
    entries = [
        LeftOut("a", 0, 5, 7, 1, 10),
        LeftOut("b", 0, 1, 1, 2, 20),
        LeftOut("a", 0, 2, 3, 4, 40),
        LeftOut("a", 1, 9, 9, 8, 80),
    ]
    assert add_up(entries) == [LeftOut("a", 0, 2, 7, 5, 50), entries[1], entries[3]]
    assert add_up(entries[::-1])[1:] == [LeftOut("a", 0, 2, 7, 5, 50), entries[1]]
    assert by_reason(entries) == [LeftOut("a", 0, 0, 0, 13, 130), LeftOut("b", 0, 0, 0, 2, 20)]


def test_axes_of_activation_rows() -> None:
    """Those that are requested and that the tensor has; else all but its last."""
    assert [axes_of((0, 2), dimensions) for dimensions in (0, 1, 2, 3)] == [(), (0,), (0,), (0, 2)]
    assert [axes_of(None, dimensions) for dimensions in (0, 1, 3)] == [(), (), (0, 1)]


def test_parts_out_of_order_are_refused() -> None:
    """Steps come in order, each once; chunks too."""
    parts = [StepPart(0, STEP_CHUNK, 0, None)]
    for wrong in (StepPart(STEP_CHUNK - 1, 3, None, None), StepPart(STEP_CHUNK, 3, 0, None)):
        with pytest.raises(ValueError, match=r"exists? already"):
            add_step_part(parts, wrong)
    add_step_part(parts, StepPart(STEP_CHUNK, 3, None, None))
    add_step_part(parts, StepPart(STEP_CHUNK, STEP_CHUNK, 1, None))
    assert [part.chunk for part in parts] == [0, 1]


def test_requests_of_values() -> None:
    """Selectors are a list of texts."""
    request = ValueRequest(("op=mm", "all"), True, 1 << 20)
    record = {"type": "value_request", **request._asdict()}
    assert parse_value_request({**record, "selectors": list(request.selectors)}) == request
    for change in ({"inputs": 1}, {"selectors": "all"}, {"selectors": ["all", 1]}, {"limit": -1}):
        with pytest.raises(ValueError, match=r"."):
            parse_value_request({**record, "selectors": ["all"], **change})


def test_values_that_exist_already() -> None:
    """Chunks of a later part come after those of the earlier ones, of the index and of the bytes."""
    file = ChunkFile("c.0.0", 1, "0")
    parts: list[ValuePart] = []
    first = ValuePart(ArrayPart(5, 7, (file, file)), 3, (file,), ())
    add_values(parts, first)
    for index, chunk in ((8, 4), (9, 3)):
        with pytest.raises(ValueError, match="its chunks exist already"):
            add_values(parts, first._replace(rows=first.rows._replace(chunk=index), first_chunk=chunk))
    later = first._replace(rows=first.rows._replace(chunk=9), first_chunk=4)
    add_values(parts, later)
    assert parts == [first, later]


@pytest.mark.parametrize("change", [{"why": 5}, {"stream": -1}, {"first": "0"}, {"bytes": None}])
def test_what_cannot_have_been_left_out(change: dict[str, Any]) -> None:
    """A reason is a text, and the rest are numbers."""
    entry = {"why": "limit", "stream": 1, "first": 2, "last": 3, "values": 4, "bytes": 5}
    assert parse_left_out(entry) == LeftOut("limit", 1, 2, 3, 4, 5)
    with pytest.raises((ValueError, TypeError)):
        parse_left_out({**entry, **change})


WORD, OTHER = "0" * 15 + "a", "f" * 16


def test_digests_at_the_end_of_a_process() -> None:
    """Those of the generators in their order, and of parameters by optimizer; a record may have neither."""
    assert parse_generators({}) is None and parse_parameters({}) == {}
    assert parse_generators({"generators": [WORD] * len(GENERATORS)}) == (10,) * len(GENERATORS)
    assert parse_parameters({"parameters": [[0, WORD], [3, OTHER]]}) == {0: 10, 3: (1 << 64) - 1}
    start = {"ordinal": 2, "parameters": WORD, "state": ["step"], "kept": ["step", "exp_avg"]}
    assert parse_optimizer(start) == (2, OptimizerStart(10, ("step",), ("step", "exp_avg")))


@pytest.mark.parametrize(
    ("parse", "record"),
    [
        (parse_generators, {"generators": [WORD]}),
        (parse_generators, {"generators": [1, 2, 3]}),
        (parse_generators, {"generators": WORD}),
        (parse_generators, {"generators": dict.fromkeys(f"{number:016x}" for number in GENERATORS)}),
        (parse_parameters, {"parameters": {"0": WORD}}),
        (parse_parameters, {"parameters": [[-1, WORD]]}),
        (parse_parameters, {"parameters": [[0, "zz"]]}),
        (parse_parameters, {"parameters": [[0]]}),
        (parse_optimizer, {"ordinal": -1, "parameters": WORD, "state": [], "kept": []}),
        (parse_optimizer, {"ordinal": 0, "parameters": 5, "state": [], "kept": []}),
        (parse_optimizer, {"ordinal": 0, "parameters": WORD, "state": "step", "kept": []}),
    ],
)
def test_digests_that_cannot_be(parse: Callable[[dict[str, Any]], object], record: dict[str, Any]) -> None:
    """Too few digests, or one of another type, are refused."""
    with pytest.raises((ValueError, TypeError)):
        parse(record)
