"""Facts of TorchTitan's models: what the checkpoint calls their modules, from the ``from_hf_map`` of each model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import torch

from rltrace.extensions.parity.adapters import check_version
from rltrace.extensions.parity.adapters.checkpoint_names import (
    ATTENTION,
    CheckpointNames,
    attention_points,
    modules_of,
    named,
)
from rltrace.extensions.parity.capture.call_facts import Called, Point, sources
from rltrace.trace.format.activation_rows import Part

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions

FUSED: Final = "FusedQKVLinear"
PROJECTIONS: Final = ("wq", "wk", "wv")
"""What it returns, in this order, by the names that it is saved under."""


def start(options: RecordOptions, token: str) -> None:
    """Record facts in this process; called when it has imported TorchTitan. Raises UsageError for other versions."""
    check_version("torchtitan", "0.3")
    names = CheckpointNames(checkpoint_modules)
    sources.add(points=lambda call: points(names, call))


def points(names: CheckpointNames, call: Called) -> list[Point]:
    name = names.of(call)
    if name is None:
        return []
    if name.endswith(f".{ATTENTION}"):
        return attention_points(name, call.args[:3], call.result)
    if type(call.module).__name__ == FUSED:
        return [(Part.OUTPUT, part, x.flatten(-2)) for part, x in zip(name.split(), call.result, strict=True)]
    return [named(name)]


def checkpoint_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """(name, module) of the models of TorchTitan that are ``root`` or in it; a fused layer has its parts' names."""
    kind = import_module("torchtitan.protocols.model").BaseModel
    for path, model in modules_of(root):
        if not isinstance(model, kind):
            continue
        # FSDP gives a model a class of its own.
        classes = (one.__module__ for one in type(model).__mro__ if one.__module__.startswith("torchtitan.models."))
        module = f"{next(classes).rpartition('.')[0]}.state_dict_adapter"
        adapters = vars(import_module(module)).values()
        adapter: Any = next(one for one in adapters if hasattr(one, "from_hf") and one.__module__ == module)
        for name, found in named_modules(model, adapter(model.config, None).from_hf_map):
            yield " ".join(f"{path}.{one}" if path else one for one in name.split()), found


def named_modules(model: torch.nn.Module, from_hf_map: dict[str, str | None]) -> Iterator[tuple[str, torch.nn.Module]]:
    """By the names of parameters; a module around others is the innermost one here that holds them all."""
    own = {
        ours.rpartition(".")[0]: theirs.rpartition(".")[0]
        for theirs, ours in from_hf_map.items()
        if ours and theirs.count("{}") == ours.count("{}")
    }
    modules = dict(modules_of(model))
    around: dict[str, list[list[str]]] = {}
    for path, module in modules.items():
        layer, pattern = re.search(r"\d+", path), re.sub(r"\d+", "{}", path, count=1)
        parts = [f"{pattern}.{part}" for part in PROJECTIONS] if type(module).__name__ == FUSED else [pattern]
        if not all(part in own for part in parts):
            continue
        names = [own[part].replace("{}", layer[0] if layer else "", 1) for part in parts]
        yield " ".join(names), module
        for name in names:
            around.setdefault(name.rpartition(".")[0], []).append(path.split(".")[:-1])
    for name, paths in around.items():
        columns = takewhile(lambda column: len(set(column)) == 1, zip(*paths, strict=False))
        shared = ".".join(column[0] for column in columns)
        if name and shared:
            yield name, modules[shared]
            attention = modules.get(f"{shared}.inner_attention")
            if attention is not None:
                yield f"{name}.{ATTENTION}", attention
