"""What the payload of a table entry may be, table by table.

Owns the shapes that readers of payloads rely on, so that none of them has to ask. An entry of any other shape counts as
lost: rows that name it are a hole. More fields, and longer lists, are a newer version's and let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


def fits(table: str, payload: object) -> bool:
    """Whether a payload is what an entry of this table holds; anything will do for a table not known here."""
    shape = SHAPES.get(table)
    return shape is None or shape(payload)


def _is_text(payload: object) -> bool:
    return isinstance(payload, str)


def _is_list(payload: object) -> bool:
    return isinstance(payload, list)


def _is_layout(payload: Any) -> bool:
    """dtype, shape (words where a tensor has none), strides (or the name of another layout), device."""
    if not isinstance(payload, list) or len(payload) < 4:
        return False
    dtype, shape, strides, device = payload[:4]
    return isinstance(dtype, str) and isinstance(device, str) and _is_list(shape) and isinstance(strides, (list, str))


def _is_frame(payload: object) -> bool:
    return _has(payload, file=str, line=int, function=str, source=str)


def _is_kernel(payload: object) -> bool:
    return isinstance(payload, dict) and isinstance(payload.get("names", []), list)


def _is_optimizer(payload: object) -> bool:
    return _has(payload, ordinal=int, **{"class": str})


def _is_series(payload: object) -> bool:
    return _has(payload, kind=str, name=str)


def _has(payload: object, **fields: type) -> bool:
    return isinstance(payload, dict) and all(isinstance(payload.get(name), kind) for name, kind in fields.items())


SHAPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "ops": _is_text,
    "layouts": _is_layout,
    "structures": _is_list,
    "frames": _is_frame,
    "sites": _is_list,
    "modules": _is_text,
    "scalars": _is_list,
    "kernels": _is_kernel,
    "optimizers": _is_optimizer,
    "series": _is_series,
    "names": _is_text,
}
