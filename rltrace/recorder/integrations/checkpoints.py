"""Checkpoints: what a program loads from files.

Stands in for ``torch.load``, and for what ``safetensors.torch`` loads whole files with. An event has one digest of all
that was loaded, so that two runs that begin from other weights part there. Weights of ``MOST_BYTES`` and more are not
read for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, Final

import torch

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.modules import tensors_of
from rltrace.recorder.integrations.environments import Teller
from rltrace.recorder.integrations.value_digests import DEEPEST, ValueDigests
from rltrace.trace.format.schema import Kind

MOST_BYTES: Final = 1 << 32

_COUNTS: Final = ("tensors", "bytes")


class Checkpoints:
    """What stands in for functions that load, from ``install`` to ``uninstall``."""

    def __init__(self, contents: ValueDigests, teller: Teller) -> None:
        self._contents = contents
        self._teller = teller
        self._patches = Patches()

    def install(self) -> None:
        self._stand_in_for("torch.load", "load", (torch, torch.serialization))

    def watch_safetensors(self, module: ModuleType) -> None:
        """``safetensors.torch`` has been imported. Its ``safe_open`` gives out tensors one by one, and is not seen."""
        for name in ("load", "load_file"):
            self._stand_in_for(f"safetensors.torch.{name}", name, (module,))

    def _stand_in_for(self, what: str, name: str, holders: Sequence[Any]) -> None:
        told = EventForm(Kind.CHECKPOINT, what, counts=_COUNTS, digests=("content",))
        untold = EventForm(Kind.CHECKPOINT, what, counts=_COUNTS)

        def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            loaded = original(*args, **kwargs)
            try:
                with torch_function_disabled():
                    self._loaded(told, untold, loaded, sys._getframe(2))  # below the patch
            except Exception as error:
                self._teller.fail(error)
            return loaded

        self._patches.wrap_all(tuple(holders), name, load)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _loaded(self, told: EventForm, untold: EventForm, loaded: Any, frame: FrameType) -> None:
        if not self._teller.is_told():
            return
        if isinstance(loaded, torch.nn.Module):
            loaded = dict(tensors_of(loaded))
        sizes = [tensor.nbytes for tensor in _tensors_in(loaded)]
        small = sum(sizes) < MOST_BYTES
        self._teller.event(
            told if small else untold,
            evidence=(len(sizes), sum(sizes)),
            digests=(self._contents.digest(loaded),) if small else (),
            integers=(),
            floats=(),
            frame=frame,
        )


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_nested:
            yield value
    elif depth < DEEPEST and isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item, depth + 1)
