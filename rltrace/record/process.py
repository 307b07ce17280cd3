"""What all streams of one process share while it is recorded: tables, calls, storages, the step.

Owns no thread and no file; the session puts it together and the committer empties it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rltrace.record.calls import Calls
from rltrace.record.digests import TensorDigests
from rltrace.record.generators import Drawn
from rltrace.record.kernels import Kernels
from rltrace.record.layouts import Layouts
from rltrace.record.memory.storages import Storages
from rltrace.record.modules import UNKNOWN_MODULES, ModuleNames
from rltrace.record.phases import Phases
from rltrace.record.readback import Graphs, ReadBack
from rltrace.record.settings import Settings
from rltrace.record.sites import Sites
from rltrace.record.tables import Tables
from rltrace.trace.schema import Phase

FULL_STACK: Final = "stack.full"
"""A fact: where the program's stack had no room left for the recorder."""


class ProcessState:
    """Shared state of the streams of one process."""

    def __init__(
        self, fail: Callable[[Exception], None], *, verify_inputs: bool = False, readback: ReadBack | None = None
    ) -> None:
        self.fail = fail
        """Called with an error of the recorder's own; recording ends, the program goes on."""
        self.missing: Callable[[str, str], None] = lambda fact, what: None
        """Called with a fact of the process, and what is missing from its trace: one more entry of that fact."""
        self.tables = Tables()
        self.readback = readback or ReadBack()
        """Digests of what lies on devices."""
        self.layouts = Layouts(self.tables, self.readback.takes)
        self.digests = TensorDigests(self.layouts)
        self.calls = Calls(self.tables, self.layouts)
        self.verify_inputs = verify_inputs
        """Nothing is taken on trust: every op digests what it reads."""
        self.storages = Storages(verify_inputs=verify_inputs)
        self.graphs = Graphs(self.readback.gate, self.storages.unseen_write, fail)
        self.sites = Sites(self.tables)
        self.kernels = Kernels(self.tables)
        self.settings = Settings(self.tables)
        self.generators = Drawn()
        self.module_names = ModuleNames(self.tables, lambda what: self.missing(UNKNOWN_MODULES, what))
        self.step = 0
        """Optimizer attempts finished so far."""
        self.attempt: tuple[int, int] | None = None
        """Of the last attempt that has ended: ordinal of its optimizer, that optimizer's own count."""
        self.phase = Phase.OTHER
        """What the program says it is doing."""
        self.phases = Phases()
        """What it is seen to do."""
