"""Facts of transformers' models: what attention reads and returns, which is a function there and no module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rltrace.extensions.parity.adapters import check_version
from rltrace.extensions.parity.adapters.checkpoint_names import (
    ATTENTION,
    CheckpointNames,
    attention_points,
    modules_of,
)
from rltrace.extensions.parity.capture.call_facts import Called, Point, declare
from rltrace.recorder.base.patching import Patches

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions

Attention = Callable[..., tuple[Tensor, Tensor | None]]


def start(options: RecordOptions, token: str) -> None:
    """Record facts in this process; called when it has imported ``transformers.modeling_utils``. Raises UsageError for
    other versions.

    Its interface of attention functions, since 4.48, is public; models without it declare no points.
    """
    check_version("transformers", "4", "5")
    names = CheckpointNames(modules_of)
    interface = getattr(sys.modules["transformers.modeling_utils"], "AttentionInterface", None)

    def get_interface(original: Callable[..., Attention], *args: Any, **kwargs: Any) -> Attention:
        found = original(*args, **kwargs)
        return found if is_dynamo_compiling() else _declaring(names, found)

    if interface is not None:
        Patches().wrap(interface, "get_interface", get_interface)


def _declaring(names: CheckpointNames, attention: Attention) -> Attention:
    def declaring(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        result = attention(module, query, key, value, *args, **kwargs)
        declare(lambda call: points(names, call), (query, key, value), result)
        return result

    return declaring


def points(names: CheckpointNames, call: Called) -> list[Point]:
    """Of [batch, heads, tokens, size]; without keys and values that are those of a cache."""
    name, (query, *others) = names.of(call), call.args
    if name is None:
        return []
    read = call.args if all(x.shape[2] == query.shape[2] for x in others) else (query,)
    return attention_points(f"{name}.{ATTENTION}", [x.transpose(1, 2) for x in read], call.result[0])
