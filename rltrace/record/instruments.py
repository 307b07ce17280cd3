"""What is watched in a process only while its ops become rows: modules, aliases, subclasses, compiled functions.

Owns that these begin and end together, and in which order. Knows no steps and no windows: the session says when.
"""

from __future__ import annotations

from collections.abc import Callable

from rltrace.record.compiler.compiled import CompiledCalls
from rltrace.record.composites import Composites
from rltrace.record.memory.aliases import Aliases
from rltrace.record.module_calls import ModuleCalls
from rltrace.record.modules import ModuleStack
from rltrace.record.process import ProcessState
from rltrace.record.subclasses import SubclassCalls


class Instruments:
    """Those of one process."""

    def __init__(
        self,
        process: ProcessState,
        modules_here: Callable[[], ModuleStack | None],
        fail: Callable[[Exception], None],
        *,
        closely: bool = False,
    ) -> None:
        """``closely``: each stream may look at what its modules are called with, and at what they return."""
        self._process = process
        self.modules = ModuleCalls(process.module_names, modules_here, closely=closely)
        self._aliases = Aliases(process.storages, fail)
        self._subclasses = SubclassCalls()
        self._composites = Composites()
        self._compiled = CompiledCalls(process)

    def watch(self) -> None:
        self.modules.watch()
        self._aliases.watch()
        self._subclasses.watch()  # until the end: a silent mode is in the way as much as one that observes
        self._composites.watch()
        self._compiled.watch()

    def ignore(self) -> None:
        """Until ``watch`` is called again."""
        self.modules.ignore()
        self._aliases.ignore()
        self._composites.ignore()
        self._compiled.ignore()

    def remove(self, *, but_subclasses: bool = False) -> None:
        """For good. ``but_subclasses``: those stay watched."""
        self.ignore()
        self.modules.remove()
        self._process.graphs.ignore()
        self._process.readback.leave_to_parent()
        if not but_subclasses:
            self._subclasses.ignore()
