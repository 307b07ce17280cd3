"""Compiled code, recorded as it runs: each call of a region is one op.

Owns the patch of the call of Inductor's graphs. It is installed once the program loads the compiler; the recorder does
not load it. Whether and how something is compiled does not change: the recorder's mode is off in the compiler, and the
compiler skips code of the recorder.
"""

import ctypes
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
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import BRACKET, Region, RegionInputs, RegionName

# --- inductor ---------------------------------------------------------------------------------------------------------
#
# Reads the code that Inductor generates: its kernels in launch order, whether it draws random numbers, a fingerprint.
# What is not found is left out; nothing here raises on code of another form.


_CALLED = (
    r"(?m)^\s+(?:\w+ = )?"
    r"((?:extern_kernels|aten|torch\.ops|inductor_ops|_quantized)(?:\.\w+)+|(?:cpp|triton)_\w+?)(?:\.run)?\("
)
_DEFINED = r"\b((?:cpp|triton)_(?:\w+_)?fused\w*)\b"
_OPERATOR = r"\b(?:torch\.ops\.)?(\w+)\.(\w+)\.(\w+)\("
_SHIM = r"\baoti_torch_\w*?(rand|bernoulli|multinomial|normal|uniform|exponential|geometric|cauchy|dropout)"


def kernel_names(source: str) -> list[str]:
    """Names of the kernels that a graph's code calls, in order, each as often as it is called."""
    called = re.findall(_CALLED, _body(source))
    return called or list(dict.fromkeys(re.findall(_DEFINED, source)))


def instruction_set(names: Sequence[str]) -> str | None:
    """The instruction set of Inductor's C++ kernels (``avx512``); None without any, or where Inductor chose none yet.

    Inductor chooses by the processor and by ``ATEN_CPU_CAPABILITY``, and compiles a program for each candidate. So its
    choice is read only where it is cached, as it is once such a kernel has been loaded.
    """
    vec_isa: Any = sys.modules.get("torch._inductor.cpu_vec_isa")
    if vec_isa is None or not any(name.startswith("cpp_") for name in names):
        return None
    try:
        return str(vec_isa.pick_vec_isa()) or None if vec_isa.valid_vec_isa_list.cache_info().currsize else None
    except Exception:  # another version of torch
        return None


def code_fingerprint(source: str) -> str:
    """Fingerprint of generated code, without comments and paths, which differ though the code is the same."""
    lines = [line.strip() for line in source.splitlines()]
    code = [line for line in lines if not line.startswith(("#", "//")) or line.startswith("#pragma")]
    return xxh3_64_hexdigest("\n".join(code).encode())


def draws_random_numbers(source: str) -> bool:
    """Whether it calls an operator that draws from a generator."""
    return re.search(_SHIM, source) is not None or any(map(_draws, set(re.findall(_OPERATOR, source))))


def _draws(names: tuple[str, str, str]) -> bool:
    found: Any = torch.ops
    for name in names:
        found = getattr(found, name, None)
    return torch.Tag.nondeterministic_seeded in getattr(found, "tags", ())


def _body(source: str) -> str:
    """The code that calls the kernels, without their definitions."""
    found = re.search(r"^(?:class Runner\b|def call\()", source, re.MULTILINE)
    return source[found.start() :] if found is not None else ""


# --- compiled ---------------------------------------------------------------------------------------------------------


MODULE: Final = "torch._inductor.output_code"
NAME: Final = "inductor.compiled_graph"

Graph = Any
"""``CompiledFxGraph``: Inductor's result for one graph, forward or backward."""


class CompiledCalls:
    """The patch of compiled graphs, from ``install`` to ``uninstall``."""

    def __init__(self, process: ProcessState) -> None:
        self._regions = Regions(process)
        self._patches = Patches()
        self._fail = process.fail

    def install(self) -> None:
        if not self._patches:
            self._patches.on_import({MODULE: self._patch}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _patch(self, module: Any) -> None:
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
                    region_inputs = RegionInputs(list(inputs), tuple(graph.mutated_input_idxs), run)
                except Exception as error:
                    fail(error)
                    return run()
                with _RecordFunctionFast(BRACKET):
                    return observer.observe(None, region, (), (region_inputs,))  # type: ignore[arg-type]  # called like an operator

        self._patches.replace(graphs, "__call__", __call__)


class Regions:
    """The regions of one process."""

    def __init__(self, process: ProcessState) -> None:
        self._process = process
        self._of_graph: WeakIdDict[Graph, Region] = WeakIdDict()
        self._known: dict[tuple[object, ...], Region] = {}

    def of(self, graph: Graph) -> Region:
        """The region of a graph; graphs with the same code and kernels share one."""
        region = self._of_graph.get(graph)
        if region is None:
            region = self._of_graph[graph] = self._make(graph.source_code, bool(graph.mutated_input_idxs))
        return region

    def _make(self, source: str, writes: bool) -> Region:
        names, code, draws = kernel_names(source), code_fingerprint(source), draws_random_numbers(source)
        key = (tuple(names), code, writes, draws)
        found = self._known.get(key)
        if found is None:
            evidence = {"library": "Inductor", "names": names, "code": code}
            isa = instruction_set(names)
            name = RegionName(NAME, evidence | ({"vectors": isa} if isa else {}))
            forget = self._process.storages.reads.clear
            found = self._known[key] = Region(name, writes=writes, draws=draws, forget_reads=forget)
        return found


# --- compiled steps ---------------------------------------------------------------------------------------------------
#
# Optimizer steps inside compiled graphs.
#
# The optimizer's hooks don't run there, and must not change the graph. So when the compiler traces the end of a step,
# it notes the graph of that step; the call of that graph is then the attempt. Where a graph break inside the step
# leaves no such graph, the hook is called between two graphs.


OPTIMIZER_MODULE: Final = "torch._dynamo.output_graph"

GraphFunction = Callable[..., Any]

StepRunner = Callable[[list[Any], GraphFunction, tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a graph that contains optimizer steps, with the optimizers, the graph and its arguments."""

_optimizers_of: WeakIdDict[TracingContext, list[weakref.ref[Any]]] = WeakIdDict()
"""By the frame that is being compiled: the optimizers whose steps are in it."""


def goes_into_graph(address: int) -> bool:
    """Called by the compiler itself, as it traces the program: a step of the optimizer with this ``id`` ends here.

    The compiler passes on constants only, and holds the optimizer meanwhile. Returns False where it has traced no op so
    far; then a graph break here costs nothing.
    """
    context = TracingContext.try_get()
    if context is None or _is_frame_empty():
        return False
    optimizer = ctypes.cast(address, ctypes.py_object).value
    known = _optimizers_of.get(context) or []
    if all(reference() is not optimizer for reference in known):
        _optimizers_of[context] = [*known, weakref.ref(optimizer)]
    return True


goes_into_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _is_frame_empty() -> bool:
    """Whether the frame that is being traced has no op so far, and graph breaks are allowed."""
    try:
        translator = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
        nodes = translator.output.graph.nodes
        return not translator.one_graph and all(node.op in ("placeholder", "get_attr", "output") for node in nodes)
    except Exception:  # another version of torch; the compiler would pass an exception on to the program
        return False


class CompiledSteps:
    """Has ``run`` called in place of graphs that contain optimizer steps, from ``install`` to ``uninstall``."""

    def __init__(self, run: StepRunner, fail: Callable[[Exception], None]) -> None:
        self._run = run
        self._fail = fail
        self._patches = Patches()

    def install(self) -> None:
        if not self._patches:
            self._patches.on_import({OPTIMIZER_MODULE: self._patch}, self._fail)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _patch(self, module: Any) -> None:
        graphs = module.OutputGraph
        original = graphs.call_user_compiler

        @functools.wraps(original)
        def call_user_compiler(graph: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = original(graph, *args, **kwargs)
            optimizers = _optimizers_of.get(graph.tracing_context)
            return compiled if not optimizers else self._with_steps(compiled, optimizers)

        self._patches.replace(graphs, "call_user_compiler", call_user_compiler)

    def _with_steps(self, compiled: GraphFunction, references: list[weakref.ref[Any]]) -> GraphFunction:
        @functools.wraps(compiled)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            optimizers = [optimizer for reference in references if (optimizer := reference()) is not None]
            return self._run(optimizers, compiled, args, kwargs) if self._patches else compiled(*args, **kwargs)

        return wrapper
