"""Calls of ATen operators made from their schemas alone: arguments of the right types, for as many as will take them.

Owns the guessing. What cannot be called this way is left out by the caller.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

INDICES = {"index", "indices", "offsets", "target", "lengths", "batch_sizes", "perm", "pivots", "repeats", "ind"}
"""Names of tensors that hold places."""

KINDS = (
    ((3, 3), torch.float32),
    ((4,), torch.float32),
    ((2, 3, 3), torch.float32),
    ((2, 2, 4, 4), torch.float32),
    ((3, 3), torch.int64),
    ((4,), torch.bool),
)
"""Shapes and dtypes of the tensors of a call."""

CRASHING = {
    "_batch_norm_no_update",
    "_fft_c2r",
    "_native_batch_norm_legit",
    "_nnpack_spatial_convolution",
    "_sobol_engine_initialize_state_",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "native_batch_norm",
    "slow_conv_transpose3d",
}
"""End the process where arguments do not fit each other."""

_SIZES = ([2], [2, 2], [0], [1, 1])
_WORDS = {"reduce": "sum", "reduction": "mean", "mode": "reduced", "UPLO": "L", "indexing": "ij"}


@dataclass(frozen=True)
class Example:
    """Arguments of one call, ``out=`` left out."""

    args: list[Any]
    kwargs: dict[str, Any]
    dtype: torch.dtype

    def fresh(self) -> tuple[list[Any], dict[str, Any]]:
        """Copies, so that a call cannot change what the next one gets."""
        return [_copy(a) for a in self.args], {name: _copy(a) for name, a in self.kwargs.items()}


def overloads() -> Iterator[OpOverload]:
    """All of ``aten``, by name."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        found = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if namespace == "aten" and found is not None and base not in CRASHING:
            yield found


def examples(op: OpOverload) -> Iterator[Example]:
    """Ways to call ``op`` that may work: with its defaults first, then with every argument given."""
    for every in (False, True):
        for shape, dtype in KINDS:
            for turn in range(2 if not every else 4):
                try:
                    yield _example(op, shape, dtype, turn, every)
                except KeyError:
                    return


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in what an op took or returned."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two results are equal, bit by bit."""
    pairs = list(zip(flat(a), flat(b), strict=True))
    return all(x.shape == y.shape and torch.equal(_bytes(x), _bytes(y)) for x, y in pairs)


def filled(shape: torch.Size, dtype: torch.dtype, byte: int) -> torch.Tensor:
    """A tensor of this byte alone."""
    if dtype is torch.bool:
        return torch.full(shape, byte > 127)
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.untyped_storage().fill_(byte)
    return tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _example(op: OpOverload, shape: tuple[int, ...], dtype: torch.dtype, turn: int, every: bool) -> Example:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, argument in enumerate(op._schema.arguments):
        if argument.is_out or (argument.has_default_value() and not every and argument.kwarg_only):
            continue
        if argument.has_default_value() and not every:
            args.append(argument.default_value)
        elif argument.kwarg_only:
            kwargs[argument.name] = _value(argument.name, str(argument.type), shape, dtype, place, turn)
        else:
            args.append(_value(argument.name, str(argument.type), shape, dtype, place, turn))
    return Example(args, kwargs, dtype)


def _value(name: str, kind: str, shape: tuple[int, ...], dtype: torch.dtype, place: int, turn: int) -> Any:
    """An argument of this type; KeyError where there is none to be guessed."""
    if kind.startswith("Optional"):
        return None if turn % 2 == 0 else _value(name, kind[9:-1], shape, dtype, place, turn)
    if kind == "Tensor":
        return _tensor(name, shape, dtype, place)
    if kind == "List[Tensor]":
        return [_tensor(name, shape, dtype, place), _tensor(name, shape, dtype, place + 1)]
    if kind == "List[Optional[Tensor]]":
        return [torch.tensor([0, 1])]
    if kind in ("List[int]", "List[SymInt]"):
        return _SIZES[turn]
    simple = {"int": 1 - turn % 2, "SymInt": 1 - turn % 2, "float": 0.5, "bool": turn > 1, "number": 2, "Scalar": 2}
    more = {"List[float]": [0.5], "List[bool]": [True, True], "List[number]": [2, 2], "List[Scalar]": [2, 2]}
    none = dict.fromkeys(("Device", "Layout", "MemoryFormat", "Generator"))
    return {**simple, **more, **none, "str": _WORDS.get(name, "none")}[kind]


def _tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, place: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    numbers = torch.arange(count, dtype=torch.float64).reshape(shape)
    if name in ("mask", "condition") or dtype is torch.bool:
        return numbers % 2 == 0
    if name in INDICES or dtype is torch.int64:
        return (numbers % 3).to(torch.int64)
    values = (numbers * 0.37 + 0.11 * place) % 0.83 + 0.1
    square = len(shape) > 1 and shape[-1] == shape[-2]
    return (values + 2 * torch.eye(shape[-1], dtype=torch.float64) if square else values).to(dtype)
