"""What a process is called in a trace: the same in every run of the same program, never by a process id.

Owns where a rank is read from, which programs merely start ranks, and how a program tells its children that they are.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from rltrace.identity import portable_path
from rltrace.record.options import DEPTH, PARENT_RANK, VARIABLE

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Variables in which launchers tell a process its rank, the surest first: torchrun's, Open MPI's, other MPIs',
Slurm's; one that is counted within a machine where there is no other."""

LAUNCHERS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})
"""Scripts that start the ranks of a program and compute nothing themselves, though they import torch."""

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.", "deepspeed.launcher.")
"""The same, started with ``python -m``."""


POOLS = ("multiprocessing.pool", "torch.multiprocessing.pool", "concurrent.futures.process")
"""Modules whose processes take tasks as timing has it."""


def process_name() -> str:
    """``rank0/main``; a multiprocessing child ``rank0/worker:1``; another program ``rank0/child:eval.py``.

    One that takes tasks as timing has it is ``rank0/pool:1``.

    What starts the ranks is ``launcher:torchrun``; it has no rank itself.
    """
    own = rank()
    if multiprocessing.parent_process() is not None:
        identity = getattr(multiprocessing.current_process(), "_identity", ())
        role = "pool" if _serves_a_pool(multiprocessing.current_process()) else "worker"
        return f"rank{own or '0'}/{role}:{'.'.join(map(str, identity)) or '?'}"
    starter = launcher()
    if starter is not None and not own:
        return f"launcher:{starter}"
    if os.environ.get(DEPTH, "0") != "0" and os.environ.get(PARENT_RANK, own) == own:
        return f"rank{own or '0'}/child:{Path(portable_path(sys.argv[0] or 'python')).name}"
    return f"rank{own or '0'}/main"


def fork_name(parent: str, number: int) -> str:
    """What the ``number``th child that ``parent`` forked is called: ``rank0/fork:2``, one of its own ``fork:2.1``."""
    start, _, last = parent.rpartition("/")
    if last == "main":
        return f"{start}/fork:{number}"
    return f"{parent}.{number}" if last.startswith("fork:") else f"{parent}/fork:{number}"


def _serves_a_pool(process: Any) -> bool:
    """Whether it runs the loop in which a pool of processes takes its tasks."""
    target = getattr(process, "_target", None)
    return getattr(target, "__module__", None) in POOLS


def rank() -> str:
    """This process's rank as a launcher told it; empty where none did."""
    return next(filter(None, map(os.environ.get, RANKS)), "")


def launcher() -> str | None:
    """The name of the program that this process runs, where all it does is to start ranks."""
    words = sys.orig_argv
    module = next((then for word, then in itertools.pairwise(words) if word == "-m"), "")
    if module.startswith(LAUNCHER_MODULES):
        return module
    name = Path(sys.argv[0] or "python").name
    return name if name in LAUNCHERS else None


def tell_children() -> None:
    """Have programs that this process starts know that they are another program's children; ranks are not."""
    if VARIABLE not in os.environ or (launcher() is not None and not rank()):  # nobody below is recorded
        return
    os.environ[DEPTH] = str(int(os.environ.get(DEPTH, "0")) + 1)
    os.environ[PARENT_RANK] = rank()
