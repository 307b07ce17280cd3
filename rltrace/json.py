"""JSON of the dataclasses that verbs return and processes leave for each other: the fields are the keys.

Owns how values are written and read back; knows none of the classes. A class that is a document of a verb has its
schema as ``SCHEMA``, and one that has properties in its JSON names them in ``COMPUTED``, or all of its
keys in ``KEYS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class JsonError(ValueError):
    """An object lacks a key, or has something else there."""


def to_json(value: object) -> Any:
    """Dictionaries, lists, text, numbers and None. NaN and infinities are text, complex numbers lists of two."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case complex():
            return [to_json(value.real), to_json(value.imag)]
        case Mapping():
            return {str(key): to_json(part) for key, part in value.items()}
        case tuple() if hasattr(value, "_asdict"):  # a named one
            return to_json(value._asdict())
        case list() | tuple():
            return [to_json(part) for part in value]
    if hasattr(value, "item"):  # a number of NumPy's
        return to_json(value.item())
    kind: Any = type(value)
    if is_text(kind):
        return str(value)
    schema = {"schema": kind.SCHEMA} if hasattr(kind, "SCHEMA") else {}
    return schema | {name: to_json(getattr(value, name)) for name in keys_of(kind)}


def is_text(kind: type) -> bool:
    """Whether it is written as text: a path, or a dataclass that says how it reads."""
    return issubclass(kind, PurePath) or (is_dataclass(kind) and kind.__str__ is not object.__str__)


def keys_of(kind: Any) -> list[str]:
    """The keys of a dataclass's JSON, its schema aside."""
    return getattr(kind, "KEYS", None) or [*(field.name for field in fields(kind)), *getattr(kind, "COMPUTED", ())]


def from_json(kind: type[T], found: object) -> T:
    """The dataclass whose JSON ``found`` is; keys that it does not know are left out. Raises JsonError."""
    read: T = _read(kind, found, "")
    return read


def _read(kind: Any, value: Any, key: str) -> Any:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        (one,) = (part for part in parts if part is not NoneType)
        return None if value is None else _read(one, value, key)
    if origin is tuple:
        items = _checked(list, value, key)
        kinds = parts[:1] * len(items) if parts[-1] is ... else parts
        if len(kinds) != len(items):
            raise JsonError(f'"{key}" has {len(items)} items, not {len(kinds)}')
        return tuple(_read(one, item, f"{key}[{n}]") for n, (one, item) in enumerate(zip(kinds, items, strict=True)))
    if is_dataclass(origin):
        return _object(origin, parts, _checked(dict, value, key), key)
    if issubclass(origin, Mapping):
        return {name: _read(parts[1], part, f"{key}.{name}") for name, part in _checked(dict, value, key).items()}
    if issubclass(origin, Enum):
        try:
            return origin(value)
        except ValueError as error:
            raise JsonError(f'"{key}": {error}') from None
    if origin is float and (type(value) is int or value in ("nan", "inf", "-inf")):
        return float(value)
    return _checked(origin, value, key)


def _object(kind: Any, parts: tuple[Any, ...], found: dict[str, Any], key: str) -> Any:
    """``parts``: what a generic class is of."""
    hints, read = get_type_hints(kind), {}
    known = dict(zip(getattr(kind, "__parameters__", ()), parts, strict=False))
    for field in fields(kind):
        at = f"{key}.{field.name}".lstrip(".")
        if field.name in found:
            hint = hints[field.name]
            read[field.name] = _read(hint[tuple(known.values())] if known else hint, found[field.name], at)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise JsonError(f'"{at}" is missing')
    return kind(**read)


def _checked(kind: type[T], value: object, key: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise JsonError(f'"{key}" is no {kind.__name__}')
    return value
