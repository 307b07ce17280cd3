"""What a process is called in a trace: the same in every run of the same program, never by a process id.

Owns where a rank is read from, which programs merely start ranks, and how a program tells its children that they are.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import sys
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Any

from rltrace.identity import portable_path
from rltrace.record.options import DEPTH, PARENT_RANK, VARIABLE
from rltrace.record.processes.children import own_number
from rltrace.record.processes.ray_workers import ray_role

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Variables in which launchers tell a process its rank, the surest first: torchrun's, Open MPI's, other MPIs',
Slurm's; one that is counted within a machine where there is no other."""

LAUNCHERS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})
"""Scripts that start the ranks of a program and compute nothing themselves, though they import torch."""

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.", "deepspeed.launcher.")
"""The same, started with ``python -m``."""


_SPAWN = "multiprocessing.spawn"
_MADE_UP = re.compile(r"(?:Spawn|ForkServer)(?:Process|PoolWorker)-([\d:]+)")
"""Names that multiprocessing makes up of how a process counts its children."""

POOLS = ("multiprocessing.pool", "torch.multiprocessing.pool", "concurrent.futures.process")
"""Modules whose processes take tasks as timing has it."""


def process_name(trace: str = "") -> str:
    """``rank0/main``; a multiprocessing child ``rank0/worker:1``; another program ``rank0/child:eval.py``.

    One that takes tasks as timing has it is ``rank0/pool:1``, an actor of Ray's ``rank0/ray:Learner``.
    ``trace``: where the process that started this one has left its number, if it has started several.
    What starts the ranks is ``launcher:torchrun``; it has no rank itself.
    """
    own = rank()
    process = multiprocessing.current_process()
    if multiprocessing.parent_process() is not None:
        return f"rank{own or '0'}/{'pool' if _serves_a_pool(process) else 'worker'}:{_number(process) or '?'}"
    if _still_imports():
        return f"rank{own or '0'}/{'pool' if _will_serve_a_pool() else 'worker'}:{_number(process)}"
    ray = ray_role()
    if ray is not None:
        return f"rank{own or '0'}/{ray}"
    starter = launcher()
    if starter is not None:
        return f"launcher:{starter}"
    if os.environ.get(DEPTH, "0") != "0" and os.environ.get(PARENT_RANK, own) == own:
        number = own_number(trace) if trace else None
        more = f"#{number}" if number is not None and number > 1 else ""
        return f"rank{own or '0'}/child:{Path(portable_path(sys.argv[0] or 'python')).name}{more}"
    return f"rank{own or '0'}/main"


def fork_name(parent: str, number: int) -> str:
    """What the ``number``th child that ``parent`` forked is called: ``rank0/fork:2``, one of its own ``fork:2.1``."""
    start, _, last = parent.rpartition("/")
    if last == "main":
        return f"{start}/fork:{number}"
    return f"{parent}.{number}" if last.startswith("fork:") else f"{parent}/fork:{number}"


def is_worker() -> bool:
    """Whether multiprocessing started this process; so its parent may terminate it as a matter of course."""
    return multiprocessing.parent_process() is not None or _still_imports()


def _still_imports() -> bool:
    """Whether this process is spawned, imports the program's modules, and has not been told what it is to run."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _serves_a_pool(process: Any) -> bool:
    """Whether it runs the loop in which a pool of processes takes its tasks."""
    target = getattr(process, "_target", None)
    return getattr(target, "__module__", None) in POOLS


def _number(process: Any) -> str:
    """How its parent counts it, ``2`` or ``2.1``; by its name where that is the program's own."""
    identity = getattr(process, "_identity", ())
    if identity:
        return ".".join(map(str, identity))
    made_up = _MADE_UP.fullmatch(process.name)
    return str(process.name) if made_up is None else made_up[1].replace(":", ".")


def _will_serve_a_pool() -> bool:
    """The same of a spawned process that still imports the program's modules.

    What it is to run lies unread in the pipe from its parent. Looking at it takes nothing out.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "_main" and frame.f_globals.get("__name__") == _SPAWN):
        frame = frame.f_back
    pipe = None if frame is None else frame.f_locals.get("from_parent")
    if not isinstance(pipe, BufferedReader):
        return False
    start = pipe.peek()
    return any(module.encode() in start for module in POOLS)


def rank() -> str:
    """This process's rank as a launcher told it; empty where none did."""
    return next(filter(None, map(os.environ.get, RANKS)), "")


def launcher() -> str | None:
    """The name of the program that this process runs, where all it does is to start ranks.

    A rank is told its number in the first of ``RANKS``; in the others a job's launcher may have one of its own.
    """
    if os.environ.get(RANKS[0]):
        return None
    words = sys.orig_argv
    module = next((then for word, then in itertools.pairwise(words) if word == "-m"), "")
    if module.startswith(LAUNCHER_MODULES):
        return module
    name = Path(sys.argv[0] or "python").name
    return name if name in LAUNCHERS else None


def tell_children() -> None:
    """Have programs that this process starts know that they are another program's children; ranks are not."""
    if VARIABLE not in os.environ or launcher() is not None:  # nobody below is recorded, or ranks are
        return
    os.environ[DEPTH] = str(int(os.environ.get(DEPTH, "0")) + 1)
    os.environ[PARENT_RANK] = rank()
