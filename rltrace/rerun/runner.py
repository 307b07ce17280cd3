"""Repeated calls of one op on the same inputs, and counts of their results. Needs torch and NumPy.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes, beside ``torch_flags.py``. Every call has
its inputs in fresh memory with the recorded strides, sharing and alignment, and runs under the recorded settings.
Changes to the process are reverted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch

from rltrace.rerun.torch_flags import temporary_switches

ALIGNMENT = 64

TIMES, SECONDS = 100, 10
"""Default number of calls, and time limit. An op with a race between two threads gave one result in 20 calls, and 1,483
in 2,000."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    storage: int = 0
    """Index of its storage."""
    offset: int = 0
    """Bytes from the start of the storage."""
    device: str = "cpu"
    conjugated: bool = False
    negated: bool = False
    """Whether the storage holds the lazy conjugate, or the lazy negative, of the value."""

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
    """From ``torch.Generator.get_state`` before the op, uint8."""
    is_argument: bool
    """Whether it was an argument of the op; False: the default generator of the device."""


@dataclass(frozen=True)
class OpCase:
    """One op with its arguments, and the choice of its results."""

    call: Callable[[list[torch.Tensor], torch.Generator | None], Any]
    """Calls the op with these tensors and this generator."""
    tensors: Sequence[TensorSpec]
    storages: Sequence[Any]
    """Bytes of each, uint8."""
    alignments: Sequence[int] = ()
    """Address of each modulo ALIGNMENT; empty: 0."""
    written: tuple[int, ...] = ()
    """Indices of the tensors that the op writes: its first results."""
    returned: tuple[int, ...] | None = None
    """Indices of the returned values that are results; None: all."""
    generator: RngState | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Switches (``torch_flags``) to set for the call; others are left as they are."""


ResultDigests = tuple[str, ...]
"""A fingerprint for each result: of a tensor its digest, of a number its ``repr``."""


def repeat(
    case: OpCase, times: int, fingerprint: Callable[[torch.Tensor], str], seconds: float = math.inf
) -> dict[ResultDigests, int]:
    """The results of ``times`` calls with their counts, in the order of first occurrence.

    After ``seconds`` no more calls are made, but for the first two. Errors of the op are raised. Generators are
    restored.
    """
    found: dict[ResultDigests, int] = {}
    stop = monotonic() + seconds
    with _generators_restored(case.generator):
        for i in range(times):
            if i >= 2 and monotonic() > stop:
                break
            tensors = build(case)
            results = results_of_call(case.written, case.returned, tensors, _call(case, tensors))
            outcome = tuple(fingerprint(r) if isinstance(r, torch.Tensor) else repr(r) for r in results)
            found[outcome] = found.get(outcome, 0) + 1
    return found


def prepare_call(case: OpCase) -> Callable[[], None]:
    """One call with its inputs already in memory: calling it runs only the op."""
    tensors = build(case)

    def call() -> None:
        with _generators_restored(case.generator):
            _call(case, tensors)

    return call


def _call(case: OpCase, tensors: list[torch.Tensor]) -> Any:
    generator = restored(case.generator)
    with temporary_switches(case.settings):
        return case.call(tensors, generator)


def aligned(case: OpCase, alignment: int) -> tuple[int, ...]:
    """Alignments of storages that start at an odd multiple of ``alignment`` bytes, or of their itemsize if larger."""
    sizes = [1] * len(case.storages)
    for tensor in case.tensors:
        sizes[tensor.storage] = max(sizes[tensor.storage], getattr(torch, tensor.dtype).itemsize)
    return tuple(max(alignment, size) % ALIGNMENT for size in sizes)


def build(case: OpCase) -> list[torch.Tensor]:
    """The tensor arguments, in fresh memory."""
    devices = {tensor.storage: tensor.device for tensor in case.tensors}
    alignments = case.alignments or [0] * len(case.storages)
    memory = {
        number: memory_with(case.storages[number], alignments[number], device) for number, device in devices.items()
    }
    return [tensor_in(memory[tensor.storage], tensor) for tensor in case.tensors]


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


def results_of_call(
    written: Sequence[int], returned: Sequence[int] | None, tensors: Sequence[torch.Tensor], out: Any
) -> list[Any]:
    """The written and the returned results, in that order; ``written`` and ``returned``: as in ``OpCase``."""
    if returned is not None:
        out = [out[i] for i in returned] if isinstance(out, (tuple, list)) else [out][: len(returned)]
    return [*(tensors[place] for place in written), *flat(out)]


def flat(out: Any) -> Iterator[Any]:
    """What an op returned, one by one."""
    if isinstance(out, (tuple, list)):
        for item in out:
            yield from flat(item)
    elif out is not None:
        yield out


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
def _generators_restored(spec: RngState | None) -> Iterator[None]:
    if spec is None or spec.is_argument:
        yield
        return
    before = _default(spec.device).get_state()
    try:
        yield
    finally:
        _default(spec.device).set_state(before)


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    if not tensor.numel():
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    data: bytes = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return data


def summary(found: Mapping[ResultDigests, int]) -> str:
    """A sentence on whether the op is deterministic."""
    times = sum(found.values())
    if times == 1:
        return "run once"
    if len(found) == 1:
        return f"deterministic: {times:,} runs, one result"
    return f"NOT DETERMINISTIC: {times:,} runs, {len(found):,} results"
