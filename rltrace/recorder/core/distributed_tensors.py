"""Tensors that are distributed over processes (DTensor), or the result of a collective in flight: ops on them.

Both are wrappers without memory. torch's class of either runs ops on the plain tensors within, collectives among them,
and the recorder leaves an op on them to that class, as torch's DebugMode does: what it runs are rows, linked by the
memory that they read and write. An op on distributed tensors has a row before those, which names their placements,
reads nothing and has no results.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._ops import OpOverload

from rltrace.recorder.base.dispatch_mode import recorder_disabled, recorder_is_next
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import OpWrapper, OverriddenError
from rltrace.recorder.digests.layouts import dtype_name

# --- tensors ----------------------------------------------------------------------------------------------------------


class DistributedError(OverriddenError):
    """A tensor among the arguments of an op is distributed, or in flight; it has not been read yet."""


_INNER: Final = {"DTensor": "_local_tensor", "AsyncCollectiveTensor": "elem"}
"""Classes of ``torch.distributed``, and their attribute with the plain tensor."""


@functools.cache
def inner_name(kind: type) -> str | None:
    """The attribute of tensors of this class with the plain tensor within; None: they are not distributed."""
    for base in kind.__mro__:
        if base.__name__ in _INNER and base.__module__.startswith("torch.distributed."):
            return _INNER[base.__name__]
    return None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of this process within a distributed one, or one in flight; any other tensor as it is."""
    while (name := inner_name(type(tensor))) is not None:
        tensor = getattr(tensor, name)
    return tensor


def local_arguments(value: Any) -> Any:
    """An argument with the tensors of this process."""
    if isinstance(value, torch.Tensor):
        return local(value)
    return type(value)(map(local_arguments, value)) if type(value) in (list, tuple) else value


# --- placements -------------------------------------------------------------------------------------------------------


GlobalLayout = tuple[object, ...]
"""Of one distributed tensor, hashable: dtype, shape, strides, device, names and sizes of the mesh, placements."""


def global_layouts(value: Any) -> list[GlobalLayout | None]:
    """Of each tensor in an argument, in order; None: it is not distributed."""
    if isinstance(value, (list, tuple)):
        return [layout for item in value for layout in global_layouts(item)]
    return [_global_layout(value)] if isinstance(value, torch.Tensor) else []


def _global_layout(tensor: Any) -> GlobalLayout | None:
    kind: Any = type(tensor)
    if inner_name(kind) != _INNER["DTensor"]:
        return None
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names
    sizes = tuple(mesh.size(i) for i in range(mesh.ndim))
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.device),
        None if names is None else tuple(names),
        sizes,
        tuple(repr(each).replace("dim=", "").removesuffix("()") for each in tensor.placements),
    )


def layout_payload(layout: GlobalLayout) -> list[Any]:
    """Its entry in table "layouts"."""
    dtype, shape, strides, device, names, sizes, placements = layout
    mesh = {"names": names, "sizes": sizes, "placements": placements}
    return [dtype_name(dtype), shape, strides, device, mesh]  # type: ignore[arg-type]


class DistributedOp(OpWrapper):
    """An operator on distributed tensors, as its row has it: it leaves the op to their class."""

    def __init__(self, func: OpOverload, layouts: tuple[GlobalLayout | None, ...]) -> None:
        # torch goes on to the class of the tensors, under the recorder's mode
        super().__init__(func, lambda *_: NotImplemented)
        self.global_layouts = layouts
        """Of the tensors among its arguments, in order."""


class DistributedOps:
    """The operators on distributed tensors of one process."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], DistributedOp] = {}

    def of(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> DistributedOp | None:
        """None where no argument is distributed; one object per operator and global layouts, which identifies them."""
        layouts = tuple(global_layouts((*args, *(kwargs or {}).values())))
        if not any(layouts):
            return None
        key = id(func), layouts
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = DistributedOp(func, layouts)
        return found


# --- sharding ---------------------------------------------------------------------------------------------------------


class ShardingPropagation:
    """Patch, from ``install`` to ``uninstall``: the first time that an operator meets some placements, torch runs it on
    tensors without memory to learn the shape of its result. These ops are none of the program's."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._patches = Patches()

    def install(self) -> None:
        if not self._patches:
            self._patches.on_import({"torch.distributed.tensor._sharding_prop": self._patch}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _patch(self, module: Any) -> None:
        for name in ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"):
            self._patches.wrap(module.ShardingPropagator, name, _unrecorded)


def _unrecorded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not recorder_is_next():
        return original(*args, **kwargs)
    with recorder_disabled():
        return original(*args, **kwargs)
