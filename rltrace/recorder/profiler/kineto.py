"""torch's profiler, as the recorder uses it: started and stopped without a word, and its events read.

Owns every call into it, and these rules. It is of the calling thread and of the autograd engine's threads that work for
it: the form that sees all threads writes into freed memory where one of them is within an op as it ends (torch up to
2.13; later ones number their sessions). The form for one thread does the same to an op or a scope that outlives one
session and ends within the next, so scopes of the program's own (``record_function``) are left out, and whoever starts
a session after another one asks first whether anything was still open at its end. Kineto prints a line as it starts and
as it stops; that is turned off around these calls and nowhere else, so that a profiler of the program's own prints its.
"""

from __future__ import annotations

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

from rltrace.recorder.profiler.launch_matching import BRACKET, ProfilerEvent

END: Final = "rltrace ends"
"""What a profile shows last; whatever ends later was still open."""

DEVICES: Final = ("cuda", "xpu")
"""Kinds of devices that are looked at, where torch can and the program has begun to use one."""

HOST_CALLS: Final = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime")
ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
"""What Kineto calls activities of these kinds. Others (annotations on the device's line, waiting) launched nothing."""

OF_ONE_OP: Final = frozenset({BRACKET})
"""Names of what is open while an op runs, those of operators (``aten::mm``) aside."""

NOTHING_IS_SAID: Final = 99
LEVEL: Final = "KINETO_LOG_LEVEL"


_prepare: Any = torch._C._autograd._prepare_profiler
_enable: Any = torch._C._autograd._enable_profiler
_disable: Any = torch._C._autograd._disable_profiler
# as they are now, before anything stands in for them (programs_own.py)


def devices() -> tuple[str, ...]:
    """Kinds of devices whose kernels can be looked at now: the program uses them, and the profiler knows them.

    In that order: to ask torch what it knows may wake a driver, after which a forked child cannot use the device.
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
    """Whether what the calling thread launches now goes into a CUDA graph: no moment to start or stop, or wait."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def start(kinds: Collection[str]) -> None:
    """Begin in the calling thread. Raises what torch raises where it cannot, and leaves nothing begun then."""
    activity = torch._C._profiler.ProfilerActivity
    activities = {activity.CPU, *(getattr(activity, kind.upper()) for kind in kinds)}
    with _first_said_nowhere():
        _prepare(_config(), activities)
    with _silent():
        _enable(_config(), activities, {torch._C._profiler.RecordScope.FUNCTION})


def stop(kinds: Collection[str]) -> tuple[list[ProfilerEvent], list[str]]:
    """End it, in the thread that began: its events, and the names of those that were still open."""
    if not is_captured():
        for kind in kinds:
            _wait_for(kind)
    with _RecordFunctionFast(END):
        pass
    with _silent():
        result = _disable()
    events = events_of(result)
    ends = [event.end for event in events if event.name == END]
    is_open = [event.name for event in events if ends and not event.device and event.end > ends[-1]]
    return [event for event in events if event.name != END], is_open


def _wait_for(kind: str) -> None:
    """For all of its devices that the program has begun to use; the others are not begun with."""
    module = _module(kind)
    in_use: Callable[[int], bool] | None = getattr(torch._C, f"_{kind}_hasPrimaryContext", None)
    if in_use is None:
        module.synchronize()
        return
    for index in range(module.device_count()):
        if in_use(index):
            module.synchronize(index)


def is_overrun() -> bool:
    """Whether Kineto has stopped to listen to the device, its memory being full."""
    stopped = getattr(torch._C._autograd, "_is_kineto_stopped", None)
    return bool(stopped is not None and stopped())


def _config() -> Any:
    profiler: Any = torch._C._profiler
    try:
        config = profiler._ExperimentalConfig(expose_kineto_event_metadata=True)  # grid and block stand there
    except TypeError:  # before that could be asked for, it was always there
        config = profiler._ExperimentalConfig()
    return profiler.ProfilerConfig(profiler.ProfilerState.KINETO, False, False, False, False, False, config, "")


# --- without a word ---------------------------------------------------------------------------------------------------


@cache
def _level() -> Any:
    """Kineto's own variable that says which of its lines are printed; None: this build of torch does not show it."""
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
    before, level.value = level.value, NOTHING_IS_SAID
    try:
        yield
    finally:
        level.value = before


@contextmanager
def _first_said_nowhere() -> Iterator[None]:
    """The first preparation of a process sets the level itself, by a variable; what it would have been comes after.

    Where Kineto does not show its level the variable is all there is: it then stays silent for good.
    """
    level = _level()
    if level is not None and _prepared:
        with _silent():
            yield
        return
    asked = os.environ.get(LEVEL)
    os.environ[LEVEL] = str(NOTHING_IS_SAID)
    try:
        yield
    finally:
        _prepared.append(True)
        if asked is None:
            del os.environ[LEVEL]
        else:
            os.environ[LEVEL] = asked
        if level is not None and level.value == NOTHING_IS_SAID:
            level.value = int(asked) if asked is not None and asked.isdigit() else ERRORS


ERRORS: Final = 4
"""The level that torch sets where nothing else is asked for."""

_prepared: list[bool] = []


# --- events -----------------------------------------------------------------------------------------------------------


def events_of(result: Any) -> list[ProfilerEvent]:
    """The events of a finished profile: ``torch.profiler.profile``, or what ``_disable_profiler`` gives."""
    profiler = getattr(result, "profiler", None)
    events: list[ProfilerEvent] = []
    add, new = events.append, tuple.__new__  # a hundred thousand at a time: half of what Event(…) takes
    for event in (result if profiler is None else profiler.kineto_results).events():
        kind = event.activity_type() if KINDS_ARE_TOLD else ""
        if kind == "cpu_op":
            start, end, thread = event.start_ns(), event.end_ns(), event.device_resource_id()
            add(new(ProfilerEvent, (event.name(), start, end, thread, event.correlation_id(), *REST)))
        elif kind != "user_annotation" and (other := _other(event, kind)) is not None:
            add(other)
    return events


REST: Final = tuple(ProfilerEvent._field_defaults[name] for name in ProfilerEvent._fields[5:])
KINDS_ARE_TOLD: Final = hasattr(torch._C._autograd._KinetoEvent, "activity_type")


def _other(event: Any, kind: str) -> ProfilerEvent | None:
    """An event that is no op, or may be none; None for what is no call of the runtime and launched nothing."""
    on_host = event.device_type() == DeviceType.CPU
    name, start, end, correlation = event.name(), event.start_ns(), event.end_ns(), event.correlation_id()
    linked = event.linked_correlation_id()
    if on_host:
        calls = kind in HOST_CALLS if kind else bool(linked or re.match(r"(?:cuda|cu|hip)[A-Z]", name))
        if not calls and kind:
            return None  # overhead of the profiler's own, and the like
        thread = event.device_resource_id()
        return ProfilerEvent(name, start, end, thread, correlation, linked if calls else 0, runtime=calls)
    if kind not in ON_DEVICE if kind else event.is_user_annotation():
        return None
    return ProfilerEvent(name, start, end, 0, correlation, linked, True, *_geometry(event))


def _geometry(event: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Grid and block of a kernel, from what Kineto writes down of it."""
    try:
        told = json.loads(f"{{{event.metadata_json()}}}")
    except (ValueError, AttributeError):
        return (), ()
    grid, block = (tuple(map(int, told[key])) if isinstance(told.get(key), list) else () for key in ("grid", "block"))
    return grid, block
