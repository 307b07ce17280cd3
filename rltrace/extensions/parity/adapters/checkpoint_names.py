"""The checkpoint's names of the modules of running models, found once for each model."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from rltrace.extensions.parity.capture.call_facts import Called, Point
from rltrace.extensions.parity.module_names import WRAPPERS
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.trace.format.activation_rows import NAMED, SHARD, Part

ATTENTION = "attention"
"""Name, within the module that has the projections, of attention itself: from the queries, keys and values that it
reads, which a rotary embedding has turned, to what the output projection is given."""
READ = ("query", "key", "value")


class CheckpointNames:
    """Names of modules, of every model of which a call has been seen."""

    def __init__(self, find: Callable[[torch.nn.Module], Iterable[tuple[str, torch.nn.Module]]]) -> None:
        """``find``: (name, module) of the modules of a model."""
        self._find = find
        self._names: WeakIdDict[torch.nn.Module, str] = WeakIdDict()

    def of(self, call: Called) -> str | None:
        """The name of the called module; None: the checkpoint does not have it."""
        root = call.root
        if self._names.get(root) is None:
            self._names[root] = ""
            for name, found in self._find(root):
                self._names[found] = name
        return self._names.get(call.module) or None


def modules_of(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """(name, module) of all modules of a model, without the names of wrappers."""
    return [
        (".".join(part for part in name.split(".") if part not in WRAPPERS), module)
        for name, module in root.named_modules()
    ]


def named(name: str) -> Point:
    """That the called module has this name in the checkpoint."""
    return Part.OUTPUT, name + NAMED, torch.empty(0)


def of_rank(name: str, rank: int, count: int) -> str:
    """The name of a point of which each of ``count`` tensor-parallel ranks holds a part along the last axis."""
    return name if count == 1 else f"{name}{'' if '/' in name else '/'}{SHARD}{rank}:{count}"


def attention_points(name: str, read: Iterable[Tensor], result: Tensor) -> list[Point]:
    """Points of attention called ``name``. ``read``: queries, keys, values; [..., heads, size] as ``result``."""
    inputs = [(Part.INPUT, f"{name}/{one}", x.flatten(-2)) for one, x in zip(READ, read, strict=False)]
    return [*inputs, (Part.OUTPUT, name, result.flatten(-2))]


def packed_points(around: str, names: Sequence[str], sizes: Sequence[int], result: Tensor) -> list[Point]:
    """Points of the projections that one layer within ``around`` packs; none where its sizes are not theirs."""
    if len(names) != len(sizes) or sum(sizes) != result.shape[-1]:
        return []
    parts = zip(names, result.split(list(sizes), dim=-1), strict=True)
    return [(Part.OUTPUT, f"{around}.{name}", x) for name, x in parts]


def summed_points(result: object) -> list[Point]:
    """Points of a norm that adds its input to the residual and returns both: this sum is its input."""
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(x, Tensor) for x in result):
        return []
    return [(Part.INPUT, "", result[1]), (Part.OUTPUT, "", result[0])]
