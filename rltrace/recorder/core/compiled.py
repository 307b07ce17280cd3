"""What torch's compiler has made, recorded as it runs: each call of a region is one op.

Owns what stands in for the call of Inductor's graphs while ops are recorded, and when it is put there: most programs
never load that compiler, and the recorder does not load it either. Whether and how something is compiled stays as it is
unrecorded: the recorder's mode steps aside for the compiler, and the compiler never looks into code of the recorder.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._C._profiler import _RecordFunctionFast
from torch._guards import TracingContext
from xxhash import xxh3_64_hexdigest

from rltrace.recorder.base.dispatch_mode import current_observer, popped_modes, pushed_modes
from rltrace.recorder.base.import_hook import ImportHook
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import BRACKET, Region, RegionInputs, RegionName

# --- inductor ---------------------------------------------------------------------------------------------------------
#
# What the code that Inductor generates says of itself: its kernels in launch order, whether it draws, a fingerprint.
#
# Owns the reading of that text, and for which instructions it was made. What cannot be found in it is left out; nothing
# here raises on a text that looks otherwise.


_CALLED = re.compile(
    r"^\s+(?:\w+ = )?"
    r"((?:extern_kernels|aten|torch\.ops|inductor_ops|_quantized)(?:\.\w+)+|(?:cpp|triton)_\w+?)(?:\.run)?\(",
    re.MULTILINE,
)
_DEFINED = re.compile(r"\b((?:cpp|triton)_(?:\w+_)?fused\w*)\b")
_OPERATOR = re.compile(r"\b(?:torch\.ops\.)?(\w+)\.(\w+)\.(\w+)\(")
_SHIM = re.compile(r"\baoti_torch_\w*?(rand|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|dropout)")


def kernels(source: str) -> list[str]:
    """Names of the kernels that a graph's code calls, in order, each as often as it stands there."""
    called = _CALLED.findall(_body(source))
    return called or list(dict.fromkeys(_DEFINED.findall(source)))


def vectors(names: Sequence[str]) -> str | None:
    """The instruction set that its C++ kernels were made for (``avx512``); None without any, or where it did not ask.

    It chooses by the processor and by ``ATEN_CPU_CAPABILITY``, and compiles a program for each set that it asks about:
    so it is asked only once it has done that itself, as it has wherever it has loaded such a kernel.
    """
    chosen: Any = sys.modules.get("torch._inductor.cpu_vec_isa")
    if chosen is None or not any(name.startswith("cpp_") for name in names):
        return None
    try:
        return str(chosen.pick_vec_isa()) or None if chosen.valid_vec_isa_list.cache_info().currsize else None
    except Exception:  # nothing that a recording could be without: another version's has another shape
        return None


def fingerprint(source: str) -> str:
    """Of the code that computes. Comments and paths differ though the code is the same."""
    lines = [line.strip() for line in source.splitlines()]
    kept = [line for line in lines if not line.startswith(("#", "//")) or line.startswith("#pragma")]
    return xxh3_64_hexdigest("\n".join(kept).encode())


def draws_numbers(source: str) -> bool:
    """Whether it calls an operator that draws from a generator."""
    return _SHIM.search(source) is not None or any(map(_draws, set(_OPERATOR.findall(source))))


def _draws(names: tuple[str, str, str]) -> bool:
    found: Any = torch.ops
    for name in names:
        found = getattr(found, name, None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())


def _body(source: str) -> str:
    """Where the kernels are called, past their definitions."""
    found = re.search(r"^(?:class Runner\b|def call\()", source, re.MULTILINE)
    return source[found.start() :] if found is not None else ""


# --- compiled ---------------------------------------------------------------------------------------------------------


MODULE: Final = "torch._inductor.output_code"
NAME: Final = "inductor.compiled_graph"

Graph = Any
"""``CompiledFxGraph``: what Inductor makes of one graph, forward or backward."""


class CompiledCalls:
    """The stand-in, from ``install`` to ``uninstall``."""

    def __init__(self, process: ProcessState) -> None:
        self._regions = Regions(process)
        self._import_hook: ImportHook | None = None
        self._patches = Patches()
        self._fail = process.fail

    def install(self) -> None:
        if self._import_hook is None:
            self._import_hook = ImportHook({MODULE: self._put}, self._fail)
            self._import_hook.install()

    def uninstall(self) -> None:
        if self._import_hook is not None:
            self._import_hook.uninstall()
            self._import_hook = None
        self._patches.undo_all()

    def _put(self, module: Any) -> None:
        graphs = module.CompiledFxGraph
        original = graphs.__call__
        regions, fail = self._regions, self._fail

        @functools.wraps(original)
        def __call__(graph: Graph, inputs: Any) -> Any:  # noqa: N807
            observer = current_observer()
            if observer is None:
                return original(graph, inputs)
            with popped_modes() as others:

                def run() -> Any:
                    with pushed_modes(others):
                        return original(graph, inputs)

                try:
                    region = regions.of(graph)
                    given = RegionInputs(list(inputs), tuple(graph.mutated_input_idxs), run)
                except Exception as error:
                    fail(error)
                    return run()
                with _RecordFunctionFast(BRACKET):
                    return observer.observe(None, region, (), (given,))  # type: ignore[arg-type]  # called like one

        self._patches.replace(graphs, "__call__", __call__)


class Regions:
    """The regions of one process."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._of_graph: WeakIdDict[Graph, Region] = WeakIdDict()
        self._known: dict[tuple[object, ...], Region] = {}

    def of(self, graph: Graph) -> Region:
        """The region that a graph is a call of; graphs that do the same in the same way share one."""
        region = self._of_graph.get(graph)
        if region is None:
            region = self._of_graph[graph] = self._make(graph.source_code, bool(graph.mutated_input_idxs))
        return region

    def _make(self, source: str, writes: bool) -> Region:
        names, code, draws = kernels(source), fingerprint(source), draws_numbers(source)
        key = (tuple(names), code, writes, draws)
        found = self._known.get(key)
        if found is None:
            evidence = {"library": "Inductor", "names": names, "code": code}
            made_for = vectors(names)
            name = RegionName(NAME, evidence | ({"vectors": made_for} if made_for else {}))
            forget = self._process.storages.reads.clear
            found = self._known[key] = Region(name, writes=writes, draws=draws, forget_reads=forget)
        return found


# --- compiled steps ---------------------------------------------------------------------------------------------------
#
# Optimizer steps that torch's compiler has put into what it makes.
#
# The optimizer's hooks don't run there, and must leave no trace in it: it is to be what it is unrecorded. So the
# compiler notes, when it reads the end of a step, into which graph that step goes; the call of that graph is then the
# attempt. Where it has been interrupted inside the step there may be no such graph: there the hook is called between
# two graphs. Owns this note and what stands in for the compiler's entry while steps are counted.


OPTIMIZER_MODULE: Final = "torch._dynamo.output_graph"

Call = Callable[..., Any]
Around = Callable[[list[Any], Call, tuple[Any, ...], dict[str, Any]], Any]

_read: WeakIdDict[TracingContext, list[weakref.ref[Any]]] = WeakIdDict()
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
    """The stand-in, from ``install`` to ``uninstall``: has ``around`` called in place of a graph with steps in it."""

    def __init__(self, around: Around, fail: Callable[[Exception], None]) -> None:
        self._around = around
        self._import_hook = ImportHook({OPTIMIZER_MODULE: self._put}, fail)
        self._patches = Patches()
        self._on = False

    def install(self) -> None:
        self._on = True
        self._import_hook.install()

    def uninstall(self) -> None:
        self._on = False
        self._import_hook.uninstall()
        self._patches.undo_all()

    def _put(self, module: Any) -> None:
        graphs = module.OutputGraph
        original = graphs.call_user_compiler

        @functools.wraps(original)
        def call_user_compiler(graph: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(graph, *args, **kwargs)
            optimizers = _read.get(graph.tracing_context)
            return made if not optimizers else self._counted(made, optimizers)

        self._patches.replace(graphs, "call_user_compiler", call_user_compiler)

    def _counted(self, made: Call, references: list[weakref.ref[Any]]) -> Call:
        @functools.wraps(made)
        def counted(*args: Any, **kwargs: Any) -> Any:
            optimizers = [optimizer for reference in references if (optimizer := reference()) is not None]
            return self._around(optimizers, made, args, kwargs) if self._on else made(*args, **kwargs)

        return counted
