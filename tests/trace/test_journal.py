"""The journal returns what was appended, distinguishes a torn tail from damage, and goes on after damage if it can."""

import errno
import os
from pathlib import Path

import pytest
from children import forked
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.trace.format.journal import MAGIC, MAX_PAYLOAD_BYTES, JournalWriter, frame, parse_journal

RECORDS = [{"type": "start", "name": "rank0/main"}, {"type": "facts", "facts": {"a": 1}}, {"type": "end", "n": 3}]


def frames(records: list[dict[str, object]]) -> list[bytes]:
    """Records as chained frames."""
    digest, made = 0, []
    for record in records:
        data, digest = frame(digest, record)
        made.append(data)
    return made


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.fixed_dictionaries({"type": st.text(max_size=8), "value": json_values}), max_size=8))
def test_round_trip(records: list[dict[str, object]]) -> None:
    """Any JSON-able records come back in order."""
    journal = parse_journal(b"".join(frames(records)))
    assert journal.records == records
    assert not journal.damage
    assert journal.torn is None


def test_every_cut_is_a_torn_tail() -> None:
    """Cut anywhere, what is whole is read and the rest is said to be torn, never damaged."""
    made = frames(RECORDS)
    data = b"".join(made)
    ends = [0, len(made[0]), len(made[0] + made[1]), len(data)]
    for cut in range(len(data) + 1):
        journal = parse_journal(data[:cut])
        assert journal.records == RECORDS[: sum(end <= cut for end in ends) - 1]
        assert not journal.damage
        assert (journal.torn is None) == (cut in ends)


def test_every_flipped_byte_is_noticed() -> None:
    """Whatever byte is flipped, no record reads differently and something is said."""
    data = b"".join(frames(RECORDS))
    for at in range(len(data)):
        for bit in (0, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            journal = parse_journal(bytes(flipped))
            assert all(record in RECORDS for record in journal.records)
            assert journal.damage or journal.torn
            assert len(journal.records) < len(RECORDS) or "damaged" in journal.damage[0]


def test_goes_on_after_damage_in_the_middle() -> None:
    """Damage to one record costs that record alone."""
    made = frames(RECORDS)
    for at in range(len(made[1])):
        middle = bytearray(made[1])
        middle[at] ^= 0x10
        journal = parse_journal(made[0] + bytes(middle) + made[2])
        assert journal.records == [RECORDS[0], RECORDS[2]]
        assert len(journal.damage) == 1


def test_goes_on_after_bytes_put_between() -> None:
    """Bytes that no record has cost the record behind them at most."""
    made = frames(RECORDS)
    for size in (1, 7, 8, 9, 20):
        assert parse_journal(b"x" * size + b"".join(made)).records == RECORDS[1:]
        journal = parse_journal(made[0] + b"x" * size + made[1] + made[2])
        assert journal.records == [RECORDS[0], RECORDS[2]]
        assert len(journal.damage) == 1


def test_swapped_and_missing_records_are_damage() -> None:
    """The chain notices records that changed places, and records taken out."""
    made = frames(RECORDS)
    assert parse_journal(made[1] + made[0] + made[2]).damage
    assert parse_journal(made[0] + made[2]).damage


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    """What a file system leaves after a power loss is not taken for damage."""
    journal = parse_journal(b"".join(frames(RECORDS)) + bytes(100))
    assert journal.records == RECORDS
    assert journal.torn
    assert not journal.damage


def test_a_length_that_no_record_has_is_damage() -> None:
    """A frame that says it is longer than any can be was not cut short by a kill."""
    begun = MAGIC + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little")
    journal = parse_journal(b"".join(frames(RECORDS)) + begun)
    assert journal.damage and journal.torn is None
    assert parse_journal(b"".join(frames(RECORDS)) + MAGIC + MAX_PAYLOAD_BYTES.to_bytes(4, "little")).torn


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_never_raises(data: bytes) -> None:
    """Any bytes at all are read to the end."""
    for start in (b"", MAGIC, MAGIC + b"\xff\xff\xff\xff"):
        parse_journal(start + data)


def test_writer_appends_and_resumes(tmp_path: Path) -> None:
    """A journal written in two sittings reads as one; a torn tail between them is cut off."""
    path = tmp_path / "log"
    first = JournalWriter(os.fspath(path))
    first.append(RECORDS[:2])
    with path.open("ab") as file:
        file.write(MAGIC + b"\x40\x00")
    found = parse_journal(path.read_bytes())
    assert found.torn
    second = JournalWriter(os.fspath(path), resume=found.digest, size=found.size)
    second.append(RECORDS[2:])
    journal = parse_journal(path.read_bytes())
    assert journal.records == RECORDS
    assert journal.torn is None


def test_a_record_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that no reader would take is refused before any of it is written."""
    writer = JournalWriter(str(tmp_path / "log"))
    monkeypatch.setattr("rltrace.trace.format.journal.MAX_PAYLOAD_BYTES", 20)
    writer.append([{"type": "x" * 9}])
    with pytest.raises(ValueError, match="a record of 21 bytes is longer than the limit of a journal"):
        writer.append([{"type": "y"}, {"type": "x" * 10}])
    assert [record["type"] for record in parse_journal((tmp_path / "log").read_bytes()).records] == ["x" * 9]


def test_writer_holds_no_file_open(tmp_path: Path) -> None:
    """A program may close all of its descriptors; the file that it opens next is not written into."""
    journal = JournalWriter(os.fspath(tmp_path / "log"))

    def child() -> None:
        os.closerange(0, 1000)
        own = [os.open(tmp_path / f"own{n}", os.O_CREAT | os.O_RDWR) for n in range(20)]
        journal.append(RECORDS)
        assert not any(os.fstat(descriptor).st_size for descriptor in own)
        for descriptor in own[:3]:  # now standard streams are closed, which C libraries write to
            os.close(descriptor)
        seen = []
        keep, os.write = os.write, lambda descriptor, data: seen.append(descriptor) or keep(descriptor, data)
        journal.append(RECORDS)
        assert min(seen) > 2

    assert forked(child) == 0
    assert parse_journal((tmp_path / "log").read_bytes()).records == RECORDS * 2


def test_standard_streams_stay_closed(tmp_path: Path) -> None:
    """Where a program has closed one, the journal does not take its place."""
    keep = os.dup(0)
    os.close(0)
    try:
        JournalWriter(os.fspath(tmp_path / "log")).append(RECORDS)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(keep, 0)
        os.close(keep)
    assert parse_journal((tmp_path / "log").read_bytes()).records == RECORDS


@pytest.mark.parametrize("link", [True, False])
def test_writer_writes_into_no_other_file(tmp_path: Path, link: bool) -> None:
    """Not behind a link, nor into a file that has taken the journal's place."""
    journal = JournalWriter(os.fspath(tmp_path / "log"))
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "log").rename(tmp_path / "old")
    if link:
        (tmp_path / "log").symlink_to(tmp_path / "other")
    else:
        (tmp_path / "other").rename(tmp_path / "log")
    with pytest.raises(OSError):
        journal.append(RECORDS)
    assert (tmp_path / "log").read_bytes() == b""


def test_writer_refuses_an_existing_journal(tmp_path: Path) -> None:
    """Two writers never share a journal."""
    path = os.fspath(tmp_path / "log")
    JournalWriter(path)
    with pytest.raises(FileExistsError):
        JournalWriter(path)


def test_a_file_that_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended may not be there, as with a quota on a network: the next record takes its place, whole."""
    writer = JournalWriter(str(tmp_path / "log"))
    writer.append(RECORDS[:1])
    close, failing = os.close, [errno.EDQUOT, errno.EINTR]

    def close_and_fail(descriptor: int) -> None:
        close(descriptor)
        number = failing.pop(0)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_and_fail)
        with pytest.raises(OSError, match="quota"):
            writer.append([{"type": "commit", "long": "x" * 1000}])
        writer.append(RECORDS[2:])  # interrupted: it is closed all the same
    assert not failing
    journal = parse_journal((tmp_path / "log").read_bytes())
    assert journal.records == [RECORDS[0], RECORDS[2]]
    assert not journal.damage and journal.torn is None
