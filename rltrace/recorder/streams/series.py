"""Series of numbers recorded beside the ops: logged scalars, learning rates, gradient scalers.

Owns the samples until they are committed, and how a number is read: without an op, and without waiting for a device. A
number on a device is copied there, and read back when the samples are committed.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests.cuda_graphs import is_captured, overrides_disabled
from rltrace.trace.format.schema import Sample

Tensor = torch.Tensor

FLUSH_SAMPLES: Final = 1 << 16
"""Pending samples at which a commit is requested."""

MAX_READS: Final = 16
"""Numbers of one call site that are recorded of a step: one that reads actions has one for each environment step."""


class StreamPosition(NamedTuple):
    """Where a number is sampled."""

    stream: int
    step: int
    row: int
    thread: str
    """Name of a thread without a stream; else ""."""


class OnDevice:
    """A number on a device: a copy made in the order of the program's work there, to be read back later."""

    def __init__(self, tensor: Tensor) -> None:
        wide = torch.float32 if tensor.device.type == "mps" else torch.float64
        self._copy = tensor.detach().reshape(()).to(wide, copy=True)
        self._copied = torch.Event(device=tensor.device)
        self._copied.record()

    def read(self) -> float:
        self._copied.synchronize()
        return float(self._copy.item())


class SeriesSampler:
    """The samples of one process."""

    def __init__(
        self, tables: Tables, position: Callable[[], StreamPosition], request_commit: Callable[[], None]
    ) -> None:
        self._tables = tables
        self._position = position
        self._request_commit = request_commit
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, str | int, str], int] = {}
        """By kind, name (or call site) and thread: id in table "series"."""
        self._reads: dict[int, tuple[int, int]] = {}
        """By id of such a call site's series: the current step, and its numbers so far."""
        self._places: array[int] = array("Q")
        self._values: array[float] = array("d")
        self._later: list[tuple[int, OnDevice]] = []
        """(index, number) of samples whose number is still on a device."""
        self._rates: dict[tuple[int, int], float] = {}
        self._stopped = False

    def watch(self, name: str, value: object) -> None:
        """A number of ``rltrace.watch``; a value that is not a number is left out."""
        number = number_of(value)
        if number is not None:
            self.add("watch", name, number)

    def rates(self, optimizer: int, groups: Sequence[Mapping[str, Any]], step: int) -> None:
        """Learning rates of attempt ``step`` that differ from those of the attempt before."""
        for place, group in enumerate(groups):
            rate = number_of(group.get("lr")) if isinstance(group, Mapping) else None
            if rate is None or (isinstance(rate, float) and self._rates.get((optimizer, place)) == rate):
                continue
            if isinstance(rate, float):
                self._rates[optimizer, place] = rate
            self.add("learning-rate", f"optimizer:{optimizer}/group:{place}/lr", rate, step)

    def read(self, site: int, call: str, value: float) -> None:
        """A number that the program reads at a call site: an id in table "sites", and its call if one of several."""
        if self._stopped:
            return
        position = self._position()
        number = self._numbers.get(("item", site, position.thread))
        if number is None:
            number = self._intern("item", site, position.thread, call)
        step, count = self._reads.get(number, (-1, 0))
        if step != position.step:
            count = 0
        self._reads[number] = position.step, count + 1
        if count < MAX_READS:
            self._append(number, position, position.step, _float(value))

    def add(self, kind: str, name: str, value: float | OnDevice, step: int | None = None) -> None:
        """Add a number to a series; ``step``: the step that it belongs to, None: the current one."""
        if self._stopped:
            return
        position = self._position()
        number = self._numbers.get((kind, name, position.thread))
        if number is None:
            number = self._intern(kind, name, position.thread)
        self._append(number, position, position.step if step is None else step, value)

    def _append(self, number: int, position: StreamPosition, step: int, value: float | OnDevice) -> None:
        later = isinstance(value, OnDevice)
        with self._lock:
            if later:
                self._later.append((len(self._values), value))  # type: ignore[arg-type]
            self._values.append(np.nan if later else value)  # type: ignore[arg-type]
            self._places.extend((number, position.stream, step, position.row))
            pending = len(self._values)
        if pending % FLUSH_SAMPLES == 0:
            self._request_commit()

    def take(self) -> NDArray[np.uint64]:
        """Samples since the last call, shape [n, len(Sample)]; waits for a device that still computes one of them."""
        with self._lock:
            places, values, later = self._places, self._values, self._later
            self._places, self._values, self._later = array("Q"), array("d"), []
        with overrides_disabled():
            for place, value in later:
                with suppress(Exception):  # the device has failed; the program will raise
                    values[place] = value.read()
        samples = np.empty((len(values), len(Sample)), np.uint64)
        samples[:, : Sample.VALUE] = np.frombuffer(places, np.uint64).reshape(-1, Sample.VALUE)
        samples[:, Sample.VALUE] = np.frombuffer(values, np.uint64)
        return samples

    def stop(self) -> None:
        """Take nothing more: no commit follows."""
        self._stopped = True
        self.take()

    def _intern(self, kind: str, name: str | int, thread: str, call: str = "") -> int:
        """``name``: that of the series, or its call site; ``call``: one of several there."""
        own = {"thread": thread} if thread else {}
        payload = identity = {"kind": kind, "name": name, **own}
        if isinstance(name, int):
            identity = {"kind": kind, "site": f"{self._tables.key_of('sites', name):016x}", "call": call, **own}
            payload = {"kind": kind, "name": "", "site": name, **own}
        with self._lock:
            number = self._tables.intern("series", portable_key("series", identity), payload)
            self._numbers[kind, name, thread] = number
        return number


def number_of(value: object) -> float | OnDevice | None:
    """A number, read without dispatching an op; None for a value that is not a number."""
    kind = type(value)
    if kind is float or kind is int:
        return _float(value)
    try:
        # ``overrides_disabled`` at half its cost
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if isinstance(value, Tensor):
                return _of_tensor(value)
            return _float(value.item() if hasattr(value, "item") else value)
    except Exception:  # whatever it is, it is not a number, and the program goes on
        return None


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf") if value > 0 else float("-inf")


def _of_tensor(tensor: Tensor) -> float | OnDevice | None:
    if tensor.numel() != 1:
        return None
    if tensor.device.type == "cpu":
        return float(tensor.detach().item())
    return None if is_captured(tensor.device) else OnDevice(tensor)
