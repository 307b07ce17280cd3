"""Captures: the values of tensors and the activation rows that a recording holds besides its rows, and their hooks.

Owns that none of their code is loaded or runs where no option requests it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rltrace import extension
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.core.hooks import OpHook
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState

if TYPE_CHECKING:
    import torch

    from rltrace.recorder.capture.capture_queue import RowQueue, ValueQueue
    from rltrace.recorder.capture.link_checks import LinkChecks
    from rltrace.recorder.capture.memory import NumberedStorages

MakeHook = Callable[[OpRecorder], OpHook[Any]]
"""Makes the hook of one stream."""


class AttemptCapture(Protocol):
    """Captures state around the attempts of optimizers."""

    def attempt_begins(self, optimizer: Any) -> None:
        """The optimizer has changed nothing yet."""

    def attempt_ends(self, optimizer: Any, ordinal: int) -> None:
        """It has returned."""


class CapturedProcess(NamedTuple):
    """What a capture needs of the process."""

    state: ProcessState
    append: Callable[[Mapping[str, object]], None]
    """Adds a record to its journal."""
    roots: Callable[[], Iterable[tuple[str, torch.nn.Module]]]
    """Its outermost modules, by path."""
    stream: Callable[[], OpRecorder]
    """The stream of the calling thread, else the first one."""


class Captures(NamedTuple):
    """The captures of one process."""

    hooks: Sequence[MakeHook] = ()
    """Of each stream, in the order in which they are called."""
    values: ValueQueue | None = None
    memory: NumberedStorages | None = None
    """Of steps that are to be run again as a whole."""
    activations: RowQueue | None = None
    links: LinkChecks | None = None
    attempts: AttemptCapture | None = None
    records: Sequence[Callable[[], Iterable[Mapping[str, object]]]] = ()
    """What returns new records for the journal; called at each commit."""

    def stop(self) -> None:
        """Take nothing more: the recording is over, or belongs to another process."""
        if self.activations is not None:
            self.activations.stop()


def make_captures(options: RecordOptions, process: CapturedProcess) -> Captures:
    """The captures that the options request."""
    captures, append = _recorded_tensors(options, process.state), process.append
    for function in extension.captures(options):
        captures = resolve_name(function)(captures, options, process)
    if not options.check_links:
        return captures
    from rltrace.recorder.capture.link_checks import LinkCheckHook, LinkChecks
    from rltrace.trace.format.records import link_checks_record, link_fault_record

    append(link_checks_record())
    links = LinkChecks(process.state, lambda write: append(link_fault_record(write)))
    return captures._replace(hooks=[*captures.hooks, lambda stream: LinkCheckHook(stream, links)], links=links)


def remember_names(process: ProcessState) -> None:
    """Keep the names by which selectors choose ops; called before any op is recorded."""
    from rltrace.recorder.capture.selection import NAMED

    if not process.tables.remembered:
        process.tables.remember(*NAMED)


def _recorded_tensors(options: RecordOptions, process: ProcessState) -> Captures:
    """The captures of values and state."""
    if not options.values and not options.rows and not options.rerunnable and options.state is None:
        return Captures()
    from rltrace.recorder.capture.capture_queue import ValueQueue
    from rltrace.recorder.capture.values import ValueCapture
    from rltrace.selectors import Selector, parse_selectors
    from rltrace.trace.format.records import ValueRequest

    remember_names(process)
    values = ValueQueue(ValueRequest(options.values, options.values_inputs, options.values_limit))
    selector = parse_selectors(options.values) if options.values else Selector(())
    whole_steps: NumberedStorages | None = None
    of_values: list[MakeHook] = [lambda stream: ValueCapture(stream, values, selector)] if options.values else []
    if options.rerunnable:
        from rltrace.recorder.capture.memory import MemoryCapture, NumberedStorages, reads_all

        wanted = parse_selectors(options.rerunnable)
        storages = NumberedStorages(process.layouts)
        whole_steps = storages if reads_all(wanted) else None
        of_values.append(lambda stream: MemoryCapture(stream, values, storages, wanted))
    return Captures(of_values, values, whole_steps)


class Attachment(Protocol):
    """What is attached to a recording: hooks, and records for the end of its journal."""

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        """The captures of the recording, with those that are added."""

    def records(self) -> list[dict[str, Any]]:
        """Records for the process's journal, as of ``RecordingPart.accounts``."""


Attach = Callable[[str], Attachment | None]
"""Makes what is attached to the recording of the process of that name; None: nothing is."""
