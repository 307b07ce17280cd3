"""State that a program carries from step to step in objects without tensors: schedulers, and running statistics.

Owns their series (kind ``state``), each with a number at the end of the first attempt and of each later one where it
has changed, and the patch of ``LRScheduler.__init__``, which ``remove`` undoes. A run that resumes another one has to
restore all of them.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch.optim.lr_scheduler import LRScheduler

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.integrations.running_statistics import RunningStatistics
from rltrace.recorder.streams.series import SeriesSampler

KIND: Final = "state"

MAX_SCHEDULERS: Final = 64


class CarriedObjects:
    """Those of a process."""

    def __init__(self, series: SeriesSampler, statistics: Callable[[], Sequence[RunningStatistics]]) -> None:
        self._series, self._statistics = series, statistics
        self._patches = Patches()
        self._schedulers: list[tuple[str, weakref.ref[Any]]] = []
        self._epochs: dict[str, Any] = {}
        """The last recorded ones of schedulers, by name."""
        self._begun = 0
        """Statistics of which the first numbers have been recorded."""

    def install(self) -> None:
        self._patches.wrap(LRScheduler, "__init__", self._made)

    def remove(self) -> None:
        self._patches.undo_all()

    def _made(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        if len(self._schedulers) < MAX_SCHEDULERS:
            name = f"{type(scheduler).__name__} {len(self._schedulers)}"
            self._schedulers.append((name, weakref.ref(scheduler)))

    def attempt_ended(self, step: int) -> None:
        """Record what has changed since the last attempt."""
        for name, alive in self._schedulers:
            epoch = getattr(alive(), "last_epoch", None)
            if isinstance(epoch, (int, float)) and self._epochs.get(name) != epoch:
                self._epochs[name] = epoch
                self._series.add(KIND, f"{name}/last_epoch", float(epoch), step)
        statistics = self._statistics()
        for one in statistics[self._begun :]:
            self._add(one.name, one.began, step)
        self._begun = len(statistics)
        for one in statistics:
            self._add(one.name, one.changed(), step)

    def _add(self, name: str, numbers: Sequence[tuple[str, float]], step: int) -> None:
        for what, number in numbers:
            self._series.add(KIND, f"{name}/{what}", number, step)
