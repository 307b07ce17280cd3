"""The digests of a tensor's activation rows, and the queue that holds them until a commit writes them.

Owns when a tensor's bytes are copied, which tensors have none, and which equal ones share their digests. Runs outside
of the program's modes, subclasses and autograd; keeps no tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from itertools import islice
from math import prod
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.digest.activation_rows import row_digests
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.capture.capture_queue import FLUSH_BYTES, MAX_PENDING_BYTES, RowQueue, ValueQueue
from rltrace.recorder.capture.values import CAPTURED, COMPOUND, DTYPES, NO_MEMORY, NoBytesError, bytes_of, read_in_place
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.digests.cuda_graphs import is_captured, overrides_disabled
from rltrace.recorder.digests.layouts import Layout, dtype_name, is_compound
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.format.records import ActivationRequest, axes_of
from rltrace.trace.format.schema import LIMIT, ValueKind
from rltrace.trace.write.packers import TENSOR, NewActivations, NewValue, PendingActivations, bits_of

# --- queue ------------------------------------------------------------------------------------------------------------
#
# Owns the limit and the count of what was left out. Knows nothing of torch.


OVERHEAD: Final = 88
"""Bytes that a call, and each tensor of a call or an op, use of the limit besides their digests."""


class ActivationQueue(RowQueue):
    """Captured activation rows, with the bytes that they use."""

    def __init__(self, request: ActivationRequest) -> None:
        super().__init__(request)
        self._pending: dict[int, PendingActivations] = {}

    def add_digests(self, stream: int, digests: bytes) -> int | None:
        """Add the digests of a tensor's rows, and return their place among those of the stream; None: the limit is
        reached, and nothing more is added."""
        with self._lock:
            if self.is_full or self._used + len(digests) + OVERHEAD > self.request.limit:
                self.is_full = True
                return None
            self._used += len(digests)
            self.pending_bytes += len(digests)
            return self._of(stream).add_digests(digests)

    def add_call(self, stream: int, call: Sequence[int], tensors: bytearray) -> None:
        """Add a call of a module that has ended, as of ``PendingActivations``."""
        if self.pending_bytes > FLUSH_BYTES:
            self._request_room()
        with self._lock:
            self._count(len(tensors))
            self._of(stream).add_call(call, tensors)

    def add_op(self, stream: int, row: int, tensors: bytes) -> None:
        """Add the op of a row, as of ``PendingActivations``."""
        if self.pending_bytes > FLUSH_BYTES:
            self._request_room()
        with self._lock:
            self._count(len(tensors))
            self._of(stream).add_op(row, tensors)

    def _request_room(self) -> None:
        self.request_commit()
        if self.pending_bytes > MAX_PENDING_BYTES and not self.stopped:
            self.wait_for_commit()

    def _count(self, size: int) -> None:
        """Count an entry with so many bytes of tensors."""
        size = OVERHEAD * (size // TENSOR.size + 1)
        self._used += size
        self.pending_bytes += size
        if self._used > self.request.limit:
            self.is_full = True

    def forget(self, stream: int, row: int) -> None:
        """Drop the op of a row whose writing was interrupted."""
        with self._lock:
            self._of(stream).forget_op(row)

    def take(self, stream: int, end: int) -> NewActivations:
        """Entries that need only the stream's rows before ``end``, and what was left out since the last call."""
        with self._lock:
            found = self._of(stream).take(end, self._pop_left_out(stream))
            self.pending_bytes = sum(own.size for own in self._pending.values())
            return found

    def stop(self) -> None:
        super().stop()
        with self._lock:
            self._pending.clear()

    def _of(self, stream: int) -> PendingActivations:
        return self._pending.get(stream) or self._pending.setdefault(stream, PendingActivations(stream))


# --- tensors ----------------------------------------------------------------------------------------------------------


MAX_KNOWN: Final = 1 << 16
"""Tensors whose row digests are remembered, at least; at most twice as many."""

MAX_KEY_BYTES: Final = 1 << 20
"""Bytes up to which integer and boolean tensors of calls are captured without request, whatever the limit of values:
they identify rows."""

MAX_COPIED_BYTES: Final = 1 << 22
"""Bytes up to which a tensor is copied before it is read; a larger one is read twice."""

CHANGED: Final = "something wrote to the tensor while its rows were recorded"
WRAPPED: Final = "a tensor within a transform of functorch (vmap, grad) has no separate bytes"
TRACED: Final = "the program was being traced"

Tensor = torch.Tensor
PLAIN = (Tensor, torch.nn.Parameter)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class RowDigests:
    """Digests the rows of tensors of one stream."""

    def __init__(self, process: ProcessState, stream: int, queue: ActivationQueue, values: ValueQueue) -> None:
        self._process = process
        self._stream = stream
        self._queue = queue
        self._values = values
        self._names: dict[str, int] = {}
        self._forms: dict[int, _Form] = {}
        """By id of a layout."""
        self._places: dict[tuple[int, int], int] = {}
        """Of the digests of a tensor's rows, by digest of the tensor and axes."""
        native = None if process.library is None else process.library.RowReader
        self.reader = None if native is None else native(self, self._names, self._places)
        """Of the library; None: there is none."""

    def name(self, text: str) -> int:
        """Id in table "names"."""
        found = self._names.get(text)
        if found is None:
            if len(self._names) >= MAX_KNOWN:
                self._names.clear()
            found = self._names[text] = self._process.tables.intern_payload("names", text)
        return found

    def knows(self, digest: int) -> bool:
        """Whether the value of a tensor with this digest has been captured."""
        return self._values.knows(digest)

    @staticmethod
    def fields_of(kind: type) -> tuple[str, ...] | None:
        """Names of the fields of a dataclass; None: it is none."""
        return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None

    def add(self, key: tuple[int, int], digests: bytes) -> int | None:
        """Add the digests of the rows of a tensor that is new, by its digest and axes, and return their place; None:
        the limit is reached."""
        place = self._queue.add_digests(self._stream, digests)
        if place is not None:
            if len(self._places) >= 2 * MAX_KNOWN:
                for old in list(islice(self._places, MAX_KNOWN)):
                    del self._places[old]
            self._places[key] = place
        return place

    def take(
        self,
        part: Part,
        name: str,
        tensor: Tensor,
        row: int,
        *,
        digest: int | None = None,
        within_op: bool = False,
        with_value: bool = False,
    ) -> bytes | None:
        """The rows of one tensor, as it is now, as a ``TENSOR``; None where it cannot be read, which is recorded.

        ``digest``: of the tensor, where it has just been computed. ``row``: rows that the stream has now.
        ``with_value``: its value is requested, too. ``within_op``: called by the recorder of an op; else the tensor is
        of a call, and may hold what identifies rows.
        """
        if self.reader is not None and digest is None and not self._queue.is_full:
            found: bytes | None = self.reader.take(part, name, tensor, row, with_value, within_op)
            if found is not None:
                return found
        try:
            with overrides_disabled():
                if type(tensor) not in PLAIN and is_compound(tensor):  # whose shape may be made of symbols
                    raise NoBytesError(COMPOUND)
                layout = self._process.layouts.of(tensor)
                form = self._forms.get(layout.id) or self._make_form(tensor, layout)
                is_key = not within_op and form.may_be_key
                return self._take((part, name), tensor, row, form, digest, with_value or is_key, is_key=is_key)
        except NoBytesError as error:
            why = str(error)
        except RuntimeError:
            why = NO_MEMORY
        except Exception as error:  # of an unusual tensor: the rest of the recording goes on
            why = f"it cannot be read: {type(error).__name__}"
        self._queue.leave_out(why, self._stream, row, 0)
        return None

    def _make_form(self, tensor: Tensor, layout: Layout) -> _Form:
        shape = tuple(tensor.shape)
        axes = axes_of(self._queue.request.axes, len(shape))
        form = self._forms.setdefault(layout.id, _Form(layout, tensor.dtype, tensor.element_size(), shape, axes))
        if self.reader is not None and form.is_quick and type(tensor) in PLAIN:
            self.reader.know(tensor, (layout.id, form.bits), layout.seed, form.seed, form.count, form.may_be_key)
        return form

    def _take(
        self,
        place: tuple[Part, str],
        tensor: Tensor,
        row: int,
        form: _Form,
        digest: int | None,
        with_value: bool,
        *,
        is_key: bool,
    ) -> bytes | None:
        layout = form.layout
        known = digest is not None and (digest, form.bits) in self._places
        if known and not (with_value and not self._values.knows(digest or 0)):
            assert digest is not None
            return self._new(place, row, form, digest, lambda: b"")
        with _bytes(tensor, layout) as data:
            whole = digest_buffer(data, layout.seed)
            if digest is not None and whole != digest:
                raise NoBytesError(CHANGED)

            def digests() -> bytes:
                found = form.row_digests(data)
                if type(data) is memoryview and digest_buffer(data, layout.seed) != whole:
                    raise NoBytesError(CHANGED)
                return found.tobytes()

            new = self._new(place, row, form, whole, digests)
            if new is not None and with_value and not self._values.knows(whole):
                self.add_value(whole, layout.id, bytes(data), row, is_key)
            return new

    def _new(
        self, place: tuple[Part, str], row: int, form: _Form, whole: int, digests: Callable[[], bytes]
    ) -> bytes | None:
        """``digests``: of the rows, if these bytes are new."""
        key = whole, form.bits
        at = None if self._queue.is_full else self._places.get(key)
        if at is None and not self._queue.is_full:
            at = self.add(key, digests())
        if at is None:
            self._queue.leave_out(LIMIT, self._stream, row, 8 * form.count)
            return None
        return TENSOR.pack(place[0], self.name(place[1]), form.layout.id, form.bits, whole, at, form.count)

    def add_value(self, digest: int, layout: int, data: bytes, row: int, is_key: bool) -> None:
        """Capture the value of a tensor. ``layout``: its id; ``is_key``: it may identify rows, whatever the limit."""
        if is_key or self._values.has_room(len(data)):
            self._values.add(NewValue(ValueKind.WITH_ROWS, digest, self._stream, row, 0, layout, data))
        else:
            self._values.leave_out(LIMIT, self._stream, row, len(data))


class _Form:
    """What tensors of one layout have in common."""

    __slots__ = ("_axes", "_dtype", "_itemsize", "bits", "count", "is_quick", "layout", "may_be_key", "seed", "shape")

    def __init__(
        self, layout: Layout, dtype: torch.dtype, itemsize: int, shape: tuple[int, ...], axes: tuple[int, ...]
    ):
        self.layout, self.shape, self._axes, self._itemsize = layout, shape, axes, itemsize
        self.bits = bits_of(axes)
        self.count = prod(shape[axis] for axis in axes)
        self.may_be_key = not (dtype.is_floating_point or dtype.is_complex) and layout.nbytes <= MAX_KEY_BYTES
        """Whether it may hold what identifies rows: ids, positions, masks."""
        self._dtype = dtype_name(dtype)
        is_leading = axes == tuple(range(len(axes)))  # rows are whole stretches of bytes, one after the other
        self.is_quick = is_leading and dtype in DTYPES and not dtype.is_complex and layout.nbytes <= MAX_COPIED_BYTES
        """Whether the library of the native engine may read such tensors."""
        self.seed = seed_of(self._dtype, shape[len(axes) :])
        """Of a row."""

    def row_digests(self, data: bytes | memoryview) -> NDArray[np.uint64]:
        return row_digests(data, self._dtype, self.shape, self._itemsize, self._axes)


def _bytes(tensor: Tensor, layout: Layout) -> AbstractContextManager[bytes | memoryview]:
    """The logical bytes: copied where they are few, so that no thread writes to them meanwhile."""
    if _is_wrapped(tensor):
        raise NoBytesError(WRAPPED)
    if not layout.dense:
        if torch._C._get_tracing_state() is not None:
            raise NoBytesError(TRACED)
        if is_captured(tensor.device):
            raise NoBytesError(CAPTURED)
    return nullcontext(bytes_of(tensor, layout)) if layout.nbytes <= MAX_COPIED_BYTES else read_in_place(tensor, layout)


# --- walk -------------------------------------------------------------------------------------------------------------
#
# The tensors among a module's arguments and results, each with a name for its place. Owns which containers are walked:
# tuples, lists, mappings and dataclasses, by Python's own methods, so that no code of the program runs. Tensors inside
# other objects (a cache, say) are not found.


MAX_DEPTH: Final = 8
MAX_TENSORS: Final = 1_024
"""Tensors of one call that are recorded; inputs and outputs are counted separately."""

MAX_OBJECTS: Final = 16_384
"""Objects of one call that are walked to find them."""

MAX_NAME: Final = 200
"""Characters of a name."""


class WalkBudget:
    """How many objects may still be walked."""

    def __init__(self, left: int = MAX_OBJECTS) -> None:
        self.left = left

    @property
    def spent(self) -> bool:
        """Whether there were more."""
        return self.left < 0


def named_tensors(
    value: object, name: str = "", budget: WalkBudget | None = None, depth: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor), in order: ``0``, ``logits``, ``past.0.1``; "" for ``value`` itself."""
    budget = budget or WalkBudget()
    budget.left -= 1
    if issubclass(type(value), Tensor):  # ``__class__`` may be a property of the program
        yield name[:MAX_NAME], cast(Tensor, value)
    elif depth < MAX_DEPTH:
        for key, item in _items(value):
            if budget.spent:
                return
            if type(item) in _PLAIN:
                budget.left -= 1
            else:
                yield from named_tensors(item, f"{name}.{key}" if name else key, budget, depth + 1)


_PLAIN = (type(None), bool, int, float, str, bytes)


def _items(value: Any) -> Iterator[tuple[str, object]]:
    kind = type(value)
    if kind is tuple or kind is list:
        yield from ((str(i), item) for i, item in enumerate(value))
    elif issubclass(kind, tuple):
        plain, names = list(tuple.__iter__(value)), inspect.getattr_static(kind, "_fields", None)
        if type(names) is tuple and len(names) == len(plain) and all(type(name) is str for name in names):
            yield from zip(names, plain, strict=True)
        else:
            yield from ((str(i), item) for i, item in enumerate(plain))
    elif issubclass(kind, list):
        yield from ((str(i), item) for i, item in enumerate(list.__iter__(value)))
    elif issubclass(kind, dict):  # and so every ModelOutput, which is a dataclass as well
        for i, (key, item) in enumerate(dict.items(value)):
            yield str.__str__(key) if issubclass(type(key), str) else str(key) if type(key) is int else str(i), item
    elif is_dataclass(kind):
        for field in fields(kind):
            try:
                yield field.name, object.__getattribute__(value, field.name)
            except Exception:  # not set
                continue


class ForwardNames:
    """Names for the arguments of modules, from the signature of each ``forward``."""

    def __init__(self) -> None:
        self._known: WeakIdDict[Any, tuple[str, ...]] = WeakIdDict()

    def arguments(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[str, ...], tuple[object, ...]]:
        """(names, arguments) of a call, there may be more names; a positional one without a name has its index."""
        names: tuple[str, ...] = ()
        if args:
            try:
                names = self._of(module)
            except Exception:  # a scripted module, or an attribute in place of the method
                names = ()
        if len(names) < len(args):
            names += tuple(str(i) for i in range(len(names), len(args)))
        return ((*names[: len(args)], *kwargs), (*args, *kwargs.values())) if kwargs else (names, args)

    def _of(self, module: torch.nn.Module) -> tuple[str, ...]:
        forward = vars(module).get("forward", type(module).forward)  # the instance's, or its class's
        function = getattr(forward, "__func__", forward)
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = _positional(
                function, bound=forward is function and "forward" in vars(module)
            )
        return known


def _positional(function: Any, *, bound: bool) -> tuple[str, ...]:
    """Names of the positional arguments without ``self``, which a ``bound`` function does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
    return names if bound else names[1:]
