"""Whether two results have the same bits: tensors, arrays, numbers, modules, and containers of them.

Pure functions. What is equal by ``==`` may differ here (0.0 and -0.0), and what is not may be equal (a NaN and itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.diff.metrics.distances import measure
from rltrace.report.diff import distances_text


def copied(result: object) -> object:
    """A copy whose bits stay as they are now: of a module its state, of a dataclass its fields, by name."""
    match result:
        case torch.nn.Module():
            return copied(result.state_dict())
        case torch.Tensor():
            return result.detach().clone()
        case np.ndarray():
            return result.copy()
        case Mapping():
            return {key: copied(value) for key, value in result.items()}
        case list() | tuple():
            return [copied(value) for value in result]
    if is_dataclass(result) and not isinstance(result, type):
        return {field.name: copied(getattr(result, field.name)) for field in fields(result)}
    return result


def difference(a: object, b: object, at: str = "the result") -> str | None:
    """The first place where two copied results differ, and how; None: they have the same bits."""
    if type(a) is not type(b):
        return f"{at} is a {type(a).__name__} and a {type(b).__name__}"
    match a, b:
        case torch.Tensor(), torch.Tensor():
            return _of_arrays(at, _layout(a, a.device.type), _layout(b, b.device.type), *map(_elements, (a, b)))
        case ((np.ndarray() | np.generic()), (np.ndarray() | np.generic())):
            return _of_arrays(at, _layout(a), _layout(b), np.asarray(a), np.asarray(b))
        case ((float() | complex()), (float() | complex())):
            return difference(np.asarray(a), np.asarray(b), at) and f"{at} is {a!r} and {b!r}"
        case dict(), dict():
            if a.keys() != b.keys():
                return f"{at} has other keys: {min(map(repr, a.keys() ^ b.keys()))} on one side only"
            return _first((a[key], b[key], f"{at}[{key!r}]") for key in a)
        case list(), list():
            if len(a) != len(b):
                return f"{at} has {len(a):,} and {len(b):,} elements"
            return _first((x, y, f"{at}[{place}]") for place, (x, y) in enumerate(zip(a, b, strict=True)))
    return None if a == b else f"{at} is {a!r} and {b!r}"


def _first(pairs: Iterable[tuple[object, object, str]]) -> str | None:
    return next(filter(None, (difference(a, b, at) for a, b, at in pairs)), None)


def _layout(array: Any, device: str = "cpu") -> str:
    shape = ",".join(map(str, array.shape))
    return f"{str(array.dtype).removeprefix('torch.')}[{shape}]" + ("" if device == "cpu" else f"@{device}")


def _elements(tensor: torch.Tensor) -> NDArray[Any]:
    """The elements, each as its bytes."""
    flat = tensor.resolve_conj().resolve_neg().to_dense().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(f"V{flat.element_size()}")


def _of_arrays(at: str, layout_a: str, layout_b: str, a: NDArray[Any], b: NDArray[Any]) -> str | None:
    if layout_a != layout_b:
        return f"{at} is {layout_a} and {layout_b}"
    if a.tobytes() == b.tobytes():
        return None
    if a.dtype == object:
        return None if np.array_equal(a, b) else f"{at} has other elements"
    return f"{at}: {distances_text(measure(layout_a.partition('[')[0], a, b))}"
