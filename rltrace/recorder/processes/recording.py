"""The life of one recording of a process: its journal, facts and failures, from its start to its end.

Owns what every source of rows shares: torch's (``session/session.py``), and those of extensions. A source lists its
*parts* in their order; nothing else says when each begins and ends. No error of the recorder reaches the program.
Imports no torch.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rltrace import fingerprint
from rltrace.digest import ALGORITHM
from rltrace.fingerprint import Facts, sources
from rltrace.masking import home_as_tilde, masked_arguments, masked_text
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.processes.exits import (
    TERMINATION_SECONDS,
    CommitServer,
    Endings,
    EndLook,
    interrupt_program,
    stay_interrupted,
)
from rltrace.trace.format.process_start import note_failure, note_stopped
from rltrace.trace.write.writer import ProcessWriter

MAX_NOTES: Final = 20
"""Entries of one fact that is a list."""

NO_FACTS: Final[Mapping[str, fingerprint.Fact]] = {}


def _nothing(*_: object) -> None: ...


class RecordingPart(NamedTuple):
    """One part of a recording: what is called at each turn of its life, where it has something to do.

    Parts are called in their order as a recording begins, and in the opposite one as it ends.
    """

    install: Callable[[], object] = _nothing
    """The recording begins."""
    wake: Callable[[], object] = _nothing
    """Rows are recorded from now on: follows ``install``, unless the process is started asleep."""
    sleep: Callable[[], object] = _nothing
    """They no longer are; also called where they were not."""
    uninstall: Callable[[], object] = _nothing
    """The recording ends, or this process is a forked child, where no lock may be taken and no thread waited for."""
    stop: Callable[[], object] = _nothing
    """The recording has failed: take nothing more. Called in any thread, in the order of the parts."""
    commit: Callable[[], object] = _nothing
    """Write all that is finished."""
    replace: Callable[[str | None], object] = _nothing
    """Another program is about to replace the process; None: that has failed, and it goes on."""
    facts: Callable[[], Mapping[str, fingerprint.Fact]] = lambda: NO_FACTS
    """Facts that are known once something has been computed."""
    accounts: Callable[[], Iterable[Mapping[str, object]]] = lambda: ()
    """Records of what was done so far, of which the last counts: where the process ends, and where it is about to be
    terminated. Called in any thread."""
    records: Callable[[], Iterable[Mapping[str, object]]] = lambda: ()
    """Records that precede the last one of the journal."""
    end: Callable[[], Mapping[str, Any]] = dict
    """What ``ProcessWriter.close`` is called with besides how the process ends."""
    close: Callable[[], object] = _nothing
    """The journal has ended, or has failed."""
    at_exit: Callable[[], object] = _nothing
    """The interpreter exits, and the recording has ended."""


class ProcessRecording:
    """The recording of one process by one source of rows."""

    def __init__(self, options: RecordOptions, token: str, name: str, engine: str, version: Mapping[str, str]) -> None:
        """``engine``: how rows are made; ``version``: of the source's library. Raises RecordError."""
        self.options = options
        self.token, self._pid = token, os.getpid()
        self.level, self.engine = options.level, engine
        """Of what was recorded so far; a source may set both anew."""
        start = {"token": token, "pid": self._pid, "parent": os.getppid(), "argv": masked_arguments(sys.argv)}
        start |= {"name": name, "executable": home_as_tilde(sys.executable)}
        self.writer = ProcessWriter.open(Path(options.trace), start | dict(version))
        self.is_over = False
        """Whether it has ended or failed, or this is a forked child. An attribute, as it is read at every call."""
        self.failure: str | None = None
        """Why the recording failed; None: it has not."""
        self._parts: Sequence[RecordingPart] = ()
        self._facts: Facts = {}
        self._notes: dict[str, list[str]] = {}
        self._sources: set[str] = set()
        self._started = time.time()
        self._finished = False
        self._stopped = ""
        """Why the recorder has ended the program; empty: it has not."""
        self._closed = threading.Event()
        self._end_look = EndLook(options.trace) if options.against and options.stop else None
        self._endings = Endings(self.finish, self._replaced)

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self, parts: Sequence[RecordingPart], facts: Mapping[str, fingerprint.Fact] = NO_FACTS) -> None:
        """Begin with these parts, and with facts of the source that are known before it computes anything.

        Where that fails, the recording has failed and nothing is left.
        """
        self._parts = parts
        try:
            self._facts = {"digest": ALGORITHM, **facts, **fingerprint.start()}
            self.writer.facts(self.level, self.engine, self._facts)
            for part in parts:
                part.install()
            if not self.options.asleep:
                self.wake()
            self._endings.install()
            atexit.register(self._at_exit)
        except Exception as error:
            self.fail(error)
            self.finish()

    def wake(self) -> None:
        """Record rows from now on."""
        for part in self._parts:
            part.wake()

    def sleep(self) -> None:
        """Record no rows, until ``wake``."""
        for part in reversed(self._parts):
            part.sleep()
        self.commit()

    def commit(self) -> None:
        """Write all that is finished."""
        for part in self._parts:
            part.commit()

    def finish(self) -> None:
        """Undo all patches, commit what is left, record how the process ended. Safe to call twice."""
        if self._finished or self.is_inherited:
            return
        self._finished = self.is_over = True
        atexit.unregister(self._at_exit)
        self._endings.uninstall()
        for part in reversed(self._parts):
            self._safely(part.sleep)
            self._safely(part.uninstall)
        if self.failure is None:
            self._safely(self._close)
        self._closed.set()
        for part in reversed(self._parts):
            self._safely(part.close)

    def _close(self) -> None:
        self.commit()
        self.write_facts()
        end: dict[str, Any] = {}
        for part in self._parts:
            for record in (*part.accounts(), *part.records()):
                self.writer.append(record)
            end |= part.end()
        error = getattr(sys, "last_value", None)
        ending = {} if error is None else {"exception": type(error).__name__}
        if self._stopped:
            ending["why"] = self._stopped
        self.writer.close("stopped" if self._stopped else "complete", ending, **end)

    def fail(self, error: Exception) -> None:
        """An internal error of the recorder: the recording ends, the program goes on."""
        if self.failure is not None:
            return
        self.failure, self.is_over = f"{type(error).__name__}: {error}", True
        if os.environ.get("RLTRACE_DEBUG"):
            import traceback

            traceback.print_exception(error)
        for part in self._parts:
            self._safely(part.stop)
        why = f"the recorder failed: {self.failure}"
        with contextlib.suppress(Exception):
            self.writer.close("damaged", {"why": why})
        if not self.writer.ended and not self.is_inherited:  # the journal cannot be written
            note_failure(self.options.trace, self.token, why)

    def _safely(self, action: Callable[[], object]) -> None:
        """Where it fails, the recording does, and what follows is done all the same."""
        try:
            action()
        except Exception as error:
            self.fail(error)

    def guarded(self, action: Callable[[], object]) -> None:
        """Do this unless the recording is over; where it fails, the recording ends, and the program goes on."""
        if not self.is_over:
            self._safely(action)

    # --- other ends of a process --------------------------------------------------------------------------------------

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the recorded one."""
        return os.getpid() != self._pid

    def forked(self) -> bool:
        """In a forked child: undo all patches; returns whether the parent was still recorded.

        Takes no lock: the thread that holds it may not exist here.
        """
        if self._finished:
            return False
        self._finished = self.is_over = True
        atexit.unregister(self._at_exit)
        self._endings.uninstall()
        for part in reversed(self._parts):
            with contextlib.suppress(Exception):
                part.uninstall()
        self._parts = ()
        return self.failure is None

    def terminated(self) -> None:
        """The parent, or the launcher, is about to terminate this process, which may already be ending."""
        if self._stopped:
            self.finish()
        if self._finished:
            self._closed.wait(TERMINATION_SECONDS)
        self._end_provisionally("stopped", {"why": "its parent terminated it"})

    def _replaced(self, program: str | None) -> None:
        """``exec`` of ``program`` is about to replace this process; None: it failed."""
        for part in self._parts:
            self._safely(partial(part.replace, program))
        self._end_provisionally(None if program is None else "complete", {"exec": program})

    def _end_provisionally(self, state: str | None, ending: Mapping[str, object]) -> None:
        """Commit all rows, and record how the process ends if nothing follows; None: it goes on."""

        def write() -> None:
            self.commit()
            for part in self._parts:
                with contextlib.suppress(Exception):  # of what the program does meanwhile
                    for record in part.accounts():
                        self.writer.append(record)
            self.writer.append({"type": "provisional_end", "state": state, "exit": dict(ending)})

        self.guarded(write)

    def _at_exit(self) -> None:
        self.finish()
        for part in self._parts:
            self._safely(part.at_exit)
        stay_interrupted()

    def step_ended(self, step: int) -> None:
        """Step ``step`` has been recorded: end the program where that is due."""
        until = self.options.until
        if until is not None and step >= until and not self._stopped:
            self.stop_program(f"--until {until} ended it")
        if self._end_look is not None and (why := self._end_look.due(step)):
            self.stop_program(why)

    def stop_program(self, why: str) -> None:
        """End the program as Ctrl-C would, but without a traceback; the trace records ``why``.

        A program that then waits forever, for a worker or a thread, is ended by the launcher, which has the recording
        finished first.
        """
        self._stopped = why
        server = CommitServer(self.options.trace)  # a worker has one already, and this one then serves nothing
        server.listen()
        with contextlib.suppress(RuntimeError):  # no thread can be started: the trace ends with the last commit
            server.serve(self.terminated)
        note_stopped(self.options.trace, self.token)
        interrupt_program()

    # --- facts --------------------------------------------------------------------------------------------------------

    def write_facts(self, more: Mapping[str, fingerprint.Fact] = NO_FACTS) -> None:
        """Record all facts; some a library fixes when they are first read, so not before the program has computed."""
        for part in self._parts:
            self._facts |= part.facts()
        files = dict(sources.source_files(self._sources, self._started))
        self._sources |= files.keys()
        self._facts |= fingerprint.facts(self._facts, files.values())
        self.writer.facts(self.level, self.engine, {**self._facts, **more})
        self._write_sources(files)

    def _write_sources(self, files: Mapping[str, sources.SourceFile]) -> None:
        """Record the digests of the lines of these files, and with ``--sources`` their text."""
        if files:
            entries = [
                {
                    "file": name,
                    "path": home_as_tilde(file.path),
                    "lines": b64encode(sources.line_digests(file.text)).decode(),
                }
                | ({"text": masked_text(file.text.decode(errors="replace"))} if self.options.sources else {})
                for name, file in files.items()
            ]
            self.writer.append({"type": "sources", "listed": entries})

    def note(self, fact: str, text: str) -> None:
        """Add an entry to a fact that is a list, at once: it is to be in the trace of a program that is killed."""
        noted = self._notes.setdefault(fact, [])
        is_closed = self.failure is not None or self._closed.is_set() or self.is_inherited
        if is_closed or text in noted or len(noted) >= MAX_NOTES:
            return
        noted.append(text)
        self._safely(lambda: self.writer.facts(self.level, self.engine, {fact: "; ".join(noted)}))
