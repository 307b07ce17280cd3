"""Objects that processes exchange through collectives, ``torch.distributed.all_gather_object`` for example.

Such an object travels as its pickle, in a tensor of bytes. The pickle of a tensor names its storage by an address,
another in every run. So an event for each object that is sent or received has a digest of the pickle without those:
where it is equal, bytes that differ carry the same object.
"""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import torch
from torch._C import TensorBase
from xxhash import xxh3_64_intdigest

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.integrations.environments import IntegrationContext
from rltrace.trace.format.events import OBJECT_CONTENT, RECEIVED_OBJECT, SENT_OBJECT
from rltrace.trace.format.schema import Kind

MAX_BYTES: Final = 1 << 28
"""Of a larger pickle the digest is 0: not known."""

_SENT, _RECEIVED = (
    EventForm(Kind.OBJECT, what, counts=("bytes",), evidence=(OBJECT_CONTENT,))
    for what in (SENT_OBJECT, RECEIVED_OBJECT)
)

_ADDRESS: Final = re.compile(rb"X[\x01-\x14]\0\0\0[0-9]+")
"""The name of a storage, as ``torch.save`` writes it in its older format, by which storages are pickled: a text of
digits. A pickle of today writes a text as short in another way."""


class ExchangedObjects:
    """Patches of the functions that make such a tensor and read it, from ``watch`` to ``uninstall``."""

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._patches = Patches()

    def watch(self, module: ModuleType) -> None:
        """``torch.distributed.distributed_c10d`` has been imported."""
        self._patches.wrap(module, "_object_to_tensor", self._to_tensor)
        self._patches.wrap(module, "_tensor_to_object", self._to_object)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _to_tensor(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with suppress(Exception):  # private functions: those of another version may have other arguments
            self._write(_SENT, result[0])
        return result

    def _to_object(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            self._write(_RECEIVED, *args[:2])
        return original(*args, **kwargs)

    def _write(self, form: EventForm, tensor: torch.Tensor, size: Any = None) -> None:
        events = self._context.events
        if events.stream() is None:
            return
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            count = tensor.numel() if size is None else int(size)
            # a copy, as an array of the tensor itself would forbid that torch resizes it
            data = TensorBase.numpy(tensor[:count].to("cpu", copy=True)).tobytes() if count <= MAX_BYTES else b""
        digest = xxh3_64_intdigest(_ADDRESS.sub(b"", data)) if data else 0
        events.write(form, evidence=(count, digest), digests=(), frame=sys._getframe(3))  # below the patch
