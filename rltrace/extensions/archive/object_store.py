"""The files of a trace at a URL: in a bucket of an object store, or in a folder that a web server hands out.

Owns how files are asked for (many at once), the reasons where that fails, and the chunks kept on
this machine. Writes nothing to the store. Imports obstore when the first such trace is opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import NamedTemporaryFile
from threading import Semaphore, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xxhash import xxh3_64_hexdigest

from rltrace.errors import UnreachableError, UsageError
from rltrace.trace.format.files import MISSING, FileRequest, UnreadableError, users_cache
from rltrace.trace.format.journal import MAX_JOURNAL_BYTES, parse_heads, parse_journal
from rltrace.trace.format.location import BUCKETS, SERVERS, TraceURL
from rltrace.trace.format.process_start import STARTS
from rltrace.trace.format.root import JOURNAL, PROCESSES

if TYPE_CHECKING:
    from obstore.store import ObjectStore

S = TypeVar("S")
T = TypeVar("T")

INSTALL: Final = "pip install obstore"

AT_ONCE: Final = 64
"""Requests that are under way at a time, of one trace."""

MAX_PROCESSES: Final = 1 << 16
"""Processes that are asked for where the server lists no folders."""

PROBED: Final = 8
"""Processes that are asked for at once beyond the last one known, where the server lists no folders."""

PAGE: Final = 1000
"""Files that a bucket lists in one answer."""

RETRIES: Final[Mapping[str, Any]] = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
"""As obstore does it, after 0.1, 0.2, 0.4 … seconds: no answer, a connection that broke off, a status from 500 on."""


# --- chunks kept on this machine --------------------------------------------------------------------------------------


MAX_CACHE_BYTES: Final = 8 << 30
"""Of the chunks of all traces. When a trace is opened, the files used longest ago are removed beyond it."""


class ChunkCache:
    """Chunks of one trace that were read before, by the digest that the journal gives. Whatever fails is a miss.

    Each trace has a folder for itself: the digest is no protection against who makes one on purpose, and what one
    server hands out must not be read as part of another's trace.
    """

    def __init__(self, url: TraceURL) -> None:
        self._all = users_cache("chunks")
        self._folder = self._all / hashlib.sha256(str(url.resolve()).encode()).hexdigest()[:32]

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest; None: they are not kept."""
        if not re.fullmatch("[0-9a-f]{16}", digest):  # it comes from the trace, and becomes a name
            return None
        path = self._folder / digest
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        return data if xxh3_64_hexdigest(data) == digest else None

    def put(self, digest: str, data: bytes) -> None:
        """Keep the bytes."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self._folder, delete=False) as file:  # readable by its owner only
                file.write(data)
            Path(file.name).replace(self._folder / digest)

    def trim(self, limit: int = MAX_CACHE_BYTES) -> None:
        """Remove the files used longest ago, of all traces, until ``limit`` bytes are left."""
        used = []
        with suppress(OSError):
            for path in self._all.glob("*/*"):
                status = path.stat()
                used.append((status.st_mtime, status.st_size, path))
        kept = sum(size for _, size, _ in used)
        for _, size, path in sorted(used):
            if kept <= limit:
                return
            with suppress(OSError):
                path.unlink()
            kept -= size


# --- requests ---------------------------------------------------------------------------------------------------------


AT_END: Final = 1.0
"""Seconds that the program's end waits for requests under way; they end when the server answers, or after a minute."""


Call = tuple[Future[Any], Callable[..., Any], tuple[object, ...]]


class RequestPool:
    """Threads that make requests, so many at a time.

    The library cannot be interrupted while it waits for a server. The caller's thread can, as it waits for a future;
    and these threads, unlike those of ``concurrent.futures``, do not keep an interrupted program from ending.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._idle = Semaphore(0)
        weakref.finalize(self, _wind_up, self._calls, self._threads)

    def submit(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call, arguments))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
            thread = Thread(target=_answer, args=(self._calls, self._idle), name="rltrace-request", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def map(self, call: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """The results, in order. Raises what a call does."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)


def _answer(calls: SimpleQueue[Call | None], idle: Semaphore) -> None:
    while (given := calls.get()) is not None:
        future, call, arguments = given
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)
        del given, future, call, arguments  # a waiting thread keeps no store alive
        idle.release()


def _wind_up(calls: SimpleQueue[Call | None], threads: Sequence[Thread]) -> None:
    """Cancel the calls that wait, and wait a little for those under way: the interpreter ends under them."""
    with suppress(Empty):
        while True:
            if (given := calls.get_nowait()) is not None:
                given[0].cancel()
    for _ in threads:
        calls.put(None)
    end = monotonic() + AT_END
    for thread in threads:
        if thread is not current_thread():
            thread.join(max(end - monotonic(), 0))


# --- files ------------------------------------------------------------------------------------------------------------


class RemoteStore:
    """The files of a trace at a URL. Listed once, when it is opened, where the store lists."""

    def __init__(self, url: TraceURL, *, cached: bool = True) -> None:
        """``cached``: chunks are kept on this machine, and read from there. Raises UnreachableError, UsageError."""
        self._url = url
        self._store = open_store(url)
        self._cache = ChunkCache(url) if cached else None
        self._pool = RequestPool(AT_ONCE)
        self._ahead: dict[str, Future[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._asked: dict[str, Future[int]] = {}
        self._listed = url.scheme in BUCKETS and self._pool.submit(self._list).result()
        self._folders = _children(self._sizes) if self._listed else self._described()
        if self._cache is not None:
            self._pool.submit(self._cache.trim)

    @property
    def unlisted(self) -> str:
        return "" if self._listed or STARTS in self._folders else "the server lists no folders"

    def size(self, key: str) -> int:
        """Length in bytes of a file. Raises UnreadableError."""
        if key not in self._sizes:
            asked = self._asked.pop(key, None)
            self._sizes[key] = (asked or self._pool.submit(self._head, key)).result()
        return self._sizes[key]

    def holds(self, key: str) -> bool:
        """Whether a file or folder of this key exists; where nothing is listed, a file."""
        return key in self._sizes or key in self._folders if self._listed else self._has(key)

    def read(self, key: str, limit: int, digest: str = "") -> bytes:
        """The bytes of one file, at most ``limit``; those with ``digest`` may be kept ones. Raises UnreadableError."""
        ahead = self._ahead.pop(key, None)
        data = (ahead or self._pool.submit(self._get, FileRequest(key, limit, digest))).result()
        if len(data) > limit:
            raise _longer(limit)
        return data

    def names(self, key: str) -> list[str]:
        """Names in one folder, sorted; empty where the folder does not exist, or is not known."""
        return sorted(self._folders.get(key, ()))

    def walk(self) -> Iterator[tuple[str, int]] | None:
        return iter(sorted(self._sizes.items())) if self._listed else None

    def size_ahead(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._sizes and key not in self._asked:
                self._asked[key] = self._pool.submit(self._head, key)

    def read_ahead(self, requests: Iterable[FileRequest]) -> None:
        for request in requests:
            if request.key not in self._ahead and not (self._listed and request.key not in self._sizes):
                self._ahead[request.key] = self._pool.submit(self._get, request)

    def _get(self, request: FileRequest) -> bytes:
        kept = self._cache.get(request.digest) if self._cache is not None and request.digest else None
        if kept is not None:
            return kept
        data = _reasoned(lambda: self._download(request.key, request.limit))
        if self._cache is not None and xxh3_64_hexdigest(data) == request.digest:
            self._cache.put(request.digest, data)
        return data

    def _download(self, key: str, limit: int) -> bytes:
        import obstore

        found = obstore.get(self._store, key)
        if found.meta["size"] > limit:
            raise _longer(limit)
        return bytes(found.bytes())

    def _head(self, key: str) -> int:
        import obstore

        return _reasoned(lambda: int(obstore.head(self._store, key)["size"]))

    def _list(self) -> bool:
        """Find all files and their sizes; False: who asks may not. Raises UnreachableError."""
        import obstore

        try:
            for page in obstore.list(self._store, chunk_size=PAGE):
                self._sizes.update((found["path"], found["size"]) for found in page)
                if len(page) == len(self._sizes) == PAGE and not self._is_trace():
                    self._sizes.clear()
                    return True
        except Exception as error:
            why = reason(error)
            if why == ABSENT:
                why = "its bucket does not exist"
            elif why == DENIED:
                return False
            raise UnreachableError(f"{self._url} cannot be read: {why}") from None
        return True

    def _is_trace(self) -> bool:
        """Whether one of the two files is there without which nothing is read: a bucket may hold millions of others."""
        self.size_ahead((JOURNAL, "zarr.json"))
        return any(self._has(key) for key in (JOURNAL, "zarr.json"))

    def _has(self, key: str) -> bool:
        try:
            return self.size(key) >= 0
        except UnreadableError:
            return False

    def _described(self) -> dict[str, set[str]]:
        """The folders ``starts`` and ``processes``, as the end of the launch names them, and processes since then."""
        try:
            data = self.read(JOURNAL, MAX_JOURNAL_BYTES)
            self._ahead[JOURNAL] = self._pool.submit(lambda: data)
        except UnreadableError as error:
            if str(error) != MISSING:
                raise UnreachableError(f"{self._url} {error}") from None
            data = b""
        folders: dict[str, set[str]] = {PROCESSES: set()}
        numbers: Sequence[int] = ()
        for record in parse_journal(data).records:
            with suppress(KeyError, ValueError, TypeError):
                if record["type"] == "journals":
                    numbers = sorted(parse_heads(record))[:MAX_PROCESSES]
                    folders[STARTS] = {name for name in record["starts"] if isinstance(name, str) and "/" not in name}
        folders[PROCESSES] |= self._answering(numbers)
        first = numbers[-1] + 1 if numbers else 0
        while (found := self._answering(range(first, first + PROBED))) and len(folders[PROCESSES]) < MAX_PROCESSES:
            folders[PROCESSES] |= found
            first += PROBED
        return folders

    def _answering(self, numbers: Sequence[int]) -> set[str]:
        """The processes of these that have a journal."""
        keys = {f"{PROCESSES}/{number}/{JOURNAL}": str(number) for number in numbers}
        self.size_ahead(keys)
        return {number for key, number in keys.items() if self._has(key)}


def _children(keys: Iterable[str]) -> dict[str, set[str]]:
    """The names in each folder."""
    folders: dict[str, set[str]] = {}
    for key in keys:
        while key:
            folder, _, name = key.rpartition("/")
            known = folders.setdefault(folder, set())
            if name in known:
                break
            known.add(name)
            key = folder
    return folders


def open_store(url: TraceURL) -> ObjectStore:
    """The store of a trace, of which no key is asked for yet. Raises UsageError."""
    try:
        from obstore.store import HTTPStore, from_url
    except ImportError:
        raise UsageError(f"{url} needs obstore, which is not installed: {INSTALL}") from None
    retry: Any = RETRIES
    try:
        if url.scheme in SERVERS:
            options: Any = {"allow_http": url.scheme == "http"}
            if url.credentials:
                basic = b64encode(url.credentials.encode()).decode()
                options["default_headers"] = {"Authorization": f"Basic {basic}"}
            return HTTPStore.from_url(url.bare, client_options=options, retry_config=retry)
        return from_url(url.address, retry_config=retry)
    except Exception as error:  # its text may hold what the environment does
        raise UsageError(f"{url} cannot be read: {reason(error)}") from None


# --- reasons ----------------------------------------------------------------------------------------------------------
#
# A library's error may quote a signed URL, a header or what the server said. None of its text is shown: only what is
# recognised in it.


DENIED: Final = "access is denied"
ABSENT: Final = "it does not exist"
NO_CREDENTIALS: Final = "no credentials are found"

_REASONS: Final = (
    (r"dns error|lookup address", "its host is not known"),
    (r"connection refused", "the connection is refused"),
    (r"certificate", "the server's certificate is not trusted"),
    (r"timed out|timeout", "the server gives no answer in time"),
    (r"credential|metadata endpoint|169\.254|security-credentials", NO_CREDENTIALS),
    (r"account must be specified", "no storage account is named"),
    (r"connection (closed|reset)|incomplete|broken pipe|decoding response body|body error", "the connection broke off"),
)


def _reasoned(ask: Callable[[], T]) -> T:
    """What ``ask`` returns. Raises UnreadableError for whatever else it raises."""
    try:
        return ask()
    except UnreadableError:
        raise
    except Exception as error:
        why = reason(error)
        raise UnreadableError(MISSING if why == ABSENT else f"cannot be read ({why})") from None


def reason(error: Exception) -> str:
    """What went wrong, in words of ours."""
    name, text = type(error).__name__, str(error)
    found = re.search(r"\b([345]\d\d) [A-Z][a-z]+|status(?: code)?:? ([345]\d\d)\b", text)
    status = found[1] or found[2] if found else ""
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403"):
        return DENIED
    if isinstance(error, FileNotFoundError) or status == "404":
        return ABSENT
    if name == "PreconditionError":
        return "it changed while it was read"
    if status:
        return f"the server answers {status}"
    return next((why for pattern, why in _REASONS if re.search(pattern, text, re.IGNORECASE)), f"obstore: {name}")


def _longer(limit: int) -> UnreadableError:
    return UnreadableError(f"is longer than the limit of {limit} bytes")
