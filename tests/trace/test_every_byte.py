"""A damaged trace is reported or read right: every byte of a small trace changed, every file cut at every length, and
every file and folder put back to each of its earlier states, which are whole in themselves.

Read by the reader itself from files in memory; decoding, a pure function of a chunk's bytes, is done once for the same
bytes. Files on a disk, and what else can be in a file's place, are ``test_damage``'s.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from memory import Memory, in_memory
from samples import small_trace
from tampering import SPECS, Files, bases, load, records
from writer_log import WrittenProcess, check, followed

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.errors import RltraceError
from rltrace.testing import TraceBuilder
from rltrace.trace.format.files import UnreadableError
from rltrace.trace.format.journal import parse_journal
from rltrace.trace.format.process_start import parse_start
from rltrace.trace.format.root import name_file
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.read.chunks import Counter, read_chunk
from rltrace.trace.read.reader import open_trace

EVERY_BYTE = bool(os.environ.get("RLTRACE_EVERY_BYTE"))


@dataclass
class Whole:
    """A small trace, and what was written to it."""

    path: Path
    files: Files
    written: list[WrittenProcess]
    asked: list[str]
    """Files that the reader opens; not those for zarr alone, nor the start_record of a process that began."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    with followed() as written:
        path = small_trace(tmp_path_factory.mktemp("whole") / "whole.zarr")
    memory = Memory(load(path))
    with in_memory({path: memory}):
        trace = open_trace(path)
        assert check(trace, written, "whole", "")
    assert trace.holes == ()
    return Whole(path, memory.files, written, sorted(memory.asked & memory.files.keys()))


@pytest.fixture
def memory(whole: Whole) -> Iterator[Memory]:
    """The folder that the reader opens."""
    memory = Memory(dict(whole.files))
    with in_memory({whole.path: memory}):
        yield memory


def read(whole: Whole, what: str, hurt: str) -> None:
    """Everything is as it was written, or reported missing; so are the launch's journal and a start record.

    Another blank in the root's document, or another name file, changes nothing that is read: those ``verify`` reports.
    """
    try:
        trace = open_trace(whole.path)
    except RltraceError:
        assert hurt in ("zarr.json", "journal/log"), what
        return
    everything = check(trace, whole.written, what, hurt)
    if not everything or hurt == "journal/log" or (hurt.startswith("starts/") and hurt.endswith(".json")):
        assert trace.holes or trace.exit is None, f"{what}: not reported"


def test_what_is_read(whole: Whole) -> None:
    """Every chunk and journal, the root's document, the start_records that came to nothing, the names taken."""
    unread = set(whole.files) - set(whole.asked)
    begun = [key for key in unread if not key.endswith("zarr.json")]
    assert all(key.startswith("starts/") and b'"rank' in whole.files[key] for key in begun)
    assert len(whole.asked) == 22
    assert [len(process.streams) for process in whole.written] == [2, 1]


class Gate:
    """Reads the trace again for every file content that the reader takes for something new.

    What the reader knows of a file comes through one function: chunks through ``read_chunk``, journals through
    ``parse_journal``, start records through ``parse_start``, names through ``name_file``. Two contents with the same
    outcome there read the same, and are read once; numbers of bytes in a refusal do not make it another one. With
    RLTRACE_EVERY_BYTE=1 every content is read, whatever comes through.
    """

    def __init__(self, whole: Whole, memory: Memory) -> None:
        self.read = self.tried = 0
        self._whole = whole
        self._memory = memory
        self._seen: set[object] = set()
        self._chunks = {
            base + key: ChunkFile(key, length, digest)
            for base in bases(whole.files)
            for record in records(whole.files, base)
            for key, length, digest in record.get("files", ())
        }

    def take(self, key: str, data: bytes, what: str) -> None:
        """``data`` stands in the place of file ``key``."""
        self.tried += 1
        self._memory.files[key] = data
        outcome = (key, self._outcome(key, data))
        if EVERY_BYTE or outcome not in self._seen:
            self._seen.add(outcome)
            self.read += 1
            read(self._whole, f"{key} {what}", key)
        self._memory.files[key] = self._whole.files[key]

    def _outcome(self, key: str, data: bytes) -> object:
        if key in self._chunks:
            file = self._chunks[key]
            base = key.removesuffix(f"/{file.key}")
            try:
                read_chunk(self._memory, base, SPECS[key.split("/")[-2]], file, Counter())  # type: ignore[arg-type]
            except UnreadableError as error:
                return re.sub(r"\d+ bytes", "bytes", str(error))
            raise AssertionError(f"{key}: another content passes")
        if key.endswith("journal/log"):
            return repr(replace(parse_journal(data), length=0))
        if key.endswith(".name"):
            return name_file(data) == key.split("/")[-1]
        return repr(parse_start(data)) if key.startswith("starts/") else data


@pytest.fixture
def gate(whole: Whole, memory: Memory) -> Gate:
    return Gate(whole, memory)


def test_every_byte(whole: Whole, gate: Gate) -> None:
    """Each byte of each file, flipped as a whole and in single bits, is reported; all else reads as it was written.

    A chunk has a digest of all its bytes: of each byte one bit is tried, another one of the next.
    """
    for key in whole.asked:
        data = bytearray(whole.files[key])
        bits = 3 if key.endswith("/log") else 1 if "/c." in key or "/c/" in key else 8
        for at in range(len(data)):
            for change in (0xFF, *(1 << (at + 3 * bit) % 8 for bit in range(bits))):
                data[at] ^= change
                gate.take(key, bytes(data), f"byte {at} ^ {change}")
                data[at] ^= change
    assert gate.tried > 25_000
    assert gate.read > 300


def test_every_length(whole: Whole, gate: Gate) -> None:
    """Each file cut at each length is reported; all else reads as it was written."""
    for key in whole.asked:
        for length in range(len(whole.files[key])):
            gate.take(key, whole.files[key][:length], f"cut at {length}")
    assert gate.tried > 7_000


def test_every_length_of_zeros(whole: Whole, gate: Gate) -> None:
    """Each file whose end from some byte on is zeros, as a file system may leave it, is reported."""
    for key in whole.asked:
        data = whole.files[key]
        for length in range(len(data.rstrip(b"\0"))):
            gate.take(key, data[:length] + bytes(len(data) - length), f"zeros from {length} on")


def test_something_after_the_end(whole: Whole, memory: Memory) -> None:
    """Each file that goes on after its end reads as it was written, or is reported."""
    for key in whole.asked:
        data = whole.files[key]
        for more in (b"\0", b"\n", b"RLJ1", bytes(4096), data, data[-40:]):
            memory.files[key] = data + more
            check(open_trace(whole.path), whole.written, f"{key} and {len(more)} bytes more", key)
        memory.files[key] = data


def test_every_file_missing_or_another_one(whole: Whole, memory: Memory) -> None:
    """Each file gone, or with the content of each other file, is reported."""
    for key in whole.asked:
        data = memory.files.pop(key)
        memory.renamed()
        if not key.startswith("starts/"):  # one is not missed where its process has begun
            read(whole, f"{key} missing", key)
        memory.renamed()
        for other, content in whole.files.items():
            if content != data:
                memory.files[key] = content
                read(whole, f"{other} in place of {key}", key)
        memory.files[key] = data


@dataclass
class Recording:
    """A recording, moment by moment."""

    path: Path
    moments: list[Files]
    """All files after each commit; the last ones are of the whole trace."""
    written: list[WrittenProcess]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("stale") / "whole.zarr"
    moments: list[Files] = []
    with followed() as written:
        trace = TraceBuilder(path)
        for step in range(3):
            first = trace.op(
                "aten.mm.default", inputs=[("outside", f"o{step}")], outputs=[f"h{step}"], module=f"m{step}"
            )
            trace.op("aten.add.Tensor", inputs=[first], outputs=[f"s{step}"])
            trace.end_step(parameters=f"p{step}", gradients="g", generators="r")
            trace.commit()
            moments.append(load(path))
        worker = trace.process("rank0/worker:1").stream()
        for draw in range(2):
            worker.op("aten.randn.default", rng=f"w{draw}", outputs=[f"w{draw}"])
            worker.commit()
            moments.append(load(path))
        trace.finish()
        moments.append(load(path))
    return Recording(path, moments, written)


def put_back(moments: list[Files]) -> Iterator[tuple[str, Files]]:
    """Every file and folder that was another one earlier, as it was then; what it is and the trace with it."""
    whole = moments[-1]
    keys = {"/".join(key.split("/")[:n]) for key in whole for n in range(1, key.count("/") + 2)}
    for number, moment in enumerate(moments[:-1]):
        for key in sorted(keys):
            then, now = (
                {name: data for name, data in files.items() if name == key or name.startswith(f"{key}/")}
                for files in (moment, whole)
            )
            if then != now:
                kept = {name: data for name, data in whole.items() if name not in now}
                yield f"{key} of moment {number}", {**kept, **then}


def test_every_file_put_back(recording: Recording, tmp_path: Path) -> None:
    """What is read is what was written; what lacks is said; and the trace compares equal to the whole one, or not at
    all."""
    spoilt = tmp_path / "spoilt.zarr"
    spoilt.mkdir()
    folders = {recording.path: Memory(recording.moments[-1])}
    verdicts, lacking, tried = set(), 0, 0
    with in_memory(folders):
        for what, files in put_back(recording.moments):
            tried += 1
            folders[spoilt] = Memory(files)
            try:
                trace = open_trace(spoilt)
                hurt = what.split(" ")[0]
                if trace.exit is None:
                    pass  # the end of the launch was not seen: what lacks reads as of a process that was killed
                elif hurt == "processes":
                    assert trace.holes, what
                else:
                    lacking += not check(trace, recording.written, what, hurt)
                verdict = compare(recording.path, spoilt).verdict
            except RltraceError:
                continue
            assert verdict in (Verdict.IDENTICAL, Verdict.UNKNOWN), what
            verdicts.add(verdict)
    assert verdicts == {Verdict.IDENTICAL, Verdict.UNKNOWN} and lacking > 20 and tried > 100
