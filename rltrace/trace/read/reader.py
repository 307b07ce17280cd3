"""A trace, opened for reading.

Owns the check of the format, and which processes a trace has. Verifies what it reads, follows no link out of the
folder, and never writes. Needs neither zarr nor torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count, islice
from pathlib import Path

from rltrace.errors import DamagedTraceError, FormatVersionError, NotATraceError
from rltrace.extension import remote_traces
from rltrace.trace.format.files import MISSING, FileRequest, Folder, TraceStore, UnreadableError, printable
from rltrace.trace.format.journal import (
    MAGIC,
    MAX_JOURNAL_BYTES,
    Head,
    Journal,
    Record,
    is_another,
    is_number,
    lost_records,
    parse_heads,
    parse_journal,
    start_record_of,
)
from rltrace.trace.format.location import Location, TraceURL, parse_location
from rltrace.trace.format.process_start import MAX_START_BYTES, STARTS, is_alive, parse_start
from rltrace.trace.format.records import check_launch, number
from rltrace.trace.format.root import JOURNAL, KILLED, LEFT_OUT, NEVER_RECORDED, NODES, PROCESSES, RUNNING, name_file
from rltrace.trace.format.rows import Segment
from rltrace.trace.format.schema import FORMAT, OLDEST, has_iterations
from rltrace.trace.format.tables import Table
from rltrace.trace.kernels.library_reports import LibraryReports
from rltrace.trace.read.process import ProcessTrace, TraceHole
from rltrace.trace.read.stream import StreamTrace

__all__ = ["ProcessTrace", "Segment", "StreamTrace", "Table", "Trace", "TraceHole", "UnrecordedProcess", "open_trace"]

LONGEST_DOCUMENT = 1 << 20

MAX_NAMED = 16
"""Missing processes named one by one."""

MAX_NODES = 1 << 12
"""Machines of one trace."""


@dataclass(frozen=True)
class UnrecordedProcess:
    """A process that started under the recorder and has no folder in the trace."""

    token: str
    record: Record
    """argv, pid, time and more; empty where the record is damaged."""
    state: str
    """"running" (it may still begin), "left-out" (by ``--processes``) or "never-recorded"."""
    why: str | None
    failed: bool = False
    """Whether the recorder failed to start there; otherwise the process probably never imported torch."""

    @property
    def name(self) -> str:
        """The program without arguments: ``python train.py``; what ``--processes`` left out has its name."""
        if self.state == LEFT_OUT:
            return str(self.record.get("name") or self.token)
        argv = self.record.get("argv")
        words = [str(word).rpartition("/")[2] for word in argv[:2]] if isinstance(argv, list) else []
        return " ".join(words) or self.token


class Trace:
    """One recorded launch."""

    def __init__(self, path: Location, folder: TraceStore, format_: tuple[int, int], journal: Journal) -> None:
        self.path = path
        self.format = format_
        self.launch: Record = {}
        """The launch record: command, options, host and time."""
        self.exit: Record | None = None
        """How the launch ended; None: not recorded."""
        self.journal = journal
        self.folder = folder
        self.nodes: tuple[Trace, ...] = ()
        """The traces of several machines that recorded one run; empty: one launch recorded all of it."""
        self._heads: dict[int, Head] | None = None
        self._library_reports: dict[int, LibraryReports] = {}
        first_is_whole = bool(journal.ends) and 0 not in journal.damaged_before
        self._launch_digest = f"{next(iter(journal.ends.values())):016x}" if first_is_whole else None
        self.other_holes = [f"{why} ({JOURNAL})" for why in journal.damage]
        self._lost = [f"{folder.unlisted}: processes that recorded nothing cannot be seen"] if folder.unlisted else []
        self._journal_budget = MAX_JOURNAL_BYTES
        """Bytes of journals that may still be read."""
        self._journals = self._read_journals()
        if any(self._is_of_this_trace(found) for found in self._journals.values() if self._is_of_another_launch(found)):
            self.other_holes.append(f"{JOURNAL} belongs to another launch")
            self._launch_digest = None
        else:
            for record in printable(journal.records) if journal.unprintable else journal.records:
                self._read_record(record)
        if not self.launch and not self.other_holes:
            self.other_holes.append(f"{JOURNAL} has no launch record")
        self.processes: tuple[ProcessTrace, ...] = tuple(self._processes())
        self.unrecorded: tuple[UnrecordedProcess, ...] = tuple(self._unrecorded())
        self._check_names()

    @property
    def options(self) -> Record:
        """Those of the launch record."""
        found: Record = self.launch.get("options", {})
        return found

    @property
    def level(self) -> str:
        """ "step" or "op"."""
        levels = [p.level for p in self.processes if p.level]  # of a run that was armed, not all may be the same
        return "op" if "op" in levels else next(iter(levels), str(self.options.get("level") or ""))

    @property
    def has_rows(self) -> bool:
        """Whether ops are rows, or of a JAX program, at each level, calls and iterations."""
        return self.level == "op" or any(has_iterations(process.engine) for process in self.processes)

    @property
    def has_all_inputs(self) -> bool:
        """Whether rows have digests of all inputs: with ``record --verify-inputs``, and all rows of JAX."""
        all_of_jax = {has_iterations(process.engine) for process in self.processes} == {True}
        return all_of_jax or bool(self.options.get("verify_inputs"))

    @property
    def engine(self) -> str:
        """How ops were intercepted; rows of two engines are not compared. Of torch and JAX, that of which has steps."""
        engines = [p.engine for p in self.processes if p.engine]
        if any(map(has_iterations, engines)) and len({*engines}) > 1:
            engines.sort(key=[p.engine for p in self.processes if len(p.steps)].count, reverse=True)
        return next((engine for engine in engines if engine != "none"), next(iter(engines), ""))

    def engine_of(self, stream: str) -> str:
        """How the ops of this stream were intercepted; "" where there is none."""
        return next((p.engine or "" for p in self.processes if any(s.name == stream for s in p.streams)), "")

    @property
    def created(self) -> object:
        """Time of the launch, as recorded; None: not known."""
        return self.launch.get("created")

    @property
    def holes(self) -> tuple[TraceHole, ...]:
        """All damage found so far; reading may find more."""
        own = tuple(TraceHole("", None, None, None, why) for why in (*self.other_holes, *self._lost))
        return own + tuple(hole for process in self.processes for hole in process.holes)

    @property
    def lost(self) -> tuple[str, ...]:
        """Sentences on records that the journals have lost; empty: none."""
        return (*self._lost, *(why for process in self.processes for why in process.record_damage))

    def from_step(self, step: int) -> Trace:
        """The same trace, with the steps of every process from this one on."""
        later = copy(self)
        later.processes = tuple(process.from_step(step) for process in self.processes)
        return later

    def as_if_stopped(self) -> Trace:
        """The same trace, as if all of its processes had been stopped after their last commit."""
        stopped = copy(self)
        stopped.processes = tuple(process.as_if_stopped() for process in self.processes)
        return stopped

    def of_nodes(self, path: Location, nodes: Sequence[Trace], missing: Sequence[str]) -> Trace:
        """This trace, with the processes of all machines. ``missing``: sentences on those that are not there."""
        whole = copy(self)
        whole.path, whole.nodes = path, tuple(nodes)
        whole.exit = None if missing or any(node.exit is None for node in nodes) else _worst([n.exit for n in nodes])
        taken: set[str] = set()
        for node in nodes:
            for process in node.processes:
                process.rename(next(name for name in _numbered(process.name) if name not in taken))
                taken.add(process.name)
        whole.processes = tuple(process for node in nodes for process in node.processes)
        whole.unrecorded = tuple(process for node in nodes for process in node.unrecorded)
        whole.other_holes = [f"{node.path.name}: {why}" for node in nodes for why in node.other_holes]
        whole._lost = [*missing, *(f"{node.path.name}: {why}" for node in nodes for why in node._lost)]
        return whole

    def _read_record(self, record: Record) -> None:
        try:
            match record["type"]:
                case "launch":
                    check_launch(record)
                    self.launch = self.launch or record
                case "journals":
                    self._heads = parse_heads(record)
                case "exit":
                    self.exit = record
                case "library_reports":
                    self._library_reports.setdefault(number(record, "process"), LibraryReports()).add(record)
        except (ValueError, KeyError, TypeError) as error:
            self.other_holes.append(f"the {record['type']} record of {JOURNAL} is inconsistent: {error}")

    def _read_journals(self) -> dict[int, Journal]:
        """The journal of every process folder; an empty one where it cannot be read."""
        numbers = sorted(int(name) for name in self.folder.names(PROCESSES) if is_number(name))
        wanted = (FileRequest(f"{PROCESSES}/{number}/{JOURNAL}", MAX_JOURNAL_BYTES) for number in numbers)
        self.folder.read_ahead([*wanted, *self._start_files(".name")])
        return {number: self._read_journal(number) for number in numbers}

    def _read_journal(self, number: int) -> Journal:
        """One journal, read again where its process ended meanwhile."""
        try:
            found = parse_journal(self.folder.read(f"{PROCESSES}/{number}/{JOURNAL}", self._journal_budget))
            self._journal_budget -= found.length
            start = start_record_of(found)
            if start and not any(record["type"] == "end" for record in found.records):
                found.alive = is_alive(start)
                if not found.alive:
                    found = parse_journal(self.folder.read(f"{PROCESSES}/{number}/{JOURNAL}", MAX_JOURNAL_BYTES))
        except UnreadableError as error:
            return Journal(unreadable=str(error))
        return found

    def _is_of_another_launch(self, journal: Journal) -> bool:
        launch = start_record_of(journal).get("launch")
        return launch is not None and self._launch_digest not in (None, launch)

    def _is_of_this_trace(self, journal: Journal) -> bool:
        """Whether the process of a journal wrote its start to this trace."""
        return self.folder.holds(f"{STARTS}/{start_record_of(journal).get('token')}.json")

    def _processes(self) -> list[ProcessTrace]:
        begun = [number for number, head in (self._heads or {}).items() if head.size]
        last = max([*self._journals, *begun], default=-1)
        gaps = (number for number in range(last + 1) if number not in self._journals)
        self._missing = list(islice(gaps, MAX_NAMED))
        self._lost += [f"{PROCESSES}/{number} is missing" for number in self._missing]
        found = [self._process(number, journal) for number, journal in self._journals.items()]
        owners: dict[str, ProcessTrace] = {}
        self.folder.size_ahead(f"{STARTS}/{process.token}.json" for process in found if process.token is not None)
        for process in sorted(found, key=lambda process: bool(process.record_damage)):
            twin = owners.setdefault(process.name, process)
            if twin is not process:
                self._lost.append(f"{process.base} and {twin.base} both have the name {process.name}")
        for process in owners.values():
            if process.token is not None and not self.folder.holds(f"{STARTS}/{process.token}.json"):
                self._lost.append(f"{STARTS}/{process.token}.json of {process.name} is missing")
        return [process for process in found if owners[process.name] is process]

    def _check_names(self) -> None:
        """Report the processes that claimed a name and are missing, unless they may still begin."""
        known = {process.name for process in self.processes}
        missing = [name for name in self._names() if name not in known]
        if self._heads is not None and not self._missing:
            return  # all processes that began before the end of the launch are here
        if len(missing) > sum(process.state == RUNNING for process in self.unrecorded):
            self._lost += [f"process {name} took its name and is missing" for name in missing]

    def _names(self) -> list[str]:
        """Names that processes of this trace claimed."""
        names = []
        for key, limit, _ in self._start_files(".name"):
            try:
                data = self.folder.read(key, limit)
            except UnreadableError:
                continue
            if key == f"{STARTS}/{name_file(data)}":
                names.append(data.decode(errors="replace"))
        return names

    def _start_files(self, *endings: str) -> list[FileRequest]:
        names = (name for name in self.folder.names(STARTS) if name.endswith(endings))
        return [FileRequest(f"{STARTS}/{name}", MAX_START_BYTES) for name in names]

    def _process(self, number: int, journal: Journal) -> ProcessTrace:
        base, head = f"{PROCESSES}/{number}", (self._heads or {}).get(number)
        wrong = None
        if journal.unreadable or not (journal.records or journal.damage):
            odd = journal.unreadable not in (None, MISSING)  # a link, say, which no writer leaves
            is_lost = odd or bool(head and head.size) or self._has_rows(base)
            wrong = journal.unreadable or "is empty" if is_lost else None
        elif self._is_of_another_launch(journal) or (head is not None and is_another(head, journal)):
            wrong, journal = "is not the journal that was written there", Journal()
        elif head is not None:
            wrong = lost_records(head, journal)
        if wrong:
            journal.damage.append(f"{base}/{JOURNAL} {wrong}")
        process = ProcessTrace(self.folder, base, journal, self._library_reports.get(number))
        failure = self._failure(process.token) if process.token is not None and process.state == KILLED else None
        if failure is not None:
            process.mark_failed(failure)
        return process

    def _has_rows(self, base: str) -> bool:
        return any(is_number(name) for name in self.folder.names(f"{base}/streams"))

    def _unrecorded(self) -> list[UnrecordedProcess]:
        opened = {process.token for process in self.processes}
        files = [name.rpartition(".") for name in self.folder.names(STARTS)]
        tokens = dict.fromkeys(token for token, _, ending in files if ending in ("json", "failed") and token != "zarr")
        unopened = [token for token in tokens if token not in opened]
        self.folder.read_ahead(FileRequest(f"{STARTS}/{token}.json", MAX_START_BYTES) for token in unopened)
        return [self._unrecorded_process(token) for token in unopened]

    def _unrecorded_process(self, token: str) -> UnrecordedProcess:
        try:
            record = printable(parse_start(self.folder.read(f"{STARTS}/{token}.json", MAX_START_BYTES)))
            if record is not None and record.get("token", token) != token:
                record = None  # of another process
            why = None if record else "is not what was written"
        except UnreadableError as error:
            record, why = None, str(error)
        if record is None:
            self.other_holes.append(f"{STARTS}/{token}.json {why}")
            why = f"its start record {why}"
        elif (note := self._note(token, "left-out")) is not None:
            why = str(note.get("why", "not among --processes"))
            return UnrecordedProcess(token, {**record, "name": note.get("name")}, LEFT_OUT, why)
        elif is_alive(record):
            return UnrecordedProcess(token, record, RUNNING, f"process {record.get('pid')} has not begun to record")
        failure = self._failure(token)
        if failure is not None:
            why = f"the recorder could not start: {failure}"
        elif record is not None:
            why = "it is a fork that ran no op" if record.get("forked") else "it only recorded its start"
        return UnrecordedProcess(token, record or {}, NEVER_RECORDED, why or "", failed=failure is not None)

    def _failure(self, token: str) -> str | None:
        """Why the recorder failed in a process; None: no failure note."""
        note = self._note(token, "failed")
        return None if note is None else str(note.get("why", "the recorder failed, and could not write why"))

    def _note(self, token: str, ending: str) -> Record | None:
        """What the note ``TOKEN.ENDING`` says, nothing where it cannot be read; None: there is none."""
        if not self.folder.holds(f"{STARTS}/{token}.{ending}"):
            return None
        try:
            return printable(parse_start(self.folder.read(f"{STARTS}/{token}.{ending}", MAX_START_BYTES))) or {}
        except UnreadableError:
            return {}


def _no_such_file(path: Path) -> str:
    """``no such file``, and the trace beside it whose name is the most similar."""
    try:
        names = [entry.name for entry in path.absolute().parent.iterdir() if entry.suffix == ".zarr"]
    except OSError:
        names = []
    likely = [name for name in names if name == f"{path.name}.zarr"] or get_close_matches(path.name, names, 1)
    return "no such file" + (f" (did you mean {path.with_name(likely[0])}?)" if likely else "")


def open_trace(path: Location | str, *, cached: bool = True) -> Trace:
    """Open a trace in any state, in a folder or at a URL.

    ``cached``: chunks of a trace at a URL that were read before are taken from this machine. Raises NotATraceError,
    FormatVersionError, DamagedTraceError where nothing can be read, and UnreachableError.
    """
    path = parse_location(path) if isinstance(path, str) else path
    folder = _storage(path, cached=cached)
    try:
        return _open(path, folder)
    except NotATraceError:
        if nodes := _nodes(path, folder, cached=cached):
            return nodes
        raise


def _open(path: Location, folder: TraceStore) -> Trace:
    """The trace of one launch."""
    journal = _root_journal(path, folder)
    launch = next((r for r in journal.records if r["type"] == "launch"), {})
    written = [_version(launch.get("format"))]
    document, trouble = _root_document(folder)
    written.append(_version(document))
    if not journal.records and trouble is not None:
        raise DamagedTraceError(f"{path}: neither {JOURNAL} nor zarr.json can be read, so its trace format is unknown")
    versions = [version for version in written if version is not None]
    newest = max(versions, default=FORMAT)
    if not OLDEST <= newest[0] <= FORMAT[0]:
        older = "record again, or install the older one that wrote it"
        remedy = "install a newer one" if newest[0] > FORMAT[0] else older
        raise FormatVersionError(
            f"{path} has format {newest[0]}.{newest[1]}; this rltrace reads {OLDEST}.x to {FORMAT[0]}.x: {remedy}"
        )
    trace = Trace(path, folder, newest, journal)
    if trouble is not None or written[1] is None or len(set(versions)) > 1:
        trace.other_holes.append(f"zarr.json {trouble or 'does not name the format that the launch record names'}")
    return trace


def _nodes(path: Location, folder: TraceStore, *, cached: bool) -> Trace | None:
    """The trace of several machines; None: none is there."""
    last = max((int(name) for name in folder.names(NODES) if is_number(name)), default=0)
    expected, number = last + 1, 0
    found: dict[int, Trace] = {}
    while number < min(expected, MAX_NODES):
        with suppress(NotATraceError, UnreadableError):
            folder.size(f"{NODES}/{number}/{JOURNAL}")  # neither a link, nor a folder of nodes
            place = path.child(f"{NODES}/{number}") if isinstance(path, TraceURL) else path / NODES / str(number)
            node = found[number] = _open(place, _storage(place, cached=cached))
            nodes = node.options.get("nodes")
            expected = max(nodes if isinstance(nodes, int) else 0, last + 1)
        number += 1
    if not found:
        return None
    missing = [f"{NODES}/{at} of {expected} is missing" for at in range(min(expected, MAX_NODES)) if at not in found]
    ordered = sorted(found.values(), key=_lowest_rank)
    return ordered[0].of_nodes(path, ordered, missing)


def _lowest_rank(node: Trace) -> int:
    """The machines of two runs have the same order, in whatever order they came."""
    ranks = (re.match(r"rank(\d+)/", process.name) for process in node.processes)
    return min((int(rank[1]) for rank in ranks if rank), default=MAX_NODES)


def _worst(exits: Sequence[Record | None]) -> Record | None:
    """Of several ends of launches, one that was no success, if there is one."""
    return next((found for found in exits if found and (found.get("status") or found.get("signal"))), exits[0])


def _numbered(name: str) -> Iterator[str]:
    """``name``, ``name#2``, ``name#3`` …"""
    yield name
    yield from (f"{name}#{number}" for number in count(2))


def open_both(a: Trace | Location | str, b: Trace | Location | str) -> tuple[Trace, Trace]:
    """Two traces, opened at the same time where they are at URLs. Raises what ``open_trace`` does."""
    places = [parse_location(trace) if isinstance(trace, str) else trace for trace in (a, b)]
    if sum(isinstance(place, TraceURL) for place in places) < 2:
        return _opened(places[0]), _opened(places[1])
    other: Future[Trace] = remote_traces().RequestPool(1).submit(_opened, places[1])
    return _opened(places[0]), other.result()


def _opened(place: Trace | Location) -> Trace:
    return place if isinstance(place, Trace) else open_trace(place)


def _storage(path: Location, *, cached: bool) -> TraceStore:
    if isinstance(path, TraceURL):
        storage: TraceStore = remote_traces().RemoteStore(path, cached=cached)
        storage.read_ahead([FileRequest(JOURNAL, MAX_JOURNAL_BYTES), FileRequest("zarr.json", LONGEST_DOCUMENT)])
        return storage
    if not path.is_dir():
        raise NotATraceError(f"{path} is no trace: " + ("it is a file" if path.exists() else _no_such_file(path)))
    return Folder(path)


def _root_journal(path: Location, folder: TraceStore) -> Journal:
    """The launch's journal. Raises NotATraceError where neither it nor the root group is that of a trace."""
    try:
        data = folder.read(JOURNAL, MAX_JOURNAL_BYTES)
    except UnreadableError as error:
        data, trouble = b"", f"{JOURNAL} {error}"
    else:
        trouble = f"{JOURNAL} is empty"
    if not data.startswith(MAGIC) and _root_document(folder)[0] is None and not data:
        why = f"it has no launch journal ({JOURNAL})" if trouble == f"{JOURNAL} {MISSING}" else trouble
        raise NotATraceError(f"{path} is no trace of rltrace: {why}")
    return parse_journal(data) if data else Journal(damage=[trouble])


def _root_document(folder: TraceStore) -> tuple[object, str | None]:
    """The format in the root group, and a sentence on an invalid group, or None."""
    try:
        document = json.loads(folder.read("zarr.json", LONGEST_DOCUMENT))
        return document["attributes"]["rltrace"]["format"], None
    except UnreadableError as error:
        return None, str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "is not the root group of a trace"


def _version(found: object) -> tuple[int, int] | None:
    if isinstance(found, list) and len(found) == 2 and all(isinstance(part, int) for part in found):
        return found[0], found[1]
    return None
