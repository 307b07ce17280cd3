"""Ops that write without changing a byte, recognised by their arguments.

Clipping small gradients is one of them: it multiplies by one, and often no digest of the bytes before is known, as a
gradient may be a view of what the backward pass returned.
"""

from types import MappingProxyType

from rltrace.diff.base.findings import RowAt
from rltrace.digest import digest_buffer, seed_of

SCALING = frozenset(
    f"aten.{name}.{overload}"
    for name in ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
    for overload in ("Tensor", "Scalar")
)

ONES = MappingProxyType(
    {
        "float64": bytes.fromhex("000000000000f03f"),
        "float32": bytes.fromhex("0000803f"),
        "bfloat16": bytes.fromhex("803f"),
        "float16": bytes.fromhex("003c"),
        "int64": (1).to_bytes(8, "little"),
        "int32": (1).to_bytes(4, "little"),
    }
)
"""The number one, by dtype."""

Layout = tuple[str, tuple[int, ...], tuple[int, ...] | None]
"""dtype, shape, strides (None: the tensor has none)."""


def layouts_of(row: RowAt) -> list[Layout]:
    """Layouts of the tensor arguments of a row, in order; empty where they are not known."""
    found: list[Layout] = []
    for payload in row.view.tensors(row.rows, row.place):
        match payload:
            case [str(dtype), list(shape), list(strides), *_]:
                found.append((dtype, tuple(shape), tuple(strides)))
            case [str(dtype), list(shape), *_]:
                found.append((dtype, tuple(shape), None))
            case _:
                return []
    return found


def writes_in_place(row: RowAt) -> bool:
    """Whether the op's outputs are its first tensor arguments, in order (``mul_``, ``_foreach_add_``)."""
    return row.op.split(".")[1].endswith("_") if row.op.count(".") >= 2 else False


def written_layout(row: RowAt, slot: int) -> Layout | None:
    """The layout in which an op wrote one of its arguments; None: it returned a new tensor, or not known."""
    layouts = layouts_of(row) if writes_in_place(row) else []
    return layouts[slot] if slot < len(layouts) else None


def is_plain(layout: Layout) -> bool:
    """Whether the tensor is contiguous: its elements are in memory in the order in which they are digested."""
    _, shape, strides = layout
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return strides is not None


def scales_by_one(row: RowAt, factor: int | None) -> bool:
    """Whether the op multiplies or divides what it writes by exactly one; ``factor``: digest of its last tensor.

    IEEE 754 makes that exact, signs of zeros, infinities and quiet NaN included. Not so for complex numbers.
    """
    layouts, outputs = layouts_of(row), row.rows.outputs(row.place)
    if row.op not in SCALING or not layouts or not outputs or any("complex" in dtype for dtype, *_ in layouts):
        return False
    numbers = numbers_of(row)
    if len(layouts) == len(outputs):
        return numbers == [1]
    dtype, shape, _ = layouts[-1]
    if len(layouts) != len(outputs) + 1 or numbers or any(length != 1 for length in shape):
        return False
    return dtype in ONES and factor == digest_buffer(ONES[dtype], seed_of(dtype, shape))


def numbers_of(row: RowAt) -> list[int | float]:
    """All numbers among the arguments of a row that returns no number."""
    rows, i = row.rows, row.place
    integers: list[int] = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
    floats: list[float] = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()
    return [*integers, *floats]
