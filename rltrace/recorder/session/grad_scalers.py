"""Gradient scalers: the scale, the growth tracker and whether infinities were found, at each update.

Owns the numbers of scalers, in the order of their creation, and the patch of ``GradScaler.update``, which ``remove``
undoes. Reads the state of a scaler, never changes it.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.digests.cuda_graphs import is_captured, overrides_disabled
from rltrace.recorder.streams.series import OnDevice, SeriesSampler, number_of

Tensor = torch.Tensor


class _Scaler:
    """One scaler as the recorder counts it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.step: int | None = None
        """Step of its last attempt."""
        self.updated = False


class Scalers:
    """Every gradient scaler of the process, subclasses and scalers created before the recording included.

    A scaler's series begin with its state before its first update, and have one number more than updates.
    """

    def __init__(self, series: SeriesSampler, fail: Callable[[Exception], None]) -> None:
        self._series = series
        self._fail = fail
        self._known: WeakIdDict[Any, _Scaler] = WeakIdDict()
        self._count = 0
        self._local = threading.local()
        self._wrapped: set[type[Any]] = set()
        """Classes whose own ``update`` is replaced."""
        self._patches = Patches()

    def install(self) -> None:
        for class_ in _all_classes(GradScaler):
            self._wrap(class_)
        self._patches.wrap(GradScaler, "__init__", self._created)

    def remove(self) -> None:
        self._patches.undo_all()
        self._wrapped.clear()

    def _created(self, init: Callable[..., None], scaler: Any, *args: Any, **kwargs: Any) -> None:
        init(scaler, *args, **kwargs)
        for class_ in type(scaler).__mro__:  # a subclass defined since
            self._wrap(class_)
        self._of(scaler)

    def attempted(self, scaler: Any, optimizer: Any, ordinal: int, step: int, skipped: int) -> None:
        """A scaler has made attempt ``step``, of optimizer ``ordinal``; ``skipped`` as in an ``Attempt``."""
        known = self._of(scaler)
        known.step = step
        found: float | OnDevice | None = float(skipped)
        if skipped not in (0, 1):  # the optimizer skips by itself, on its device
            states = getattr(scaler, "_per_optimizer_states", {})
            with overrides_disabled():
                found = _any_found([states[id(optimizer)]] if id(optimizer) in states else [], None)
        if found is not None:
            self._series.add("scaler", f"scaler:{known.number}/skipped:{ordinal}", found, step)

    def _of(self, scaler: Any) -> _Scaler:
        known = self._known.get(scaler)
        if known is None:
            known = self._known[scaler] = _Scaler(self._count)
            self._count += 1
        return known

    def _wrap(self, class_: type[Any]) -> None:
        if class_ not in self._wrapped and "update" in vars(class_) and issubclass(class_, GradScaler):
            self._wrapped.add(class_)
            self._patches.wrap(class_, "update", self._around)

    def _around(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self._local, "inside", False) or not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        found = self._before(scaler)
        self._local.inside = True  # a subclass's update calls that of its base
        try:
            result = original(scaler, *args, **kwargs)
        finally:
            self._local.inside = False
        self._after(scaler, found)
        return result

    def _before(self, scaler: Any) -> float | OnDevice | None:
        """Whether infinities were found; the update sums the flags in place and then drops them."""
        try:
            known = self._of(scaler)
            if not known.updated:
                known.updated = True
                self._state(scaler, known)
            with overrides_disabled():
                return _any_found(scaler._per_optimizer_states.values(), scaler._scale)
        except Exception as error:
            self._fail(error)
            return None

    def _after(self, scaler: Any, found: float | OnDevice | None) -> None:
        try:
            known = self._of(scaler)
            if found is not None:
                self._series.add("scaler", f"scaler:{known.number}/found_inf", found, known.step)
            self._state(scaler, known)
        except Exception as error:
            self._fail(error)

    def _state(self, scaler: Any, known: _Scaler) -> None:
        for name, state in (("scale", scaler._scale), ("growth", scaler._growth_tracker)):
            number = number_of(state)
            if number is not None:
                self._series.add("scaler", f"scaler:{known.number}/{name}", number, known.step)


def _any_found(states: Any, scale: Tensor | None) -> float | OnDevice | None:
    """1 where a tensor of ``states`` flags infinities, else 0, on the device of ``scale``."""
    found = [tensor for state in states for tensor in state["found_inf_per_device"].values()]
    if all(tensor.device.type == "cpu" for tensor in found):
        return float(any(bool(tensor) for tensor in found))
    device = found[0].device if scale is None else scale.device
    if is_captured(device):
        return None
    return number_of(torch.stack([t.to(device, non_blocking=True) for t in found]).sum().clamp(max=1))


def _all_classes(class_: type[Any]) -> Iterator[type[Any]]:
    yield class_
    for subclass in class_.__subclasses__():
        yield from _all_classes(subclass)
