"""Objects of collectives: an event for each, with a digest of the pickle that no address of a tensor is in."""

from typing import Any

import pytest
import torch
from recorded import Record, Recorded
from torch import distributed
from toy_environments import events

from rltrace.recorder.integrations import exchanged_objects
from rltrace.trace.format.events import RECEIVED_OBJECT, SENT_OBJECT
from rltrace.trace.format.schema import Kind

distributed_c10d = pytest.importorskip("torch.distributed.distributed_c10d")
pytestmark = pytest.mark.filterwarnings("ignore")


def contents(recorded: Recorded) -> list[tuple[str, int]]:
    return [(event.what, event.cells["content"]) for event in events(recorded, (Kind.OBJECT,))]


def carriers(recorded: Recorded) -> list[list[int | None]]:
    """Digests of what the collectives of bytes were given."""
    rows = [row for row in recorded.rows if row.op.startswith("c10d.")]
    return [[link.digest for link in row.inputs] for row in rows]


def test_an_object_is_known_by_what_it_holds(record: Record, group: None) -> None:
    """Its bytes differ in two runs, as they hold the address of a tensor that both keep; its digest is of its values.
    What is received has the digest of what was sent."""
    kept: list[Any] = []

    def exchange(value: float, note: str) -> Recorded:
        def program() -> None:
            sent = {"loss": torch.full((3,), value), "note": note}
            got = [None]
            distributed.all_gather_object(got, sent)
            kept.append((sent, got))

        return record(program)

    first, again, other, noted = (exchange(*each) for each in ((1.0, "a"), (1.0, "a"), (2.0, "a"), (1.0, "b")))
    assert carriers(first) != carriers(again)
    assert [what for what, _ in contents(first)] == [SENT_OBJECT, RECEIVED_OBJECT]
    assert contents(first) == contents(again)
    for changed in (other, noted):
        assert all(a != b for a, b in zip(contents(first), contents(changed), strict=True))
    assert len({digest for _, digest in contents(first)}) == 1
    assert all(got[0]["loss"].tolist() == sent["loss"].tolist() for sent, got in kept)


def test_digits_that_are_no_address_count(record: Record, group: None) -> None:
    """A number of such a length in a text, or as a key, is a part of the object."""

    def exchange(digits: str) -> Recorded:
        return record(lambda: distributed.all_gather_object([None], {digits: [digits], "data": torch.ones(2)}))

    first, second = (contents(exchange(digits)) for digits in ("94830349258752", "94830349258753"))
    assert first != second


def test_the_tensor_of_bytes_is_left_as_it_is(record: Record, group: None) -> None:
    """torch resizes that of a rank whose object is smaller than another's."""

    def program() -> int:
        tensor, _ = distributed_c10d._object_to_tensor("short", torch.device("cpu"), None)
        return len(tensor.resize_(100))

    found = record(program)
    assert (len(contents(found)), found.returned) == (1, 100)


def test_a_large_object(record: Record, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no digest, and is exchanged all the same."""
    monkeypatch.setattr(exchanged_objects, "MAX_BYTES", 64)
    got: list[Any] = [None]
    found = record(lambda: distributed.all_gather_object(got, b"x" * 100))
    assert (got, contents(found)) == ([b"x" * 100], [(SENT_OBJECT, 0), (RECEIVED_OBJECT, 0)])


def test_they_are_put_back(record: Record, group: None) -> None:
    """The functions that are patched."""
    before = distributed_c10d._object_to_tensor, distributed_c10d._tensor_to_object
    got: list[Any] = []

    def program() -> None:
        assert distributed_c10d._object_to_tensor is not before[0]
        sent = [{"step": 1}]
        distributed.broadcast_object_list(sent, src=0)
        got.extend(sent)

    assert [what for what, _ in contents(record(program))] == [SENT_OBJECT]
    assert got == [{"step": 1}]
    assert (distributed_c10d._object_to_tensor, distributed_c10d._tensor_to_object) == before
