"""Traces at URLs: what is read there is what a folder gives, and what is wrong there is a hole with its name.

A real web server on the loopback address, which lists as S3 does where it is asked to.
"""

import gc
import json
import os
import re
import shutil
import signal
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event, Semaphore, main_thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from memory import coding_once
from programs import Do, in_parts, training
from trace_servers import S3_VARIABLES, WebServer, served
from writer_log import content
from xxhash import xxh3_64_hexdigest

from rltrace.commands.main import main
from rltrace.errors import HoleError, NotATraceError, UnreachableError, UsageError
from rltrace.extensions.archive import object_store
from rltrace.extensions.archive.object_store import INSTALL, ChunkCache, RemoteStore, RequestPool
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.files import FileRequest, UnreadableError
from rltrace.trace.format.journal import frame
from rltrace.trace.format.location import TraceURL
from rltrace.trace.format.process_start import note_left_out, write_start
from rltrace.trace.read.reader import open_trace

obstore = pytest.importorskip("obstore", reason="obstore is not installed: the extra cloud has it")

UNLISTED = "the server lists no folders: processes that recorded nothing cannot be seen"

QUICKLY = {"max_retries": 2, "backoff": {"init_backoff": timedelta(milliseconds=1)}}

CHUNK = "processes/0/streams/0/cells/c.1"
JOURNAL = "processes/0/journal/log"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with traces ``a`` and ``b``, which diverge half-way; a commit for each of their five steps."""
    folder = tmp_path_factory.mktemp("served")
    program = training(5)
    place = [at for at, do in enumerate(program) if do.name == "aten.mm.default"][5]
    other = [*program[:place], replace(program[place], noise="x"), *program[place + 1 :]]
    for name, done in (("a", program), ("b", other)):
        ends = [0, *(at + 1 for at, do in enumerate(done) if do == Do("step"))]
        in_parts(folder / f"{name}.zarr", [done[first:end] for first, end in pairwise(ends)])
    return folder


@pytest.fixture(scope="module", autouse=True)
def decoded_once() -> Iterator[None]:
    """The same chunk is decoded once, for all tests."""
    with coding_once():
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for each test, and few repetitions."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "RETRIES", QUICKLY)
    return tmp_path / "cache"


@pytest.fixture
def server(originals: Path, tmp_path: Path) -> Iterator[WebServer]:
    """A web server of a copy of both."""
    shutil.copytree(originals, tmp_path / "web")
    with served(tmp_path / "web") as found:
        yield found


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Status and parsed output of a command; places are left out."""
    status = main([*words, "--format", "json"])
    text = capsys.readouterr().out
    for word in words:
        text = text.replace(word, word.rpartition("/")[2])
    found: Any = [json.loads(line) for line in text.splitlines()] if words[0] == "ops" else json.loads(text)
    return status, found


# --- what is whole ----------------------------------------------------------------------------------------------------


VERBS = (["diff"], ["series"], ["info"], ["verify"], ["ops"])


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_verbs_read_the_same(
    server: WebServer, originals: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """What a verb says of traces at a URL is what it says of them in a folder."""
    names = ["a.zarr", "b.zarr"] if words[0] in ("diff", "series") else ["a.zarr"]
    found = output(capsys, *words, *(server.url(name) for name in names))
    expected = output(capsys, *words, *(str(originals / name) for name in names))
    for what in (found, expected):
        if words == ["info"]:
            assert (what[1].pop("size") is None) == (what is found)  # a web server lists no files
        if words == ["verify"]:
            what[1].pop("notes")
    assert found == expected


def test_the_report(server: WebServer, originals: Path, tmp_path: Path) -> None:
    """A page is drawn of a URL and a folder."""
    assert main(["report", server.url("a.zarr"), str(originals / "b.zarr"), "-o", str(tmp_path / "page.html")]) == 0
    assert server.url("a.zarr") in (tmp_path / "page.html").read_text()


def test_chunks_are_kept(server: WebServer, originals: Path, cache: Path) -> None:
    """Chunks read once come from this machine; a cached one that was changed is read again; ``verify`` reads all."""
    whole = content(open_trace(originals / "a.zarr"))
    assert content(open_trace(server.url("a.zarr"))) == whole
    first = chunks_asked_for(server)
    assert len(first) == len(set(first)) > 10
    assert content(open_trace(server.url("a.zarr"))) == whole
    assert not chunks_asked_for(server)
    kept = sorted(path for path in cache.rglob("*") if path.is_file())
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    kept[0].write_bytes(b"something else")
    assert content(open_trace(server.url("a.zarr"))) == whole
    assert len(chunks_asked_for(server)) == 1
    assert verify(server.url("a.zarr")).sound
    assert set(first) <= set(chunks_asked_for(server))


def chunks_asked_for(server: WebServer) -> list[str]:
    """Requests for chunks since this was called."""
    asked, server.asked = server.asked, []
    return [request for request in asked if request.startswith("GET") and "/c." in request]


def test_the_cache_is_bounded(cache: Path) -> None:
    """The files used longest ago go first, whatever trace they are of; what a trace keeps no other one gets."""
    one, other = (ChunkCache(TraceURL(f"https://h/{name}.zarr")) for name in "ab")
    digest = xxh3_64_hexdigest(b"used")
    one.put(digest, b"used")
    other.put("2" * 16, b"x" * 10)
    for at, name in enumerate((digest, "2" * 16)):
        os.utime(next(cache.rglob(name)), (at, at))
    assert one.get(digest) == b"used"
    one.trim(4)
    assert one.get(digest) == b"used"
    one.trim(3)
    assert one.get(digest) is None
    for at, (of, digest) in enumerate([(one, "1" * 16), (other, "2" * 16), (one, "3" * 16)]):
        of.put(digest, b"x" * 10)
        os.utime(next(cache.rglob(digest)), (at, at))
    one.trim(20)
    assert [digest[0] for digest in sorted(path.name for path in cache.glob("*/*/*"))] == ["2", "3"]
    assert one.get("3" * 16) is None  # it has another digest
    outside = cache / "outside"
    outside.write_bytes(b"")
    os.utime(outside, (0, 0))
    assert one.get("../../outside") is None and outside.stat().st_mtime == 0


def test_requests_are_under_way_together(server: WebServer) -> None:
    """Chunks that are needed together are asked for at once: no answer is given before four have come."""
    trace = open_trace(server.url("a.zarr"))
    trace.processes[0].load()
    server.together = Barrier(4, timeout=600)
    stream = trace.processes[0].streams[0]
    assert len(stream.read(0, stream.segments[1].stop))
    server.together = Barrier(2, timeout=600)
    assert len(stream.read_segment(stream.segments[3]))
    assert not server.together.broken


def test_threads_are_used_again() -> None:
    """A request that begins when another has ended takes no new thread."""
    pool, before = RequestPool(50), set(enumerate_threads())
    for number in range(200):
        assert pool.submit(int, number).result() == number
    assert len({*enumerate_threads()} - before) < 50


def test_requests_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a request that has not begun ends when its store is gone."""
    monkeypatch.setattr(object_store, "AT_END", 0)
    pool, begun, released = RequestPool(1), Event(), Event()
    pool.submit(lambda: (begun.set(), released.wait()))
    waiting = pool.submit(released.wait)
    assert begun.wait(20)
    del pool
    gc.collect()
    assert waiting.cancelled()
    released.set()


def test_an_empty_journal(server: WebServer) -> None:
    """An empty journal is a process that never recorded, as in a folder."""
    folder = server.folder / "a.zarr"
    (folder / "processes/1/journal").mkdir(parents=True)
    (folder / "processes/1/journal/log").touch()
    for where in (server.url("a.zarr"), str(folder)):
        assert [process.state for process in open_trace(where).processes] == ["complete", "never-recorded"]


@pytest.mark.parametrize("limit", [10, 1 << 20])
def test_files_that_are_too_long(server: WebServer, limit: int) -> None:
    """Files that are too long are refused by their length, also where more was allowed as they were read ahead."""
    store = RemoteStore(TraceURL(server.url("a.zarr")))
    store.read_ahead([FileRequest(JOURNAL, limit)])
    for _ in range(2):
        with pytest.raises(UnreadableError, match="is longer than the limit of 10 bytes"):
            store.read(JOURNAL, 10)


def test_processes_are_found_without_a_list(tmp_path: Path) -> None:
    """A web server lists nothing: processes are those that the end of the launch names, and those that answer."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for number in range(9):
        builder.process(f"rank0/worker{number}")
    token = write_start(builder.path, {"argv": ["python", "other.py"]})
    note_left_out(builder.path, token, "rank0/other", ["main"])
    builder.finish()
    with served(tmp_path) as server:
        found, expected = open_trace(server.url("a.zarr")), open_trace(builder.path)
        assert [process.name for process in found.processes] == [process.name for process in expected.processes]
        assert [process.name for process in found.unrecorded] == ["rank0/other"]
        assert (found.holes, expected.holes) == ((), ())
        shutil.rmtree(builder.path / "processes" / "3")
        assert open_trace(server.url("a.zarr")).lost == open_trace(builder.path).lost != ()


def test_a_killed_launch_without_a_list(tmp_path: Path) -> None:
    """Where nothing says which processes started, that is a hole: the traces may not have computed the same. What has
    to be known of each process is asked for at once."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mul.Tensor", outputs=[1])
    builder.process("rank0/worker")
    builder.finish("killed")
    with served(tmp_path) as server:
        server.together = Together(server, {r"HEAD \S+/journal/log": 8, r"HEAD \S+/starts/\S+.json": 2})
        found = open_trace(server.url("a.zarr"))
        assert [process.state for process in found.processes] == ["killed", "killed"]
        assert found.lost == (UNLISTED,)
        assert not server.together.broken


class Together(Barrier):
    """Some requests get their answers when so many of the same kind are under way."""

    def __init__(self, server: WebServer, kinds: dict[str, int]) -> None:
        super().__init__(1)
        self.server = server
        self.kinds = {kind: Barrier(count, timeout=600) for kind, count in kinds.items()}

    def wait(self, timeout: float | None = None) -> int:
        request = self.server.asked[-1]
        for kind, barrier in self.kinds.items():
            if re.fullmatch(kind, request):
                barrier.wait()
        return 0

    @property
    def broken(self) -> bool:
        return any(barrier.broken for barrier in self.kinds.values())


def test_a_journal_that_names_too_many_processes(server: WebServer) -> None:
    """Of processes that a journal makes up, a bounded number is asked for, and those that are there are read."""
    heads = [[number, 1, "0" * 16] for number in (0, 1 << 40, 1 << 47)]
    (server.folder / "a.zarr/journal/log").write_bytes(frame(0, {"type": "journals", "heads": heads, "starts": []})[0])
    assert [process.base for process in open_trace(server.url("a.zarr")).processes] == ["processes/0"]
    assert f"processes/{(1 << 47) + 9}" not in " ".join(server.asked)


# --- what is not ------------------------------------------------------------------------------------------------------


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(bytes([*data[:-20], data[-20] ^ 4, *data[-19:]]))


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
@pytest.mark.parametrize(
    "key",
    [CHUNK, JOURNAL, "journal/log", "zarr.json", "processes/0/tables/c.0", "processes/0/steps/c.0.0"],
    ids=lambda key: key.replace("/", "."),
)
def test_damage_is_named(server: WebServer, key: str, how: str) -> None:
    """What is missing, cut or changed at a URL has the holes that it has in a folder; all else is read."""
    folder = server.folder / "a.zarr"
    spoil(folder / key, how)
    found, expected = open_trace(server.url("a.zarr")), open_trace(folder)
    if (key, how) == (JOURNAL, "missing"):  # all that can be seen of a folder where nothing is listed
        assert found.holes[0].why == "processes/0 is missing"
        return
    assert content(found) == content(expected)
    unseen = {UNLISTED} if key == "journal/log" and how != "flipped" else set()
    assert {hole.why for hole in found.holes} == {hole.why for hole in expected.holes} | unseen != set()


def test_what_changes_under_the_reader_is_found(server: WebServer) -> None:
    """A chunk that is replaced after the trace was opened is a hole with its name; the others are read."""
    trace = open_trace(server.url("a.zarr"))
    shutil.copy(server.folder / "b.zarr" / "processes/0/streams/0/cells/c.2", server.folder / "a.zarr" / CHUNK)
    stream = trace.processes[0].streams[0]
    with pytest.raises(HoleError, match=rf"{CHUNK} is not what was written|{CHUNK} has \d+ bytes"):
        stream.read_segment(stream.segments[1])
    assert stream.read_segment(stream.segments[2])


@pytest.mark.parametrize("fault", ["503", "500", "cut"])
def test_requests_are_repeated(server: WebServer, originals: Path, fault: str) -> None:
    """A server that is busy twice, or drops the connection once, costs nothing but time."""
    for key in (CHUNK, JOURNAL, "journal/log"):
        server.faults[f"a.zarr/{key}"] = [fault] * (1 if fault == "cut" else 2)
    assert content(open_trace(server.url("a.zarr"))) == content(open_trace(originals / "a.zarr"))


def test_a_server_that_stays_away(server: WebServer) -> None:
    """A chunk that is not handed out is a hole with the reason; without the launch's journal nothing is read."""
    trace = open_trace(server.url("a.zarr"))
    server.faults[f"a.zarr/{CHUNK}"] = ["503"] * 9
    stream = trace.processes[0].streams[0]
    with pytest.raises(HoleError, match=rf"{CHUNK} cannot be read \(the server answers 503\)"):
        stream.read_segment(stream.segments[1])
    server.faults["a.zarr/journal/log"] = ["403"]
    with pytest.raises(UnreachableError, match=r"a\.zarr cannot be read \(access is denied\)"):
        open_trace(server.url("a.zarr"))
    with pytest.raises(NotATraceError, match="it has no launch journal"):
        open_trace(server.url("c.zarr"))
    with pytest.raises(UnreachableError, match="the connection is refused"):
        open_trace("http://127.0.0.1:1/a.zarr")


def test_an_interrupt_ends_a_wait(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a server gives no answer ends the command, and not when the server answers."""
    monkeypatch.setattr(object_store, "AT_END", 0)
    server.together = held = Held()
    try:
        for words in (["info", server.url("a.zarr")], ["diff", server.url("a.zarr"), server.url("b.zarr")]):
            held.interrupts.release()
            assert main(words) == 130
    finally:
        held.released.set()


class Held(Barrier):
    """Interrupts the program at a request; none gets its answer before the test ends."""

    def __init__(self) -> None:
        super().__init__(1)
        self.interrupts, self.released = Semaphore(0), Event()

    def wait(self, timeout: float | None = None) -> int:
        if self.interrupts.acquire(blocking=False):
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        self.released.wait()
        return 0


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError) as raised:
        open_trace("s3://bucket/a.zarr")
    assert str(raised.value) == f"s3://bucket/a.zarr needs obstore, which is not installed: {INSTALL}"


# --- secrets ----------------------------------------------------------------------------------------------------------


HIDDEN = "hIddEn7xQ"


def test_no_secret_is_written(
    server: WebServer,
    originals: Path,
    tmp_path: Path,
    cache: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A password, a signature and a key reach the server, and no output, error, page or cache."""
    monkeypatch.setattr(object_store, "RETRIES", {"max_retries": 0})
    hidden = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"), HIDDEN)
    for name, value in {**S3_VARIABLES, **hidden, "AWS_ENDPOINT_URL": server.url(""), "RLTRACE_DEBUG": "1"}.items():
        monkeypatch.setenv(name, value)
    spoil(server.folder / "b.zarr" / CHUNK, "flipped")
    server.faults[f"b.zarr/{JOURNAL}"] = ["", "500"]
    a, b, c = (server.url(f"{name}.zarr", f"user:{HIDDEN}@", f"?sig={HIDDEN}#{HIDDEN}") for name in "abc")
    for words in (
        *([verb, a, "--format", "json"] for verb in ("info", "ops", "verify", "series")),
        *([verb, a] for verb in ("info", "ops", "verify", "series", "show")),
        *(["info", url] for url in (b, c, f"http://user:{HIDDEN}@127.0.0.1:1/a.zarr?{HIDDEN}", f"ftp://{HIDDEN}@h/a")),
        *(["diff", a, url, "--format", form] for url in (b, str(originals / "b.zarr")) for form in ("text", "json")),
        *(["record", "--against", a, "--", "true"], ["diff", a, a]),
        *(["report", a, str(originals / "b.zarr"), "-o", str(tmp_path / f"page.{end}")] for end in ("md", "html")),
        *(["info", "s3://traces/a.zarr"], ["diff", "s3://traces/a.zarr", a]),
    ):
        main(words)
    assert any(header and HIDDEN in b64decode(header.removeprefix("Basic ")).decode() for header in server.authorized)
    out, err = capfd.readouterr()
    assert "***@127.0.0.1" in out and "***@127.0.0.1" in err
    written = [path for path in tmp_path.rglob("*") if path.is_file() and server.folder not in path.parents]
    assert len(written) > 10 and cache in {folder for path in written for folder in path.parents}
    for text in (out, err, *(f"{path}\n{path.read_bytes()!r}" for path in written)):
        assert HIDDEN not in text


# --- a bucket that is listed ------------------------------------------------------------------------------------------


def test_what_a_list_gives(server: WebServer, originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace in a bucket is read as in a folder, however many lists its files take; of others one list is read."""
    bucket = server.as_bucket(monkeypatch)
    shutil.copytree(originals, server.folder / "bucket/x")
    monkeypatch.setattr(object_store, "PAGE", 5)
    assert content(open_trace(f"{bucket}/x/a.zarr")) == content(open_trace(originals / "a.zarr"))
    assert RemoteStore(TraceURL(f"{bucket}/x/a.zarr")).holds(CHUNK)
    assert not RemoteStore(TraceURL(f"{bucket}/x")).holds(f"a.zarr/{CHUNK}")
    with pytest.raises(NotATraceError, match="it has no launch journal"):
        open_trace(f"{bucket}/x")


def test_a_bucket_that_may_not_be_listed(server: WebServer, originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace in it is read as from a web server; what is no bucket, or holds nothing that may be read, is named."""
    bucket = server.as_bucket(monkeypatch)
    shutil.copytree(originals, server.folder / "bucket/x")
    server.faults["bucket"] = ["403", "403"]
    trace = open_trace(f"{bucket}/x/a.zarr")
    assert content(trace) == content(open_trace(originals / "a.zarr"))
    assert trace.lost == ()
    server.faults["bucket/x/a.zarr/journal/log"] = ["403"]
    with pytest.raises(UnreachableError, match=r"a\.zarr cannot be read \(access is denied\)"):
        open_trace(f"{bucket}/x/a.zarr")
    with pytest.raises(UnreachableError, match=r"a\.zarr cannot be read: its bucket does not exist"):
        open_trace("s3://another/a.zarr")


def test_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store lacks before it is asked for anything is named."""
    for name in [name for name in os.environ if name.startswith("AZURE")]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=r"az://c/a\.zarr cannot be read: no storage account is named"):
        open_trace("az://c/a.zarr")
