"""Optimizer steps that torch's compiler has put into what it makes.

The optimizer's hooks don't run there, and must leave no trace in it: it is to be what it is unrecorded. So the compiler
notes, when it reads the end of a step, into which graph that step goes; the call of that graph is then the attempt.
Where it has been interrupted inside the step there may be no such graph: there the hook is called between two graphs.
Owns this note and what stands in for the compiler's entry while steps are counted.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch._guards import TracingContext

from rltrace.record.boundaries.imported import Imported
from rltrace.record.memory.identity_table import IdentityTable

MODULE: Final = "torch._dynamo.output_graph"

Call = Callable[..., Any]
Around = Callable[[list[Any], Call, tuple[Any, ...], dict[str, Any]], Any]

_read: IdentityTable[TracingContext, list[weakref.ref[Any]]] = IdentityTable()
"""By the frame that is being compiled: the optimizers whose steps are in it."""


def goes_into_graph(optimizer: Any) -> bool:
    """Called by the compiler itself, as it reads the program: a step of ``optimizer`` ends here.

    False where it has read nothing so far that it would make a graph of; then it may as well pause here.
    """
    context = TracingContext.try_get()
    if context is None or _nothing_read():
        return False
    known = _read.get(context) or []
    if all(reference() is not optimizer for reference in known):
        _read[context] = [*known, weakref.ref(optimizer)]
    return True


goes_into_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _nothing_read() -> bool:
    """Whether the frame that is being read has no op so far, and may be left for a moment."""
    try:
        reader = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
        nodes = reader.output.graph.nodes
        return not reader.one_graph and all(node.op in ("placeholder", "get_attr", "output") for node in nodes)
    except Exception:  # another version of torch; whatever is raised here, the compiler would hand to the program
        return False


class CompiledSteps:
    """The stand-in, from ``watch`` to ``ignore``: has ``around`` called in place of a graph with steps in it."""

    def __init__(self, around: Around, fail: Callable[[Exception], None]) -> None:
        self._around = around
        self._imported = Imported({MODULE: self._put}, fail)
        self._undo: list[Callable[[], None]] = []
        self._on = False

    def watch(self) -> None:
        self._on = True
        self._imported.watch()

    def ignore(self) -> None:
        self._on = False
        self._imported.ignore()
        while self._undo:
            self._undo.pop()()

    def _put(self, module: Any) -> None:
        graphs = module.OutputGraph
        original = graphs.call_user_compiler

        @functools.wraps(original)
        def call_user_compiler(graph: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(graph, *args, **kwargs)
            optimizers = _read.get(graph.tracing_context)
            return made if not optimizers else self._counted(made, optimizers)

        def undo() -> None:
            if graphs.call_user_compiler is call_user_compiler:
                graphs.call_user_compiler = original

        graphs.call_user_compiler = call_user_compiler
        self._undo.append(undo)

    def _counted(self, made: Call, references: list[weakref.ref[Any]]) -> Call:
        @functools.wraps(made)
        def counted(*args: Any, **kwargs: Any) -> Any:
            optimizers = [optimizer for reference in references if (optimizer := reference()) is not None]
            return self._around(optimizers, made, args, kwargs) if self._on else made(*args, **kwargs)

        return counted
