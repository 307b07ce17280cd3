"""Running statistics of wrappers that normalise what an environment returns, Gymnasium's and Stable-Baselines3's.

Owns how they are found: an attribute of a wrapper, or an item of one that is a dictionary, with a mean and a count in
NumPy or Python. Statistics of tensors are not found, as ops write them. Reads no property, keeps no wrapper alive.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from rltrace.recorder.base.weak_id_dict import WeakIdDict

MAX_STATISTICS: Final = 64
"""Of a process that are followed."""

INSIDE: Final = ("env", "venv")
"""Attributes of a wrapper that are what it wraps."""

Numbers = tuple[tuple[str, float], ...]
"""``count``, and ``mean of float64``, the average of the means: each with its value."""


@dataclass
class RunningStatistics:
    """One object with statistics."""

    name: str
    """``VecNormalize.obs_rms``; a number follows the name of another one."""
    _holder: weakref.ref[Any]
    _path: tuple[Any, ...]
    """Name of the attribute, and the key in a dictionary."""
    began: Numbers = ()
    """Before the wrapper's first recorded call."""
    _count: Any = None

    def changed(self) -> Numbers:
        """Their current numbers; empty: unchanged since the last call, or gone."""
        try:
            found = _attributes(self._holder())[self._path[0]]
            own = _attributes(found[self._path[1]] if len(self._path) > 1 else found)
            count = own.get("count", own.get("n"))
            if count == self._count:
                return ()
            mean = np.asarray(own["mean"])
            average = float(np.add.reduce(mean, None)) / mean.size  # a fifth of the time of ``mean.mean()``
            numbers = ("count", float(count)), (_label(mean.dtype), average)
        except Exception:  # it has been replaced by something else
            return ()
        self._count = count
        return numbers


class StatisticsFinder:
    """All statistics of a process that have been found."""

    def __init__(self) -> None:
        self.found: list[RunningStatistics] = []
        self._searched: WeakIdDict[Any, bool] = WeakIdDict()

    def search(self, wrapper: Any) -> None:
        """Find those of the wrappers of an environment of which a call begins, at their first call."""
        current = wrapper
        try:
            while current is not None and current not in self._searched:
                self._searched[current] = True
                own = _attributes(current)
                for attribute, value in list(own.items()):
                    keys = list(value)[:MAX_STATISTICS] if type(value) is dict else [None]
                    for key in keys:
                        if _are_statistics(value if key is None else value[key]):
                            self._add(current, attribute, key)
                current = next((own[name] for name in INSIDE if name in own), None)
        except Exception:  # raised by an attribute of the program, or its class has no weak references
            return

    def _add(self, holder: Any, attribute: str, key: Any) -> None:
        name = f"{type(holder).__name__}.{attribute}" + ("" if key is None else f"[{key!r}]")
        number = 1 + sum(one.name.partition(" ")[0] == name for one in self.found)
        path = (attribute,) if key is None else (attribute, key)
        one = RunningStatistics(name if number == 1 else f"{name} {number}", weakref.ref(holder), path)
        one.began = one.changed()
        if len(self.found) < MAX_STATISTICS:
            self.found.append(one)


@lru_cache(MAX_STATISTICS)
def _label(dtype: Any) -> str:
    return f"mean of {dtype.name}"


def _attributes(value: Any) -> Mapping[str, Any]:
    """Those of the object itself, read without its class: a module that is loaded at its first use stays unloaded."""
    try:
        found: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def _are_statistics(value: Any) -> bool:
    own = _attributes(value)
    count = own.get("count", own.get("n"))
    return isinstance(own.get("mean"), (np.ndarray, np.generic, float)) and isinstance(count, (int, float, np.generic))
