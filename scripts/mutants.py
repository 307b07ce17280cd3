"""Mutation testing: one place of a module is changed, the tests that reach it run, and one of them should fail.

python scripts/mutants.py trace|diff|kernels [--mutants 250] [--seed 0] [--only MUTANT …] [--not-of LOG …]
    [--tests PATH …]

``trace``: format and reader, by tests/trace. ``diff``: alignment, causes and what they rest on, by tests/diff.
``kernels``: names of kernels, and launches joined to rows. What survives goes to further tests that reach it in this
process. Prints the share that was killed, by folder, and each mutant that survived both. Tests are collected once; each
mutant is a forked child in which the code of one function is replaced, and in which the tests that reach its line run
up to the first that fails: those of the module's own test file first, then the fastest. ``--only``: mutants by file,
line and kind; ``--not-of`` leaves out those that logs of earlier runs list; ``--tests`` takes other tests. Module-level
code is not mutated, and a process that a test starts runs the code as it is: a mutant that only such a process would
notice counts as survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
FURTHER = ["tests/report", "tests/live_diff", "tests/query", "tests/test_json.py", "tests/test_masking.py"]
FURTHER_OF_TRACES = [
    *("tests/commands/test_arm.py", "tests/recorder/test_arming.py"),
    *("tests/recorder/integrations/test_value_digests.py", "tests/extensions/repro/test_op_sequence.py"),
]
TARGETS = {
    "trace": (
        ["rltrace/trace/format", "rltrace/trace/read"],
        (["tests/trace", "tests/extensions/archive"], ["tests/diff", *FURTHER, *FURTHER_OF_TRACES]),
    ),
    "diff": (
        ["rltrace/diff/align", "rltrace/diff/causes", "rltrace/diff/base"],
        (["tests/diff", "tests/trace/test_evidence.py", "tests/trace/test_kernel_names.py"], FURTHER),
    ),
    "kernels": (
        ["rltrace/trace/kernels/names.py", "rltrace/extensions/kernels/profiler/launch_matching.py"],
        (
            [
                f"tests/{name}.py"
                for name in ("trace/test_kernel_names", "trace/test_names", "extensions/kernels/test_launch_matching")
            ],
            [
                "tests/extensions/kernels/test_published_profiles.py",
                "tests/trace/test_evidence.py",
                "tests/diff/test_on_a_gpu.py",
            ],
        ),
    ),
}
"""Folders with mutants; tests for all of them, and for those that survive."""

SLOWEST = 60.0
"""Seconds: a test that takes longer, traced, is left out; untraced it takes about a fifth."""
BUDGET = 60.0
"""Seconds of tests, traced, that one mutant gets, the fastest first."""

# --- mutations --------------------------------------------------------------------------------------------------------


SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of one function."""

    file: str
    line: int
    kind: str
    node: int
    """Number of the changed node in ``ast.walk`` of the module."""
    text: str
    """The line, as it is."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.kind} | {self.text}"


def kinds(node: ast.AST) -> Iterator[str]:
    """Ways in which a node can be changed."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield SWAPS[type(op)].__name__
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield SWAPS[type(op)].__name__
            if isinstance(node, ast.AugAssign):
                yield "pass"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield "drop"
        case ast.Constant(value=bool()):
            yield "not"
        case ast.Constant(value=int()):
            yield "plus1"
        case ast.If() | ast.IfExp() | ast.While():
            yield "negate"
        case ast.Name(id=name) if name in NAMES:
            yield NAMES[name]
        case ast.Return(value=value) if value is not None and not _is_false(value):
            yield "None"
        case ast.Continue() | ast.Break() | ast.Raise() | ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, False)


def change(node: Any, kind: str) -> ast.AST:
    """The changed node."""
    if kind == "pass":
        return ast.Pass()
    match node:
        case ast.Compare():
            node.ops = [SWAPS[type(node.ops[0])]()]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            node.op = SWAPS[type(node.op)]()
        case ast.UnaryOp():
            return node.operand
        case ast.Constant():
            node.value = (not node.value) if kind == "not" else int(str(node.value)) + 1
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Name():
            node.id = kind
        case ast.Return():
            node.value = ast.Constant(None)
    return node  # type: ignore[no-any-return]


class Replace(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, old: ast.AST, kind: str) -> None:
        self.old, self.kind = old, kind

    def visit(self, node: ast.AST) -> Any:
        if node is self.old:
            return ast.copy_location(change(copy.copy(node), self.kind), node)
        return self.generic_visit(node)


@functools.cache
def source_of(file: str) -> str:
    """The text of a file as the modules were imported from it, whoever edits it meanwhile."""
    return (ROOT / file).read_text()


def mutants_of(file: str) -> Iterator[Mutant]:
    """All mutants of the functions of a file; annotations, texts of errors and decorators are left alone."""
    source = source_of(file)
    tree = ast.parse(source)
    left_alone: set[ast.AST] = set()
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            inside |= {found for statement in node.body for found in ast.walk(statement)}
            parts: list[Any] = [node.args, node.returns, *node.decorator_list]
            left_alone |= {found for part in parts if part is not None for found in ast.walk(part)}
            if node.name == "__init__":  # an attribute that is missing is noticed by any test
                left_alone |= {statement for statement in node.body if isinstance(statement, ast.Assign)}
        elif isinstance(node, ast.AnnAssign):
            left_alone |= set(ast.walk(node.annotation))
        elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            left_alone |= {found for found in ast.walk(node) if found is not node or not isinstance(node, ast.Raise)}
    lines = source.splitlines()
    for number, node in enumerate(ast.walk(tree)):
        if node in inside and node not in left_alone:
            for kind in kinds(node):
                line = node.test.lineno if kind == "negate" else node.lineno  # type: ignore[attr-defined]
                yield Mutant(file, line, kind, number, lines[line - 1].strip())


# --- installation -----------------------------------------------------------------------------------------------------


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code of all that a module defines, nested functions included."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from codes(part)


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def install(mutant: Mutant) -> bool:
    """Replace the code of the function, and of those that it was called to make; False where none is found."""
    source = source_of(mutant.file)
    tree = ast.parse(source)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.node)
    changed = ast.fix_missing_locations(Replace(node, mutant.kind).visit(tree))
    module = importlib.import_module(mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    old, new = (
        {_place(part): part for part in codes(compile(code, module.__file__ or "", "exec"))}
        for code in (source, changed)
    )
    mutated = {place: new[place] for place, code in old.items() if place in new and new[place] != code}
    gc.unfreeze()  # or what was frozen is not listed
    # by its place: some code is unequal to the same code compiled again, and its mutants were not installed
    found = [thing for thing in gc.get_objects() if type(thing) is FunctionType and _place(thing.__code__) in mutated]
    for function in found:
        with contextlib.suppress(ValueError):  # a closure over other variables, which only its maker makes
            function.__code__ = mutated[_place(function.__code__)]
    return bool(found)


# --- runs -------------------------------------------------------------------------------------------------------------


class Runs:
    """A pytest plugin: after the collection, runs the tests once to see what they reach, then for each mutant."""

    def __init__(self, files: Sequence[str], mutants: Sequence[Mutant]) -> None:
        self.files = {os.fspath(ROOT / file): file for file in files}
        self.mutants = mutants
        self.items: list[pytest.Item] = []
        self.folder = Path(tempfile.mkdtemp(prefix="mutants"))
        self.seconds: list[float] = []
        """That each test took, traced."""
        self.survived: list[Mutant] = []
        self.done = 0

    def pytest_configure(self) -> None:
        import hypothesis  # by now pytest has prepared its modules

        hypothesis.settings.register_profile("mutants", database=None, derandomize=True, deadline=None)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        if self.in_child(self.trace) != 0:
            raise pytest.UsageError("the tests cannot be run")
        reach, seconds = json.loads((self.folder / "reach").read_text())
        self.seconds = seconds
        began = time.monotonic()
        for number, mutant in enumerate(self.mutants, 1):
            mirror = f"test_{Path(mutant.file).name}"
            reaching = [test for test in reach.get(f"{mutant.file}:{mutant.line}", ()) if seconds[test] <= SLOWEST]
            tests = sorted(reaching, key=lambda test: (self.items[test].path.name != mirror, seconds[test]))
            chosen, spent = [], 0.0
            for test in tests:
                spent += seconds[test]
                if spent > BUDGET:
                    break
                chosen.append(test)
            self.done += 1
            status = self.in_child(functools.partial(self.run, mutant, chosen))
            what = {0: "survived", 2: "not installed"}.get(status, "killed")
            if what != "killed":
                self.survived.append(mutant)
            print(
                f"{number}/{len(self.mutants)} {time.monotonic() - began:.0f}s {what} ({len(chosen)} tests) {mutant}",
                flush=True,
            )
        shutil.rmtree(self.folder)
        return True

    def in_child(self, work: Any) -> int:
        """Exit status of ``work`` in a forked child; -1 where it hung, crashed or exceeded its processor time."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                signal.alarm(3600)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                status = work()
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else -1

    def run(self, mutant: Mutant, chosen: Sequence[int]) -> int:
        """1: a test failed; 0: none did; 2: the mutant could not be installed."""
        if not install(mutant):
            return 2
        for place, number in enumerate(chosen):
            item = self.items[number]
            following = self.items[chosen[place + 1]] if place + 1 < len(chosen) else None
            signal.setitimer(signal.ITIMER_PROF, 5 + self.seconds[number])  # processor time: the machine may be busy
            signal.alarm(60 + int(10 * self.seconds[number]))
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                return 1
        return 0

    def trace(self) -> int:
        """Write which tests reach which lines, and how long each takes; what fixtures reach counts for a whole file."""
        reach: dict[str, set[int]] = {}
        unseen: dict[CodeType, set[int]] = {}  # lines of the code that has been called; none where it is another's

        def on_call(frame: FrameType, event: str, argument: object) -> Any:
            code = frame.f_code
            if code not in unseen:
                unseen[code] = lines_of(code) if code.co_filename in self.files else set()
            return on_line if unseen[code] else None

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            left = unseen.get(frame.f_code, set())  # none in a thread that an earlier test left
            left.discard(frame.f_lineno)
            if left:
                return on_line
            frame.f_trace = None
            return None

        seconds: dict[int, float] = {}
        by_file: dict[Path, list[int]] = {}
        for number, item in enumerate(self.items):
            by_file.setdefault(item.path, []).append(number)
        for number, item in enumerate(self.items):
            following = self.items[number + 1] if number + 1 < len(self.items) else None
            unseen.clear()
            threading.settrace(on_call)
            sys.settrace(on_call)
            try:
                reports = runtestprotocol(item, log=False, nextitem=following)
            finally:
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]
            failed = any(report.failed for report in reports)  # as it is traced: it is left out
            seconds[number] = 2 * SLOWEST if failed else sum(report.duration for report in reports)
            shared = len(by_file[item.path]) < 40 and any("module" in str(f.scope) for f in _fixtures(item))
            for code, left in unseen.items():
                for line in lines_of(code) - left if code.co_filename in self.files else ():
                    found = reach.setdefault(f"{self.files[code.co_filename]}:{line}", set())
                    found.update(by_file[item.path] if shared else [number])
        plain = {line: sorted(tests) for line, tests in reach.items()}
        (self.folder / "reach").write_text(json.dumps([plain, [seconds[n] for n in range(len(self.items))]]))
        return 0


def lines_of(code: CodeType) -> set[int]:
    """Line numbers of the code, without that of its ``def``, which no line event names."""
    return {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}


def _fixtures(item: Any) -> list[Any]:
    return [found[-1] for name, found in item._fixtureinfo.name2fixturedefs.items() if found]


def survivors_of(tests: Sequence[str], mutants: Sequence[Mutant]) -> Sequence[Mutant]:
    """The mutants that none of these tests kills."""
    if not mutants:
        return []
    runs = Runs(sorted({mutant.file for mutant in mutants}), mutants)
    arguments = [*tests, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", "-x"]
    status = pytest.main([*arguments, "-W", "ignore::pytest.PytestUnraisableExceptionWarning"], plugins=[runs])
    if status != 0 or runs.done < len(mutants):
        sys.exit(f"the tests cannot be run, or one fails without a mutant (pytest ended with {int(status)})")
    return runs.survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=TARGETS)
    parser.add_argument("--mutants", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), help="FILE, FILE:LINE or FILE:LINE:KIND of mutants")
    parser.add_argument("--not-of", nargs="*", type=Path, default=(), help="what earlier runs printed")
    parser.add_argument("--tests", nargs="*", default=None, help="files or folders of tests, instead of those")
    options = parser.parse_args()
    places, stages = TARGETS[options.what]
    found = [
        path for place in places for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    ]
    files = sorted(os.fspath(path.relative_to(ROOT)) for path in found)
    every = [mutant for file in files for mutant in mutants_of(file)]
    seen = "\n".join(log.read_text() for log in options.not_of)
    left = [mutant for mutant in every if str(mutant) not in seen]
    if options.only:
        left = [m for m in left if {m.file, f"{m.file}:{m.line}", f"{m.file}:{m.line}:{m.kind}"} & {*options.only}]
    chosen = random.Random(options.seed).sample(left, min(options.mutants, len(left)))
    survived: Sequence[Mutant] = chosen
    for stage, tests in enumerate([options.tests] if options.tests else stages, 1):
        tried = len(survived)
        survived = survivors_of(tests, survived)
        print(f"\nstage {stage}, {' '.join(tests)}: {tried - len(survived)} of {tried} mutants killed")
    killed = len(chosen) - len(survived)
    print(f"\n{options.what}: {killed} of {len(chosen)}, {killed / max(len(chosen), 1):.1%}; of {len(every):,} in all")
    for folder in sorted({Path(mutant.file).parent for mutant in chosen}):
        of = [mutant for mutant in chosen if Path(mutant.file).parent == folder]
        print(f"{folder}: {len(of) - sum(mutant in survived for mutant in of)} of {len(of)}")
    for mutant in sorted(map(str, survived)):
        print(f"survived {mutant}")


if __name__ == "__main__":
    main()
