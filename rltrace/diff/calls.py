"""How an op was called, in words: its tensors, its numbers, the skeleton of all other arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rltrace.diff.findings import RowAt
from rltrace.diff.judging.pairs import Difference
from rltrace.trace.schema import Column


def skeleton_text(row: RowAt) -> str:
    payload = row.view.payload("scalars", int(row.rows.columns[row.place, Column.SCALARS]))
    return " ".join(map(str, payload)) if isinstance(payload, list) else ""


def arguments_text(a: RowAt, b: RowAt, difference: Difference) -> str:
    if not difference.structure:
        return f"it was called with different numbers: {numbers_text(a)} in A, {numbers_text(b)} in B"
    for what, describe in (("tensors", _layouts), ("arguments", call_text), ("op", lambda row: row.op)):
        if describe(a) != describe(b):
            return f"it was called with different {what}: {describe(a) or 'none'} in A, {describe(b) or 'none'} in B"
    return "it was called with different arguments"


def call_text(row: RowAt) -> str:
    """The arguments in order, numbers in their places; ``T`` is a tensor. What equals its default torch leaves out."""
    rows, i = row.rows, row.place
    numbers = {
        "i": iter(rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()),
        "f": iter(rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()),
    }
    payload = row.view.payload("scalars", int(rows.columns[i, Column.SCALARS]))
    words = payload if isinstance(payload, list) else []
    return f"({', '.join(_argument(word, numbers) for word in words)})"


def _argument(word: object, numbers: Mapping[str, Iterator[object]]) -> str:
    match word:
        case [str(name), item] if name.endswith("="):
            return f"{name}{_argument(item, numbers)}"
        case list():
            return f"[{', '.join(_argument(item, numbers) for item in word)}]"
        case dict():
            return ", ".join(map(str, word.values()))
        case "c":
            return f"{next(numbers['f'], '?')}+{next(numbers['f'], '?')}j"
        case "i" | "f":
            return str(next(numbers[str(word)], "?"))
    return str(word)


def input_text(row: RowAt, place: int) -> str:
    """``input 1 (float32[64,4])``; counted from 0, tensors alone."""
    layouts = _layouts_of(row, strides=False)
    return f"input {place} ({layouts[place]})" if place < len(layouts) else f"input {place}"


def numbers_text(row: RowAt) -> str:
    rows, i = row.rows, row.place
    integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()
    numbers = [*map(str, integers), *map(repr, floats)]
    return ", ".join(numbers[:8]) + (" …" if len(numbers) > 8 else "")


def _layouts(row: RowAt) -> str:
    return ", ".join(_layouts_of(row))


def _layouts_of(row: RowAt, strides: bool = True) -> list[str]:
    numbers = row.view.payload("structures", int(row.rows.columns[row.place, Column.STRUCTURE]))
    payloads = [row.view.payload("layouts", n) for n in numbers] if isinstance(numbers, list) else []
    return [_layout(payload, strides) for payload in payloads]


def _layout(payload: object, show_strides: bool) -> str:
    if not isinstance(payload, list) or len(payload) < 4:
        return "?"
    dtype, shape, strides, device = payload[:4]
    text = f"{dtype}[{','.join(map(str, shape or []))}]"
    if show_strides and isinstance(strides, str):
        text += f" {strides}"  # sparse, nested: the name of what it is made of stands for strides
    elif show_strides and strides is not None and list(strides) != _contiguous(list(shape or [])):
        text += f" strides {strides}"
    return text + ("" if device == "cpu" else f"@{device}")


def _contiguous(shape: list[int]) -> list[int]:
    strides: list[int] = []
    size = 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return strides[::-1]
