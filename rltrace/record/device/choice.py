"""How tensors of a device are condensed: by the kernels where they can be had, else by torch operations.

Owns the choice, made once for each device when something on it is first condensed, and what the trace says of it. The
kernels are believed once they have come to the same words as the torch operations. What it takes to have them is
imported only then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from rltrace.digest import PAGE_BYTES
from rltrace.privacy import masked_text
from rltrace.record.compiler.kept_out import keep_out_of_new
from rltrace.record.device import by_operations
from rltrace.record.device.condensed import condensed_words

FACT = "digest.device"
"""Under which the trace says it: a fact of the recorder, and no difference between two runs."""

Condense = Callable[[Sequence[torch.Tensor], Sequence[int], torch.Tensor, int], None]

_chosen: dict[torch.device, Condense] = {}
_said: dict[torch.device, str] = {}
_lock = threading.Lock()


def condense(tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int) -> None:
    """Enqueue on the current stream, without waiting: these tensors condensed, one after the other, into ``into``.

    ``tensors``: contiguous, on one device, each under its seed. ``into``: int64 [words], contiguous, on that device;
    written from word ``at`` on. Bytes that fill up a last word are left as they are. On a CUDA device the first call
    waits, for seconds where the kernels have to be compiled. Not while a stream is being captured.
    """
    device = into.device
    (_chosen.get(device) or _choose(device))(tensors, seeds, into, at)


def facts() -> Mapping[str, str]:
    """How tensors on devices were condensed so far; nothing where none were."""
    return {FACT: "; ".join(sorted(set(_said.values())))} if _said else {}


def _choose(device: torch.device) -> Condense:
    with _lock:
        if device not in _chosen:
            condense: Condense = by_operations.condense
            try:
                if device.type != "cpu":
                    condense, _said[device] = _by_kernel(device)
            except Exception as error:  # whatever it is, torch operations do without
                first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                _said[device] = f"torch operations: {masked_text(first_line)}"
            _chosen[device] = condense
        return _chosen[device]


def _by_kernel(device: torch.device) -> tuple[Condense, str]:
    from rltrace.digest.gpu.compiling import UnavailableError, compiled
    from rltrace.record.device import by_kernel
    from rltrace.record.device.launching import Launcher, constants

    keep_out_of_new()
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnavailableError("the kernels are for CUDA")
    major, minor = torch.cuda.get_device_capability(device)
    binaries = compiled(10 * major + minor)
    condense = partial(by_kernel.condense, Launcher(device.index, constants(device), binaries))
    if not agrees(condense, device):
        raise UnavailableError(f"{binaries.compiler} made kernels that come to something else")
    return condense, binaries.compiler


def agrees(condense: Condense, device: torch.device) -> bool:
    """Whether it comes to the same words as the torch operations, of few tensors and of several."""
    with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
        words = torch.arange(5 * PAGE_BYTES // 8, device=device) * 0x1E3779B97F4A7C15  # all different
        data = words.view(torch.uint8)
        ends = ((8, 3 * PAGE_BYTES + 1_777), (0, 9), (1, PAGE_BYTES + 2), (0, PAGE_BYTES), (16, 5_000)) * 3
        tensors = [data[start:end] for start, end in ends]
        seeds = [0x123456789ABCDEF1 * k % 2**64 for k in range(len(tensors))]
        for count in (1, len(tensors)):  # in a launch of its own, and together
            expected = torch.full((sum(condensed_words(len(each)) for each in tensors[:count]),), -1, device=device)
            found = expected.clone()
            by_operations.condense(tensors[:count], seeds[:count], expected, 0)
            condense(tensors[:count], seeds[:count], found, 0)
            if not torch.equal(found, expected):
                return False
    return True
