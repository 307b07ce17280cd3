"""What a window starts from: a row for every tensor that already had a history when the recording of ops began.

Owns the rows of kind WINDOW. Each holds one tensor's digest, its name as its scalars and its owner as its module, so
that a difference from before the window is named as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from rltrace.digest import digest_pages
from rltrace.recorder.base.torch_function import unasked
from rltrace.recorder.core.modules import tensors_of
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.digests.rng_state import RngStates
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.trace.format.schema import Kind, Phase


def write_state(
    stream: OpRecorder,
    optimizers: Iterable[tuple[int, Any]],
    roots: Iterable[tuple[str, torch.nn.Module]],
    states: RngStates,
) -> None:
    """Rows for parameters, buffers, optimizer state and generators; ``optimizers`` with their ordinals."""
    bits = phase_bits(Phase.OTHER, Kind.WINDOW)
    with unasked(), torch._C._DisableTorchDispatch():
        for owner, name, tensor in _tensors(optimizers, roots):
            stream.write_window_tensor(bits, name, owner, tensor)
        for name, state in states._asdict().items():
            stream.write_window_row(bits, f"generator {name}", "", [state], None)


def last_state(
    digests: TensorDigests, optimizers: Iterable[tuple[int, Any]], roots: Iterable[tuple[str, torch.nn.Module]]
) -> dict[str, Any]:
    """The journal record ``state``: one digest over all that ``write_state`` would tell of now, gradients aside."""
    with unasked(), torch._C._DisableTorchDispatch():
        found = digests.several(t for _, name, t in _tensors(optimizers, roots) if not name.endswith(".grad"))
    return {"type": "state", "tensors": len(found), "digest": f"{digest_pages(found, 0):016x}"}


def _tensors(
    optimizers: Iterable[tuple[int, Any]], roots: Iterable[tuple[str, torch.nn.Module]]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    named: dict[int, tuple[str, str]] = {}
    graded: set[int] = set()  # two optimizers may share a parameter
    for root, module in roots:
        for name, tensor in tensors_of(module):
            if id(tensor) not in named:
                named[id(tensor)] = (root, name)
                yield root, name, tensor
    for ordinal, optimizer in optimizers:
        owner = f"{type(optimizer).__name__}#{ordinal}"
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            root, name = named.get(id(parameter), (owner, f"parameter {index}"))
            if id(parameter) not in named:
                yield root, name, parameter
            if parameter.grad is not None and id(parameter) not in graded:
                graded.add(id(parameter))
                yield root, f"{name}.grad", parameter.grad
            for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                if isinstance(value, torch.Tensor):
                    yield owner, f"{root}.{name}: {key}", value
