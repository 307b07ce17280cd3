"""The command line of a ``repro.py`` of several ops: runs one after the other and compares each with the recorded bits.

Part of rltrace, and copied into every folder that ``rltrace repro --module`` writes. Needs torch and NumPy, and
``runner.py``, ``sequence_memory.py`` and ``torch_flags.py`` in the same folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrace.rerun.runner import RngState, TensorSpec, logical_bytes, restored, results_of_call
from rltrace.rerun.sequence_memory import SequenceMemory, SequenceTensor, contiguous
from rltrace.rerun.torch_flags import temporary_switches


@dataclass(frozen=True)
class SequenceCall:
    """One op, the places of its tensors in memory, and what it gave."""

    name: str
    where: str
    """Step, phase, module and site."""
    call: Callable[[list[torch.Tensor], torch.Generator | None], Any]
    """Calls the op with these tensors and this generator."""
    inputs: tuple[SequenceTensor, ...]
    outputs: tuple[SequenceTensor, ...]
    """Those in storages that its inputs are not in."""
    results: tuple[str, ...]
    """``result_digest`` of the recorded results."""
    contents: Mapping[int, str] = field(default_factory=dict)
    """Names in ``memory.npz`` of what storages hold before the op, by number, where no earlier op of these left it."""
    written: tuple[int, ...] = ()
    """Indices of the inputs that the op writes: its first results."""
    returned: tuple[int, ...] | None = None
    """Indices of the returned values that are results; None: all."""
    generator: tuple[str, str, bool] | None = None
    """Device, name of its state in ``memory.npz``, and whether it is an argument of the op."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Switches of torch (``torch_flags``) for the call."""


def tensor(
    storage: int,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    offset: int = 0,
    alignment: int = 0,
    index: int = 0,
    device: str = "cpu",
    conjugated: bool = False,
    negated: bool = False,
) -> SequenceTensor:
    """A tensor of a call: the fields of ``SequenceTensor`` and ``TensorSpec``. ``strides``; None: contiguous."""
    strides = contiguous(shape) if strides is None else strides
    return SequenceTensor(
        index, TensorSpec(dtype, shape, strides, storage, offset, device, conjugated, negated), alignment
    )


def result_digest(result: Any) -> str:
    """Of a tensor the SHA-256 of dtype, shape and elements, shortened; of a number its text."""
    if not isinstance(result, torch.Tensor):
        return repr(result)
    head = f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}"
    return sha256(head.encode() + logical_bytes(result)).hexdigest()[:16]


def main(calls: Sequence[SequenceCall], recorded: Mapping[str, Any]) -> None:
    """Run the ops, print the first that gives other bits, end with 1 if there is one. ``recorded``: under which
    settings they ran, of which the number of threads is set."""
    parser = argparse.ArgumentParser(description="Run the ops on the recorded memory; do they give the recorded bits?")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads; default: as recorded")
    options = parser.parse_args()
    if options.threads or recorded.get("threads"):
        torch.set_num_threads(options.threads or recorded["threads"])
    here = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    here["capability"] = torch.backends.cpu.get_cpu_capability()
    with np.load(Path(sys.argv[0]).absolute().parent / "memory.npz") as stored:
        differing = run(calls, stored)
    if not differing:
        print(f"BITWISE  {len(calls):,} ops: the recorded bits")
        return
    number, results = next(iter(differing.items()))
    first = calls[number]
    print(f"DIFFERS  {len(differing):,} of {len(calls):,} ops give other bits here")
    print(f"first     {first.name}, op {number} of these\nat        {first.where}")
    print(f"recorded  {' '.join(first.results)}\nhere      {' '.join(results)}")
    for what, settings in (("recorded", recorded), ("here", here)):
        print(f"{what + ' with':<14} {', '.join(f'{name} {value}' for name, value in settings.items() if value)}")
    sys.exit(1)


def run(calls: Sequence[SequenceCall], stored: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Run the ops; the results of those that gave other bits than were recorded, by index."""
    memory, differing = SequenceMemory(), {}
    for number, op in enumerate(calls):
        for at in op.inputs:
            if at.spec.storage in op.contents:
                memory.fill(at, stored[op.contents[at.spec.storage]])
            elif not memory.holds(at.spec):  # it is only written
                memory.allocate(at)
        tensors = [memory.tensor(at.spec) for at in op.inputs]
        spec = op.generator and RngState(op.generator[0], stored[op.generator[1]], op.generator[2])
        with torch.no_grad(), temporary_switches(op.settings):
            out = op.call(tensors, restored(spec))
            results = tuple(map(result_digest, results_of_call(op.written, op.returned, tensors, out)))
            memory.keep(op.outputs, out)
        if results != op.results:
            differing[number] = results
    return differing
