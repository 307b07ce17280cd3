"""Upload of a trace to an object store: its chunks, and then the journals that name them.

Owns the order, what is there already, and that nothing else is overwritten. Changes nothing in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rltrace.errors import DamagedTraceError, UnreachableError, UsageError
from rltrace.trace.format.files import PARTIAL, Folder, UnreadableError
from rltrace.trace.format.journal import MAX_JOURNAL_BYTES, parse_journal
from rltrace.trace.format.location import BUCKETS, TraceURL
from rltrace.trace.format.process_start import STARTS
from rltrace.trace.format.root import JOURNAL, RUNNING
from rltrace.trace.read.object_store import RequestPool, open_store, reason
from rltrace.trace.read.reader import open_trace

T = TypeVar("T")

Progress = Callable[[int, int], None]

AT_ONCE = 16
"""Files that are uploaded at a time."""


@dataclass(frozen=True)
class PushResult:
    """What was uploaded."""

    files: int
    bytes: int
    present: int
    """Chunks that were there already."""
    running: bool
    """Whether a process is still recording: what it writes from now on is not there."""


def push(path: Path, url: TraceURL, progress: Progress | None = None) -> PushResult:
    """Upload the trace in a folder, or what is missing of it. ``progress`` is called with (files done, files in total).

    Raises what ``open_trace`` does, UsageError where something else is there, and UnreachableError where the store
    fails; another call then goes on.
    """
    if url.scheme not in BUCKETS:
        raise UsageError(f"{url} is no bucket; to a web server, copy the folder with what serves it")
    running = any(process.state == RUNNING for process in open_trace(path).processes)
    folder = Folder(path)
    # Journals first: what a running process adds to them from here on names chunks that may come too late.
    journals = {key: data for key in _files(folder) if key.endswith(JOURNAL) and (data := _read(folder, key))}
    if JOURNAL not in journals:
        raise DamagedTraceError(f"{path} cannot be pushed: {JOURNAL} cannot be read")
    keys = [key for key in _files(folder) if not key.endswith(JOURNAL)]
    bucket = _Bucket(url)
    bucket.check(keys, journals[JOURNAL])

    def upload(key: str) -> int | None:
        """Bytes of the file; None: it is there."""
        data = journals[key] if key in journals else _read(folder, key)
        if data is None or (_is_chunk(key) and bucket.sizes.get(key) == len(data)):
            return None
        bucket.put(key, data)
        return len(data)

    starts = _tokens(keys)  # before all others: they say whose the rest is
    rest = [key for key in keys if key not in starts]
    sizes: list[int | None] = []
    pool = RequestPool(AT_ONCE)
    for part in (starts, rest, [key for key in journals if key != JOURNAL], [JOURNAL]):
        for size in pool.map(upload, part):
            sizes.append(size)
            if progress is not None:
                progress(len(sizes), len(keys) + len(journals))
    sent = [size for size in sizes if size is not None]
    return PushResult(len(sent), sum(sent), len(sizes) - len(sent), running)


def _files(folder: Folder) -> Iterable[str]:
    return (key for key, _ in folder.walk() if not key.endswith(PARTIAL))


def _read(folder: Folder, key: str) -> bytes | None:
    """The bytes of a file; None: it cannot be read, and is a hole here as it will be there."""
    try:
        return folder.read(key, MAX_JOURNAL_BYTES)
    except UnreadableError:
        return None


def _is_chunk(key: str) -> bool:
    """Whether a file is written once, and is whole where it has its length; all others may change, and are small."""
    return key.rpartition("/")[2].startswith("c.")


class _Bucket:
    """What is where the trace is to be. Raises UnreachableError."""

    def __init__(self, url: TraceURL) -> None:
        self._url = url
        self._store = open_store(url)
        self.sizes = self._tried(self._list)

    def check(self, keys: Iterable[str], journal: bytes) -> None:
        """Raise UsageError unless nothing is there, or what an earlier push of this trace left."""
        if not self.sizes:
            return
        own, there, earlier = _tokens(keys), _tokens(self.sizes), self._tried(self._journal)
        is_earlier = journal.startswith(earlier) and (not earlier or _is_slice(earlier) == _is_slice(journal))
        if not there or not there <= own or not is_earlier:
            raise UsageError(f"{self._url} holds something else; choose another name")

    def put(self, key: str, data: bytes) -> None:
        import obstore

        self._tried(lambda: obstore.put(self._store, key, data))

    def _list(self) -> dict[str, int]:
        import obstore

        return {found["path"]: found["size"] for page in obstore.list(self._store, chunk_size=1000) for found in page}

    def _journal(self) -> bytes:
        import obstore

        return bytes(obstore.get(self._store, JOURNAL).bytes()) if JOURNAL in self.sizes else b""

    def _tried(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Exception as error:
            raise UnreachableError(f"{self._url}: {reason(error)}; push again to go on") from None


def _is_slice(journal: bytes) -> bool:
    return any(record["type"] == "slice" for record in parse_journal(journal).records)


def _tokens(keys: Iterable[str]) -> set[str]:
    """The start records, whose names no other launch has."""
    return {key for key in keys if key.startswith(f"{STARTS}/") and key.endswith(".json") and "zarr" not in key}
