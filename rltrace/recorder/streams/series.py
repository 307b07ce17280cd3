"""Numbers that move in time, taken down beside the ops: what the program watches, and learning rates.

Owns the samples until they are committed, and how a number is read: no op is dispatched for it, and nothing waits for
a device. A number on a device is copied there, and read back where the samples are taken, behind the program's back.
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

HURRY_AT: Final = 1 << 16
"""Samples that wait; then they are committed before it is time."""


class StreamPosition(NamedTuple):
    """Where a sample is taken."""

    stream: int
    step: int
    row: int
    thread: str
    """Of a thread that has no stream, its name; "" else."""


class OnDevice:
    """A number on a device: a copy made in the order of the program's own work there, to be read back later."""

    def __init__(self, tensor: Tensor) -> None:
        wide = torch.float32 if tensor.device.type == "mps" else torch.float64
        self._copy = tensor.detach().reshape(()).to(wide, copy=True)
        self._made = torch.Event(device=tensor.device)
        self._made.record()

    def read(self) -> float:
        self._made.synchronize()
        return float(self._copy.item())


class SeriesSampler:
    """Everything that becomes samples in one process."""

    def __init__(self, tables: Tables, here: Callable[[], StreamPosition], hurry: Callable[[], None]) -> None:
        self._tables = tables
        self._here = here
        self._hurry = hurry
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, str, str], int] = {}
        """By kind, name and thread: id in table "series"."""
        self._places: array[int] = array("Q")
        self._values: array[float] = array("d")
        self._later: list[tuple[int, OnDevice]] = []
        """Samples whose value is still on a device."""
        self._rates: dict[tuple[int, int], float] = {}
        self._stopped = False

    def watch(self, name: str, value: object) -> None:
        """What the program says; a value that is no number is left out."""
        number = number_of(value)
        if number is not None:
            self.add("watch", name, number)

    def rates(self, optimizer: int, groups: Sequence[Mapping[str, Any]], step: int) -> None:
        """Learning rates with which attempt ``step`` was made, where they are others than at the last one."""
        for place, group in enumerate(groups):
            rate = number_of(group.get("lr")) if isinstance(group, Mapping) else None
            if rate is None or (isinstance(rate, float) and self._rates.get((optimizer, place)) == rate):
                continue
            if isinstance(rate, float):
                self._rates[optimizer, place] = rate
            self.add("learning-rate", f"optimizer:{optimizer}/group:{place}/lr", rate, step)

    def add(self, kind: str, name: str, value: float | OnDevice, step: int | None = None) -> None:
        """One more number of a series; ``step``: which it belongs to, the current one unless said."""
        if self._stopped:
            return
        here = self._here()
        number = self._numbers.get((kind, name, here.thread))
        if number is None:
            number = self._intern(kind, name, here.thread)
        later = isinstance(value, OnDevice)
        with self._lock:
            if later:
                self._later.append((len(self._values), value))  # type: ignore[arg-type]
            self._values.append(np.nan if later else value)  # type: ignore[arg-type]
            self._places.extend((number, here.stream, here.step if step is None else step, here.row))
            waiting = len(self._values)
        if waiting % HURRY_AT == 0:
            self._hurry()

    def take(self) -> NDArray[np.uint64]:
        """Samples since the last call, shape [n, len(Sample)]; waits for a device that still computes one of them."""
        with self._lock:
            places, values, later = self._places, self._values, self._later
            self._places, self._values, self._later = array("Q"), array("d"), []
        with overrides_disabled():
            for place, value in later:
                with suppress(Exception):  # the device has failed; the program is about to find out
                    values[place] = value.read()
        samples = np.empty((len(values), len(Sample)), np.uint64)
        samples[:, : Sample.VALUE] = np.frombuffer(places, np.uint64).reshape(-1, Sample.VALUE)
        samples[:, Sample.VALUE] = np.frombuffer(values, np.uint64)
        return samples

    def stop(self) -> None:
        """Take nothing more: nobody will come for it."""
        self._stopped = True
        self.take()

    def _intern(self, kind: str, name: str, thread: str) -> int:
        identity = {"kind": kind, "name": name, **({"thread": thread} if thread else {})}
        with self._lock:
            number = self._tables.intern("series", portable_key("series", identity), identity)
            self._numbers[kind, name, thread] = number
        return number


def number_of(value: object) -> float | OnDevice | None:
    """A number, read without a trace; None for what is none."""
    kind = type(value)
    if kind is float or kind is int:
        return _float(value)
    try:
        with (
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
        ):  # as ``overrides_disabled``, at half the cost
            return _of_tensor(value) if isinstance(value, Tensor) else _float(_scalar(value))
    except Exception:  # whatever it is, a number cannot be had of it, and the program is to go on
        return None


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


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
