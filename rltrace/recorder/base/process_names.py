"""What a process is called in a trace: the same in every run of the same program, never by a process id.

Owns where a rank is read from, which programs merely start ranks, and how a program tells its children that they are.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Any

from rltrace.portable_keys import portable_path
from rltrace.recorder.base.options import DEPTH, PARENT_RANK, VARIABLE
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.process_start import STARTS, start_ticks

# --- ray workers ------------------------------------------------------------------------------------------------------
#
# What a worker process of Ray is called: by what it is there for, since Ray hands tasks to whichever is free.
#
# Owns the questions to Ray. Never imports it: a process in which it is not loaded is no worker of it.


WORKER = "default_worker.py"
"""The program that Ray's workers run."""


def ray_role() -> str | None:
    """``ray:Learner`` in an actor, by its own name or its class's; ``pool:ray`` where tasks come as they come.

    None in every other process. An actor's worker asks while it builds the actor, which is when it loads the program.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or Path(sys.argv[0] or "python").name != WORKER:
        return None
    try:
        context = ray.get_runtime_context()
        if context.get_actor_id() is None:
            return "pool:ray"
        name = context.get_actor_name() or str(context.get_task_function_name()).removesuffix(".__init__")
        return f"ray:{name.rpartition('.')[2]}"
    except Exception:  # of a version that has no such question
        return "ray:worker"


# --- children ---------------------------------------------------------------------------------------------------------
#
# Programs that a process starts: numbered as it starts them, since which of them comes first is a matter of timing.
#
# Owns how a child learns its number. Nothing is put into its arguments or its environment, which belong to the program
# (and threads may be starting others at the same time): the parent writes down which number it gave to which process
# id, and the child, long before it has imported torch, is in that list. Where it is not (started in another way than
# through ``subprocess``) it is numbered by who came first, and the trace says so: it wanted the name without the
# number.


ENDING = ".children"
"""Of the list of a process, beside its birth record: a line ``pid start number`` for each child."""

MOST_ABOVE = 8
"""Processes between a child and the one that started it that are looked through: shells, ``env``, ``timeout`` …"""


class Children:
    """In a parent: writes down the number of every program that it starts, from ``watch`` to ``ignore``."""

    def __init__(self, trace: str, token: str) -> None:
        self._list = Path(trace, STARTS, f"{token}{ENDING}")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._patches = Patches()

    def watch(self) -> None:
        if not self._patches:
            self._patches.wrap(subprocess.Popen, "__init__", self._started)

    def ignore(self) -> None:
        self._patches.undo_all()

    def _started(self, original: Callable[..., None], *given: Any, **named: Any) -> None:
        number = self._number(_what_runs(given[1] if len(given) > 1 else named.get("args")))
        original(*given, **named)
        self._write(given[0].pid, number)

    def _number(self, what: str) -> int:
        """Taken before the start, so that of two threads the one that is first in the program's order stays it."""
        with self._lock:
            number = self._counts[what] = self._counts.get(what, 0) + 1
            return number

    def _write(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # the trace is gone
            line = f"{pid} {start_ticks(pid)} {number}\n".encode()
            descriptor = os.open(self._list, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


def own_number(trace: str) -> int | None:
    """The number that the nearest process above that is recorded gave to this one, or to one in between; None: none."""
    below = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        for above in _above(below):
            for listed in Path(trace, STARTS).glob(f"{above}-*{ENDING}"):
                wanted = f"{below} {start_ticks(below)}"
                for line in listed.read_text().splitlines():
                    if line.rpartition(" ")[0] == wanted:
                        return int(line.rpartition(" ")[2])
            below = above
    return None


def _above(pid: int) -> Iterator[int]:
    """The processes above, the nearest first."""
    for _ in range(MOST_ABOVE):
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        if pid <= 1:
            return
        yield pid


def _what_runs(args: object) -> str:
    """What a command line runs, as far as it tells: ``evaluate.py`` of ``python evaluate.py --seed 3``."""
    try:
        words = _words(args)
        script = next((word for word in words if re.search(r"\.py$", word)), None)
        if script is None and "-m" in words[:-1]:
            script = words[words.index("-m") + 1]
        return os.path.basename(script or words[0])  # noqa: PTH119
    except (TypeError, ValueError, IndexError):
        return ""


def _words(args: Any) -> Sequence[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        return shlex.split(os.fsdecode(args))
    if not isinstance(args, (list, tuple)):  # to go through it may use it up
        return []
    words = [os.fsdecode(word) for word in args]
    if len(words) == 3 and words[1] == "-c" and not words[0].startswith(sys.executable):
        return shlex.split(words[2])  # a shell
    return words


# --- process names ----------------------------------------------------------------------------------------------------


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
