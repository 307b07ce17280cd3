"""Shards: what one rank held of each parameter, its gradient and its optimizer state at a step, and where it belongs.

Owns the journal's record ``shards``, and DTensor's rules of which elements of a whole tensor a rank has. The bytes are
values. Needs no torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import MAX_AXES, MAX_COUNT, check_fields, number

MAX_MESH = 1 << 24
"""Ranks along one dimension of a mesh, at most."""


class ShardKind(StrEnum):
    """What a shard is of, in the order in which a step computes them."""

    BEFORE = "before"
    """A parameter, before the step."""
    GRADIENT = "gradient"
    """Its gradient, as the optimizer got it."""
    STATE = "state"
    """A tensor of its optimizer state, after the step."""
    AFTER = "after"
    """The parameter, after the step."""


@dataclass(frozen=True)
class Placement:
    """How a tensor is placed along one dimension of a mesh, in torch's notation: ``S(0)``, ``_S(0, 2)``, ``R``."""

    text: str
    dim: int | None = None
    """Dimension of the tensor that is divided; None: none is."""
    split_factor: int = 1
    """Chunks that are each divided (torch's ``_StridedShard``), as where a later mesh dimension divides the same."""

    @property
    def is_partial(self) -> bool:
        """Whether each rank has a term of the tensor."""
        return self.text.startswith("P")


_NOTATION = re.compile(r"S\((\d+)\)|_S\((\d+), (\d+)\)|R|P\([a-z]+\)", re.ASCII)


def parse_placement(text: str) -> Placement:
    """Raises ValueError."""
    found = _NOTATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is no placement")
    dim = found[1] or found[2]
    return Placement(text, None if dim is None else int(dim), int(found[3] or 1))


@dataclass(frozen=True)
class Shard:
    """One rank's part of one tensor."""

    kind: ShardKind
    name: str
    """Path of the parameter."""
    key: str
    """Of ``STATE``: which one, such as ``exp_avg``; else empty."""
    digest: int | None
    """Of its value; None: it was not recorded."""
    why: str
    """Why not; else empty."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    placements: tuple[Placement, ...] = ()
    """One for each dimension of the mesh; none: a plain tensor, which is whole."""
    mesh: tuple[int, ...] = ()
    """Shape of the mesh."""
    coordinate: tuple[int, ...] = ()
    """Of the rank in the mesh."""

    def indices(self) -> list[NDArray[np.int64]]:
        """Along each dimension of the whole tensor, the indices that the rank has.

        As DTensor places them: mesh dimensions from left to right, each as ``torch.chunk`` divides what is left.
        """
        found = [np.arange(size) for size in self.shape]
        for size, at, placement in zip(self.mesh, self.coordinate, self.placements, strict=True):
            if placement.dim is not None:
                parts = _chunks(found[placement.dim], placement.split_factor)
                found[placement.dim] = np.concatenate([_chunks(part, size)[at] for part in parts])
        return found


def _chunks(indices: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """As ``torch.chunk`` divides: all of one size but the last ones, which may be shorter or empty."""
    size = -(-len(indices) // count)
    return [indices[k * size : (k + 1) * size] for k in range(count)]


@dataclass(frozen=True)
class StepShards:
    """The shards of one rank at one optimizer step."""

    step: int
    optimizer: int
    """Its ordinal."""
    rank: int
    """Of the process group; 0 where there is none."""
    world_size: int
    """1 where there is none."""
    shards: tuple[Shard, ...]


def shards_record(found: StepShards) -> dict[str, object]:
    return {
        "type": "shards",
        "step": found.step,
        "optimizer": found.optimizer,
        "rank": found.rank,
        "world_size": found.world_size,
        "tensors": [_written(shard) for shard in found.shards],
    }


def _written(shard: Shard) -> dict[str, object]:
    found: dict[str, object] = {"kind": shard.kind.value, "name": shard.name, "shape": shard.shape}
    found |= {"key": shard.key} if shard.key else {}
    found |= {"why": shard.why} if shard.digest is None else {"digest": f"{shard.digest:016x}"}
    if shard.placements:
        found |= {"placements": [one.text for one in shard.placements]}
        found |= {"mesh": shard.mesh, "coordinate": shard.coordinate}
    return found


def parse_shards(record: Record) -> StepShards:
    """Raises ValueError, KeyError or TypeError."""
    check_fields(record, tensors=list)
    step, optimizer, rank = (number(record, name) for name in ("step", "optimizer", "rank"))
    return StepShards(
        step, optimizer, rank, number(record, "world_size", MAX_MESH), tuple(map(_parse, record["tensors"]))
    )


def _parse(entry: Any) -> Shard:
    check_fields(entry, name=str, key=str, why=str, digest=str, placements=list)
    shape, placements = _sizes(entry["shape"], MAX_COUNT), tuple(map(parse_placement, entry.get("placements", ())))
    mesh, coordinate = _sizes(entry.get("mesh", ()), MAX_MESH), _sizes(entry.get("coordinate", ()), MAX_MESH)
    if not len(mesh) == len(coordinate) == len(placements) or any(
        at >= size for size, at in zip(mesh, coordinate, strict=True)
    ):
        raise ValueError("a rank is outside of its mesh")
    if any(one.dim is not None and (one.dim >= len(shape) or not one.split_factor) for one in placements):
        raise ValueError("a placement divides a dimension that the tensor does not have")
    digest = entry.get("digest")
    return Shard(
        kind=ShardKind(entry["kind"]),
        name=entry["name"],
        key=entry.get("key", ""),
        digest=None if digest is None else int(digest, 16),
        why=entry.get("why", ""),
        shape=shape,
        placements=placements,
        mesh=mesh,
        coordinate=coordinate,
    )


def _sizes(sizes: Sequence[object], limit: int) -> tuple[int, ...]:
    if len(sizes) > MAX_AXES:
        raise ValueError(f"a tensor has no {len(sizes)} dimensions")
    return tuple(number({"size": size}, "size", limit) for size in sizes)
