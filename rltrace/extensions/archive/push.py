"""Upload of a trace to an object store: its chunks, and then the journals that name them.

Owns the order, what is there already, and that nothing else is overwritten. Changes nothing in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from rltrace.errors import DamagedTraceError, RltraceError, UnreachableError, UsageError
from rltrace.extensions.archive.object_store import (
    ABSENT,
    DENIED,
    NO_CREDENTIALS,
    PAGE,
    RequestPool,
    open_store,
    reason,
)
from rltrace.trace.format.files import PARTIAL, Folder, UnreadableError
from rltrace.trace.format.journal import MAX_JOURNAL_BYTES, parse_journal
from rltrace.trace.format.location import BUCKETS, TraceURL
from rltrace.trace.format.process_start import STARTS
from rltrace.trace.format.root import JOURNAL, RUNNING
from rltrace.trace.read.reader import open_trace

T = TypeVar("T")

Progress = Callable[[int, int], None]

AT_ONCE: Final = 16
"""Files that are uploaded at a time."""

STREAMS, TURNS = 3, 7
"""The turn of the first files of streams, and how many turns there are: see ``_turn``."""


@dataclass(frozen=True)
class PushResult:
    """What was uploaded."""

    files: int
    bytes: int
    present: int
    """Files that were there already."""
    running: bool
    """Whether a process is still recording: what it writes from now on is not there."""


def push(path: Path, url: TraceURL, progress: Progress | None = None) -> PushResult:
    """Upload the trace in a folder, or what is missing of it. ``progress`` is called with (files done, files in total).

    Raises what ``open_trace`` does, UsageError where something else is there, and UnreachableError where the store
    fails; another call then goes on.
    """
    running = any(process.state == RUNNING for process in open_trace(path).processes)
    upload = _Upload(path, url)
    try:
        upload.resume()
        present = upload.send(progress, growing=running)
    except UnreachableError as error:
        raise UnreachableError(f"{error}; push again to go on") from None
    return PushResult(upload.files, upload.bytes, present, running)


class _Upload:
    """A trace on its way to a bucket: after ``resume``, ``send`` uploads what is missing there.

    Both raise UnreachableError, and UsageError where access is denied or there is no bucket.
    """

    def __init__(self, path: Path, url: TraceURL) -> None:
        if url.scheme not in BUCKETS:
            raise UsageError(f"{url} is no bucket; to a web server, copy the folder with what serves it")
        self.files, self.bytes = 0, 0
        """What was sent so far."""
        self._path = path
        self._folder = Folder(path)
        self._bucket = _Bucket(url)
        self._sizes: dict[str, int] = {}
        """Files in the bucket."""
        self._failure: RltraceError | None = None
        self._lock = Lock()

    def resume(self) -> None:
        """Find what an earlier upload of this trace left. Raises UsageError where something else is."""
        self._sizes = self._bucket.list()
        if not self._sizes:
            return
        earlier, journal = self._bucket.read(JOURNAL) or b"", self._journal()
        there = _tokens(self._sizes)
        is_earlier = journal.startswith(earlier) and _is_slice(earlier) == _is_slice(journal) if earlier else there
        if not is_earlier or not there <= _tokens(self._files()):
            raise UsageError(f"{self._bucket.url} holds something else; choose another name")

    def send(self, progress: Progress | None = None, *, growing: bool = False) -> int:
        """Upload what is missing, and all that may have changed; returns how many files were there. ``growing``: of a
        process that has no journal yet, nothing.
        """
        # What says more is read first: journals, then documents of arrays, then the list of chunks. All that one of
        # them names is there, though a process writes meanwhile; the launch's journal has the heads of all others.
        journals = {JOURNAL: self._journal()}
        others = [key for key in self._files() if key.endswith(JOURNAL) and key != JOURNAL]
        journals |= {key: data for key in others if (data := _read(self._folder, key))}
        begun = {key.removesuffix(JOURNAL) for key in journals}

        def is_begun(key: str) -> bool:  # a process without a journal is taken for one that was lost
            return not growing or key.count("/") < 2 or "/".join((*key.split("/")[:2], "")) in begun

        small = [key for key in self._files() if not _is_chunk(key) and not key.endswith(JOURNAL) and is_begun(key)]
        rest = {key: data for key in small if (data := _read(self._folder, key)) is not None}
        chunks = {key: size for key, size in self._folder.walk() if _is_chunk(key) and is_begun(key)}
        contents: dict[str, bytes | None] = {**dict.fromkeys(chunks), **rest, **journals}
        parts: dict[int, list[str]] = {}
        for key in contents:
            parts.setdefault(_turn(key), []).append(key)
        done, before, pool = 0, self.files, RequestPool(AT_ONCE)
        self._failure = None
        for turn in range(TURNS):
            if turn == STREAMS:
                self._begin(journals)
            for _ in pool.map(partial(self._send, contents, chunks), parts.get(turn, ())):
                done += 1
                if progress is not None:
                    progress(done, len(contents))
            if self._failure is not None:
                raise self._failure
        return done - (self.files - before)

    def _begin(self, journals: Mapping[str, bytes]) -> None:
        """Upload the first record of journals that are not there: rows without one are of a process that was lost."""
        for key, journal in journals.items():
            if key not in self._sizes and key != JOURNAL and (ends := parse_journal(journal).ends):
                self._bucket.put(key, journal[: next(iter(ends))])

    def _send(self, contents: Mapping[str, bytes | None], chunks: Mapping[str, int], key: str) -> None:
        """Upload a file, unless it is a chunk that is there, or the bucket has failed meanwhile."""
        if self._failure is not None or (key in chunks and self._sizes.get(key) == chunks[key]):
            return
        data = contents[key] or _read(self._folder, key)
        if data is None:
            return
        try:
            self._bucket.put(key, data)
        except RltraceError as error:
            self._failure = error
            return
        with self._lock:
            self.files += 1
            self.bytes += len(data)

    def _journal(self) -> bytes:
        if data := _read(self._folder, JOURNAL):
            return data
        raise DamagedTraceError(f"{self._path} cannot be pushed: {JOURNAL} cannot be read")

    def _files(self) -> list[str]:
        return [key for key, _ in self._folder.walk() if not key.endswith(PARTIAL)]


def _read(folder: Folder, key: str) -> bytes | None:
    """The bytes of a file; None: it cannot be read, and is a hole here as it will be there."""
    try:
        return folder.read(key, MAX_JOURNAL_BYTES)
    except UnreadableError:
        return None


def _is_chunk(key: str) -> bool:
    """Whether a file is written once, and is whole where it has its length; all others may change, and are small."""
    return key.rpartition("/")[2].startswith("c.") and not key.endswith(PARTIAL)


def _turn(key: str) -> int:
    """When a file is uploaded: start records say whose the rest is; a document counts chunks, a journal names them."""
    if key in _tokens([key]):
        return 0
    if key.endswith(JOURNAL):
        return 6 if key == JOURNAL else 5
    is_document = not _is_chunk(key)
    return STREAMS + is_document if "/streams/" in key and key.count("/") > 3 else 1 + is_document


class _Bucket:
    """What is where the trace is to be. Raises UnreachableError, and UsageError for what will fail again."""

    def __init__(self, url: TraceURL) -> None:
        self.url = url
        self._store = open_store(url)

    def list(self) -> dict[str, int]:
        """Lengths of all files."""
        import obstore

        def listed() -> dict[str, int]:
            pages = obstore.list(self._store, chunk_size=PAGE)
            return {file["path"]: file["size"] for page in pages for file in page}

        return self._tried(listed)

    def read(self, key: str) -> bytes | None:
        """The content of a file; None: it does not exist."""
        import obstore

        def found() -> bytes | None:
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

        return self._tried(found)

    def put(self, key: str, data: bytes) -> None:
        import obstore

        self._tried(lambda: obstore.put(self._store, key, data))

    def _tried(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Exception as error:
            why = reason(error)
        if why == ABSENT:
            why = "its bucket does not exist"
        elif why not in (DENIED, NO_CREDENTIALS):
            raise UnreachableError(f"{self.url}: {why}")
        raise UsageError(f"{self.url}: {why}")


def _is_slice(journal: bytes) -> bool:
    return any(record["type"] == "slice" for record in parse_journal(journal).records)


def _tokens(keys: Iterable[str]) -> set[str]:
    """The start records, whose names no other launch has."""
    return {key for key in keys if key.startswith(f"{STARTS}/") and key.endswith(".json") and "zarr" not in key}
