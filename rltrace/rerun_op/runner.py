"""Calls one op again and again on the same inputs and counts what comes out. Needs torch and NumPy.

Part of rltrace, and copied into every folder that ``rltrace repro`` writes, beside ``torch_flags.py``. Inputs are laid
into fresh memory for every call, as they lay when they were recorded: the same strides, the same storage for those that
shared one, the same alignment; and the op runs under the settings that it ran under then. Nothing of the process is
changed that is not put back.
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

from rltrace.rerun_op.torch_flags import under

ALIGNMENT = 64

TIMES, SECONDS = 100, 10
"""How often an op is called where nobody says how often, and for how long at most. An op whose result depends on the
order in which two threads come by gave one result in 20 calls, and 1,483 in 2,000."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    storage: int = 0
    """Which of the storages it lies in."""
    offset: int = 0
    """Bytes from the beginning of that."""
    device: str = "cpu"
    conjugated: bool = False
    negated: bool = False
    """The storage holds the lazy conjugate, the negative, of what the op sees."""

    @property
    def span(self) -> int:
        """Bytes from its first element to the end of its last."""
        if 0 in self.shape:
            return 0
        itemsize: int = getattr(torch, self.dtype).itemsize
        return itemsize * (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)))


@dataclass(frozen=True)
class RngState:
    """What an op draws from."""

    device: str
    state: Any
    """As ``torch.Generator.get_state`` gave it before the op, uint8."""
    given: bool
    """It was an argument of the op; False: the one that the device has by itself."""


@dataclass(frozen=True)
class OpCase:
    """One op, its arguments, and what of it counts as its result."""

    call: Callable[[list[torch.Tensor], torch.Generator | None], Any]
    """Calls the op with these tensors."""
    tensors: Sequence[TensorSpec]
    storages: Sequence[Any]
    """Bytes of each, uint8."""
    alignments: Sequence[int] = ()
    """Address of each modulo ALIGNMENT; empty: 0."""
    written: tuple[int, ...] = ()
    """Which tensors the op writes: results, too, and the first ones."""
    returned: tuple[int, ...] | None = None
    """Which of several things that it returns are results; None: whatever it returns."""
    generator: RngState | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Switches (``torch_flags``) under which it runs; others stand as they stand where it is called."""


ResultDigests = tuple[str, ...]
"""A fingerprint for each result: of a tensor its digest, of a number its ``repr``."""


def repeat(
    case: OpCase, times: int, fingerprint: Callable[[torch.Tensor], str], seconds: float = math.inf
) -> dict[ResultDigests, int]:
    """Every outcome of ``times`` calls and how often it came, in the order in which they were first seen.

    After so many ``seconds`` no call is begun, but for the first two. What the op itself raises is raised. Generators
    are left as they were.
    """
    found: dict[ResultDigests, int] = {}
    stop = monotonic() + seconds
    with _generators_kept(case.generator):
        for i in range(times):
            if i >= 2 and monotonic() > stop:
                break
            tensors = build(case)
            results = _results(case, tensors, _call(case, tensors))
            outcome = tuple(fingerprint(r) if isinstance(r, torch.Tensor) else repr(r) for r in results)
            found[outcome] = found.get(outcome, 0) + 1
    return found


def once(case: OpCase) -> Callable[[], None]:
    """One call, its inputs in place already: what runs when it is called is the op and nothing else."""
    tensors = build(case)

    def call() -> None:
        with _generators_kept(case.generator):
            _call(case, tensors)

    return call


def _call(case: OpCase, tensors: list[torch.Tensor]) -> Any:
    generator = _ready(case.generator)
    with under(case.settings):
        return case.call(tensors, generator)


def aligned(case: OpCase, alignment: int) -> tuple[int, ...]:
    """Alignments at which every storage begins at a multiple of so many bytes and of no higher power of two, or of its
    tensors' own size where that is more.
    """
    sizes = [1] * len(case.storages)
    for tensor in case.tensors:
        sizes[tensor.storage] = max(sizes[tensor.storage], getattr(torch, tensor.dtype).itemsize)
    return tuple(max(alignment, size) % ALIGNMENT for size in sizes)


def build(case: OpCase) -> list[torch.Tensor]:
    """The tensor arguments, in fresh memory."""
    devices = {tensor.storage: tensor.device for tensor in case.tensors}
    alignments = case.alignments or [0] * len(case.storages)
    memory = {number: _memory(case.storages[number], alignments[number], device) for number, device in devices.items()}
    return [_tensor(tensor, memory[tensor.storage]) for tensor in case.tensors]


def _memory(data: Any, alignment: int, device: str) -> torch.Tensor:
    """``data`` at an address that is ``alignment`` modulo ALIGNMENT."""
    room = torch.empty(len(data) + 2 * ALIGNMENT, dtype=torch.uint8, device=device)
    start = (alignment - room.data_ptr()) % ALIGNMENT
    part = room[start : start + len(data)]
    part.copy_(torch.from_numpy(np.array(data)))
    return part


def _tensor(spec: TensorSpec, memory: torch.Tensor) -> torch.Tensor:
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


def _results(case: OpCase, tensors: list[torch.Tensor], out: Any) -> list[Any]:
    """What was written and what was returned, in that order."""
    if case.returned is not None:
        out = [out[i] for i in case.returned] if isinstance(out, (tuple, list)) else [out][: len(case.returned)]
    return [*(tensors[place] for place in case.written), *_flat(out)]


def _flat(out: Any) -> Iterator[Any]:
    if isinstance(out, (tuple, list)):
        for item in out:
            yield from _flat(item)
    elif out is not None:
        yield out


def _default(device: str) -> torch.Generator:
    found = torch.device(device)
    if found.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[found.index or 0]


def _ready(spec: RngState | None) -> torch.Generator | None:
    """The generator in its state; the one to hand to the op, if it is handed one."""
    if spec is None:
        return None
    generator = torch.Generator(spec.device) if spec.given else _default(spec.device)
    generator.set_state(torch.from_numpy(np.array(spec.state)))
    return generator


@contextmanager
def _generators_kept(spec: RngState | None) -> Iterator[None]:
    if spec is None or spec.given:
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


def in_words(found: Mapping[ResultDigests, int]) -> str:
    """Whether it repeats itself."""
    times = sum(found.values())
    if times == 1:
        return "run once"
    if len(found) == 1:
        return f"deterministic: {times:,} runs, one result"
    return f"NOT DETERMINISTIC: {times:,} runs, {len(found):,} results"
