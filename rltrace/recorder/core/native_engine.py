"""The native engine: the hot path in C++, below the boxing of arguments into Python (``rltrace/native``).

Owns what connects its tables to the recorder in Python. The mode stays on torch's stack of modes, and the rows are the
same, cell by cell: an op whose row does not follow from the tables, or that a hook wants, goes to
``OpRecorder.observe``, and a rare case within an op to the method that ``observe`` calls for it. Also owns which engine
records the ops of this process, the numbers that the library must share with the recorder, and the facts of the choice.
"""

import os
import sys
from _thread import start_new_thread
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.errors import UsageError
from rltrace.fingerprint import Facts
from rltrace.masking import masked_text
from rltrace.native.library import LoadedLibrary, load
from rltrace.recorder.base.dispatch_mode import DispatchEngine, Observer, RecorderMode
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.stack_space import check_stack_space
from rltrace.recorder.core.call_sites import Anchor
from rltrace.recorder.core.calls import Call, flatten_arguments
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.hooks import HookedOps
from rltrace.recorder.core.modules import ModuleNames, ModuleStack
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import (
    MIXED,
    OUTSIDE,
    OUTSIDE_READ,
    OVERWRITTEN,
    PHASE_BITS,
    PHASE_SHIFT,
    UNKNOWN,
    BufferTables,
    RowConsumer,
    phase_bits,
)
from rltrace.recorder.digests.layouts import Layout
from rltrace.trace.format.schema import GENERATOR_SHIFT, SLOT_UNKNOWN, LinkNote, Phase, RowFlag

_get_frame = sys._getframe
_start_thread = start_new_thread


class NativeEngine(DispatchEngine):
    """Interception by a dispatch mode whose ops the library takes before Python does."""

    def __init__(self, library: Any) -> None:
        super().__init__()
        self._library = library

    def enter(self, observer: Observer) -> None:
        super().enter(observer)
        stream = observer.stream if isinstance(observer, HookedOps) else observer
        if isinstance(stream, NativeRecorder):
            stream.native.arm(self._mode, stream, bool(stream.hooks))
        else:
            self._library.disarm(self._mode)

    def silence(self) -> None:
        if self._mode is not None:
            self._library.disarm(self._mode)
        super().silence()


def _field(name: str) -> Any:
    """A number of the recorder that the library reads and writes."""
    return property(attrgetter(f"native.{name}"), lambda self, value: setattr(self.native, name, value))


class NativeRecorder(OpRecorder):
    """The recorder of one thread, with the tables of the library."""

    row = _field("row")
    limit = _field("limit")
    phase = _field("phase")
    settings = _field("snapshot")
    _marked = _field("marked")
    _digested = _field("digested")

    def __init__(self, process: ProcessState, number: int, name: str, committer: RowConsumer, library: Any) -> None:
        """``process`` has the storage tables of the library."""
        tables: Any = process.storages.tables
        maps = tables.new_writer_maps()
        self.native = native = library.Recorder(tables, maps, number, get_ident())
        process.sites.on_clear, process.settings.on_new_flags = tables.forget_sites, tables.forget_settings
        modules = NativeModuleStack(process.module_names, _Anchors(native), native)
        cells = native.fixed, native.links, native.integers, native.floats, native.digests, native.link_notes
        super().__init__(process, number, name, committer, BufferTables(*cells, maps, modules))

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(first row, id in table "settings") wherever the settings changed."""
        self._epochs += self.native.take_epochs()
        return self._epochs

    @epochs.setter
    def epochs(self, epochs: list[tuple[int, int]]) -> None:
        self._epochs = epochs

    def _add_epoch(self) -> None:
        self.native.add_epoch(self.row, self.settings.number)

    def write_event(
        self,
        form: EventForm,
        evidence: Sequence[int],
        digests: Sequence[int],
        integers: Sequence[int],
        floats: Sequence[float],
        frame: FrameType,
    ) -> None:
        cells = self._forms.get((form, len(evidence))) or self._intern(form, len(evidence))
        if self.native.write_event(cells, (*evidence, *digests), integers, floats, frame, self.process.sites.intern):
            self._committer.wake(self)

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self._update_first_row()
        if any(hook.wants_by_step for hook in self.hooks):
            self.native.forget_wanted()

    def write_window_tensor(self, bits: int, name: str, owner: str, tensor: torch.Tensor) -> None:
        super().write_window_tensor(bits, name, owner, tensor)
        self._update_first_row()

    def _update_first_row(self) -> None:
        self.native.first_row = max(self.steps[-1][0], self._writers.window_rows)

    # --- called by the library --------------------------------------------------------------------------------------
    #
    # Beside these, it calls the methods that ``observe`` calls.

    def find_call(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Call:
        """The call of a signature that the library has not seen."""
        key: list[object] = [id(func)]
        if kwargs:
            key.append(tuple(kwargs))
        tensors: list[torch.Tensor] = []
        values = (*args, *kwargs.values()) if kwargs else args
        counts = flatten_arguments(values, key, tensors, array("q"), array("d"))
        signature = tuple(key)
        return self._calls.get(signature) or self.process.calls.make(func, args, kwargs, signature, tensors, *counts)

    def hooks_want(self, func: OpOverload, module: int, bits: int) -> bool:
        """Whether a hook wants ops of this operator; ``bits``: of the phase, as in the flags of a row."""
        plan, phase = self.process.calls.plan(func), Phase(bits >> PHASE_SHIFT & 0xFF)
        return any(hook.wants(plan, module, phase) for hook in self.hooks)

    def layout_of(self, tensor: torch.Tensor) -> Layout:
        return self.process.layouts.of(tensor)

    def state_of(self, generator: torch.Generator) -> tuple[int, int]:
        """Digest of the state of a generator that an op is about to draw from, and the flags of its row."""
        digest, number = self.process.generators.of(generator)
        return digest, int(RowFlag.RNG) | number << GENERATOR_SHIFT

    def intern_site(self, continues: bool) -> int:
        """Id of the stack of the caller. ``continues``: at the top anchor, as in a thread of autograd."""
        try:
            first = _get_frame(1)
        except ValueError:
            first = None
        return self.process.sites.intern(first, self.anchors[-1].frame if continues else None)

    def check_attempt(self, flags: int) -> int:
        """The top anchor is not on the stack; returns the row's flags."""
        return flags if self._attempt_depth is None else self._drop_attempt(flags)

    def wake_committer(self) -> None:
        """The stream has reached its limit."""
        self._committer.wake(self)

    def forget_storages(self, dead: Iterable[int]) -> None:
        """Storages at these addresses no longer exist."""
        self.process.storages.forget(dead)

    def drop_raised(self, links: int, integers: int, floats: int, addresses: Iterable[int]) -> None:
        """The op raised: drop so many cells, and the reads of these storages."""
        self._roll_back([], links, integers, floats)
        for address in addresses:
            self.process.storages.reads.pop(address)

    def failed(self, error: BaseException, call: Call | None, tensors: list[torch.Tensor]) -> None:
        """Writing a row failed; ``call``: its op has run. Raises what is the program's (Ctrl-C)."""
        if not isinstance(error, Exception):
            self._interrupted(call, tensors)
            raise error
        try:
            check_stack_space(error)
            self.process.fail(error)
        except RecursionError:
            _start_thread(self._drop_row, ((tensors,), None))
            self._row_dropped.acquire()


class _Anchors(list[Anchor]):
    """The anchors of a stream; the library knows the top one's frame."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def append(self, anchor: Anchor) -> None:
        super().append(anchor)
        self._native.set_anchor(anchor.frame)

    def __delitem__(self, places: Any) -> None:
        top = self[-1] if self else None
        super().__delitem__(places)
        self._native.set_anchor(self[-1].frame if self else None)
        del top  # its frame was alive until the library had the next one


class NativeModuleStack(ModuleStack):
    """The modules that a thread is in, kept by the library. Calls of modules are no anchors: it walks whole stacks."""

    def __init__(self, names: ModuleNames, anchors: list[Anchor], native: Any) -> None:
        self._native = native
        super().__init__(names, anchors)
        native.know_modules(names.known)

    @property
    def current(self) -> int:
        """Id in table "modules" of the innermost module being called; 0: none."""
        return int(self._native.module)

    @current.setter
    def current(self, module: int) -> None:
        self._native.module = module

    @property
    def depth(self) -> int:
        return int(self._native.depth)

    def enter(self, module: torch.nn.Module, frame: FrameType) -> None:
        native = self._native
        if self.on_outermost is not None and not native.depth and frame.f_back is not None:
            self.on_outermost(frame.f_back)
        found = self._names.known.get(id(module)) or self._names.of(module)
        native.enter(native.module if found is None else found)

    def begin_backward(self, frame: FrameType) -> None:
        self._native.enter_backward(len(self.anchors))
        self.anchors.append(Anchor(frame))

    def leave(self) -> None:
        anchors = self._native.leave()
        if anchors >= 0:
            del self.anchors[anchors:]

    def of_node(self, number: int) -> int:
        return int(self._native.module_of(number))


CONSTANTS = {
    **{name: int(RowFlag[name]) for name in ("MARKED", "RNG", "VIEW", "ALLOCATION")},
    **{name: int(RowFlag[name]) for name in ("VALUE_BOOL", "VALUE_INTEGER", "VALUE_FLOAT", "VALUE_COMPLEX")},
    "PHASE": PHASE_BITS,
    "BACKWARD": phase_bits(Phase.BACKWARD),
    "TORCH_GENERATOR": 1 << GENERATOR_SHIFT,
    "SLOT_UNKNOWN": SLOT_UNKNOWN,
    "STORAGE_OFFSET": int(LinkNote.STORAGE_OFFSET),
    "LAST_WRITER": int(LinkNote.LAST_WRITER),
    "OUTSIDE": OUTSIDE,
    "OUTSIDE_READ": OUTSIDE_READ,
    "UNKNOWN": UNKNOWN,
    "MIXED": MIXED,
    "OVERWRITTEN": OVERWRITTEN,
}
"""Numbers of rows and cells that the library writes, too."""

DEVICE_FILES = "/dev/nvidiactl", "/dev/kfd"
"""One of them exists where there is a GPU. Not torch's own question: that starts a driver, which no fork survives."""

SHOWN_HANDED = 3
"""Reasons in the fact that lists the most frequent."""


def choose_library(options: RecordOptions, *, attached: bool = False) -> LoadedLibrary:
    """The native engine's library, or why ops are recorded in Python. Raises UsageError where it is required.

    ``attached``: hooks may be added, which see every op.
    """
    why_not = _why_python(options, attached=attached)
    loaded = load(Path(torch.__file__).parent, CONSTANTS)
    hides_mode = loaded.module is not None and loaded.module.hide_modes(RecorderMode) > 0
    loaded = (LoadedLibrary(why_not=why_not) if why_not else loaded)._replace(hides_mode=hides_mode)
    if loaded.module is None and options.engine == "native" and options.level == "op":
        raise UsageError(f"the native engine is required: {loaded.why_not}")
    return loaded


def _why_python(options: RecordOptions, *, attached: bool) -> str:
    """Why the library is to record no ops; empty: it is."""
    if options.engine == "mode":
        return "--engine mode"
    if options.in_python or attached:
        return f"{options.in_python or 'an attachment'} needs Python at every op"
    if options.engine == "auto" and any(map(os.path.exists, DEVICE_FILES)):
        return "this machine has a GPU, on which it has not been tried; --engine native tries it"
    return ""


def choice_facts(options: RecordOptions, loaded: LoadedLibrary) -> Facts:
    """Facts of the engine; none where no ops are recorded: the library then only reads parameters and generators."""
    if options.level != "op":
        return {}
    facts: Facts = {} if loaded.hides_mode else {"engine.hides_mode": False}
    if loaded.module is not None:
        return {"engine.native": True, **facts}
    why_not = masked_text(loaded.why_not)
    return {"engine.native": False, "engine.native.why_not": why_not, **facts} if why_not else facts


def handed_facts(natives: Sequence[Any]) -> Facts:
    """Facts of the ops of all streams, from their recorders in the library: how many, and how many Python recorded."""
    if not natives:
        return {}
    ops, handed = 0, Counter[tuple[str, str]]()
    for native in natives:
        ops += native.ops
        handed.update(native.handed)
    facts: Facts = {"engine.native.ops": ops, "engine.native.handed": handed.total()}
    if handed:
        most = handed.most_common(SHOWN_HANDED)
        facts["engine.native.handed.most"] = "; ".join(f"{op}, {why}: {count}" for (op, why), count in most)
    return facts
