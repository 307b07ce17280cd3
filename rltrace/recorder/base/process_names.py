"""Process names: the same in every run of a program, never a process id.

Owns where a rank is read from, which programs merely start ranks, and how a program marks its children.
"""

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
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Any

from rltrace.portable_keys import portable_path
from rltrace.recorder.base.options import DEPTH, PARENT_RANK, VARIABLE, RecordOptions
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.process_start import LAUNCHER, STARTS, note_left_out, start_ticks

# --- ray workers ------------------------------------------------------------------------------------------------------
#
# A worker process of Ray is named by its actor, since Ray gives tasks to any free worker. Never imports Ray: a process
# that has not loaded it is none of its workers.


WORKER = "default_worker.py"
"""The program that Ray's workers run."""


def ray_role() -> str | None:
    """``ray:Learner`` in an actor, by its name or its class's; ``pool:ray`` in a worker for tasks; None elsewhere.

    In an actor's worker this is called while the actor is built, which is when it loads the program.
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
    except Exception:  # another version of Ray
        return "ray:worker"


def ray_actor() -> str:
    """The id of the actor whose worker this is; empty elsewhere."""
    role = ray_role()
    if role is None or not role.startswith("ray:"):
        return ""
    with contextlib.suppress(Exception):  # another version of Ray
        return str(sys.modules["ray"].get_runtime_context().get_actor_id() or "")
    return ""


# --- children ---------------------------------------------------------------------------------------------------------
#
# Child programs are numbered by their parent in the order of their start; which of them runs first depends on timing.
# Nothing is added to a child's arguments or environment, which belong to the program (and threads may be starting
# others at the same time): the parent writes a list of process ids and numbers, and a child is on it long before it has
# imported torch. One that is not (not started through ``subprocess``) is numbered by arrival, and the trace reports so.


ENDING = ".children"
"""Suffix of the list, beside the parent's start record: a line ``pid start number`` for each child."""

MAX_ANCESTORS = 8
"""Processes above a child that are searched for its parent: past shells, ``env``, ``timeout`` …"""


class Children:
    """In a parent: lists the number of every program that it starts, from ``install`` to ``uninstall``."""

    def __init__(self, trace: str, token: str) -> None:
        self._list = Path(trace, STARTS, f"{token}{ENDING}")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._patches = Patches()

    def install(self) -> None:
        if not self._patches:
            self._patches.wrap(subprocess.Popen, "__init__", self._started)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _started(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        number = self._number(_program_of(args[1] if len(args) > 1 else kwargs.get("args")))
        original(*args, **kwargs)
        self._write(args[0].pid, number)

    def _number(self, program: str) -> int:
        """Counted before the start, so that of two threads the first in the program's order has the lower number."""
        with self._lock:
            number = self._counts[program] = self._counts.get(program, 0) + 1
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
    """The number that the nearest recorded ancestor gave to this process, or to one in between; None: none did."""
    child = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        for parent in _ancestors(child):
            for listed in Path(trace, STARTS).glob(f"{parent}-*{ENDING}"):
                identity = f"{child} {start_ticks(child)}"
                for line in listed.read_text().splitlines():
                    if line.rpartition(" ")[0] == identity:
                        return int(line.rpartition(" ")[2])
            child = parent
    return None


def _ancestors(pid: int) -> Iterator[int]:
    """Process ids of the ancestors, the nearest first."""
    for _ in range(MAX_ANCESTORS):
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        if pid <= 1:
            return
        yield pid


def _program_of(args: object) -> str:
    """The program that a command line runs: ``evaluate.py`` of ``python evaluate.py --seed 3``; "" where unclear."""
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
    if not isinstance(args, (list, tuple)):  # iterating may consume it
        return []
    words = [os.fsdecode(word) for word in args]
    if len(words) == 3 and words[1] == "-c" and not words[0].startswith(sys.executable):
        return shlex.split(words[2])  # a shell
    return words


# --- process names ----------------------------------------------------------------------------------------------------


RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Variables in which launchers pass a process its rank, the most reliable first: torchrun's, Open MPI's, other MPIs',
Slurm's; the rank within a machine where there is no other."""

LAUNCHERS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})
"""Scripts that start the ranks of a program and compute nothing themselves, though they import torch."""

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.", "deepspeed.launcher.")
"""The same, started with ``python -m``."""


_SPAWN = "multiprocessing.spawn"
_GENERATED_NAME = re.compile(r"(?:Spawn|ForkServer)(?:Process|PoolWorker)-([\d:]+)")
"""Default names of multiprocessing, with the parent's count of its children."""

POOLS = ("multiprocessing.pool", "torch.multiprocessing.pool", "concurrent.futures.process")
"""Modules whose processes take tasks in an order that depends on timing."""


def process_name(trace: str = "") -> str:
    """``rank0/main``; a multiprocessing child ``rank0/worker:1``; another program ``rank0/child:eval.py``.

    A process of a pool is ``rank0/pool:1``, a Ray actor ``rank0/ray:Learner``, the launcher of the ranks
    ``launcher:torchrun``. ``trace``: its path, to read the number that this process's parent gave it.
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
    rank_launcher = launcher()
    if rank_launcher is not None:
        return f"{LAUNCHER}{rank_launcher}"
    if _depth() != "0" and os.environ.get(PARENT_RANK, own) == own:
        number = own_number(trace) if trace else None
        suffix = f"#{number}" if number is not None and number > 1 else ""
        return f"rank{own or '0'}/child:{Path(portable_path(sys.argv[0] or 'python')).name}{suffix}"
    return f"rank{own or '0'}/main"


def recorded_name(trace: str, library: str) -> str:
    """The name of what this process computes with ``library``: its own; with a second one, ``rank0/main/jax``."""
    name = process_name(trace)
    if _own.first is None or _own.first[:2] != (os.getpid(), trace):
        _own.first = os.getpid(), trace, library
    return name if _own.first[2] == library else f"{name}/{library}"


def fork_name(parent: str, number: int) -> str:
    """The name of the ``number``th child that ``parent`` forked: ``rank0/fork:2``, of a fork's child ``fork:2.1``."""
    start, _, last = parent.rpartition("/")
    if last == "main":
        return f"{start}/fork:{number}"
    return f"{parent}.{number}" if last.startswith("fork:") else f"{parent}/fork:{number}"


def is_worker() -> bool:
    """Whether multiprocessing started this process, so that its parent may terminate it routinely."""
    return multiprocessing.parent_process() is not None or _still_imports()


def _still_imports() -> bool:
    """Whether this process is spawned and still imports the program's modules, before it receives its target."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _serves_a_pool(process: Any) -> bool:
    """Whether it runs the task loop of a process pool."""
    target = getattr(process, "_target", None)
    return getattr(target, "__module__", None) in POOLS


def _number(process: Any) -> str:
    """Its number among its parent's children, ``2`` or ``2.1``; its name where the program chose one."""
    identity = getattr(process, "_identity", ())
    if identity:
        return ".".join(map(str, identity))
    generated = _GENERATED_NAME.fullmatch(process.name)
    return str(process.name) if generated is None else generated[1].replace(":", ".")


def _will_serve_a_pool() -> bool:
    """Whether a spawned process that still imports the program's modules will run the task loop of a pool.

    Its target is unread in the pipe from its parent; peeking consumes nothing. Where an import of the target itself is
    running, nothing may be left to read, and nothing will come.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "_main" and frame.f_globals.get("__name__") == _SPAWN):
        frame = frame.f_back
    pipe = None if frame is None else frame.f_locals.get("from_parent")
    if not isinstance(pipe, BufferedReader):
        return False
    os.set_blocking(pipe.fileno(), False)
    start = pipe.peek()
    os.set_blocking(pipe.fileno(), True)
    return any(module.encode() in start for module in POOLS)


def rank() -> str:
    """This process's rank as a launcher set it; empty where none did."""
    return next(filter(None, map(os.environ.get, RANKS)), "")


def launcher() -> str | None:
    """The name of the program that this process runs, where it only starts ranks; else None.

    The first of ``RANKS`` is set only in a rank; a job's launcher may have a value in the others.
    """
    if os.environ.get(RANKS[0]):
        return None
    words = sys.orig_argv
    module = next((then for word, then in itertools.pairwise(words) if word == "-m"), "")
    if module.startswith(LAUNCHER_MODULES):
        return module
    name = Path(sys.argv[0] or "python").name
    return name if name in LAUNCHERS else None


def is_left_out(options: RecordOptions, token: str, name: str | None = None) -> bool:
    """Whether ``--processes`` leaves this process out (``name``: None: its own); then the trace says so.

    Its child programs have the names that they have where it is recorded.
    """
    if not options.processes:
        return False
    name = name or process_name(options.trace)
    if any(fnmatchcase(name, pattern) for pattern in options.processes):
        return False
    note_left_out(options.trace, token, name, options.processes)
    mark_children()
    return True


class _Own:
    """What this process is called by, whatever it passes on to its children."""

    depth: tuple[int, str] | None = None
    """Its process id, and ``DEPTH`` before it marked its children."""
    first: tuple[int, str, str] | None = None
    """Its process id, a trace, and the first library of which something is recorded there."""


_own = _Own()


def _depth() -> str:
    """``DEPTH`` as this process was started."""
    if _own.depth is not None and _own.depth[0] == os.getpid():
        return _own.depth[1]
    return os.environ.get(DEPTH, "0")


def mark_children() -> None:
    """Mark programs that this process starts as its children, by variables they inherit; ranks are not marked."""
    if VARIABLE not in os.environ or launcher() is not None:  # no child is recorded, or the children are ranks
        return
    _own.depth = os.getpid(), _depth()
    os.environ[DEPTH] = str(int(_depth()) + 1)
    os.environ[PARENT_RANK] = rank()
