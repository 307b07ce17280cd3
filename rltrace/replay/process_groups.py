"""Process groups without other processes: a program of several ranks runs as one of them, alone.

Owns what ``torch.distributed`` is given in place of a rendezvous and of backends, whatever the program requests (gloo,
nccl). Collectives return at once: what they receive is the program's own data, in the right shape, which the recorded
memory replaces in the steps that are run again. The rows of a recording are those of the program with all ranks, since
everything above the backend is torch's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
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


def leave_alone(rank: int, world: int) -> None:
    """From now on this process is rank ``rank`` of ``world`` for ``torch.distributed``, and there are no others.

    A program that requests another rank or number of ranks gets a UsageError.
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
    _answer_collectives()


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


# --- collectives ------------------------------------------------------------------------------------------------------


_kept: list[Any] = []
"""Registrations, which end with their objects."""


def _answer_collectives() -> None:
    """Have every operator of c10d return at once."""
    library = torch.library.Library("c10d", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for schema in torch._C._jit_get_all_schemas():
            name = schema.name.removeprefix("c10d::")
            if name != schema.name and name != "check_for_nan":
                for device in DEVICES:
                    library.impl(name, _answer(schema), device.upper(), allow_override=True)


INPUTS: Final = "input_tensors", "input_tensor", "input_list", "inputs", "input"
"""Names of the arguments that are sent; without one of them, what is sent is the first argument."""


def _answer(schema: Any) -> Callable[..., Any]:
    """An operator that returns at once. What it would receive is what this process sends, repeated."""
    names = [argument.name for argument in schema.arguments]
    if schema.name in FINISHED_BY_WAITING:
        return _summed_in_other_memory(returns=len(schema.returns))
    sent = next((names.index(name) for name in INPUTS if name in names), 0)
    returns = len(schema.returns)
    receives = "recv" in schema.name

    def answer(*args: Any) -> Any:
        received = _tensors(args[0])
        with torch.no_grad():
            if receives:
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
