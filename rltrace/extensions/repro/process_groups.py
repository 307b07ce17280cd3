"""Process groups without other processes: a program of several ranks runs as one of them, alone.

Owns what ``torch.distributed`` is given in place of a rendezvous and of backends, whatever the program requests (gloo,
nccl). Collectives return at once: what they receive is the program's own data, in the right shape, and the recorded
memory alone in the steps that are run again. The rows of a recording are those of the program with all ranks, since
everything above the backend is torch's.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed
from torch.utils import _pytree as pytree

from rltrace.errors import UsageError

NAME: Final = "rltrace"
"""Of the backend, in torch's registry."""

DEVICES: Final = "cpu", "cuda"

SCHEMES: Final = "env", "tcp", "file"
"""Ways in which ranks find each other."""

KEY_SECONDS: Final = 1
"""For which a program waits for what another process would have written into the store."""


def leave_alone(rank: int, world: int, refuse: Callable[[str], None], is_recorded: Callable[[], bool]) -> None:
    """From now on this process is rank ``rank`` of ``world`` for ``torch.distributed``, and there are no others.

    ``refuse`` is called with a sentence where the program is to receive objects of another rank. ``is_recorded``:
    whether recorded memory holds what collectives receive. A program that requests another rank or number of ranks gets
    a UsageError.
    """
    c10d: Any = distributed.distributed_c10d
    internal: Any = torch._C._distributed_c10d

    def meet(url: str, timeout: timedelta = timedelta(), **_: Any) -> Iterator[tuple[Any, int, int]]:
        yield internal.HashStore(), *_requested(url, rank, world)

    for scheme in SCHEMES:
        c10d.rendezvous.__globals__["_rendezvous_handlers"][scheme] = meet

    def backend(options: Any, _more: Any) -> Any:
        options.store.set_timeout(timedelta(seconds=KEY_SECONDS))
        if not options.global_ranks_in_group:
            _check(options.group_rank, options.group_size, rank, world)
        return internal.FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    distributed.Backend.register_backend(NAME, backend, extended_api=True, devices=list(DEVICES))
    kinds: Any = distributed.Backend.backend_type_map
    for name in kinds:
        kinds[name] = kinds[NAME]
    c10d.BackendConfig.get_device_backend_map = lambda _config: dict.fromkeys(DEVICES, NAME)
    _answer_collectives(is_recorded)
    for name in OBJECTS:
        for holder in (c10d, distributed):
            setattr(holder, name, follow_objects(getattr(c10d, name), refuse))


def _requested(url: str, rank: int, world: int) -> tuple[int, int]:
    """The rank and number of ranks in the URL of a rendezvous, or else in this process's variables."""
    from urllib.parse import parse_qs, urlparse

    query = {
        name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items() if name in ("rank", "world_size")
    }
    known = {"rank": int(os.environ.get("RANK", rank)), "world_size": int(os.environ.get("WORLD_SIZE", world)), **query}
    return known["rank"], known["world_size"]


def _check(rank_here: int, world_here: int, rank: int, world: int) -> None:
    if (rank_here, world_here) != (rank, world):
        raise UsageError(
            f"the program is rank {rank_here} of {world_here} here, and the recorded process was rank {rank} of"
            f" {world}: what other ranks sent is known for that one only"
        )


# --- objects ----------------------------------------------------------------------------------------------------------


OBJECTS: Final = "broadcast_object_list", "scatter_object_list", "recv_object_list"
"""Functions by which a rank receives what only another one has; of others it receives its own objects."""


def follow_objects(function: Callable[..., Any], refuse: Callable[[str], None]) -> Callable[..., Any]:
    """One of these functions, which calls ``refuse`` first where another rank sends the objects."""
    parameters = inspect.signature(function)

    @functools.wraps(function)
    def receive(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        group = given.get("group") or distributed.group.WORLD
        source, within = given.get("src"), given.get("group_src")
        if group is not None and source is None and within is not None:
            source = distributed.get_global_rank(group, within)
        if source is None and function.__name__ != "recv_object_list":
            source = 0
        if distributed.get_rank(group) >= 0 and source != distributed.get_rank():
            caller = sys._getframe(1)
            sender = "another rank" if source is None else f"rank {source}"
            refuse(
                f"{function.__name__} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno} receives objects of"
                f" {sender} before the recorded steps, and no recorded op holds them"
            )
        return function(*args, **kwargs)

    return receive


# --- collectives ------------------------------------------------------------------------------------------------------


_kept: list[Any] = []
"""Registrations, which end with their objects."""


def _answer_collectives(is_recorded: Callable[[], bool]) -> None:
    """Have every operator of c10d return at once."""
    library = torch.library.Library("c10d", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for schema in torch._C._jit_get_all_schemas():
            name = schema.name.removeprefix("c10d::")
            if name != schema.name and name != "check_for_nan":
                for device in DEVICES:
                    library.impl(name, _answer(schema, is_recorded), device.upper(), allow_override=True)


INPUTS: Final = "input_tensors", "input_tensor", "input_list", "inputs", "input"
"""Names of the arguments that are sent; without one of them, what is sent is the first argument."""


def _answer(schema: Any, is_recorded: Callable[[], bool]) -> Callable[..., Any]:
    """An operator that returns at once. What it would receive is what this process sends, repeated.

    Where that is recorded, memory stays as it is: what a collective brings and was there already is not recorded.
    """
    names = [argument.name for argument in schema.arguments]
    if schema.name in FINISHED_BY_WAITING:
        return _summed_in_other_memory(returns=len(schema.returns))
    sent = next((names.index(name) for name in INPUTS if name in names), 0)
    returns = len(schema.returns)
    receives = "recv" in schema.name

    def answer(*args: Any) -> Any:
        received = _tensors(args[0])
        with torch.no_grad():
            if is_recorded():
                pass
            elif receives:
                for tensor in received:
                    tensor.zero_()
            elif sent:
                _repeat(_tensors(args[sent]), received)
        if not returns:
            return None
        work = _finished(received)
        return work if returns == 1 else (args[0], work)

    return answer


FINISHED_BY_WAITING: Final = "c10d::_reduce_scatter_base_", "c10d::reduce_scatter_tensor_coalesced_"
"""Operators for which gloo sums in memory of its own, from which it copies when the program waits, by ops that are
recorded."""


def _summed_in_other_memory(*, returns: int) -> Callable[..., Any]:
    """An operator that does what gloo does for a reduce-scatter, without the sum."""

    def answer(received: Any, sent: Any, group: Any, *_: Any) -> Any:
        members: Any = distributed.ProcessGroup.unbox(group)
        rank, size = members.rank(), members.size()
        sums = [tensor.clone() for tensor in _tensors(sent)]

        def wait(*_timeout: Any) -> bool:
            for target, summed in zip(_tensors(received), sums, strict=True):
                target.copy_(summed.chunk(size)[rank])
            return True

        work = torch._C._distributed_c10d.PythonCallbackWork(wait).boxed()
        return work if returns == 1 else (received, work)

    return answer


def _tensors(argument: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, torch.Tensor)]


def _repeat(sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
    """Fill ``received`` with the elements of ``sent``, from the first again after the last."""
    elements = torch.cat([tensor.detach().reshape(-1) for tensor in sent]) if sent else torch.empty(0)
    for tensor in received:
        if not len(elements):
            tensor.zero_()
            continue
        count = tensor.numel()
        repeated = elements.repeat(-(-count // len(elements)))[:count]
        tensor.copy_(repeated.reshape(tensor.shape))
        elements = elements.roll(-count)


def _finished(received: list[torch.Tensor]) -> Any:
    """A work that is done."""
    future: Any = torch.futures.Future()
    future.set_result(received)
    c10d: Any = torch._C._distributed_c10d
    return c10d._create_work_from_future(future).boxed()
