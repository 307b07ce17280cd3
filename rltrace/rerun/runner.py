"""Recorded ops called again, one after the other, on numbered storages; and counts of their results.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes, beside ``torch_flags.py``; needs torch and
NumPy. Memory is fresh for each run, with the recorded strides, sharing and alignment. Changes to the process are
reverted.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch

from rltrace.rerun.torch_flags import temporary_switches

ALIGNMENT = 64

TIMES, SECONDS = 100, 10
"""Default number of runs of one op, and time limit. An op with a race between two threads gave one result in 20 calls,
and 1,483 in 2,000."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of an op, and its place in memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    storage: int = 0
    """Number of its storage."""
    offset: int = 0
    """Bytes from the start of the storage."""
    alignment: int = 0
    """Address of the storage modulo ALIGNMENT."""
    device: str = "cpu"
    conjugated: bool = False
    negated: bool = False
    """Whether the storage holds the lazy conjugate, or the lazy negative, of the value."""
    index: int = 0
    """Among the op's tensor arguments, or among the tensors that it returned."""

    @property
    def span(self) -> int:
        """Bytes from its first element to the end of the last."""
        if 0 in self.shape:
            return 0
        itemsize: int = getattr(torch, self.dtype).itemsize
        return itemsize * (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)))


@dataclass(frozen=True)
class RngState:
    """The generator that an op draws from."""

    device: str
    state: Any
    """From ``torch.Generator.get_state`` before the op, uint8; in a script its name in ``memory.npz``."""
    is_argument: bool
    """Whether it was an argument of the op; False: the default generator of the device."""


ResultDigests = tuple[str, ...]
"""A fingerprint for each result: of a tensor its digest, of a number its ``repr``."""

Outcome = tuple[ResultDigests, ...]
"""Those of each op of a run."""


@dataclass(frozen=True)
class OpCall:
    """One op, the places of its tensors in memory, and the choice of its results."""

    name: str
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any]
    """Calls the op with these tensors and this generator."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    """Returned tensors that later ops read, in storages that its inputs are not in."""
    contents: Mapping[int, Any] = field(default_factory=dict)
    """What storages hold before the op, by number, where no earlier op left it: uint8; in a script its name in
    ``memory.npz``."""
    written: tuple[int, ...] = ()
    """Indices of the inputs that the op writes: its first results."""
    returned: tuple[int, ...] | None = None
    """Indices of the returned values that are results; None: all."""
    generator: RngState | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Switches (``torch_flags``) to set for the call; others are left as they are."""
    results: Mapping[str, ResultDigests] = field(default_factory=dict)
    """What it gave in each recorded run."""
    where: str = ""
    """Step, phase, module and site."""

    @property
    def devices(self) -> set[str]:
        """Devices that it needs."""
        return {spec.device for spec in self.inputs} | ({self.generator.device} if self.generator else set())


# --- memory -----------------------------------------------------------------------------------------------------------


class Memory:
    """Numbered storages, in which each tensor has its recorded place."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}
        """By number: bytes."""

    def holds(self, spec: TensorSpec) -> bool:
        """Whether all of a tensor's bytes are there."""
        return not spec.span or self.size(spec) >= spec.offset + spec.span

    def size(self, spec: TensorSpec) -> int:
        """Bytes of its storage; 0: there is none."""
        return len(self._storages.get(spec.storage, ()))

    def storage(self, spec: TensorSpec) -> torch.Tensor:
        """The bytes of its storage, not copied."""
        return self._storages[spec.storage]

    def fill(self, spec: TensorSpec, data: Any) -> None:
        """Let the storage of a tensor hold these bytes."""
        self._storages[spec.storage] = memory_with(data, spec.alignment, spec.device)

    def allocate(self, spec: TensorSpec) -> None:
        """Make a storage for a tensor that will be written."""
        self.fill(spec, np.zeros(spec.offset + spec.span, np.uint8))

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """The tensor at its place; the storage has to be there."""
        return tensor_in(self._storages.get(spec.storage, torch.empty(0, dtype=torch.uint8)), spec)

    def arguments(self, op: OpCall) -> list[torch.Tensor]:
        """The tensors that an op is called with, in storages that hold what was recorded."""
        for spec in {spec.storage: spec for spec in op.inputs}.values():
            if spec.storage in op.contents:
                self.fill(spec, op.contents[spec.storage])
        for spec in op.inputs:
            if not self.holds(spec):  # it is only written
                self.allocate(spec)
        return [self.tensor(spec) for spec in op.inputs]

    def keep(self, outputs: Sequence[TensorSpec], out: Any) -> None:
        """What an op returned is what later ops find in these storages."""
        returned = [item for item in flat(out) if isinstance(item, torch.Tensor)]
        for spec in outputs:
            found = returned[spec.index]
            if found.stride() == spec.strides and found.storage_offset() * found.element_size() == spec.offset:
                raw = found.untyped_storage()
                whole = torch.empty(0, dtype=torch.uint8, device=found.device).set_(raw, 0, (raw.nbytes(),), (1,))
                self._storages[spec.storage] = whole
            else:  # this device gives it another layout
                self.allocate(spec)
                self.tensor(spec).copy_(found)


def memory_with(data: Any, alignment: int, device: str) -> torch.Tensor:
    """``data`` at an address that is ``alignment`` modulo ALIGNMENT."""
    space = torch.empty(len(data) + 2 * ALIGNMENT, dtype=torch.uint8, device=device)
    start = (alignment - space.data_ptr()) % ALIGNMENT
    part = space[start : start + len(data)]
    part.copy_(torch.from_numpy(np.array(data)))
    return part


def tensor_in(memory: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor in memory, which is uint8."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if not spec.span:
        return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=spec.device)
    plain = torch.empty(0, dtype=dtype, device=spec.device)
    first, rest = divmod(int(memory.storage_offset()) + spec.offset, dtype.itemsize)
    if rest:
        raise ValueError(f"a {spec.dtype} tensor cannot begin {rest} bytes off its own size")
    made = plain.set_(memory.untyped_storage(), first, spec.shape, spec.strides)
    made = made.conj() if spec.conjugated else made
    return torch._neg_view(made) if spec.negated else made


def flat(out: Any) -> Iterator[Any]:
    """What an op returned, one by one."""
    if isinstance(out, (tuple, list)):
        for item in out:
            yield from flat(item)
    elif out is not None:
        yield out


# --- runs -------------------------------------------------------------------------------------------------------------


def repeat(
    ops: Sequence[OpCall], times: int, fingerprint: Callable[[torch.Tensor], str], seconds: float = math.inf
) -> dict[Outcome, int]:
    """The results of all ops in each of ``times`` runs, with their counts, in the order of first occurrence.

    After ``seconds`` no more runs are made, but for the first two. Errors of the ops are raised. Generators are
    restored.
    """
    found: dict[Outcome, int] = {}
    stop = monotonic() + seconds
    with _generators_restored(ops):
        for i in range(times):
            if i >= 2 and monotonic() > stop:
                break
            memory = Memory()
            outcome = tuple(_run(op, memory, fingerprint) for op in ops)
            found[outcome] = found.get(outcome, 0) + 1
    return found


def _run(op: OpCall, memory: Memory, fingerprint: Callable[[torch.Tensor], str]) -> ResultDigests:
    tensors = memory.arguments(op)
    with temporary_switches(op.settings):
        out = op.call(tensors, restored(op.generator))
    memory.keep(op.outputs, out)
    results = results_of_call(op, tensors, out)
    return tuple(fingerprint(item) if isinstance(item, torch.Tensor) else repr(item) for item in results)


def prepare_call(op: OpCall) -> Callable[[], None]:
    """One call with its inputs already in memory: calling it runs only the op."""
    tensors = Memory().arguments(op)

    def call() -> None:
        with _generators_restored([op]), temporary_switches(op.settings):
            op.call(tensors, restored(op.generator))

    return call


def results_of_call(op: OpCall, tensors: Sequence[torch.Tensor], out: Any) -> list[Any]:
    """The written and the returned results, in that order."""
    if op.returned is not None:
        out = [out[i] for i in op.returned] if isinstance(out, (tuple, list)) else [out][: len(op.returned)]
    return [*(tensors[place] for place in op.written), *flat(out)]


def aligned(op: OpCall, alignment: int) -> dict[int, int]:
    """By number of a storage, an alignment at which it starts at an odd multiple of ``alignment`` bytes, or of its
    itemsize if larger.
    """
    sizes: dict[int, int] = {}
    for spec in op.inputs:
        sizes[spec.storage] = max(sizes.get(spec.storage, 1), getattr(torch, spec.dtype).itemsize)
    return {number: max(alignment, size) % ALIGNMENT for number, size in sizes.items()}


def _default(device: str) -> torch.Generator:
    found = torch.device(device)
    if found.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[found.index or 0]


def restored(spec: RngState | None) -> torch.Generator | None:
    """The generator in its recorded state; None: the op draws nothing."""
    if spec is None:
        return None
    generator = torch.Generator(spec.device) if spec.is_argument else _default(spec.device)
    generator.set_state(torch.from_numpy(np.array(spec.state)))
    return generator


@contextmanager
def _generators_restored(ops: Sequence[OpCall]) -> Iterator[None]:
    devices = {op.generator.device for op in ops if op.generator is not None and not op.generator.is_argument}
    with ExitStack() as stack:
        for device in devices:
            stack.callback(_default(device).set_state, _default(device).get_state())
        yield


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    if not tensor.numel():
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    data: bytes = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return data


def summary(found: Mapping[Outcome, int]) -> str:
    """A sentence on whether the ops are deterministic."""
    times = sum(found.values())
    if times == 1:
        return "run once"
    if len(found) == 1:
        return f"deterministic: {times:,} runs, one result"
    return f"NOT DETERMINISTIC: {times:,} runs, {len(found):,} results"
