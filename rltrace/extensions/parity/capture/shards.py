"""Shard capture: what this rank holds of each parameter, its gradient and its optimizer state, around chosen steps.

Owns the moments (before the optimizer changes anything, and after), and what is read of a DTensor: its local tensor and
its placements. Calls no collective and no method of DTensor: the whole tensor is assembled by who reads the trace.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed

from rltrace.digest import digest_buffer
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.capture_queue import ValueQueue
from rltrace.recorder.capture.captures import CapturedProcess
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.modules import tensors_of
from rltrace.trace.format.schema import LIMIT, ValueKind
from rltrace.trace.format.shards import Shard, ShardKind, StepShards, parse_placement, shards_record
from rltrace.trace.write.packers import NewValue

_OUTSIDE_OF_MESH = "this rank is outside of the tensor's mesh"


class ShardCapture:
    """Records the shards of one process at the steps of ``steps``: (first, end or None), half open."""

    def __init__(
        self,
        steps: tuple[int, int | None],
        process: CapturedProcess,
        queue: ValueQueue,
    ) -> None:
        self._first, self._end = steps
        self._process, self._append = process.state, process.append
        self._roots, self._stream = process.roots, process.stream
        self._queue = queue
        self._begun: dict[int, list[Shard]] = {}
        """By id of an optimizer, what its attempt that runs now began with."""

    def attempt_begins(self, optimizer: Any) -> None:
        """Record parameters and gradients: the optimizer has not changed them yet."""
        if self._is_chosen():
            with torch_function_disabled(), torch._C._DisableTorchDispatch():
                named = self._named(optimizer)
                self._begun[id(optimizer)] = [
                    *(self._shard(ShardKind.BEFORE, name, "", parameter) for name, parameter in named),
                    *(self._shard(ShardKind.GRADIENT, name, "", p.grad) for name, p in named if p.grad is not None),
                ]

    def attempt_ends(self, optimizer: Any, ordinal: int) -> None:
        """Record optimizer state and parameters, and write all shards of the step."""
        begun = self._begun.pop(id(optimizer), [])
        if not self._is_chosen():
            return
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            named = self._named(optimizer)
            shards = [
                *begun,
                *(self._shard(ShardKind.STATE, *state) for name, p in named for state in _states(optimizer, name, p)),
                *(self._shard(ShardKind.AFTER, name, "", parameter) for name, parameter in named),
            ]
        if shards:
            self._append(shards_record(StepShards(self._process.step, ordinal, *_rank_and_size(), tuple(shards))))

    def _is_chosen(self) -> bool:
        return self._first <= self._process.step and (self._end is None or self._process.step < self._end)

    def _named(self, optimizer: Any) -> list[tuple[str, torch.Tensor]]:
        """The optimizer's parameters with their paths, in the order in which modules have them."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = {id(parameter) for parameter in parameters}
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for root, module in self._roots():
            for name, tensor in tensors_of(module):
                if id(tensor) in own:
                    found.setdefault(id(tensor), (f"{root}.{name}", tensor))
        for index, parameter in enumerate(parameters):
            found.setdefault(id(parameter), (f"{type(optimizer).__name__}.{index}", parameter))
        return list(found.values())

    def _shard(self, kind: ShardKind, name: str, key: str, tensor: torch.Tensor) -> Shard:
        try:
            local, spec = _local(tensor)
            mesh = None if spec is None else spec.mesh
            coordinate = None if mesh is None else mesh.get_coordinate()
            if mesh is not None and coordinate is None:
                raise NoBytesError(_OUTSIDE_OF_MESH)
            placements = () if spec is None else tuple(parse_placement(_notation(one)) for one in spec.placements)
            return Shard(
                kind=kind,
                name=name,
                key=key,
                digest=self._record(local),
                why="",
                shape=tuple(tensor.shape),
                placements=placements,
                mesh=() if mesh is None else tuple(mesh.shape),
                coordinate=tuple(coordinate or ()),
            )
        except (NoBytesError, ValueError) as error:  # ValueError: of a placement
            return Shard(kind, name, key, None, str(error), tuple(tensor.shape))

    def _record(self, tensor: torch.Tensor) -> int:
        """The digest of a tensor whose value is recorded now, or was before. Raises NoBytesError."""
        layout, queue, stream = self._process.layouts.of(tensor), self._queue, self._stream()
        data = bytes_of(tensor, layout)
        digest = digest_buffer(data, layout.seed)
        if not queue.knows(digest):
            if not queue.has_room(layout.nbytes):
                queue.leave_out(LIMIT, stream.number, stream.row, layout.nbytes)
                raise NoBytesError(LIMIT)
            queue.add(NewValue(ValueKind.SHARD, digest, stream.number, stream.row, 0, layout.id, data))
        return digest


def _states(optimizer: Any, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(path, key, tensor) of the optimizer state of one parameter."""
    for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
        if isinstance(value, torch.Tensor):
            yield name, str(key), value


def _local(tensor: Any) -> tuple[torch.Tensor, Any]:
    """What this rank holds, and the ``DTensorSpec`` (None: a plain tensor)."""
    module = sys.modules.get("torch.distributed.tensor")  # who has not imported it has no DTensor
    if module is not None and isinstance(tensor, module.DTensor):
        return tensor._local_tensor, tensor._spec
    return tensor, None


def _notation(placement: Any) -> str:
    """As torch writes it. Other kinds of placement by their names, which ``parse_placement`` refuses."""
    match type(placement).__name__:
        case "Shard":
            return f"S({placement.dim})"
        case "_StridedShard":
            return f"_S({placement.dim}, {placement.split_factor})"
        case "Replicate":
            return "R"
        case "Partial":
            return f"P({placement.reduce_op})"
        case name:
            return name


def _rank_and_size() -> tuple[int, int]:
    """Of the process group; (0, 1) where there is none."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
