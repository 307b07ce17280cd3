"""Messages: what passes between this process and others, and where among its rows it is sent and received.

A message is known within one run by its channel and a digest of its bytes; no byte of it is changed or kept. Channels
are the connections of ``multiprocessing`` (pipes, and so queues, managers, pools and vector environments), the tasks
and objects of Ray, files that torch and safetensors write and read, and the start and the end of a process. What is
sent or received in a thread without rows has no place among them, and is left out.
"""

import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import process as multiprocessing_process
from multiprocessing import queues
from pathlib import Path
from stat import S_ISREG
from types import ModuleType
from typing import Any, NamedTuple

import xxhash

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.trace.format.messages import END, FILE, RAY, START, THREAD, MessageEnds
from rltrace.trace.format.process_start import start_ticks

CallOriginal = Callable[..., Any]


class Place(NamedTuple):
    """Where a thread is among the rows of its stream."""

    stream: int
    row: int
    """Rows that the stream had so far; in a trace of steps, attempts that the process had ended."""
    number: int
    """Places of the process that were asked for before."""


new_place = partial(tuple.__new__, Place)
"""A place from its three numbers; NamedTuple's own way runs Python."""

PlaceHere = Callable[[], Place | None]
"""The place of the calling thread; None: it has no stream."""

digest_of = xxhash.xxh3_64_intdigest
"""By which a message is known."""


class _Channel:
    """What is known of one connection."""

    __slots__ = ("name", "put", "received_there", "sent", "sent_there")

    def __init__(self, name: str) -> None:
        self.name = name
        """Both ends of a pipe have one name, those of a socket two; no process of the machine has another of it."""
        self.sent_there, self.received_there = (name, True), (name, False)
        self.put: deque[Place | None] = deque()
        """Where what a queue will send, in a thread of its own, was put into it."""
        self.sent: Place | None = None
        """Where that thread last sent something."""


class Messages:
    """The messages of one process, from ``install`` to ``uninstall``."""

    def __init__(self, place_here: PlaceHere, fail: Callable[[Exception], None]) -> None:
        self._place_here, self._fail = place_here, fail
        self._patches = Patches()
        self._taken: deque[tuple[tuple[str, bool], int, int, int, int]] = deque()
        """((channel, whether it was sent), stream, row, number, digest) of each since the last commit: plain tuples,
        which the garbage collector looks at once."""
        self._peers: deque[tuple[str, str]] = deque()
        self._channels: WeakIdDict[Any, _Channel] = WeakIdDict()
        """Of connections."""
        self._children: WeakIdDict[Any, int] = WeakIdDict()
        """Digests of the processes that it started."""
        self._left: WeakIdDict[threading.Thread, Place | None] = WeakIdDict()
        """By thread, where another one started it, and after its end where it was."""
        self._process = 0
        """The digest of this process."""
        self._tasks = _RayTasks(self)

    def install(self) -> None:
        """Note messages from now on; first of all that this process has started."""
        if self._patches:
            return
        self._process = process_digest(os.getpid())
        self._note(START, False, self._place_here(), self._process)
        wrap, connection = self._patches.wrap, multiprocessing.connection.Connection
        self._patches.wrap_often_called(connection, "_send_bytes", self._sends)
        self._patches.wrap_often_called(connection, "_recv_bytes", self._receives)
        wrap(multiprocessing.connection, "Pipe", self._make_pipe)
        wrap(queues.Queue, "put", self._put)
        wrap(queues.JoinableQueue, "put", self._put)
        wrap(multiprocessing_process.BaseProcess, "start", self._start)
        wrap(multiprocessing_process.BaseProcess, "join", self._join)
        wrap(threading.Thread, "join", self._join_thread)
        self._patches.on_import({"ray._private.worker": self._tasks.watch}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def last(self, places: Iterable[Place | None]) -> Iterator[dict[str, object]]:
        """Records of the rest: the process ends, with its streams at these places."""
        for place in places:
            self._note(END, True, place, self._process)
        return self.take()

    def take(self) -> Iterator[dict[str, object]]:
        """Records of what passed since the last call."""
        ends: dict[tuple[tuple[str, bool], int], MessageEnds] = {}
        for _ in range(len(self._peers)):
            channel, peer = self._peers.popleft()
            yield {"type": "channel", "channel": channel, "peer": peer}
        for _ in range(len(self._taken)):
            end, stream, row, number, digest = self._taken.popleft()
            found = ends.get((end, stream))
            if found is None:
                found = ends[end, stream] = MessageEnds(*end, stream, [], [], [])
            found.rows.append(row)
            found.numbers.append(number)
            found.digests.append(digest)
        for each in ends.values():
            yield each.record()

    # --- what is noted ------------------------------------------------------------------------------------------------

    def place_here(self) -> Place | None:
        """The place of the calling thread; None: it has no stream, or the recording ends."""
        return self._place_here() if self._patches else None

    def note(self, channel: str, sent: bool, place: Place | None, text: str) -> None:
        """A message that has a name of its own passed."""
        self._note(channel, sent, place, digest_of(text.encode()))

    def _note(self, channel: str, sent: bool, place: Place | None, digest: int) -> None:
        if place is not None:
            self._taken.append(((channel, sent), *place, digest))

    def note_file(self, sent: bool, path: object) -> None:
        """A file was written, or read; nothing where that is no path of a regular file."""
        if isinstance(path, (str, os.PathLike)):
            with suppress(OSError, ValueError):
                status = Path(path).stat()
                if S_ISREG(status.st_mode):
                    version = f"{status.st_dev} {status.st_ino} {status.st_mtime_ns} {status.st_size}"
                    self.note(FILE, sent, self.place_here(), version)

    # --- connections of multiprocessing -------------------------------------------------------------------------------

    # Mostly called in a process that was just woken, whose caches are cold: each call in these two costs microseconds.

    def _sends(self, original: CallOriginal, in_place: Sequence[object]) -> CallOriginal:
        """In place of ``_send_bytes``."""
        entries, place_here, append = self._channels.entries, self._place_here, self._taken.append

        def send_bytes(connection: Any, data: Any) -> Any:
            if in_place:
                try:
                    entry = entries.get(id(connection))
                    channel, place = self._channel(connection) if entry is None else entry[1], place_here()
                    if channel.put:
                        place = self._pass_on(channel, channel.put.popleft(), place)
                    if place is not None:  # before it is sent: the receiver may end this process
                        append((channel.sent_there, *place, digest_of(data)))
                except OSError:  # it is closed: the original says so
                    pass
                except Exception as error:
                    self._fail(error)
            return original(connection, data)

        return send_bytes

    def _receives(self, original: CallOriginal, in_place: Sequence[object]) -> CallOriginal:
        """In place of ``_recv_bytes``."""
        entries, place_here, append = self._channels.entries, self._place_here, self._taken.append

        def receive_bytes(connection: Any, maxsize: int | None = None) -> Any:
            received = original(connection, maxsize)
            if in_place:
                try:
                    place = place_here()
                    if place is not None:
                        entry = entries.get(id(connection))
                        channel = self._channel(connection) if entry is None else entry[1]
                        append((channel.received_there, *place, digest_of(received.getbuffer())))
                except OSError:  # another thread has closed it since
                    pass
                except Exception as error:
                    self._fail(error)
            return received

        return receive_bytes

    def _pass_on(self, channel: _Channel, put: Place | None, here: Place | None) -> Place | None:
        """Note that the thread of a queue has what was put there since it last sent something, where its ops have rows;
        returns from where it is sent."""
        if here is None:
            return put
        self._pass(put, channel.sent or Place(here.stream, 0, 0))
        channel.sent = here
        return here

    def _channel(self, connection: Any) -> _Channel:
        found = self._channels.get(connection)
        if found is None:
            status = os.fstat(connection.fileno())
            found = self._channels[connection] = _Channel(f"{status.st_dev:x}:{status.st_ino:x}")
        return found

    def _make_pipe(self, original: CallOriginal, *args: Any, **kwargs: Any) -> Any:
        ends = original(*args, **kwargs)
        with suppress(OSError, TypeError, ValueError):
            one, other = (self._channel(end).name for end in ends)
            if one != other:
                self._peers.append((one, other))
        return ends

    def _put(self, original: CallOriginal, queue: Any, *args: Any, **kwargs: Any) -> Any:
        writer, place = getattr(queue, "_writer", None), self._place_here()
        try:
            put = self._channel(getattr(writer, "conn", writer)).put  # torch's queues wrap their connection
        except (AttributeError, OSError):  # it is closed
            put = deque()
        put.append(place)
        try:
            return original(queue, *args, **kwargs)
        except BaseException:
            with suppress(ValueError):
                put.remove(place)  # it is full, or closed
            raise

    # --- threads ------------------------------------------------------------------------------------------------------

    def thread_starts(self, thread: threading.Thread) -> None:
        """The calling thread is about to start ``thread``."""
        self._left[thread] = self.place_here()

    def thread_has_rows(self, thread: threading.Thread, stream: int) -> None:
        """A thread has this stream from now on."""
        self._pass(self._left.get(thread), Place(stream, 0, 0))

    def thread_ends(self, thread: threading.Thread) -> None:
        """The calling thread is at its end."""
        self._left[thread] = self.place_here()

    def _join_thread(self, original: CallOriginal, thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
        original(thread, *args, **kwargs)
        if not thread.is_alive():
            self._pass(self._left.get(thread), self._place_here())

    def _pass(self, sent: Place | None, received: Place | None) -> None:
        """What one thread of this process left at the first place another one has at the second."""
        if sent is not None and received is not None:
            self.note(THREAD, True, sent, f"{self._process} {sent.number}")
            self.note(THREAD, False, received, f"{self._process} {sent.number}")

    # --- starts and ends ----------------------------------------------------------------------------------------------

    def _start(self, original: CallOriginal, child: Any) -> None:
        place = self._place_here()
        original(child)
        if child.pid is not None:
            self._children[child] = digest = process_digest(child.pid)
            self._note(START, True, place, digest)

    def _join(self, original: CallOriginal, child: Any, *args: Any, **kwargs: Any) -> None:
        original(child, *args, **kwargs)
        digest = self._children.get(child)
        if digest is not None and child.exitcode is not None:
            self._note(END, False, self._place_here(), digest)


def process_digest(pid: int) -> int:
    """A digest of a running process that no other one of this machine has, not even a later one with its id."""
    return digest_of(f"{pid} {start_ticks(pid)}".encode())


# --- Ray ------------------------------------------------------------------------------------------------------------
#
# A task is sent where it is submitted, and received where its worker was after the task before, as a worker's thread
# runs nothing between two. Its end is sent where its result is serialized, and received with its result.


class _RayTasks(threading.local):
    """Tasks and objects of Ray; where the calling thread's last task ended."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._task = ""
        self._ended = Place(0, 0, 0)

    def watch(self, module: ModuleType) -> None:
        """``ray._private.worker`` has been imported."""
        from ray import actor, remote_function
        from ray._private.serialization import SerializationContext

        wrap = self._messages._patches.wrap
        for owner in (remote_function.RemoteFunction, actor.ActorMethod, actor.ActorClass):
            wrap(owner, "_remote", self._submit)
        wrap(module.Worker, "put_object", self._put)
        wrap(module.Worker, "deserialize_objects", self._read)
        wrap(SerializationContext, "serialize", self._serialize)

    def _submit(self, original: CallOriginal, *args: Any, **kwargs: Any) -> Any:
        place = self._messages.place_here()
        result = original(*args, **kwargs)
        for ref in result if isinstance(result, list) else (result,):
            task = getattr(ref, "task_id", None)
            if task is not None:
                self._messages.note(RAY, True, place, f"task {task().hex()}")
                break
        return result

    def _put(self, original: CallOriginal, *args: Any, **kwargs: Any) -> Any:
        place = self._messages.place_here()
        ref = original(*args, **kwargs)
        self._messages.note(RAY, True, place, f"object {ref.hex()}")
        return ref

    def _read(self, original: CallOriginal, worker: Any, objects: Any, refs: Any, *args: Any, **kwargs: Any) -> Any:
        place = self._messages.place_here()
        for ref in refs:
            with suppress(AttributeError):
                self._messages.note(RAY, False, place, f"object {ref.hex()}")
                self._messages.note(RAY, False, place, f"end {ref.task_id().hex()}")
        return original(worker, objects, refs, *args, **kwargs)

    def _serialize(self, original: CallOriginal, context: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(context, *args, **kwargs)
        task, place = _running_task(), self._messages.place_here()
        if task and place is not None:
            if task != self._task:
                self._task = task
                self._messages.note(RAY, False, self._ended, f"task {task}")
            self._ended = place
            self._messages.note(RAY, True, place, f"end {task}")
        return result


def _running_task() -> str:
    """The id of the task that this worker runs; empty in a driver."""
    import ray

    with suppress(Exception):  # no worker, or another version
        context = ray.get_runtime_context()
        return str(context.get_task_id() or "") if context.worker.mode == ray.WORKER_MODE else ""
    return ""
