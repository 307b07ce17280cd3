"""torch's profiler, as the recorder uses it: started and stopped silently, and its events read.

Owns every call into it, and these rules. It profiles the calling thread and the autograd engine's threads that work for
it: profiling all threads writes into freed memory where one of them is in an op as the session ends (torch up to 2.13;
later ones number their sessions). Profiling one thread does the same for an op or scope that outlives one session and
ends in the next, so scopes of the program (``record_function``) are left out, and before a session starts the caller
checks that nothing was open at the end of the last one. Kineto prints a line at start and stop; that is turned off
around these calls only, so that a profiler of the program still prints its lines.
"""

import ctypes
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _RecordFunctionFast

from rltrace.extensions.kernels.profiler.launch_matching import BRACKET, ProfilerEvent

END: Final = "rltrace ends"
"""Last event of a profile; events that end later were still open. torch 2.11 leaves those out."""

DEVICES: Final = ("cuda", "xpu")
"""Kinds of devices that are profiled, where torch can and the program uses one."""

HOST_CALLS: Final = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime")
ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
"""Kineto's names of these activities. Others (annotations on the device's timeline, waits) launched nothing."""

OF_ONE_OP: Final = frozenset({BRACKET})
"""Names of events that are open while an op runs, besides operators (``aten::mm``)."""

SILENT: Final = 99
LEVEL: Final = "KINETO_LOG_LEVEL"


_prepare: Any = torch._C._autograd._prepare_profiler
_enable: Any = torch._C._autograd._enable_profiler
_disable: Any = torch._C._autograd._disable_profiler
# the originals, before ``cycles.ProgramProfilers`` patches them


def devices() -> tuple[str, ...]:
    """Kinds of devices that the program uses and the profiler supports.

    In that order: asking torch what it supports may wake a driver, after which a forked child cannot use the device.
    """
    used = [kind for kind in DEVICES if _module(kind).is_initialized()]
    known = {activity.name.lower() for activity in _supported()} if used else ()
    return tuple(kind for kind in used if kind in known)


@cache
def _supported() -> frozenset[Any]:
    return frozenset(torch.profiler.supported_activities())


def _module(kind: str) -> Any:
    return getattr(torch, kind)


def is_captured() -> bool:
    """Whether the calling thread is capturing a CUDA graph: then nothing may start, stop or wait."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def start(kinds: Collection[str]) -> None:
    """Start in the calling thread. Raises torch's error where it cannot, and then leaves nothing started."""
    activity = torch._C._profiler.ProfilerActivity
    activities = {activity.CPU, *(getattr(activity, kind.upper()) for kind in kinds)}
    with _first_silent():
        _prepare(_config(), activities)
    with _silent():
        _enable(_config(), activities, {torch._C._profiler.RecordScope.FUNCTION})


def stop(kinds: Collection[str]) -> tuple[list[ProfilerEvent], list[str]]:
    """Stop, in the thread that started; returns the events, and the names of those that were still open."""
    try:
        if not is_captured():
            for kind in kinds:
                _wait_for(kind)
    finally:  # also where a device has failed: a session that is left running would profile the rest of the program
        with _RecordFunctionFast(END):
            pass
        with _silent():
            result = _disable()
    events = events_of(result)
    ends = [event.end for event in events if event.name == END]
    is_open = [event.name for event in events if ends and not event.device and event.end > ends[-1]]
    return [event for event in events if event.name != END], is_open


def _wait_for(kind: str) -> None:
    """Synchronize the devices that the program uses; others are not initialised."""
    module = _module(kind)
    in_use: Callable[[int], bool] | None = getattr(torch._C, f"_{kind}_hasPrimaryContext", None)
    if in_use is None:
        module.synchronize()
        return
    for index in range(module.device_count()):
        if in_use(index):
            module.synchronize(index)


def is_overrun() -> bool:
    """Whether Kineto has stopped recording the device because its buffers are full."""
    stopped = getattr(torch._C._autograd, "_is_kineto_stopped", None)
    return bool(stopped is not None and stopped())


def _config() -> Any:
    profiler: Any = torch._C._profiler
    try:
        config = profiler._ExperimentalConfig(expose_kineto_event_metadata=True)  # has grid and block
    except TypeError:  # older versions always expose it
        config = profiler._ExperimentalConfig()
    return profiler.ProfilerConfig(profiler.ProfilerState.KINETO, False, False, False, False, False, config, "")


# --- log level --------------------------------------------------------------------------------------------------------


@cache
def _level() -> Any:
    """Kineto's variable of the lowest level that it prints; None: this build of torch does not export it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.c_int.in_dll(library, "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):
        return None


@contextmanager
def _silent() -> Iterator[None]:
    level = _level()
    if level is None:
        yield
        return
    before, level.value = level.value, SILENT
    try:
        yield
    finally:
        level.value = before


@contextmanager
def _first_silent() -> Iterator[None]:
    """The first preparation of a process sets the level from an environment variable; restore that afterwards.

    Where Kineto does not export its level, it stays silent permanently.
    """
    level = _level()
    if level is not None and _prepared:
        with _silent():
            yield
        return
    requested = os.environ.get(LEVEL)
    os.environ[LEVEL] = str(SILENT)
    try:
        yield
    finally:
        _prepared.append(True)
        if requested is None:
            del os.environ[LEVEL]
        else:
            os.environ[LEVEL] = requested
        if level is not None and level.value == SILENT:
            level.value = int(requested) if requested is not None and requested.isdigit() else ERRORS


ERRORS: Final = 4
"""The level that torch sets by default."""

_prepared: list[bool] = []


# --- events -----------------------------------------------------------------------------------------------------------


def events_of(result: Any) -> list[ProfilerEvent]:
    """The events of a finished profile: ``torch.profiler.profile``, or the result of ``_disable_profiler``."""
    profiler = getattr(result, "profiler", None)
    events: list[ProfilerEvent] = []
    add, new = events.append, tuple.__new__  # a hundred thousand at a time: half of what Event(…) takes
    for event in (result if profiler is None else profiler.kineto_results).events():
        kind = event.activity_type() if HAS_ACTIVITY_TYPE else ""
        if kind == "cpu_op":
            start, end, thread = event.start_ns(), event.end_ns(), event.device_resource_id()
            add(new(ProfilerEvent, (event.name(), start, end, thread, event.correlation_id(), *REST)))
        elif kind != "user_annotation" and (other := _other(event, kind)) is not None:
            add(other)
    return events


REST: Final = tuple(ProfilerEvent._field_defaults[name] for name in ProfilerEvent._fields[5:])
HAS_ACTIVITY_TYPE: Final = hasattr(torch._C._autograd._KinetoEvent, "activity_type")


def _other(event: Any, kind: str) -> ProfilerEvent | None:
    """An event that is not an op, or may not be; None for what neither calls the runtime nor was launched."""
    on_host = event.device_type() == DeviceType.CPU
    name, start, end, correlation = event.name(), event.start_ns(), event.end_ns(), event.correlation_id()
    linked = event.linked_correlation_id()
    if on_host:
        calls = kind in HOST_CALLS if kind else bool(linked or re.match(r"(?:cuda|cu|hip)[A-Z]", name))
        if not calls and (kind or not correlation):
            return None  # the profiler's overhead and the like: torch's ids of ops begin at 1
        thread = event.device_resource_id()
        return ProfilerEvent(name, start, end, thread, correlation, linked if calls else 0, runtime=calls)
    if kind not in ON_DEVICE if kind else event.is_user_annotation():
        return None
    return ProfilerEvent(name, start, end, 0, correlation, linked, True, *_geometry(event))


def _geometry(event: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Grid and block of a kernel, from Kineto's metadata."""
    try:
        metadata = json.loads(f"{{{event.metadata_json()}}}")
    except (ValueError, AttributeError):
        return (), ()
    grid, block = (
        tuple(map(int, metadata[key])) if isinstance(metadata.get(key), list) else () for key in ("grid", "block")
    )
    return grid, block
