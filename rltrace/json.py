"""JSON of the dataclasses, and named tuples, that verbs return and processes pass on: the fields are the keys.

Owns how values are written and read back. Knows none of the classes: a class has its schema as ``SCHEMA``, properties
that are keys too in ``COMPUTED``, or all keys in ``KEYS``; of fields in ``MERGED`` the keys are written in their place.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class JsonError(ValueError):
    """A key is missing, or its value has another type."""


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
            return {str(key): to_json(item) for key, item in value.items()}
        case list() | tuple() if not hasattr(value, "_fields"):
            return [to_json(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        return to_json(value.item())
    kind: Any = type(value)
    if is_text(kind):
        return str(value)
    written = {"schema": kind.SCHEMA} if hasattr(kind, "SCHEMA") else {}
    for name in keys_of(kind):
        content = to_json(getattr(value, name))
        written |= content if name in getattr(kind, "MERGED", ()) else {name: content}
    return written


def is_text(kind: type) -> bool:
    """Whether values of this type are written as text: paths, and dataclasses with ``__str__``."""
    return issubclass(kind, PurePath) or (is_dataclass(kind) and kind.__str__ is not object.__str__)


def keys_of(kind: Any) -> list[str]:
    """The keys of a dataclass, or a named tuple, in JSON, without its schema."""
    own = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
    return getattr(kind, "KEYS", None) or [*own, *getattr(kind, "COMPUTED", ())]


def from_json(kind: type[T], value: object) -> T:
    """What ``to_json`` wrote as ``value``; unknown keys are ignored. Raises JsonError."""
    read: T = _read(kind, value, "")
    return read


def _read(kind: Any, value: Any, key: str) -> Any:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        (member,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _read(member, value, key)
    if origin is tuple:
        items = _checked(list, value, key)
        kinds = arguments[:1] * len(items) if arguments[-1] is ... else arguments
        if len(kinds) != len(items):
            raise JsonError(f'"{key}" has {len(items)} items, not {len(kinds)}')
        return tuple(_read(k, item, f"{key}[{n}]") for n, (k, item) in enumerate(zip(kinds, items, strict=True)))
    if issubclass(origin, PurePath):
        return origin(_checked(str, value, key))
    if is_dataclass(origin) or hasattr(origin, "_fields"):
        return _object(origin, arguments, _checked(dict, value, key), key)
    if issubclass(origin, Mapping):
        return {name: _read(arguments[1], item, f"{key}.{name}") for name, item in _checked(dict, value, key).items()}
    if issubclass(origin, Enum):
        try:
            return origin(value)
        except ValueError as error:
            raise JsonError(f'"{key}": {error}') from None
    if origin is float and (type(value) is int or value in ("nan", "inf", "-inf")):
        return float(value)
    return _checked(origin, value, key)


def _object(kind: Any, arguments: tuple[Any, ...], value: dict[str, Any], key: str) -> Any:
    """``arguments``: the type arguments of a generic class."""
    hints, read = get_type_hints(kind), {}
    known = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    for name, is_required in _fields_of(kind).items():
        at = f"{key}.{name}".lstrip(".")
        if name in value:
            hint = hints[name]
            read[name] = _read(hint[tuple(known.values())] if known else hint, value[name], at)
        elif is_required:
            raise JsonError(f'"{at}" is missing')
    return kind(**read)


def _fields_of(kind: Any) -> dict[str, bool]:
    """By name of a field, whether it has no default."""
    if is_dataclass(kind):
        return {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(kind)}
    return {name: name not in kind._field_defaults for name in kind._fields}


def _checked(kind: type[T], value: object, key: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise JsonError(f'"{key}" is no {kind.__name__}')
    return value
