"""A Ray cluster as the place of an experiment: its runs, and calls of a function, are tasks of it.

Owns the connection, how files travel, and attempts whose worker was lost. Schedules nothing: Ray does. Nothing else
imports Ray.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rltrace.diff.base.model import Comparison
from rltrace.diff.compare import CompareOptions, compare
from rltrace.errors import NotATraceError, RecordError, RltraceError, UsageError
from rltrace.experiment.explain import Tried, try_setting
from rltrace.experiment.kernel_settings import KernelSetting
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.experiment.workdir_copy import copy_folder
from rltrace.fingerprint import Fact
from rltrace.fingerprint.host import FILE_LISTS, is_recorded, machine
from rltrace.trace.format.location import Location

CHUNK = 8 << 20
"""Bytes of an object in which files travel; neither side holds more of a file in its memory."""
ATTEMPTS = 4
"""Attempts at a call whose worker is lost each time."""
PATIENCE = 10.0
"""Seconds that calls have to end after they were cancelled."""
ASSIGNED = "_VISIBLE_DEVICES"
"""Ending of the variables that Ray sets for the devices of a task."""
WITHOUT_RAY = "Ray is not installed: pip install 'rltrace-debugger[ray]'"
NO_CLUSTER = (
    "start one with ray start --head (and ray start --address=HOST:6379 on other machines), or name one with "
    "RAY_ADDRESS=HOST:6379 or --on ray://HOST:10001"
)


@dataclass(frozen=True)
class Resources:
    """What a task is given of a node, as Ray counts it; fractions share."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class CallResult:
    """What a call returned."""

    place: int
    """Which of the calls it was."""
    value: Any
    lost: tuple[str, ...] = ()
    """How each attempt before the last was lost."""


class RayCluster:
    """A connection to a cluster; as a context manager it leaves no task behind."""

    def __init__(
        self,
        address: str,
        resources: Resources,
        at_once: int | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``address``: ``ray`` for the current or local cluster, or ``ray://HOST:PORT``. ``at_once``: calls at a time
        at most; None: as many as there are resources for. ``report`` is given a line where none can begin.
        """
        self._address = address
        self._resources = resources
        self._at_once = at_once
        self._report = report
        self._pending: dict[Any, tuple[int, tuple[str, ...]]] = {}
        self._connection = ExitStack()

    def __enter__(self) -> RayCluster:
        """Connect. Raises UsageError without Ray, or without a cluster."""
        try:
            import ray
        except ImportError:
            raise UsageError(WITHOUT_RAY) from None
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS", "auto") if self._address == "ray" else self._address
            _check_answers(address)
            try:
                ray.init(address, log_to_driver=False, configure_logging=False)
            except (ImportError, ConnectionError, RuntimeError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                if "ray[client]" in reason:
                    raise UsageError(f"{address} needs Ray's client: pip install 'ray[client]'") from None
                raise UsageError(f"no Ray cluster can be used ({reason}): {NO_CLUSTER}") from None
            self._connection.callback(ray.shutdown)
        # a thread of Ray prints which workers were lost; standard output is data
        self._connection.enter_context(redirect_stdout(sys.stderr))
        self._check_resources()
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        with self._connection:
            for task in self._pending:
                ray.cancel(task)
            left = [*self._pending]
            if left:
                _, left = ray.wait(left, num_returns=len(left), timeout=PATIENCE)
            for task in left:
                ray.cancel(task, force=True)

    def runner(self) -> RayRunner:
        """What makes runs on it."""
        return RayRunner(self)

    def compare_pairs(self, pairs: Sequence[tuple[Location, Location]], *, strict: bool) -> list[Comparison]:
        """Compare each pair of traces on a worker, which has to see them: at URLs, or in a folder that all share."""
        calls = [(*(os.fspath(x.absolute()) if isinstance(x, Path) else x for x in pair), strict) for pair in pairs]
        return [found.value for found in sorted(self.call(compare_there, calls), key=lambda found: found.place)]

    def machine(self) -> dict[str, Fact]:
        """The facts of the machine of a worker."""
        (found,) = self.call(machine, [()])
        facts: dict[str, Fact] = found.value
        return facts

    def explain(
        self, script: Path, tries: Sequence[KernelSetting], times: int, on_setting: Callable[[KernelSetting], None]
    ) -> list[Tried]:
        """Run a ``repro.py`` under each setting, as ``rltrace.experiment.explain`` does, on workers of one kind.

        Raises RecordError where they are not.
        """
        files, found, kinds = put([script.parent]), dict[int, Tried](), set[tuple[Fact, ...]]()
        calls = [(files, f"{script.parent.name}/{script.name}", setting, times) for setting in tries]
        for ended in self.call(try_there, calls):
            found[ended.place], kind = ended.value
            kinds.add(kind)
            if len(kinds) > 1:
                shown = " and ".join(", ".join(map(str, each)) for each in sorted(kinds, key=str))
                raise RecordError(f"the settings were tried on machines of two kinds ({shown}): use nodes of one kind")
            on_setting(tries[ended.place])
        return [found[place] for place in range(len(tries))]

    def call(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        take: Callable[[int, Any], Any] = lambda place, value: value,
    ) -> Iterator[CallResult]:
        """Call ``function``, of an importable module, with each of these arguments, and yield the results as they end.

        ``take`` is called with the place and what was returned, and its result is yielded: it fetches what is still on
        the cluster. A call whose worker is lost, then or before, is made again. Raises what the function raises.
        """
        import ray
        from ray import exceptions

        lost_errors = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,
            exceptions.ObjectLostError,
            exceptions.LocalRayletDiedError,
        )
        options = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus, "max_retries": 0}
        task = ray.remote(function).options(**options)
        waiting, arguments = enumerate(calls), dict[int, tuple[Any, ...]]()
        while True:
            for place, values in islice(waiting, None if self._at_once is None else self._at_once - len(self._pending)):
                arguments[place] = values
                self._pending[task.remote(*values)] = place, ()
            if not self._pending:
                return
            (ended, *_), _ = ray.wait([*self._pending], num_returns=1)
            place, lost = self._pending.pop(ended)
            try:
                value = take(place, ray.get(ended))
            except lost_errors as error:
                lost = (*lost, _what_was_lost(error))
                if len(lost) == ATTEMPTS:
                    raise RecordError(f"{ATTEMPTS} attempts were lost: {'; '.join(lost)}") from None
                self._pending[task.remote(*arguments[place])] = place, lost
            except exceptions.RayTaskError as error:
                raise _cause(error) from None
            except exceptions.RayError as error:
                raise RecordError(f"Ray gave up: {str(error).strip().splitlines()[0]}") from None
            else:
                del arguments[place]
                yield CallResult(place, value, lost)

    def _check_resources(self) -> None:
        """Report where no node has what a task needs: Ray then waits for one."""
        import ray

        wanted = {"CPU": self._resources.cpus, "GPU": self._resources.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            text = " and ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount)
            self._report(f"no node of the cluster has {text}: Ray waits for one that has")


def _check_answers(address: str) -> None:
    """Raise UsageError where nothing listens at an address: Ray would try for ever."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"no Ray cluster answers at {address} ({reason}): {NO_CLUSTER}") from None


def _what_was_lost(error: Exception) -> str:
    """In a few words, as Ray's messages are pages long."""
    return {
        "WorkerCrashedError": "its worker process was killed or crashed",
        "NodeDiedError": "its node was lost",
        "OutOfMemoryError": "Ray ended its worker, as the node ran out of memory",
        "LocalRayletDiedError": "Ray ended on its node",
    }.get(type(error).__name__, f"its files were lost with its node ({type(error).__name__})")


def _cause(error: Any) -> Exception:
    """What a task raised, or why it could not begin."""
    cause = error.cause
    missing = re.search(r"^(?:ModuleNotFound|Import)Error: (.+)$", str(cause), re.MULTILINE)
    if missing is not None:  # Ray quotes it in a RuntimeError where a worker cannot import the function
        return UsageError(
            f"the workers of the cluster cannot run rltrace ({missing[1]}): install the same version there as here"
        )
    if isinstance(cause, RltraceError):
        return cause
    return RecordError(f"a task of the cluster failed: {type(cause).__name__}: {cause}")


def compare_there(a: Location | str, b: Location | str, strict: bool) -> Comparison:
    """Compare two traces on this worker."""
    try:
        return compare(a, b, CompareOptions(strict=strict))
    except NotATraceError as error:
        raise UsageError(
            f"{error} on {os.uname().nodename}, a worker of the cluster: put the traces at URLs (rltrace push), or in a"
            " folder that all nodes share"
        ) from None


def try_there(files: Sequence[Any], script: str, setting: KernelSetting, times: int) -> tuple[Tried, tuple[Fact, ...]]:
    """Run a ``repro.py`` under one setting on this worker, and the facts that its kind of machine has."""
    with tempfile.TemporaryDirectory(prefix="rltrace-explain-") as scratch:
        unpack(files, Path(scratch), trusted=False)
        facts = machine()
        return try_setting(Path(scratch, script), setting, times), (facts["host.cpu"], facts["host.isa"])


# --- files ------------------------------------------------------------------------------------------------------------
#
# Files travel as a tar archive in objects of ``CHUNK`` bytes; Ray keeps objects beside its memory on disk.


class _Sink:
    """What is written to it goes into objects of one size."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        while len(self._held) >= CHUNK:
            self._put(CHUNK)
        return len(data)

    def _put(self, size: int) -> None:
        import ray

        self.objects.append(ray.put(bytes(self._held[:size])))
        del self._held[:size]

    def close(self) -> None:
        if self._held:
            self._put(len(self._held))


class _Source:
    """Reads what a ``_Sink`` wrote, one object at a time."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._left = iter(objects)
        self._held = b""

    def read(self, size: int) -> bytes:
        import ray

        while len(self._held) < size and (one := next(self._left, None)) is not None:
            self._held += ray.get(one)
        found, self._held = self._held[:size], self._held[size:]
        return found


def put(paths: Iterable[Path]) -> list[Any]:
    """References to the objects that hold these files and folders, each by its name."""
    sink = _Sink()
    with tarfile.open(mode="w|", fileobj=sink) as archive:  # type: ignore[call-overload]  # it only writes
        for path in paths:
            archive.add(path, path.name)
    sink.close()
    return sink.objects


def unpack(objects: Sequence[Any], folder: Path, *, trusted: bool) -> None:
    """Write what ``put`` took into ``folder``; ``trusted``: with links that lead out of it."""
    with tarfile.open(mode="r|", fileobj=_Source(objects)) as archive:  # type: ignore[call-overload]  # it only reads
        archive.extractall(folder, filter="fully_trusted" if trusted else "data")


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteRun:
    """How a run ended on a worker, and where its files are."""

    status: int
    files: list[Any]
    """References: the trace, what it printed, and what it was to write."""


class RayRunner:
    """Makes runs as ``Runner`` does, as tasks of a cluster."""

    def __init__(self, cluster: RayCluster, environment: Mapping[str, str] = os.environ) -> None:
        self._cluster = cluster
        self._environment = environment
        self._folders: dict[tuple[Path, tuple[str, ...]], list[Any]] = {}

    def run(self, jobs: Iterable[RunRequest]) -> Iterator[RunResult]:
        """Make all, and yield each as it ends, with its files in their places here.

        Raises RecordError where one could not be recorded, or its worker was lost again and again.
        """
        made = list(jobs)

        def take(place: int, ended: RemoteRun) -> int:
            shutil.rmtree(made[place].trace, ignore_errors=True)  # of an attempt that was lost meanwhile
            unpack(ended.files, made[place].trace.parent, trusted=False)
            return ended.status

        for ended in self._cluster.call(make_run, [self._arguments(job) for job in made], take):
            yield RunResult(made[ended.place], ended.value, ended.lost)

    def _arguments(self, job: RunRequest) -> tuple[Any, ...]:
        environment = self._environment if job.environment is None else job.environment
        inputs = {os.fspath(path): put([path]) for path in job.reads}
        return replace(job, environment=None), carried(environment, self._environment), self._folder(job), inputs

    def _folder(self, job: RunRequest) -> list[Any]:
        """The program's folder as ``copy_folder`` copies it; all runs of the experiment get the same one."""
        key = job.origin, job.shared
        if key not in self._folders:
            with tempfile.TemporaryDirectory(prefix="rltrace-folder-") as scratch:
                copy_folder(job.origin, Path(scratch, "folder"), job.shared, job.without)
                self._folders[key] = put([Path(scratch, "folder")])
        return self._folders[key]


def carried(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run that its worker gets: those that a trace records, and those set for this run."""
    return {
        name: value
        for name, value in environment.items()
        if (_selects_results(name) or own.get(name) != value) and not name.endswith(ASSIGNED)
    }


def _selects_results(name: str) -> bool:
    return is_recorded(name) and name not in FILE_LISTS and not name.endswith(ASSIGNED)


def make_run(
    job: RunRequest, variables: Mapping[str, str], folder: Sequence[Any], inputs: Mapping[str, Sequence[Any]]
) -> RemoteRun:
    """Make a run on this worker, in a folder that is removed at the end.

    Its variables are the worker's, but those that a trace records are ``variables``: as there, or unset as there.
    """
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # by which Ray cancels; a cluster may ignore it from its shell
    with tempfile.TemporaryDirectory(prefix="rltrace-run-") as name:
        scratch = Path(name)
        unpack(folder, scratch, trusted=True)
        for shared in job.shared:
            if not (scratch / "folder" / shared).exists():
                raise UsageError(f"--share {shared}: {job.origin / shared} does not exist on {os.uname().nodename}")
        places = {os.fspath(path): os.fspath(scratch / path.name) for path in (*job.reads, *job.writes)}
        for objects in inputs.values():
            unpack(objects, scratch, trusted=False)
        own = {name: value for name, value in os.environ.items() if not _selects_results(name)}
        here = replace(
            job,
            trace=scratch / job.trace.name,
            output=scratch / job.output.name,
            verb=tuple(places.get(word, word) for word in job.verb),
            options=tuple(places.get(word, word) for word in job.options),
            environment={**own, **variables},
        )
        with Runner(with_parent=True) as runner:
            ended = runner.record(here, scratch / "folder")
        written = (Path(places[os.fspath(path)]) for path in job.writes)
        return RemoteRun(ended.status, put([here.trace, here.output, *filter(Path.exists, written)]))
