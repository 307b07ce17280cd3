"""Traces handed out by servers on the loopback address: a web server of the standard library, and OpenStack Swift.

Owns the servers, and what goes wrong with them, or with the network to them, on request. The web server knows as much
of S3 as an upload needs: lists, writes, removes. Swift speaks S3 as people run it; it is started where
``swift-proxy-server`` is installed (Debian: swift-proxy, swift-account, swift-container, swift-object; PyPI: swift).
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock, Thread
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from xxhash import xxh3_64_hexdigest

# --- a web server -----------------------------------------------------------------------------------------------------


@dataclass
class WebServer:
    """A folder, handed out as nginx does without an index: GET, HEAD, ranges, entity tags, open connections."""

    folder: Path
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """Requests so far: ``GET KEY``, ``HEAD KEY``, ``GET KEY bytes=0-63``."""
    authorized: list[str | None] = field(default_factory=list)
    """Their header Authorization."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """By key, what the next answers are instead: a status, or ``cut``, a connection that breaks off."""
    ranges: bool = True
    lock: Lock = field(default_factory=Lock)
    """Of clients that change or list files."""
    together: Barrier | None = None
    """Answers wait until so many requests are under way."""

    def url(self, trace: str, user: str = "", query: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.port}/{trace}{query}"

    def as_bucket(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """The URL of a new bucket, with the variables for it set."""
        (self.folder / "bucket").mkdir()
        for name, value in {**S3_VARIABLES, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}.items():
            monkeypatch.setenv(name, value)
        return "s3://bucket"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, state: WebServer, *arguments: object) -> None:
        self.state = state
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        key, state = unquote(self.path.partition("?")[0]).lstrip("/"), self.state
        wanted = self.headers["Range"] if state.ranges else None
        state.asked.append(" ".join(filter(None, (self.command, key, wanted))))
        state.authorized.append(self.headers["Authorization"])
        if state.together is not None:
            with suppress(BrokenBarrierError):
                state.together.wait()
        fault = state.faults.get(key)
        how = fault.pop(0) if fault else ""
        path = state.folder / key
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query and path.is_dir() and not how:
            with state.lock:
                self._list(path, query.get("prefix", [""])[0])
            return
        if how.isdigit() or not path.is_file():
            self._answer(int(how or 404), b"<Error>of " + self.path.encode() + b"</Error>")
            return
        with state.lock:
            data = path.read_bytes()
        tag = f'"{xxh3_64_hexdigest(data)}"'
        if self.headers["If-Match"] not in (None, tag):
            self._answer(412, b"")
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted or "")
        if found is None:
            self._answer(200, data, cut=how == "cut", ETag=tag)
            return
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        where = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], cut=how == "cut", ETag=tag, **{"Content-Range": where})

    do_HEAD = do_GET  # noqa: N815  (the name that http.server looks up)

    def do_PUT(self) -> None:
        key, state = unquote(self.path.partition("?")[0]).lstrip("/"), self.state
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if len(data) < int(self.headers["Content-Length"]):  # the connection broke off
            self.close_connection = True
            return
        state.asked.append(f"PUT {key}")
        fault = state.faults.get(key)
        path = state.folder / key
        with state.lock:
            if fault:
                self._answer(int(fault.pop(0)), b"")
            elif not (state.folder / key.partition("/")[0]).is_dir():
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif self.headers["If-None-Match"] == "*" and path.exists():
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                self._answer(200, b"", ETag=f'"{xxh3_64_hexdigest(data)}"')

    def do_POST(self) -> None:
        """Several files are removed at once."""
        bucket = self.state.folder / unquote(urlsplit(self.path).path).strip("/")
        for key in re.findall(r"<Key>(.*?)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode()):
            (bucket / key).unlink(missing_ok=True)
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def _list(self, bucket: Path, prefix: str) -> None:
        files = [(path.relative_to(bucket).as_posix(), path) for path in sorted(bucket.rglob("*")) if path.is_file()]
        listed = "".join(
            f"<Contents><Key>{key}</Key><Size>{path.stat().st_size}</Size><ETag>&quot;x&quot;</ETag>"
            "<LastModified>2026-11-23T00:00:00.000Z</LastModified></Contents>"
            for key, path in files
            if key.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode())

    def _answer(self, status: int, data: bytes, *, cut: bool = False, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """Connections that wait; the default of 5 refuses what a reader asks for at once."""

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client may break off."""


@contextmanager
def served(folder: Path) -> Iterator[WebServer]:
    """A web server of this folder."""
    state = WebServer(folder)
    with _Server(("127.0.0.1", 0), partial(_Handler, state)) as server:
        server.daemon_threads = True
        server.block_on_close = False  # clients keep their connections
        state.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join()


# --- Swift ------------------------------------------------------------------------------------------------------------


S3_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test:tester",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}

PROXY = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
log_address = {folder}/none
[pipeline:main]
pipeline = catch_errors cache s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
"""
FILTERS = "".join(
    f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in ("catch_errors", "s3api", "copy", "slo", "dlo")
)

STORAGE = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/node
mount_check = false
disable_fallocate = true
log_address = {folder}/none
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""


@contextmanager
def swift(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of Swift's S3 interface, with its variables set. Skips where Swift is not installed."""
    import getpass

    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    binary = shutil.which("swift-proxy-server")
    if binary is None:
        pytest.skip("OpenStack Swift is not installed: no swift-proxy-server in PATH")
    programs, user = Path(binary).parent, getpass.getuser()
    (folder / "node" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = a\nswift_hash_path_prefix = b\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    names = ("account", "container", "object", "proxy")
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    for name, port in ports.items():
        form = PROXY + FILTERS if name == "proxy" else STORAGE
        text = form.format(port=port, user=user, folder=folder, name=name)
        (folder / f"{name}-server.conf").write_text(text)
        if name != "proxy":
            ring = [programs / "swift-ring-builder", folder / f"{name}.builder"]
            for words in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{port}/d1", "1"], ["rebalance"]):
                subprocess.run([*ring, *words], check=True, stdout=subprocess.DEVNULL)
    started = []
    try:
        for name in names:
            log = (folder / f"{name}.log").open("wb")
            command = [programs / f"swift-{name}-server", folder / f"{name}-server.conf"]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            log.close()
        for port in ports.values():
            _await(port)
        for name, value in {**S3_VARIABLES, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['proxy']}"}.items():
            monkeypatch.setenv(name, value)
        signed = obstore.sign(obstore.store.from_url("s3://traces"), "PUT", "", timedelta(minutes=1))
        urllib.request.urlopen(urllib.request.Request(signed, method="PUT", data=b"")).close()
        yield "s3://traces"
    finally:
        for process in started:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _await(port: int) -> None:
    """Wait until something listens."""
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
