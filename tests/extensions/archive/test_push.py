"""``rltrace push``: what is there at any moment is no trace yet or reads right, and in the end it is the trace.

A store of obstore in a folder takes the place of the bucket here; in ``test_object_store`` it is Swift's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from memory import coding_once
from trace_servers import served
from writer_log import content

from rltrace.commands.main import main
from rltrace.diff.base.model import Verdict
from rltrace.diff.compare import compare
from rltrace.errors import DamagedTraceError, NotATraceError, UnreachableError, UsageError
from rltrace.extensions.archive.push import PushResult, push
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.location import TraceURL
from rltrace.trace.format.root import JOURNAL
from rltrace.trace.read.reader import open_trace

obstore = pytest.importorskip("obstore", reason="obstore is not installed: the extra cloud has it")

URL = TraceURL("s3://bucket/a.zarr")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a push to ``URL`` ends up."""
    store = obstore.store.LocalStore(tmp_path / "bucket", mkdir=True)
    monkeypatch.setattr("rltrace.extensions.archive.push.open_store", lambda *_, **__: store)
    return tmp_path / "bucket"


def recording(path: Path) -> tuple[Callable[[], None], TraceBuilder]:
    builder = TraceBuilder(path)

    def go_on() -> None:
        builder.op("aten.mul.Tensor", outputs=[len(list(path.rglob("*")))])
        builder.end_step()
        builder.commit()

    go_on()
    return go_on, builder


def test_a_push_and_the_next(tmp_path: Path, bucket: Path) -> None:
    """All files arrive; of a trace that has grown since, its new chunks and the small files that change."""
    go_on, builder = recording(tmp_path / "a.zarr")
    files = {path for path in builder.path.rglob("*") if path.is_file()}
    assert push(builder.path, URL) == PushResult(len(files), sum(f.stat().st_size for f in files), 0, False)
    assert content(open_trace(bucket)) == content(open_trace(builder.path))
    go_on()
    builder.finish()
    (builder.path / "left.partial").write_bytes(b"x")
    seen: list[tuple[int, int]] = []
    pushed = push(builder.path, URL, lambda *done: seen.append(done))
    assert pushed.present == len([f for f in files if f.name.startswith("c.")])
    assert seen[-1] == (len(seen), len(seen)) == (pushed.files + pushed.present,) * 2
    assert verify(bucket).sound
    assert verify(bucket).notes == ()
    assert content(open_trace(bucket)) == content(open_trace(builder.path))


def test_an_interrupted_push(tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of files there is no trace, or it says what it lacks; the same call goes on to the whole one."""
    _, builder = recording(tmp_path / "a.zarr")
    builder.finish()
    whole, put, left = content(open_trace(builder.path)), obstore.put, [0]

    def failing(store: object, key: str, data: bytes) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise obstore.exceptions.GenericError("HTTP error: hidden 503 Service Unavailable")
        return put(store, key, data)

    outcomes = set()
    with coding_once(), monkeypatch.context() as patch:
        patch.setattr(obstore, "put", failing)
        for budget in count():
            left[0] = budget
            try:
                push(builder.path, URL)
                break
            except UnreachableError as error:
                assert str(error) == "s3://bucket/a.zarr: the server answers 503; push again to go on"
            outcomes.add(outcome(bucket, whole))
    assert outcomes >= {"none", "named"}
    assert outcome(bucket, whole) == "whole" and verify(bucket).sound


def outcome(path: Path, whole: object) -> str:
    """Whether a trace is there, or at least says what it lacks."""
    try:
        trace = open_trace(path)
    except (NotATraceError, DamagedTraceError):
        return "none"
    if content(trace) == whole:
        return "whole"
    assert trace.holes
    return "named"


def test_a_trace_that_grows(tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every file of an upload during which the recorder goes on, what is there reads without a hole, and is sound
    up to the documents that are sent first."""
    builder = TraceBuilder(tmp_path / "a.zarr", alive=True)
    put, left = obstore.put, [30]
    seen, damage = set[tuple[int, int]](), set[str]()
    workers = [builder.main]

    def going_on(store: object, key: str, data: bytes, **options: str) -> object:
        done = put(store, key, data, **options)
        if not (bucket / JOURNAL).exists():
            return done
        trace = open_trace(bucket)
        if all((bucket / folder / "zarr.json").exists() for folder in ("", "journal", "starts", "processes")):
            damage.update(verify(bucket).damage)
            damage.update(hole.why for hole in trace.holes)
        seen.add((len(trace.processes), sum(process.after_op for process in trace.processes)))
        left[0] -= 1
        if left[0] > 0:
            if left[0] % 10 == 0:
                workers.append(builder.process(f"rank0/worker:{left[0]}", alive=True))
            stream = workers[left[0] % len(workers)].stream()
            stream.op("aten.mul.Tensor", outputs=[left[0]])
            stream.commit()
        return done

    with coding_once(), monkeypatch.context() as patch:
        patch.setattr(obstore, "put", going_on)
        patch.setattr("rltrace.extensions.archive.push.AT_ONCE", 1)
        while left[0] > 0:
            push(builder.path, URL)
        builder.finish()
        push(builder.path, URL)
    assert damage == set()
    assert verify(bucket).sound
    assert content(open_trace(bucket)) == content(open_trace(builder.path))
    assert len(seen) > 5


def test_something_else_is_there(tmp_path: Path, bucket: Path) -> None:
    """Neither another launch's trace, nor the trace over its slice, nor other files are overwritten."""
    _, builder = recording(tmp_path / "a.zarr")
    builder.finish()
    push(builder.path, URL)
    _, other = recording(tmp_path / "b.zarr")
    with pytest.raises(UsageError, match=r"a\.zarr holds something else"):
        push(other.path, URL)
    assert main(["slice", str(builder.path), "--steps", "0:1", "-o", str(tmp_path / "c.zarr")]) == 0
    with pytest.raises(UsageError, match="holds something else"):
        push(tmp_path / "c.zarr", URL)
    for path in (*bucket.rglob("*.json"), bucket / JOURNAL):
        path.unlink()
    with pytest.raises(UsageError, match="holds something else"):
        push(builder.path, URL)


def test_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder or a web server is no place to push to, and what is pushed is in a folder."""
    _, builder = recording(tmp_path / "a.zarr")
    for source, target, why in (
        (builder.path, tmp_path / "b.zarr", "is a folder: give a URL"),
        (builder.path, "https://h/a.zarr", "is no bucket"),
        ("s3://b/a.zarr", "s3://b/b.zarr", "push needs the trace in a folder"),
        (tmp_path / "none", "s3://b/b.zarr", "no such file"),
    ):
        assert main(["push", str(source), str(target)]) == 2
        assert why in capsys.readouterr().err


def test_machines_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two machines push their parts to one URL: a reader sees the processes of both, and that one is missing."""
    with served(tmp_path) as server:
        url = f"{server.as_bucket(monkeypatch)}/a.zarr"
        there = server.folder / "bucket/a.zarr"
        builders = [
            TraceBuilder(tmp_path / f"{at}.zarr", process=f"rank{1 - at}/main", alive=True, nodes=2) for at in (0, 1)
        ]
        for number, builder in enumerate(builders):
            builder.process("launcher:torchrun", alive=True).stream().op("aten.add.Tensor", outputs=[0])
            builder.op("aten.mul.Tensor", outputs=[number])
            push(builder.path, TraceURL(f"{url}/nodes/{number}"))
            if number == 0:
                assert open_trace(there).lost == ("nodes/1 of 2 is missing",)
        for number, builder in enumerate(builders):
            builder.finish()
            push(builder.path, TraceURL(f"{url}/nodes/{number}"))
        found = open_trace(there)
        names = ["launcher:torchrun", "launcher:torchrun#2", "rank0/main", "rank1/main"]
        assert sorted(process.name for process in found.processes) == names
        assert (found.holes, found.exit is None) == ((), False)
        assert compare(TraceURL(url), there).verdict is Verdict.IDENTICAL
        assert len(verify(TraceURL(url)).processes) == 4 and verify(there).sound
        with served(server.folder / "bucket") as web:
            assert content(open_trace(web.url("a.zarr"))) == content(found)
        assert main(["info", url]) == 0
        assert "rank1/main" in capsys.readouterr().out
        assert main(["slice", url, "--steps", "0:1", "-o", str(tmp_path / "s.zarr")]) == 2
