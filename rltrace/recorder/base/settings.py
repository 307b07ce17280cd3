"""What torch is set to while ops run: what can change an op's bits without being one of its arguments.

Owns the table "settings" and how it is known, at each op, that nothing has changed since the last one. Some settings
belong to the thread (grad mode, inference mode, denormals flushed to zero), others to the process (number of
threads, deterministic algorithms, TF32, oneDNN, back ends). Most are asked at every op, by one call of the guard that
torch's compiler checks its assumptions with; the rest (``fingerprint.torch_flags``) whenever one of those has changed,
and at the first op of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch._C._dynamo.guards import GlobalStateGuard

from rltrace.fingerprint.libraries import torch_flags
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables

SUBNORMAL = 5e-324
"""Equal to 0.0 in a thread that flushes denormal numbers to zero (``torch.set_flush_denormal``)."""

_is_inference = torch.is_inference_mode_enabled
_has_onednn = torch._C._get_mkldnn_enabled


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """The settings of one thread at one moment."""

    number: int
    """Id in table "settings"."""
    is_unchanged: Callable[[], bool]
    """Whether those that torch's guard looks at are in the calling thread what they were: grad mode,
    deterministic algorithms, TF32, reduced precision, number of threads, default dtype."""
    inference: bool
    flushes: bool
    onednn: bool

    def holds(self) -> bool:
        """Whether all that is asked at each op is as it was."""
        return (
            self.is_unchanged()
            and _is_inference() is self.inference
            and (SUBNORMAL == 0.0) is self.flushes
            and _has_onednn() is self.onednn
        )


def never() -> bool:
    """Stands for ``Snapshot.is_unchanged`` where nothing has been asked yet."""
    return False


NOT_ASKED = Snapshot(0, never, False, False, False)


class Settings:
    """The settings of one process, as its threads come by them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: list[Snapshot] = []
        """Under the flags that stand now; most programs have two or three (with gradients, without)."""
        self._flags: Mapping[str, object] = {}
        self.threads: dict[int, int] = {0: 0}
        """Number of threads by id in table "settings"."""
        self.payloads: dict[int, Mapping[str, object]] = {0: {}}
        """What was set, by id."""

    def now(self, *, ask_all: bool) -> Snapshot:
        """Those of the calling thread. ``ask_all``: also those that are too many to be asked at each op."""
        if ask_all and (flags := torch_flags()) != self._flags:
            self._flags = flags
            self._known = []
        for snapshot in self._known:
            if snapshot.holds():
                return snapshot
        return self._take()

    def _take(self) -> Snapshot:
        """A new snapshot; of the same settings as an older one where only what is not written down differs."""
        guard = GlobalStateGuard()
        payload = thread_settings() | {name.removeprefix("flag."): value for name, value in torch_flags().items()}
        number = self._tables.intern("settings", portable_key("settings", payload), payload)
        self.threads[number] = torch.get_num_threads()
        self.payloads[number] = payload
        made = Snapshot(number, guard.check, _is_inference(), SUBNORMAL == 0.0, _has_onednn())
        self._known = [*self._known[-MOST_KNOWN:], made]
        return made


MOST_KNOWN = 15
"""Snapshots that are looked through before a new one is taken."""


def thread_settings() -> dict[str, object]:
    """Those of the calling thread, and the number of threads.

    Autocast is none of them: it has acted before an op is dispatched, and what it casts are ops of their own.
    """
    return {
        "threads": torch.get_num_threads(),
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": _is_inference(),
        "flush_denormal": SUBNORMAL == 0.0,
    }
