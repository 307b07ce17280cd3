"""Traces handed out on the loopback address, by a web server of the standard library.

Owns the server, and what goes wrong with it, or with the network to it, on request. It knows as much of S3 as a reader
needs: lists.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from xxhash import xxh3_64_hexdigest

S3_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test:tester",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


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
        wanted = self.headers["Range"]
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
            self._list(path, query.get("prefix", [""])[0])
            return
        if how.isdigit() or not path.is_file():
            self._answer(int(how or 404), b"<Error>of " + self.path.encode() + b"</Error>")
            return
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
