"""Settings of torch while ops run: what can change an op's bits without being one of its arguments.

Owns the table "settings" and the check, at each op, that nothing has changed since the last one. Some settings belong
to the thread (grad mode, inference mode, denormals flushed to zero), others to the process (number of threads,
deterministic algorithms, TF32, oneDNN, back ends). Most are checked at every op, by one call of the compiler's global
state guard. The rest (``fingerprint.torch_flags``) take some 50 µs to read: they are read where the others form a new
combination, at the first step after 1,024 rows and with each full segment of rows.
"""

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
    """Whether the settings that torch's guard covers are unchanged in the calling thread: grad mode, deterministic
    algorithms, TF32, reduced precision, number of threads, default dtype."""
    inference: bool
    flushes: bool
    onednn: bool

    def is_current(self) -> bool:
        """Whether all settings that are checked at each op are unchanged."""
        return (
            self.is_unchanged()
            and _is_inference() is self.inference
            and (SUBNORMAL == 0.0) is self.flushes
            and _has_onednn() is self.onednn
        )


def _never() -> bool:
    """``Snapshot.is_unchanged`` where nothing has been read yet."""
    return False


NO_SNAPSHOT = Snapshot(0, _never, False, False, False)


class Settings:
    """The settings of one process."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: list[Snapshot] = []
        """Snapshots under the current flags; most programs have two or three (with gradients, without)."""
        self._flags: Mapping[str, object] = {}
        self.on_new_flags: Callable[[], None] = lambda: None
        """Called when older snapshots no longer count: a native engine remembers them, too."""
        self.threads: dict[int, int] = {0: 0}
        """Number of threads by id in table "settings"."""
        self.payloads: dict[int, Mapping[str, object]] = {0: {}}
        """Settings by id."""

    def now(self, *, read_all: bool) -> Snapshot:
        """The settings of the calling thread. ``read_all``: also those that are not checked at each op."""
        if read_all and (flags := torch_flags()) != self._flags:
            self._flags = flags
            self._known = []
            self.on_new_flags()
        for snapshot in self._known:
            if snapshot.is_current():
                return snapshot
        return self._read()

    def _read(self) -> Snapshot:
        """A new snapshot; with the id of an older one where only settings differ that are not recorded."""
        guard = GlobalStateGuard()
        payload = thread_settings() | {name.removeprefix("flag."): value for name, value in torch_flags().items()}
        number = self._tables.intern("settings", portable_key("settings", payload), payload)
        self.threads[number] = torch.get_num_threads()
        self.payloads[number] = payload
        snapshot = Snapshot(number, guard.check, _is_inference(), SUBNORMAL == 0.0, _has_onednn())
        self._known = [*self._known[-MAX_KNOWN:], snapshot]
        return snapshot


MAX_KNOWN = 15
"""Older snapshots that are kept."""


def thread_settings() -> dict[str, object]:
    """The settings of the calling thread, and the number of threads.

    Without autocast: it acts before an op is dispatched, and its casts are separate ops.
    """
    return {
        "threads": torch.get_num_threads(),
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": _is_inference(),
        "flush_denormal": SUBNORMAL == 0.0,
    }
