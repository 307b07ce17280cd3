"""Upload of a trace to an object store: its chunks, and then the journals that name them.

Owns the order, what is there already, and that nothing else is overwritten. Changes nothing in the trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from xxhash import xxh3_64_intdigest

from rltrace.errors import DamagedTraceError, RltraceError, UnreachableError, UsageError
from rltrace.trace.format.files import PARTIAL, Folder, UnreadableError
from rltrace.trace.format.journal import MAX_JOURNAL_BYTES, parse_journal
from rltrace.trace.format.location import BUCKETS, TraceURL
from rltrace.trace.format.process_start import STARTS, UPLOAD, is_recent, parse_start, upload_note
from rltrace.trace.format.root import JOURNAL, NODES, RUNNING
from rltrace.trace.read.object_store import (
    ABSENT,
    DENIED,
    NO_CREDENTIALS,
    PAGE,
    RequestPool,
    open_store,
    reason,
)
from rltrace.trace.read.reader import open_trace

T = TypeVar("T")

Progress = Callable[[int, int], None]

AT_ONCE: Final = 16
"""Files that are uploaded at a time."""

STREAMS, TURNS = 3, 7
"""The turn of the first files of streams, and how many turns there are: see ``_turn``."""

JOURNAL_RATE: Final = 200_000
"""Bytes a second for a journal that grows: it is sent as a whole each time."""


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
    upload = Upload(path, url)
    running = upload.running()
    try:
        upload.resume()
        present = upload.send(progress)
    except UnreachableError as error:
        raise UnreachableError(f"{error}; push again to go on") from None
    return PushResult(upload.files, upload.bytes, present, running)


class Upload:
    """A trace on its way to a bucket. Each ``send`` uploads what is missing there, of a trace that grows, too.

    ``claim`` or ``resume`` comes first. All methods that reach the bucket raise UnreachableError, and UsageError where
    access is denied or there is no bucket.
    """

    def __init__(self, path: Path, url: TraceURL, retries: Mapping[str, Any] | None = None) -> None:
        """``retries``: of requests, as obstore has them. Raises UsageError."""
        if url.scheme not in BUCKETS:
            raise UsageError(f"{url} is no bucket; to a web server, copy the folder with what serves it")
        self.files, self.bytes = 0, 0
        """What was sent so far."""
        self.url = url
        self._path = path
        self._folder = Folder(path)
        self._bucket = _Bucket(url, retries)
        self._sizes: dict[str, int] = {}
        """Files in the bucket."""
        self._contents: dict[str, int] = {}
        """Digests of files that may change, as they were sent."""
        self._journals_sent: dict[str, float] = {}
        self._failure: RltraceError | None = None
        self._lock = Lock()

    def running(self, *, may_begin: bool = False) -> bool:
        """Whether a process is still being recorded; ``may_begin``: or may yet be. Raises what ``open_trace`` does."""
        trace = open_trace(self._path)
        states = [process.state for process in trace.processes]
        return RUNNING in states or (may_begin and any(process.state == RUNNING for process in trace.unrecorded))

    def claim(self) -> bool:
        """Take the place, for a trace that has just begun; False: something is there."""
        journal = self._journal()
        free = not self._bucket.list(limit=1) and self._bucket.create(JOURNAL, journal)
        if not free and self._bucket.read(JOURNAL) != journal:  # it is ours where only the answer was lost
            return False
        self._sizes[JOURNAL], self._contents[JOURNAL] = len(journal), xxh3_64_intdigest(journal)
        return True

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

    def send(self, progress: Progress | None = None, *, at_once: int = AT_ONCE, growing: bool = False) -> int:
        """Upload what is missing or has changed; returns how many files are not. ``growing``: more is to come, so a
        journal that has just been sent waits for a later time.
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
        ended = self._is_new(JOURNAL, journals[JOURNAL])
        due = [key for key in journals if ended or not growing or self._is_due(key, journals[key])]
        contents: dict[str, bytes | None] = {**dict.fromkeys(chunks), **rest, **{key: journals[key] for key in due}}
        parts: dict[int, list[str]] = {}
        for key in contents:
            parts.setdefault(_turn(key), []).append(key)
        done, before, pool = 0, self.files, RequestPool(at_once)
        self._failure = None
        for turn in range(TURNS):
            if turn == STREAMS:
                self._begin(due, journals)
            for _ in pool.map(partial(self._send, contents, chunks), parts.get(turn, ())):
                done += 1
                if progress is not None:
                    progress(done, len(contents))
            if self._failure is not None:
                raise self._failure
        return done - (self.files - before)

    def is_whole(self) -> bool:
        """Whether the bucket lists every file of the trace with its length; what it lacks is sent again."""
        there = self._bucket.list()
        lacking = [k for k, size in self._folder.walk() if not k.endswith(PARTIAL) and there.get(k) != size]
        for key in lacking:
            self._sizes.pop(key, None)
            self._contents.pop(key, None)
        return not lacking

    def sign(self) -> None:
        """Note that this machine uploads the trace while it is recorded."""
        self._bucket.put(UPLOAD, upload_note())
        self._sizes[UPLOAD] = 0

    def sign_off(self) -> None:
        """Remove the note; where that may not be done, it grows old."""
        with suppress(RltraceError):
            self._bucket.delete(UPLOAD)

    def discard(self) -> None:
        """Remove what was sent."""
        for key in list(self._sizes):
            self._bucket.delete(key)

    def _begin(self, keys: Iterable[str], journals: Mapping[str, bytes]) -> None:
        """Upload the first record of journals that are not there: rows without one are of a process that was lost."""
        for key in keys:
            if key not in self._sizes and key != JOURNAL and (ends := parse_journal(journals[key]).ends):
                self._bucket.put(key, journals[key][: next(iter(ends))])

    def _send(self, contents: Mapping[str, bytes | None], chunks: Mapping[str, int], key: str) -> None:
        """Upload a file, unless it is there, or the bucket has failed meanwhile."""
        data = contents[key]
        is_there = self._sizes.get(key) == chunks[key] if data is None else not self._is_new(key, data)
        if self._failure is not None or is_there:
            return
        data = _read(self._folder, key) if data is None else data
        if data is None:
            return
        try:
            self._bucket.put(key, data)
        except RltraceError as error:
            self._failure = error
            return
        with self._lock:
            self._sizes[key] = len(data)
            self.files += 1
            self.bytes += len(data)
            if key not in chunks:
                self._contents[key] = xxh3_64_intdigest(data)
            if key.endswith(JOURNAL):
                self._journals_sent[key] = time.monotonic()

    def _is_new(self, key: str, data: bytes) -> bool:
        return self._contents.get(key) != xxh3_64_intdigest(data)

    def _is_due(self, key: str, data: bytes) -> bool:
        before = self._journals_sent.get(key)
        return before is None or time.monotonic() - before >= len(data) / JOURNAL_RATE

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


def claim(path: Path, url: TraceURL, nodes: int = 1, retries: Mapping[str, Any] | None = None) -> Upload:
    """An upload to a place where nothing is: the URL or, where several machines record one run, a node below it.

    Raises UsageError where something else is there, and what the methods of ``Upload`` do.
    """
    taken = UsageError(f"{url} exists already; choose another name")
    if nodes == 1:
        upload = Upload(path, url, retries)
        if not upload.claim():
            raise taken
        return upload
    found = _Bucket(url, retries).list(limit=PAGE)
    if any(not key.startswith(f"{NODES}/") for key in found):
        raise taken
    for number in range(nodes):
        place = url.child(f"{NODES}/{number}")
        upload = Upload(path, place, retries)
        if upload.claim():
            return upload
        _check_node(_Bucket(place, retries), nodes)
    raise UsageError(f"{url} has been recorded by {nodes} machines already; choose another name")


def _check_node(bucket: _Bucket, nodes: int) -> None:
    """Raise UsageError unless another machine records the same run there, now."""
    records = parse_journal(bucket.read(JOURNAL) or b"").records
    launch = next((record for record in records if record["type"] == "launch"), None)
    if launch is None or launch.get("options", {}).get("nodes") != nodes:
        raise UsageError(f"{bucket.url} is not of a run on {nodes} machines; choose another name")
    begun = {"time": datetime.fromisoformat(launch["created"]).timestamp()}
    note = parse_start(bucket.read(UPLOAD) or b"") or begun
    if any(record["type"] == "exit" for record in records) or not is_recent(note):
        raise UsageError(f"{bucket.url} is of a run that goes on no longer; choose another name")


class _Bucket:
    """What is where the trace is to be. Raises UnreachableError, and UsageError for what will fail again."""

    def __init__(self, url: TraceURL, retries: Mapping[str, Any] | None) -> None:
        self.url = url
        self._store = open_store(url, retries)

    def list(self, limit: int | None = None) -> dict[str, int]:
        """Lengths of all files, or of a first page of them."""
        import obstore

        def listed() -> dict[str, int]:
            found: dict[str, int] = {}
            for page in obstore.list(self._store, chunk_size=PAGE if limit is None else limit):
                found.update((file["path"], file["size"]) for file in page)
                if limit is not None:
                    break
            return found

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

    def create(self, key: str, data: bytes) -> bool:
        """Write a file that does not exist; False: it does."""
        import obstore

        def created() -> bool:
            try:
                obstore.put(self._store, key, data, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return False
            except obstore.exceptions.NotSupportedError:  # by this store: who comes at the same moment is not noticed
                obstore.put(self._store, key, data)
            return True

        return self._tried(created)

    def delete(self, key: str) -> None:
        import obstore

        self._tried(lambda: obstore.delete(self._store, key))

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
