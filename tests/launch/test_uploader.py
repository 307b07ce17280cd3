"""``record -o s3://…``: whatever the network does, the program is as ever, and in the end the whole trace is there.

Real processes, and a server on the loopback address behind a network that refuses, delays and breaks off connections;
OpenStack Swift, where it is installed.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from trace_servers import BadNetwork, WebServer, bad_network, served, swift
from writer_log import content

from rltrace.commands.main import main
from rltrace.diff.base.model import Verdict
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.launch.uploader import Uploader
from rltrace.testing import TraceBuilder
from rltrace.trace.format.location import TraceURL
from rltrace.trace.read.reader import open_trace
from rltrace.trace.tools.verify import verify

pytest.importorskip("obstore", reason="obstore is not installed: the extra cloud has it")

RLTRACE = Path(sys.executable).parent / "rltrace"

PROGRAM = """
import torch

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(64, 64))
for _ in range(4):
    loss = torch.tanh(weight @ weight).sum()
    loss.backward()
    weight.data -= 0.1 * weight.grad
print(weight.detach().view(torch.int32).sum().item(), loss.item().hex())
raise SystemExit(3)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as found:
        yield found


def record(folder: Path, url: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RLTRACE, "record", "-o", url, "--", *command], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_program_as_ever(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network that breaks off, a program computes, prints and returns what it does alone; all of its trace
    arrives, and is removed here."""
    (tmp_path / "train.py").write_text(PROGRAM)
    alone = io.StringIO()
    with redirect_stdout(alone), pytest.raises(SystemExit):
        exec(compile(PROGRAM, "train.py", "exec"), {})
    with bad_network(server.port, seed=3) as network:
        url = f"{server.as_bucket(monkeypatch, network.port)}/runs/a.zarr"
        done = record(tmp_path, url, sys.executable, "train.py")
        assert network.broken
    assert (done.stdout, done.returncode) == (alone.getvalue(), 3)
    assert not (tmp_path / "a.zarr").exists()
    assert verify(server.folder / "bucket/runs/a.zarr").sound
    (process,) = open_trace(server.folder / "bucket/runs/a.zarr").processes
    assert process.state == "complete" and process.after_op > 20
    assert done.stderr.splitlines()[0].startswith(f"rltrace: recording to {url}, and to a.zarr until it is there")
    assert done.stderr.splitlines()[-1].endswith(f"to {url}, and removed a.zarr")


@pytest.mark.parametrize("seed", [0, 2])
def test_whatever_the_network_does(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """What is at the URL in the end is the trace, also where the network is gone when the recording begins."""
    builder = TraceBuilder(tmp_path / "a.zarr", alive=True)
    with bad_network(server.port, seed) as network:
        network.gone = seed == 0
        uploader = Uploader(builder.path, TraceURL(f"{server.as_bucket(monkeypatch, network.port)}/a.zarr"))
        assert bool(uploader.begin()) == network.gone
        for number in range(5):
            builder.op("aten.mul.Tensor", outputs=[number])
            builder.end_step()
            builder.commit()
        network.gone = False
        builder.finish()
        ending = uploader.finish(lambda: None)
    assert (ending.why, ending.running) == ("", False)
    there = server.folder / "bucket/a.zarr"
    assert content(open_trace(there)) == content(open_trace(builder.path))
    assert compare(there, builder.path).verdict is Verdict.IDENTICAL
    files = {path.relative_to(root): path.read_bytes() for root in (there,) for path in there.rglob("c.*")}
    assert files == {path.relative_to(builder.path): path.read_bytes() for path in builder.path.rglob("c.*")}


def test_ctrl_c_keeps_what_is_here(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the wait for a network that is gone; all is here still, and ``push`` finishes it."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mul.Tensor", outputs=[1])
    with bad_network(server.port, seed=1) as network:
        url = f"{server.as_bucket(monkeypatch, network.port)}/a.zarr"
        network.spoil(0)
        uploader = Uploader(builder.path, TraceURL(url))
        assert uploader.begin() == ""
        network.gone = True
        builder.finish()
        ending = uploader.finish(lambda: os.kill(os.getpid(), signal.SIGINT))
        assert ending.why == f"{url}: the upload was interrupted"
        network.gone = False
        assert main(["push", str(builder.path), url]) == 0
    assert compare(server.folder / "bucket/a.zarr", builder.path).verdict is Verdict.IDENTICAL


def test_what_cannot_succeed(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the program starts: the trace is there already, the bucket does not exist, access is denied."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    bucket = server.as_bucket(monkeypatch)
    (server.folder / "bucket/there.zarr").mkdir()
    (server.folder / "bucket/there.zarr/zarr.json").write_bytes(b"{}")
    server.faults["bucket/denied.zarr/journal/log"] = ["403"]
    for url, why in (
        (f"{bucket}/there.zarr", "exists already; choose another name"),
        ("s3://another/a.zarr", "its bucket does not exist"),
        (f"{bucket}/denied.zarr", "access is denied"),
    ):
        with pytest.raises(UsageError, match=why):
            Uploader(builder.path, TraceURL(url)).begin()
    assert not (server.folder / "bucket/denied.zarr").exists()


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be recorded to a URL is refused with the reason, and nothing is run."""
    monkeypatch.chdir(tmp_path)
    for words, why in (
        (["-o", "https://h/a.zarr"], "is no bucket"),
        (["-o", "s3://b/a.zarr", "--force"], "--force replaces a trace in a folder"),
        (["-o", "ftp://b/a.zarr"], "unknown kind"),
        (["-o", "a.zarr", "--nodes", "2"], "--nodes joins what several machines record at a URL"),
    ):
        assert main(["record", *words, "--", "touch", "ran"]) != 0
        assert why in capsys.readouterr().err
    for words, why in ((["replay", "a.zarr", "-o", "s3://b/a.zarr"], "is a URL: give a folder"),):
        assert main([*words, "--", "touch", "ran"]) != 0
        assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_real_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with OpenStack Swift behind the bad network, where Swift is installed."""
    (tmp_path / "train.py").write_text(PROGRAM)
    with swift(tmp_path / "swift", monkeypatch) as bucket:
        port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
        network = BadNetwork(port, 5)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{network.port}")
        done = record(tmp_path, f"{bucket}/a.zarr", sys.executable, "train.py")
        again = record(tmp_path, f"{bucket}/a.zarr", sys.executable, "train.py")
        network.close()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        assert done.returncode == 3 and "and removed a.zarr" in done.stderr, done.stderr
        assert again.returncode == 125 and "exists already" in again.stderr
        assert record(tmp_path, "b.zarr", sys.executable, "train.py").returncode == 3
        found = compare(TraceURL(f"{bucket}/a.zarr"), tmp_path / "b.zarr")
        assert found.verdict is Verdict.IDENTICAL
        assert verify(TraceURL(f"{bucket}/a.zarr")).sound
