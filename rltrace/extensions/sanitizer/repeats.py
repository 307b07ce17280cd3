"""``record --repeat``: each op is called again on the inputs that it had, before its result reaches the program.

Owns which calls are repeated, and the tally of those that gave other bytes. The program gets the result of its own
call, which is the first. An op that writes its inputs is called again on copies, which lie in memory as they do; its
generator is put back.

A race needs load to show, so two calls of an op that torch shares among threads are made at once: one in the thread of
the program, one by the native engine in a thread that ends with it. All others follow each other, in the thread of the
program: small ones, draws, those on a device, those outside ATen, whose code may not be made for two threads.

A launch of a Triton kernel has its arguments in the program's call, so it is repeated in their own memory, which then
gets the bytes of the first launch back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch._C._profiler import _RecordFunctionFast
from torch._ops import OpOverload

from rltrace.diff.metrics.distances import measure
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import CapturedProcess, Captures
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.hooks import OpHook, Run
from rltrace.recorder.core.kernel_launches import KernelLaunch
from rltrace.recorder.core.op_info import NON_BLOCKING, OpPlan, Role, new_results, written_places
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import region_of
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import OWN_WORK, is_compound, logical_bytes, own_work
from rltrace.recorder.digests.rng_state import generator_of
from rltrace.rerun.op_kinds import MAX_MEASURED, larger
from rltrace.rerun.runner import ALIGNMENT, TensorSpec, tensor_in
from rltrace.trace.format import dtypes
from rltrace.trace.format.schema import Phase
from rltrace.trace.kernels.evidence import TRITON

Tensor = torch.Tensor

MAX_KINDS: Final = 1_000
"""Kinds of op that did not repeat themselves which a process names, at most."""

SHARED_AMONG_THREADS: Final = 1 << 16
"""Elements of all tensors from which on two calls are made at once: a thread of torch gets half of them or more."""

SMALL: Final = 1 << 26
"""Bytes that are copied without a look at what memory is free."""

# --- what is repeated -------------------------------------------------------------------------------------------------

OTHERS = "other processes take part in it"
COMPILED = "it is a compiled region"
OUTSIDE_TORCH = "it is code outside torch"
HIGHER_ORDER = "it runs code of the program"
IN_PYTHON = "its kernel is Python code"
SUBCLASS = "an argument is of a subclass of Tensor"
NO_BYTES = "a tensor has no bytes"
NOT_STRIDED = "it writes a tensor that is not strided"
MODE = "a dispatch mode of the program would see it"
CAPTURED = "a graph of the device is being captured"
NON_BLOCKING_COPY = "it is a copy that may return early"
SHARED = "it writes memory that another process shares"
GENERATOR = "another thread may draw from its generator"
NO_GENERATOR = "its generator cannot be put back"
TOO_LARGE = "its copies would not fit into memory"

COLLECTIVE_NAMESPACES: Final = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "fsdp::", "symm_mem::")


KERNEL_KEYS: Final = (
    *("CPU", "CUDA", "XPU", "MPS", "PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd"),
)
"""Dispatch keys of what computes an op."""

_PYTHON_KERNELS: set[str] = torch.library._impls
"""Kernels that Python code has registered, which may do anything: ``aten/fmod.Tensor/CPU``. The set grows."""


def has_results(plan: OpPlan) -> bool:
    """Whether an operator computes tensors; what others do, as those of torch's profiler, is not to be done twice."""
    if plan.role is not Role.COMPUTE and not plan.arrives:
        return False  # views, allocations, and what hands bytes on
    schema = getattr(plan.func, "_schema", None)
    return schema is None or plan.writes_any or any("Tensor" in str(value.type) for value in schema.returns)


def never_repeated(plan: OpPlan) -> str:
    """Why no call of this operator is repeated; "": calls are."""
    region = region_of(plan.func)
    if region is not None:
        if not isinstance(region, KernelLaunch):
            return COMPILED
        return "" if region.name.evidence.get("library") == TRITON else OUTSIDE_TORCH
    if not plan.schema:
        return HIGHER_ORDER
    if plan.arrives or plan.schema.startswith(COLLECTIVE_NAMESPACES):
        return OTHERS
    name = plan.schema.replace("::", "/")
    overload = getattr(plan.func, "_overloadname", "default")
    whole = name if overload == "default" else f"{name}.{overload}"
    return IN_PYTHON if any(f"{whole}/{key}" in _PYTHON_KERNELS for key in KERNEL_KEYS) else ""


# --- one call ---------------------------------------------------------------------------------------------------------


class _Memory:
    """Copies of the memory that a call may write, and of all of its tensors that lie there."""

    def __init__(self, tensors: Sequence[Tensor], written: Sequence[int]) -> None:
        storages = {address_of(tensors[place]) for place in written}
        self.specs: dict[int, TensorSpec] = {}
        """By the place of a tensor."""
        self.own: dict[int, Tensor] = {}
        """By storage, its bytes from the first to the last that these tensors have: the program's memory."""
        for storage in storages:
            here = [(place, tensor) for place, tensor in enumerate(tensors) if address_of(tensor) == storage]
            specs = [_spec(place, tensor, storage) for place, tensor in here]
            first = min(spec.offset for spec in specs)
            size = max(spec.offset + spec.span for spec in specs) - first
            raw = here[0][1].untyped_storage()
            plain = torch.empty(0, dtype=torch.uint8, device=here[0][1].device)
            self.own[storage] = plain.set_(raw, first, (size,), (1,))
            for spec in specs:
                self.specs[spec.index] = TensorSpec(**{**vars(spec), "offset": spec.offset - first})
        self.before = {storage: _copy(own, own) for storage, own in self.own.items()}

    def arguments(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the call as they were before it, those that it may write in a new copy."""
        fresh = {storage: _copy(bytes_, self.own[storage]) for storage, bytes_ in self.before.items()}
        made = {place: tensor_in(fresh[spec.storage], spec) for place, spec in self.specs.items()}
        return [made.get(place, tensor) for place, tensor in enumerate(tensors)]


def _spec(place: int, tensor: Tensor, storage: int) -> TensorSpec:
    return TensorSpec(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        storage,
        int(tensor.storage_offset()) * tensor.element_size(),
        device=str(tensor.device),
        conjugated=tensor.is_conj(),
        negated=tensor.is_neg(),
        index=place,
    )


def _copy(content: Tensor, like: Tensor) -> Tensor:
    """A copy of bytes, at an address that is that of ``like`` modulo ALIGNMENT: kernels choose by alignment, too."""
    space = torch.empty(len(content) + 2 * ALIGNMENT, dtype=torch.uint8, device=content.device)
    start = (like.data_ptr() - space.data_ptr()) % ALIGNMENT
    part = space[start : start + len(content)]
    return part.copy_(content)


def _whole_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in copies of their storages, which ops may look at: ``as_strided_copy``."""
    storages = {address_of(tensor): tensor.untyped_storage() for tensor in tensors}
    copies = {address: storage.clone() for address, storage in storages.items()}
    made = []
    for tensor in tensors:
        plain = torch.empty(0, dtype=tensor.dtype)
        copy = plain.set_(copies[address_of(tensor)], tensor.storage_offset(), tensor.shape, tensor.stride())
        copy = copy.conj() if tensor.is_conj() else copy
        made.append(torch._neg_view(copy) if tensor.is_neg() else copy)
    return made


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """An argument with its tensors replaced, in their order."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op. All calls are made on this line, as Python shows a warning once for each line."""
    return func(*args, **kwargs)


_ReadyCall = tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]
"""What is called, with what, and its tensors."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is about to be made, and will be repeated."""

    plan: OpPlan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    written: tuple[int, ...]
    memory: _Memory | None
    generator: torch.Generator | None
    state: Tensor | None
    """Of the generator, before the call."""
    takes_generator: bool
    """Whether it can be passed another one."""
    launch: Callable[[], Any] | None
    """What makes it again, in the memory of its arguments; None: the op does."""

    def results(self, tensors: Sequence[Tensor], out: Any) -> list[Tensor]:
        """What it wrote, and what it returned, without workspaces."""
        new = [tensor for k, tensor in enumerate(new_results(self.plan, out)) if k not in self.plan.scratch]
        return [*(tensors[place] for place in self.written), *new]

    def fresh(self, *, alone: bool = False) -> _ReadyCall:
        """What one more call calls, and its tensors, as they were before the first one; ``alone``: all in copies.

        Ops write what they may not by their schema: oneDNN's backward of an LSTM, into its workspace.
        """
        if self.launch is not None and self.memory is not None:
            for storage, before in self.memory.before.items():
                self.memory.own[storage].copy_(before)
            return self.launch, (), {}, self.tensors
        tensors = _whole_copies(self.tensors) if alone else self.tensors
        tensors = tensors if self.memory is None else self.memory.arguments(tensors)
        at = iter(tensors)
        args = tuple(_with_tensors(value, at) for value in self.args)
        kwargs = {name: _with_tensors(value, at) for name, value in self.kwargs.items()}
        if self.takes_generator and self.generator is not None:
            kwargs["generator"] = torch.Generator(self.generator.device)
            kwargs["generator"].set_state(self.state)
        return self.plan.func, args, kwargs, tensors


@contextmanager
def _put_back(call: _Call) -> Iterator[None]:
    """What a call has changed that one more changes again is as now afterwards: a generator, the memory of a launch."""
    generator = None if call.takes_generator else call.generator
    own = {} if call.launch is None or call.memory is None else call.memory.own
    if generator is None and not own:
        yield
        return
    with own_work():
        state = None if generator is None else generator.get_state()
        after = {storage: bytes_.clone() for storage, bytes_ in own.items()}
    try:
        yield
    finally:
        with own_work():
            if generator is not None and state is not None:
                generator.set_state(state)
            for storage, bytes_ in after.items():
                own[storage].copy_(bytes_)


# --- the tally --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Kind:
    """Calls of one operator at one place of the program."""

    calls: int = 0
    differing: int = 0
    first: tuple[int, int] | None = None
    """Stream and row of the first of these."""
    results: dict[int, None] = field(default_factory=dict)
    """Which of the results differed in any."""
    of: int = 0
    """The number of results."""
    dtype: str = ""
    """Of the result that differed in most elements, with its number of elements, and of those that differed."""
    elements: int = 0
    unequal: int = 0
    ulp: int | None = None
    absolute: float | None = None

    def record(self) -> dict[str, object]:
        """What the trace says of it, where some calls differed."""
        assert self.first is not None
        names = ("calls", "differing", "of", "dtype", "elements", "unequal", "ulp", "absolute")
        place = {"stream": self.first[0], "row": self.first[1], "results": sorted(self.results)}
        return place | {name: getattr(self, name) for name in names}


class Repeats:
    """The repeated calls of one process."""

    def __init__(self, times: int, process: ProcessState) -> None:
        self._times = times
        self._process = process
        self._lock = Lock()
        self._streams: set[int] = set()
        self._kinds: dict[tuple[int, int], _Kind] = {}
        """By operator and site."""
        self._left_out: dict[tuple[str, str], int] = {}
        """By name and reason, the calls."""
        self._library = process.library
        self._at_once: set[str] = set()
        """Names of ops of which calls were made two at once."""
        self._recorded = 0
        self._results: dict[int, bool] = {}

    def has_results(self, plan: OpPlan) -> bool:
        """``has_results``, once for each operator."""
        found = self._results.get(plan.id)
        if found is None:
            found = self._results[plan.id] = has_results(plan)
        return found

    def hook(self, stream: OpRecorder) -> RepeatHook:
        self._streams.add(stream.number)
        return RepeatHook(stream, self)

    def leave_out(self, plan: OpPlan, why: str) -> None:
        with self._lock:
            key = str(plan.name), why
            self._left_out[key] = self._left_out.get(key, 0) + 1

    def prepare(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """What a call needs to be made again; None: it cannot be."""
        plan = self._process.calls.plan(func)
        tensors = op_tensors(args, kwargs)
        written = written_places(plan, args, kwargs).all
        why = self._not_now(plan, args, kwargs, tensors, written)
        generator = state = None
        takes = plan.draws and any(a.name == "generator" and a.kwarg_only for a in plan.func._schema.arguments)
        if not why and plan.draws:
            generator = generator_of(args, kwargs)
            others = len(self._streams) > 1 and not takes
            why = NO_GENERATOR if generator is None else GENERATOR if others else ""
            state = None if generator is None else generator.get_state()
        if why:
            self.leave_out(plan, why)
            return None
        region = region_of(func)
        launch = region.pending() if isinstance(region, KernelLaunch) else None
        memory = _Memory(tensors, written) if written else None
        return _Call(plan, args, kwargs, tensors, written, memory, generator, state, takes, launch)

    def _not_now(
        self,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
        written: Sequence[int],
    ) -> str:
        """Why this call is not repeated; "": it is."""
        if any(type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter for tensor in tensors):
            return SUBCLASS
        if any(tensor.is_meta for tensor in tensors):
            return NO_BYTES
        if torch._C._len_torch_dispatch_stack():
            return MODE
        if any(tensors[place].layout is not torch.strided for place in written):
            return NOT_STRIDED
        if plan.schema in NON_BLOCKING and plan.named(args, kwargs).get("non_blocking"):
            return NON_BLOCKING_COPY
        readback = self._process.readback
        if any(readback.can_defer(tensor.device) and readback.is_shut(tensor.device) for tensor in tensors):
            return CAPTURED
        in_place = region_of(plan.func) is not None
        if in_place and any(tensors[place].is_shared() for place in written if tensors[place].is_cpu):
            return SHARED
        copied = 4 * sum(tensors[place].untyped_storage().nbytes() for place in written)
        return "" if not written or _fits(copied, tensors[written[0]]) else TOO_LARGE

    def compare(self, stream: OpRecorder, call: _Call, out: Any) -> None:
        """Make the call again, and compare with what it returned to the program.

        It is made as the program's own was: grad mode, too, chooses code of some ops.
        """
        is_equal, left = True, self._times
        with _put_back(call):
            with own_work():
                first = call.results(call.tensors, out)
                size = 2 * sum(result.nbytes for result in first if result.layout is torch.strided)
                if first and not _fits(size, first[0]):
                    self.leave_out(call.plan, TOO_LARGE)
                    return
                saved = [result.clone() for result in first] if call.launch is not None else first
                digests = list(map(self._process.digests.of, first))
                kind = self._counted(stream, call.plan, len(first))
                at_once = 2 if self._library is not None and _is_shared(call, first) else 1
                ready = self._ready(call, min(left, at_once))
            while ready:
                try:
                    with _RecordFunctionFast(OWN_WORK):
                        results = self._make(call, ready)
                except Exception as error:
                    kind.calls -= 1
                    self.leave_out(call.plan, f"repeated, it raised {type(error).__name__}")
                    return
                left -= len(ready)
                with own_work():
                    is_equal &= self._is_equal(kind, saved, digests, results)
                    del ready, results  # their memory is that of the next
                    ready = self._ready(call, min(left, at_once))
        if not is_equal:
            with self._lock:
                kind.differing += 1
                kind.first = kind.first or (stream.number, stream.row)

    def _ready(self, call: _Call, count: int) -> list[_ReadyCall]:
        """The next calls, which share no memory."""
        if call.generator is not None and not call.takes_generator and call.state is not None:
            call.generator.set_state(call.state)
        return [call.fresh(alone=place > 0) for place in range(count)]

    def _make(self, call: _Call, ready: Sequence[_ReadyCall]) -> list[list[Tensor]]:
        """The results of calls, several of which are made at once where a thread can be had."""
        if len(ready) == 1:
            func, args, kwargs, tensors = ready[0]
            return [call.results(tensors, _call(func, args, kwargs))]
        schema = call.plan.func._schema
        calls = [(args, kwargs) for _, args, kwargs, _ in ready]
        outs, were_at_once = self._library.call_at_once(schema.name, schema.overload_name, calls)
        if were_at_once:
            self._at_once.add(str(call.plan.name))
        return [call.results(tensors, out) for (*_, tensors), out in zip(ready, outs, strict=True)]

    def _is_equal(
        self, kind: _Kind, saved: Sequence[Tensor], digests: Sequence[Any], results: Sequence[Sequence[Tensor]]
    ) -> bool:
        """Whether the results of calls are those of the first; those that are not go to its kind."""
        is_equal = True
        for again in results:
            for place, result in enumerate(again):
                if self._process.digests.of(result) != digests[place]:
                    is_equal = False
                    with self._lock:
                        kind.results[place] = None
                        _measure(kind, saved[place], result)
        return is_equal

    def _counted(self, stream: OpRecorder, plan: OpPlan, results: int) -> _Kind:
        """The kind of a call that is repeated now, with that counted."""
        with self._lock:
            kind = self._kinds.setdefault((plan.id, stream.site), _Kind())
            kind.calls += 1
            kind.of = max(kind.of, results)
            return kind

    def records(self) -> Iterable[Mapping[str, object]]:
        """The tally so far as one record, if it has grown; a later record replaces an earlier one."""
        with self._lock:
            calls = sum(kind.calls for kind in self._kinds.values())
            left_out = [[op, why, count] for (op, why), count in self._left_out.items()]
            differing = [kind.record() for kind in self._kinds.values() if kind.first is not None][:MAX_KINDS]
        total = calls + sum(self._left_out.values())
        if total == self._recorded:
            return
        self._recorded = total
        found = {"times": self._times, "calls": calls, "kinds": differing, "left_out": left_out}
        yield {"type": "repeats", **found, "at_once": sorted(self._at_once)}


def _measure(kind: _Kind, ours: Tensor, theirs: Tensor) -> None:
    """Add the distance of two results of a call to its kind."""
    dtype = str(ours.dtype).removeprefix("torch.")
    comparable = ours.layout is torch.strided and ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if not comparable or not ours.numel() or ours.numel() > MAX_MEASURED or dtypes.itemsize(dtype) is None:
        return
    found = measure(dtype, _elements(dtype, ours), _elements(dtype, theirs), listed=0)
    if found.differing > kind.unequal:
        kind.dtype, kind.elements, kind.unequal = dtype, found.elements, found.differing
    if found.largest is not None and found.unit == "ULP":
        kind.ulp = larger(kind.ulp, found.largest)
    if found.largest_absolute is not None and math.isfinite(found.largest_absolute):
        kind.absolute = larger(kind.absolute, found.largest_absolute)


def _elements(dtype: str, tensor: Tensor) -> NDArray[Any]:
    """Its elements, as ``measure`` takes them."""
    plain = logical_bytes(tensor).reshape(-1).cpu()
    return dtypes.raw(dtype, plain.view(torch.uint8).numpy().tobytes())


def _is_shared(call: _Call, results: Sequence[Tensor]) -> bool:
    """Whether torch may share this op among threads that race, and two of its calls may be made at once."""
    plan, tensors = call.plan, [*call.tensors, *results]
    if not plan.schema.startswith("aten::") or plan.draws or torch.get_num_threads() == 1:
        return False
    if torch.Tag.pointwise in plan.func.tags or not all(t.is_cpu and not is_compound(t) for t in tensors):
        return False
    storages = [tensor.untyped_storage() for tensor in call.tensors]
    if any(storage.data_ptr() % ALIGNMENT for storage in storages):
        return False  # its copy would lie otherwise
    is_large = sum(tensor.numel() for tensor in tensors) >= SHARED_AMONG_THREADS
    return is_large and _fits(2 * sum(storage.nbytes() for storage in storages), tensors[0])


def _fits(size: int, near: Tensor) -> bool:
    """Whether so many bytes fit into the memory in which a tensor lies, twice."""
    return size <= SMALL or size <= _free_bytes(near.device) // 2


def _free_bytes(device: torch.device) -> int:
    """Bytes of memory of a device that are free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for text in Path("/proc/meminfo").read_text().splitlines():
        if text.startswith("MemAvailable:"):
            return int(text.split()[1]) << 10
    return 0


# --- the hook ---------------------------------------------------------------------------------------------------------


class RepeatHook(OpHook[None]):
    """Repeats the ops of one stream."""

    def __init__(self, stream: OpRecorder, repeats: Repeats) -> None:
        self._stream = stream
        self._repeats = repeats

    def wants(self, plan: OpPlan, module: int, phase: Phase) -> bool:
        return self._repeats.has_results(plan)

    def replacement(self, func: OpOverload) -> Run | None:
        plan = self._stream.process.calls.plan(func)
        if not self._repeats.has_results(plan):
            return None
        why = never_repeated(plan)
        if why:
            self._repeats.leave_out(plan, why)
            return None
        return self._run

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = None
        try:
            with own_work():
                call = self._repeats.prepare(func, args, kwargs)
        except Exception as error:
            self._stream.process.fail(error)
        out = _call(func, args, kwargs)
        if call is not None:
            try:
                self._repeats.compare(self._stream, call, out)
            except Exception as error:
                self._stream.process.fail(error)
        return out


def add_repeats(captures: Captures, options: RecordOptions, process: CapturedProcess) -> Captures:
    """The captures, with ops called again as ``--repeat`` requests."""
    repeats = Repeats(options.repeat, process.state)
    return captures._replace(hooks=[*captures.hooks, repeats.hook], records=[*captures.records, repeats.records])
