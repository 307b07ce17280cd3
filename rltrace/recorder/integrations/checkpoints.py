"""Checkpoints: what a program loads from files, and writes into them.

Patches ``torch.load`` and the functions of ``safetensors.torch`` that load whole files. An event has one digest of all
that was loaded, so that runs with other initial weights diverge there, and beside it those of its entries. Contents of
``MAX_BYTES`` and more are not digested. Of what is written the tensors are digested, for the record of the program's
last state: what was saved is a result of the run, though nothing may be trained with it.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any, Final

import torch

from rltrace.digest import digest_pages
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.modules import tensors_of
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.integrations.environments import IntegrationContext
from rltrace.recorder.integrations.value_digests import MAX_DEPTH
from rltrace.trace.format.schema import Kind

MAX_BYTES: Final = 1 << 32

MAX_ENTRIES: Final = 96
"""Of one checkpoint that have a digest; of more, those that they are in."""

MAX_LOADS: Final = 64
"""Loads of a process whose entries are recorded."""

_COUNTS: Final = ("tensors", "bytes")


MAX_SAVES: Final = 4_096
"""The last writes of a process of which the digests are recorded."""


NoteFile = Callable[[bool, object], None]
"""Called after a file was written (True) or read, with its path or another object."""


class SavedTensors:
    """What the main thread of a process has written into files, by the step at which it did: another thread, as that of
    an asynchronous checkpoint, may write at any."""

    def __init__(self, digests: TensorDigests, step: Callable[[], int]) -> None:
        self._digests, self._step = digests, step
        self._saves: deque[tuple[int, int]] = deque(maxlen=MAX_SAVES)

    def add(self, saved: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        with suppress(Exception), torch_function_disabled(), torch._C._DisableTorchDispatch():  # released, for example
            tensors = list(_tensors_in(_contents(saved)))
            if tensors and sum(tensor.nbytes for tensor in tensors) < MAX_BYTES:
                self._saves.append((self._step(), digest_pages(self._digests.several(tensors), 0)))

    @property
    def record(self) -> list[list[object]]:
        """Field ``saved`` of the journal record ``state``."""
        return [[step, f"{digest:016x}"] for step, digest in self._saves]


class Checkpoints:
    """Patches of functions that load and save, from ``install`` to ``uninstall``."""

    def __init__(self, context: IntegrationContext, note_file: NoteFile, saved: SavedTensors) -> None:
        self._context, self._note_file, self._saved_tensors = context, note_file, saved
        self._patches = Patches()
        self._loads = 0

    def install(self) -> None:
        self._patch("torch.load", "load", (torch, torch.serialization))
        self._patches.wrap_all((torch, torch.serialization), "save", self._saved)

    def watch_safetensors(self, module: ModuleType) -> None:
        """``safetensors.torch`` has been imported. Its ``safe_open`` loads tensors one by one, and is not recorded."""
        for name in ("load", "load_file"):
            self._patch(f"safetensors.torch.{name}", name, (module,))
        self._patches.wrap(module, "save_file", self._saved)

    def _saved(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._note_file(True, kwargs.get("f", kwargs.get("filename", args[1] if len(args) > 1 else None)))
        self._saved_tensors.add(args[0] if args else kwargs.get("obj", kwargs.get("tensors")))
        return result

    def _patch(self, function: str, name: str, holders: Sequence[Any]) -> None:
        digested = EventForm(Kind.CHECKPOINT, function, counts=_COUNTS, digests=("content",))
        without_digest = EventForm(Kind.CHECKPOINT, function, counts=_COUNTS)

        def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            loaded = original(*args, **kwargs)
            self._note_file(False, args[0] if args else kwargs.get("f", kwargs.get("filename")))
            try:
                with torch_function_disabled():
                    self._write(digested, without_digest, loaded, sys._getframe(2))  # below the patch
            except Exception as error:
                self._context.events.fail(error)
            return loaded

        self._patches.wrap_all(tuple(holders), name, load)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _write(self, digested: EventForm, without_digest: EventForm, loaded: Any, frame: FrameType) -> None:
        if self._context.events.stream() is None:
            return
        loaded = _contents(loaded)
        sizes = [tensor.nbytes for tensor in _tensors_in(loaded)]
        small = sum(sizes) < MAX_BYTES
        digests = self._context.digests.that_remember()
        self._loads += 1
        if small and self._loads <= MAX_LOADS:
            texts = tuple((name, f"{digests.digest(value):016x}") for name, value in entries(loaded))
            digested = replace(digested, texts=texts)
        self._context.events.write(
            digested if small else without_digest,
            evidence=(len(sizes), sum(sizes)),
            digests=(digests.digest(loaded),) if small else (),
            frame=frame,
        )


def entries(loaded: Any) -> list[tuple[str, Any]]:
    """The entries of nested mappings and lists by name, ``optimizer.state.0.exp_avg``; the outer ones first, and those
    that would be too many as one."""
    found = {"": loaded}
    left = deque([""])
    while left:
        name = left.popleft()
        value = found[name]
        if not isinstance(value, (Mapping, list, tuple)) or not 0 < len(value) <= MAX_ENTRIES - len(found):
            continue
        del found[name]
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        inner = {f"{name}.{key}".removeprefix("."): item for key, item in items}
        found |= inner
        left += inner
    return [(name, value) for name, value in found.items() if name]


def _contents(value: Any) -> Any:
    """What is in a file; of a module its tensors by name."""
    return dict(tensors_of(value)) if isinstance(value, torch.nn.Module) else value


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_nested:
            yield value
    elif depth < MAX_DEPTH and isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item, depth + 1)
