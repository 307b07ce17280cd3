"""What torch's compiler has made, recorded as it runs: each call of a region is one op.

Owns what stands in for the call of Inductor's graphs while ops are recorded, and when it is put there: most programs
never load that compiler, and the recorder does not load it either. Whether and how something is compiled stays as it is
unrecorded: the recorder's mode steps aside for the compiler, and the compiler never looks into code of the recorder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from torch._C._profiler import _RecordFunctionFast

from rltrace.record.boundaries.imported import Imported
from rltrace.record.compiler import inductor
from rltrace.record.compiler.regions import BRACKET, Region, RegionInputs, RegionName
from rltrace.record.dispatch import as_if_dispatched, observer_here, under
from rltrace.record.memory.identity_table import IdentityTable
from rltrace.record.process import ProcessState

MODULE: Final = "torch._inductor.output_code"
NAME: Final = "inductor.compiled_graph"

Graph = Any
"""``CompiledFxGraph``: what Inductor makes of one graph, forward or backward."""


class CompiledCalls:
    """The stand-in, from ``watch`` to ``ignore``."""

    def __init__(self, process: ProcessState) -> None:
        self._regions = Regions(process)
        self._imported: Imported | None = None
        self._undo: list[Callable[[], None]] = []
        self._fail = process.fail

    def watch(self) -> None:
        if self._imported is None:
            self._imported = Imported({MODULE: self._put}, self._fail)
            self._imported.watch()

    def ignore(self) -> None:
        if self._imported is not None:
            self._imported.ignore()
            self._imported = None
        while self._undo:
            self._undo.pop()()

    def _put(self, module: Any) -> None:
        graphs = module.CompiledFxGraph
        original = graphs.__call__
        regions, fail = self._regions, self._fail

        @functools.wraps(original)
        def __call__(graph: Graph, inputs: Any) -> Any:  # noqa: N807
            observer = observer_here()
            if observer is None:
                return original(graph, inputs)
            with as_if_dispatched() as others:

                def run() -> Any:
                    with under(others):
                        return original(graph, inputs)

                try:
                    region = regions.of(graph)
                    given = RegionInputs(list(inputs), tuple(graph.mutated_input_idxs), run)
                except Exception as error:
                    fail(error)
                    return run()
                with _RecordFunctionFast(BRACKET):
                    return observer.observe(None, region, (), (given,))  # type: ignore[arg-type]  # called like one

        def undo() -> None:
            if graphs.__call__ is __call__:
                graphs.__call__ = original

        graphs.__call__ = __call__
        self._undo.append(undo)


class Regions:
    """The regions of one process."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._of_graph: IdentityTable[Graph, Region] = IdentityTable()
        self._known: dict[tuple[object, ...], Region] = {}

    def of(self, graph: Graph) -> Region:
        """The region that a graph is a call of; graphs that do the same in the same way share one."""
        region = self._of_graph.get(graph)
        if region is None:
            region = self._of_graph[graph] = self._make(graph.source_code, bool(graph.mutated_input_idxs))
        return region

    def _make(self, source: str, writes: bool) -> Region:
        names, code, draws = inductor.kernels(source), inductor.fingerprint(source), inductor.draws(source)
        key = (tuple(names), code, writes, draws)
        found = self._known.get(key)
        if found is None:
            evidence = {"library": "Inductor", "names": names, "code": code}
            made_for = inductor.vectors(names)
            name = RegionName(NAME, evidence | ({"vectors": made_for} if made_for else {}))
            forget = self._process.storages.reads.clear
            found = self._known[key] = Region(name, writes=writes, draws=draws, forget_reads=forget)
        return found
