"""From one tensor to the digests of its rows.

Owns the moment at which a tensor's bytes are copied, which tensors have none, and which equal ones share their digests.
Runs outside of any mode, subclass and autograd of the program's; keeps no tensor.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import torch

from rltrace.digest import digest_buffer
from rltrace.digest.activation_rows import row_digests
from rltrace.recorder.capture.values import (
    CAPTURED,
    COMPOUND,
    HASTE,
    MOST,
    NO_MEMORY,
    NoBytesError,
    ValueQueue,
    bytes_of,
    read_in_place,
)
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.digests.cuda_graphs import is_captured, overrides_disabled
from rltrace.recorder.digests.layouts import Layout, dtype_name, is_compound
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.format.records import ActivationRequest, LeftOut, add_up, axes_of
from rltrace.trace.format.schema import LIMIT, ValueKind
from rltrace.trace.write.packers import DigestBlock, NewActivations, NewCall, NewOp, NewTensor, NewValue

# --- keeper -----------------------------------------------------------------------------------------------------------
#
# What calls and ops had of tensors' rows, from the moment they had it to the commit that writes it.
#
# Owns the limit, what of it is used, and the count of what was left out. Knows nothing of torch.


OVERHEAD: Final = 88
"""Bytes that a call, and each tensor of it or of an op, count for besides their digests."""


class ActivationQueue:
    """Rows of tensors on their way; used by all threads of the program and by the committer."""

    def __init__(self, asked: ActivationRequest) -> None:
        self.asked = asked
        self.hurry: Callable[[], None] = lambda: None
        """Asks for a commit; set by the committer."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for one."""
        self.waiting = 0
        """Bytes that no commit has taken yet."""
        self.stopped = False
        """Nobody comes for anything any more."""
        self._lock = threading.Lock()
        self._streams: dict[int, deque[tuple[NewCall | NewOp, int]]] = {}
        self._left: list[LeftOut] = []
        self._used = 0
        self._full = False

    @property
    def behind(self) -> bool:
        """Whether what waits is still too much to go on."""
        return self.waiting > MOST // 2

    def has_room(self, digests: int) -> bool:
        """Whether a tensor with so many new digests may be kept; from the first one on that may not, none may."""
        if self._used + 8 * digests + OVERHEAD > self.asked.limit:
            self._full = True
        return not self._full

    def use(self, digests: int) -> None:
        """Room is taken, whether or not what it is for will be kept in the end."""
        with self._lock:
            self._used += 8 * digests + OVERHEAD

    def keep(self, entry: NewCall | NewOp, digests: int) -> None:
        """Take a call that has ended in, or an op whose row is finished or about to be; so many digests are new."""
        size = 8 * digests + OVERHEAD * (len(entry.tensors) + 1)
        if self.waiting > MOST and not self.stopped:
            self.wait()
        with self._lock:
            self.waiting += size
            self._streams.setdefault(entry.stream, deque()).append((entry, size))
        if self.waiting > HASTE:
            self.hurry()

    def leave(self, why: str, stream: int, row: int, digests: int) -> None:
        """Rows of a tensor were asked for and are not kept."""
        with self._lock:
            self._left = add_up([*self._left, LeftOut(why, stream, row, row, 1, 8 * digests)])

    def forget(self, stream: int, row: int) -> None:
        """That row will never be: an interrupt came while it was written."""
        with self._lock:
            own = self._streams.get(stream)
            if own and isinstance(own[-1][0], NewOp) and own[-1][0].row >= row:
                self.waiting -= own.pop()[1]

    def take(self, stream: int, end: int) -> NewActivations:
        """Entries of the stream that need none but its rows before ``end``, and what was left out since last time."""
        with self._lock:
            own, entries = self._streams.get(stream, deque()), []
            while own and _needs(own[0][0]) <= end:
                entry, size = own.popleft()
                self.waiting -= size
                entries.append(entry)
            left = [entry for entry in self._left if entry.stream == stream]
            self._left = [entry for entry in self._left if entry.stream != stream]
        return NewActivations(entries, left)

    def stop(self) -> None:
        """Take nothing more in: nobody will come for it."""
        self.stopped = True
        with self._lock:
            self._streams.clear()
            self.waiting = 0


def _needs(entry: NewCall | NewOp) -> int:
    """How many rows of the stream must be there for it."""
    return entry.end_row if isinstance(entry, NewCall) else entry.row + 1


# --- tensors ----------------------------------------------------------------------------------------------------------


KNOWN: Final = 1 << 16
"""Tensors whose rows' digests are known to have been taken: at least so many, at most twice."""

SMALL: Final = 1 << 20
"""Bytes up to which values of whole numbers and booleans are kept though nobody asked: rows are told by them."""

COPIED: Final = 1 << 22
"""Bytes up to which a tensor is copied before it is read; a larger one is read twice."""

CHANGED: Final = "something wrote to the tensor while its rows were recorded"
WRAPPED: Final = "a tensor within a transform of functorch (vmap, grad) has no separate bytes"
TRACED: Final = "the program was being traced"

Tensor = torch.Tensor
PLAIN = (Tensor, torch.nn.Parameter)


class RowDigests:
    """Takes the rows of tensors of one stream."""

    def __init__(self, process: ProcessState, stream: int, keeper: ActivationQueue, values: ValueQueue) -> None:
        self._process = process
        self._stream = stream
        self._keeper = keeper
        self._values = values
        self._names: dict[str, int] = {}
        self._blocks: dict[tuple[int, tuple[int, ...]], DigestBlock] = {}
        self._older: dict[tuple[int, tuple[int, ...]], DigestBlock] = {}

    def name(self, text: str) -> int:
        """Id in table "names"."""
        found = self._names.get(text)
        if found is None:
            if len(self._names) >= KNOWN:
                self._names.clear()
            found = self._names[text] = self._process.tables.intern_payload("names", text)
        return found

    def take(
        self,
        part: Part,
        name: str,
        tensor: Tensor,
        row: int,
        *,
        digest: int | None = None,
        within_op: bool = False,
        keep_value: bool = False,
        told_by: bool = False,
    ) -> NewTensor | None:
        """The rows of one tensor, as it is now; None where they cannot be had, which is told.

        ``digest``: of the tensor, where it has just been taken. ``row``: rows that the stream has now. ``keep_value``:
        its value is wanted, too; ``told_by``: it is where rows may be told by it. ``within_op``: torch is inside of
        the recorder, no mode of the program's is on.
        """
        around: AbstractContextManager[None] = nullcontext() if within_op else overrides_disabled()
        with around:
            try:
                if type(tensor) not in PLAIN and is_compound(tensor):  # whose shape may be made of symbols
                    raise NoBytesError(COMPOUND)
                layout = self._process.layouts.of(tensor)
                axes = axes_of(self._keeper.asked.axes, tensor.dim())
                wants = keep_value or (told_by and _tells(tensor, layout))
                return self._take(part, name, tensor, row, layout, axes, digest, wants)
            except NoBytesError as error:
                why = str(error)
            except RuntimeError:
                why = NO_MEMORY
            except Exception as error:  # of a tensor that is like no other: the rest of the recording goes on
                why = f"it cannot be read: {type(error).__name__}"
            self._keeper.leave(why, self._stream, row, 0)
            return None

    def _take(
        self,
        part: Part,
        name: str,
        tensor: Tensor,
        row: int,
        layout: Layout,
        axes: tuple[int, ...],
        digest: int | None,
        wants: bool,
    ) -> NewTensor | None:
        keeper, shape = self._keeper, tuple(tensor.shape)
        count = prod(shape[axis] for axis in axes)
        if not keeper.has_room(0):
            self._leave(row, count)
            return None
        block = self._known(digest, axes) if digest is not None else None
        new = 0
        if block is None or (wants and not self._values.knows(digest or 0)):
            with _bytes(tensor, layout) as data:
                whole = digest_buffer(data, layout.seed)
                if digest is not None and whole != digest:
                    raise NoBytesError(CHANGED)
                digest = whole
                block = self._known(whole, axes)
                if block is None:
                    if not keeper.has_room(count):
                        self._leave(row, count)
                        return None
                    digests = row_digests(data, dtype_name(tensor.dtype), shape, tensor.element_size(), axes)
                    if type(data) is memoryview and digest_buffer(data, layout.seed) != whole:
                        raise NoBytesError(CHANGED)
                    block, new = self._remember(whole, axes, DigestBlock(digests)), count
                if wants and not self._values.knows(whole):
                    self._keep_value(whole, layout, data, row)
        assert digest is not None
        keeper.use(new)
        return NewTensor(part, self.name(name), layout.id, axes, digest, block)

    def _leave(self, row: int, count: int) -> None:
        self._keeper.leave(LIMIT, self._stream, row, count)

    def _keep_value(self, digest: int, layout: Layout, data: bytes | memoryview, row: int) -> None:
        if self._values.has_room(len(data)):
            self._values.keep(NewValue(ValueKind.WITH_ROWS, digest, self._stream, row, 0, layout.id, bytes(data)))
        else:
            self._values.leave(LIMIT, self._stream, row, len(data))

    def _known(self, digest: int, axes: tuple[int, ...]) -> DigestBlock | None:
        return self._blocks.get((digest, axes)) or self._older.get((digest, axes))

    def _remember(self, digest: int, axes: tuple[int, ...], block: DigestBlock) -> DigestBlock:
        self._blocks[digest, axes] = block
        if len(self._blocks) >= KNOWN:
            self._older, self._blocks = self._blocks, {}
        return block


def _tells(tensor: Tensor, layout: Layout) -> bool:
    """Whether what rows are told by may stand in it: ids, positions, masks."""
    return layout.nbytes <= SMALL and not tensor.is_floating_point() and not tensor.is_complex()


def _bytes(tensor: Tensor, layout: Layout) -> AbstractContextManager[bytes | memoryview]:
    """The logical bytes: copied where they are few, so that nobody writes to them meanwhile."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise NoBytesError(WRAPPED)
    if not layout.dense:
        if torch._C._get_tracing_state() is not None:
            raise NoBytesError(TRACED)
        if is_captured(tensor.device):
            raise NoBytesError(CAPTURED)
    return nullcontext(bytes_of(tensor, layout)) if layout.nbytes <= COPIED else read_in_place(tensor, layout)


# --- walk -------------------------------------------------------------------------------------------------------------
#
# The tensors among what a module is called with and what it returns, each with a name for where it stands.
#
# Owns which containers are looked into: tuples, lists, mappings, dataclasses, each by Python's own means, so that
# nothing of the program's runs. What is held by an object of another kind (a cache, say) is not found.


DEEPEST: Final = 8
MAX_TENSORS: Final = 1_024
"""Tensors of one call that are taken, inputs and outputs apart."""

MOST_LOOKED_AT: Final = 16_384
"""Things of one call that are looked at, to find them."""

LONGEST: Final = 200
"""Characters of a name."""


class WalkBudget:
    """How many things may still be looked at."""

    def __init__(self, left: int = MOST_LOOKED_AT) -> None:
        self.left = left

    @property
    def spent(self) -> bool:
        """Whether there was more to look at than that."""
        return self.left < 0


def named_tensors(
    value: object, name: str = "", budget: WalkBudget | None = None, depth: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """(where it stands, tensor), in order: ``0``, ``logits``, ``past.0.1``; "" for ``value`` itself."""
    budget = budget or WalkBudget()
    budget.left -= 1
    if issubclass(type(value), Tensor):  # what an object says of its class is the program's own
        yield name[:LONGEST], cast(Tensor, value)
    elif depth < DEEPEST:
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
            except Exception:  # not given a value, or none that is kept
                continue


class ForwardNames:
    """Names for the arguments of modules, from the signature of each ``forward``."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()

    def arguments(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Iterator[tuple[str, object]]:
        """(name, argument) of a call; one by position that has no name goes by its place."""
        if args:
            try:
                names = self._of(module)
            except Exception:  # compiled from a script, or with an attribute of its own in place of the method
                names = ()
            for i, value in enumerate(args):
                yield names[i] if i < len(names) else str(i), value
        yield from kwargs.items()

    def _of(self, module: torch.nn.Module) -> tuple[str, ...]:
        forward = vars(module).get("forward", type(module).forward)  # one of its own, or its class's
        function = getattr(forward, "__func__", forward)
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = _positional(
                function, bound=forward is function and "forward" in vars(module)
            )
        return known


def _positional(function: Any, *, bound: bool) -> tuple[str, ...]:
    """Names of the arguments that can be given by position, without ``self``; ``bound``: it takes none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
    return names if bound else names[1:]
