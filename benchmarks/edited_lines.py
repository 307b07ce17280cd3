"""Programs of this repository with one line changed: whether the first finding names the line, and with a true cause.

python benchmarks/edited_lines.py [--mutants 100] [--seed 0] [--first 0] [--only PROGRAM] [--folder FOLDER]

A seed draws a program and a change of one line: a number, an operator, an operand, an argument, a call left out. Each
mutant runs twice, in forked processes: recorded, and under a log of every op that knows nothing of rltrace. A finding
is right if it names the changed line (in its stack or its cause), if it is of the first op that differs by the log, or
if it is of the event that brought the data of that op in; its cause is checked against what the log says of that op.
The line may also be the first of the edited ones that the report names beside the cause, which is counted apart. Prints
a line for each mutant, and the shares. Mutants that raise are left out, and those that compute the same, if that is
reported.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import runpy
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import parse_options

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Finding, Verdict
from rltrace.diff.edits import nearest_edit

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks/verdicts/programs"), str(ROOT / "tests/e2e/programs")]

from oracle import Oracle, content, let_subclasses_be_made  # noqa: E402  after the path is set

PROGRAMS = {
    "examples/critic_drift.py": "--updates 2 --environments 4 --rollout-steps 8 --minibatch 16 --epochs 2",
    "examples/same_seed_ppo.py": "--updates 2 --environments 4 --rollout-steps 6 --features 16 --threads 1",
    "examples/scaler_drift.py": "--updates 4 --rollout-steps 6",
    "examples/env_divergence.py": "--updates 3 --rollout-steps 6",
    "examples/extra_logging.py": "--episodes 3",
    "benchmarks/verdicts/programs/cleanrl_ppo.py": "",
    "benchmarks/verdicts/programs/cleanrl_ensemble.py": "",
    "tests/e2e/programs/critic.py": "",
    "tests/e2e/programs/resumed.py": "",
}
"""Programs, and arguments with which each takes a second."""
SMALLER = (
    (
        "ENVS, LENGTH, UPDATES, EPOCHS, MINIBATCH = 1, 4, 64, 4, 4, 64",
        "ENVS, LENGTH, UPDATES, EPOCHS, MINIBATCH = 1, 4, 8, 3, 2, 16",
    ),
    ("np.random.default_rng()", "np.random.default_rng(3)"),  # it is to repeat itself
    ("range(60)", "range(6)"),
    ("range(24)", "range(6)"),
)
SECONDS = 60
"""A mutant that runs longer is left out."""

# --- mutants ----------------------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """One line of a program, changed."""

    program: str
    line: int
    kind: str
    text: str
    """The line after the change."""


OPERATORS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.BitOr: ("|", "&")}
"""As they are written, and what takes their place."""
COMPARISONS = {ast.Gt: "<=", ast.Lt: ">=", ast.Eq: "!=", ast.GtE: "<", ast.LtE: ">", ast.NotEq: "=="}


def source_of(program: str) -> str:
    text = (ROOT / program).read_text()
    for old, new in SMALLER:
        text = text.replace(old, new)
    return text


def mutants_of(program: str) -> list[Mutant]:
    """Every mutant of a program."""
    text = source_of(program)
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not first or first != last or "parser" in lines[first - 1] or "print" in lines[first - 1]:
            continue
        for kind, edit in _edits(node, lines[first - 1]):
            found.append(Mutant(program, first, kind, edit))
    return found


def _edits(node: Any, line: str) -> Iterator[tuple[str, str]]:
    def put(start: int, end: int, text: str) -> str:
        raw = line.encode()
        return (raw[:start] + text.encode() + raw[end:]).decode()

    def of(part: Any) -> str:
        return line.encode()[part.col_offset : part.end_col_offset].decode()

    start, end = node.col_offset, node.end_col_offset
    match node:
        case ast.Constant(value=bool()):
            yield "number", put(start, end, str(not node.value))
        case ast.Constant(value=int() | float()):
            other = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5
            yield "number", put(start, end, repr(other))
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            left, right = node.left.end_col_offset, node.right.col_offset
            between = line.encode()[left:right].decode()
            yield "operator", put(left, right, between.replace(*OPERATORS[type(op)], 1))
            yield "operand", put(start, end, f"({of(node.right)}{between}{of(node.left)})")
            yield "operand", put(start, end, of(node.left))
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", put(start, end, f"{of(node.left)} {COMPARISONS[type(op)]} {of(node.comparators[0])}")
        case ast.UnaryOp(op=ast.USub()):
            yield "operator", put(start, end, of(node.operand))
        case ast.Expr(value=ast.Call()) if not isinstance(node.value.func, ast.Name) or node.value.func.id != "main":
            yield "call left out", put(start, end, "pass")
            yield "call made twice", put(start, end, f"{of(node)}; {of(node)}")
        case ast.Call(args=[first, *_], func=ast.Attribute(value=owner)):
            yield "argument", put(first.col_offset, first.end_col_offset, f"({of(first)}) * 2")
            if not isinstance(owner, ast.Name) or owner.id not in ("torch", "np", "nn", "gym", "random"):
                yield "call left out", put(start, end, of(owner))
        case ast.Call(keywords=[word, *_]) if word.arg and node.args and word.lineno == node.lineno:
            last = node.args[-1].end_col_offset
            yield "argument", put(last, word.end_col_offset, "")


def drawn(count: int, seed: int) -> list[Mutant]:
    """Mutants of all programs in turn, drawn by a seed."""
    generator = random.Random(seed)
    decks = []
    for program in PROGRAMS:
        kinds: dict[str, list[Mutant]] = {}
        for mutant in mutants_of(program):
            kinds.setdefault(mutant.kind, []).append(mutant)
        deck: list[Mutant] = []
        for own in kinds.values():
            generator.shuffle(own)
        while any(kinds.values()):
            names = [kind for kind, own in kinds.items() if own]
            deck.append(kinds[generator.choice(names)].pop())
        decks.append(deck)
    mixed = [mutant for row in zip_longest(*decks) for mutant in row if mutant is not None]
    return mixed[:count]


# --- the plain log ----------------------------------------------------------------------------------------------------


class Logged(NamedTuple):
    """One op of the log."""

    op: str
    result: str
    inputs: tuple[str, ...]
    """A hash of each tensor that it read."""
    arguments: str
    """Everything else that it was given, and the shapes."""
    lines: tuple[int, ...]
    """Lines of the program that were running, the innermost first."""


class Log(Oracle):
    """Logs what each op read, too, and the lines that ran it."""

    def __init__(self, log: Path, program: str) -> None:
        super().__init__(log)
        self.program = program

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = ",".join(_hash(content(tensor)) for tensor in tensors)
        plain = [leaf for leaf in leaves if isinstance(leaf, (bool, int, float, str, torch.dtype))]
        arguments = _hash(repr((plain, [(t.shape, t.dtype, t.stride()) for t in tensors])).encode())
        result = func(*args, **(kwargs or {}))
        lines, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.program:
                lines.append(str(frame.f_lineno))
            frame = frame.f_back
        bits = self.digest(func, args, kwargs or {}, result)
        self.log.write(f"{func}\t{bits}\t{inputs}\t{arguments}\t{','.join(lines)}\n")
        return result


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def read_log(path: Path) -> list[Logged]:
    rows = [line.rstrip("\n").split("\t") for line in path.open()]
    return [
        Logged(op, bits, tuple(i.split(",")), arguments, tuple(int(n) for n in lines.split(",") if n))
        for op, bits, i, arguments, lines in rows
        if not op.startswith("profiler.")  # it computes nothing
    ]


def first_difference(a: Sequence[Logged], b: Sequence[Logged]) -> tuple[int, Logged | None, Logged | None] | None:
    """The first position at which two logs differ in op or result, and what is there."""
    for row, (x, y) in enumerate(zip_longest(a, b)):
        if x is None or y is None or (x.op, x.result, x.arguments) != (y.op, y.result, y.arguments):
            return row, x, y
    return None


# --- running ----------------------------------------------------------------------------------------------------------


def in_child(run: Callable[[], None], log: Path) -> bool:
    """Whether ``run`` succeeds in a forked process, in time."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(SECONDS)
            with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                try:
                    run()
                    status = 0
                except BaseException as error:
                    print(repr(error))
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def run_program(file: Path, arguments: str) -> None:
    os.chdir(file.parent)
    sys.argv = [file.name, *arguments.split()]
    runpy.run_path(file.name, run_name="__main__")


def record(file: Path, arguments: str, trace: Path) -> bool:
    def run() -> None:
        with rltrace.record(trace):
            run_program(file, arguments)

    return in_child(run, file.parent / "recorded.txt")


def log_plainly(file: Path, arguments: str, log: Path) -> bool:
    def run() -> None:
        let_subclasses_be_made()
        oracle = Log(log, file.name)
        with oracle:
            run_program(file, arguments)
        oracle.close()

    return in_child(run, file.parent / "logged.txt")


@dataclass(frozen=True)
class Recorded:
    """A version of a program, run."""

    trace: Path
    log: list[Logged]
    printed: str


def run_version(folder: Path, name: str, text: str, arguments: str) -> Recorded | None:
    """None: it raised, or took too long."""
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    if not log_plainly(folder / name, arguments, folder / "log"):
        return None
    if not record(folder / name, arguments, folder / "t.zarr"):
        raise RuntimeError((folder / "recorded.txt").read_text())
    return Recorded(folder / "t.zarr", read_log(folder / "log"), (folder / "logged.txt").read_text())


# --- grades -----------------------------------------------------------------------------------------------------------


class Grade(NamedTuple):
    """What is said of a mutant, graded."""

    result: str
    """``line``, ``op``, ``data``: what the finding names; ``missed``, ``unknown``, ``nothing``; ``equal``: the mutant
    computes the same, and no difference is reported."""
    cause: str
    is_false: bool
    edit: bool
    """Whether the changed line is the first of the edited ones."""


def grade(comparison: Comparison, mutant: Mutant, a: Recorded, b: Recorded) -> Grade:
    """The grade of a comparison."""
    first = first_difference(a.log, b.log)
    shown = comparison.shown
    cause = shown.cause.value if shown is not None else comparison.verdict.value
    edit = _first_edit(comparison) == mutant.line
    if first is None:
        equal = comparison.verdict in (Verdict.IDENTICAL, Verdict.SAME_VALUES)
        # what never reaches an op of torch may differ nevertheless: a reward that nothing reads
        return Grade("equal" if equal else "nothing", cause, not equal and not _is_event(shown), edit)
    if comparison.verdict is Verdict.UNKNOWN or (shown is not None and shown.cause is Cause.UNKNOWN):
        return Grade("unknown", cause, False, edit)
    is_equal = comparison.verdict is not Verdict.DIVERGED and comparison.first_value is None
    if is_equal and Counter(x.result for x in a.log) == Counter(x.result for x in b.log):
        return Grade("equal", cause, False, edit)  # in another order
    if is_equal and not _has_all_of_other(a.log, b.log):
        return Grade("missed", cause, True, edit)
    if shown is None:  # one side alone computes something, and nothing says what
        return Grade("missed", cause, False, edit)
    name = Path(mutant.program).name
    in_stack = any(site.file.endswith(name) and site.line == mutant.line for site in shown.stack)
    if in_stack or re.search(rf"{name}:{mutant.line}\b", shown.explanation):
        found = "line"
    elif _is_first(shown.at_op, first):
        found = "data" if _is_event(shown) else "op"
    else:
        found = "missed"
    return Grade(found, cause, _is_false(shown, first, (a.log, b.log)), edit)


def _first_edit(comparison: Comparison) -> int | None:
    found = None if comparison.shown is None else nearest_edit(comparison.edits, comparison.shown)
    return None if found is None else found.line


def _is_event(finding: Finding | None) -> bool:
    return finding is not None and finding.event is not None


def _is_first(finding: Finding, first: tuple[int, Logged | None, Logged | None]) -> bool:
    """Whether a finding is of the first op that differs by the log: the same op on the same lines."""
    _, a, b = first
    lines = [site.line for site in finding.stack]
    return any(
        one is not None and one.op == finding.op and list(one.lines[:1]) == [n for n in lines if n in one.lines][:1]
        for one in (a, b)
    )


def _has_all_of_other(a: Sequence[Logged], b: Sequence[Logged]) -> bool:
    """Whether one side computed all that the other did, in any order."""
    results = Counter((x.op, x.result) for x in a), Counter((x.op, x.result) for x in b)
    return not (results[0] - results[1] and results[1] - results[0])


def _times(op: Logged, log: Sequence[Logged]) -> int:
    return sum((other.op, other.lines) == (op.op, op.lines) for other in log)


def _is_false(
    finding: Finding, first: tuple[int, Logged | None, Logged | None], logs: tuple[Sequence[Logged], Sequence[Logged]]
) -> bool:
    """Whether what the log says of the first op that differs contradicts the cause."""
    _, a, b = first
    if a is None or b is None:
        return finding.cause not in (Cause.CONTROL_FLOW, Cause.ENDED)
    same_op, same_inputs = a.op == b.op, (a.arguments, a.inputs) == (b.arguments, b.inputs)
    match finding.cause:
        case Cause.ENDED:
            return not _has_all_of_other(*logs)
        case Cause.CONTROL_FLOW:
            return same_op and a.lines == b.lines and _times(a, logs[0]) == _times(b, logs[1])
        case Cause.OUTSIDE:
            return not _is_event(finding) and same_op and a.inputs == b.inputs
        case Cause.ARGUMENTS:
            return same_op and same_inputs
        case Cause.RNG:  # what it fills held anything before
            return not (same_op and a.arguments == b.arguments)
        case Cause.KERNEL | Cause.SAME_KERNEL | Cause.COMPUTATION | Cause.UNINITIALISED:
            return not (same_op and same_inputs)
    return True


# --- main -------------------------------------------------------------------------------------------------------------


def run(mutants: Sequence[Mutant], folder: Path) -> Iterator[tuple[Mutant, Grade, Comparison]]:
    """Each mutant that runs, with its grade."""
    known: dict[tuple[str, str], Recorded | None] = {}

    def version(program: str, text: str, name: str) -> Recorded | None:
        # both versions are run from this line, as call stacks hold it
        if (program, name) not in known:
            file = Path(program).name
            known[program, name] = run_version(folder / file / name, file, text, PROGRAMS[program])
        return known[program, name]

    for number, mutant in enumerate(mutants):
        lines = source_of(mutant.program).splitlines(keepends=True)
        edited = [*lines[: mutant.line - 1], mutant.text + "\n", *lines[mutant.line :]]
        a, b = (version(mutant.program, "".join(t), name) for t, name in ((lines, "a"), (edited, f"b{number}")))
        assert a is not None, f"{mutant.program} does not run"
        if b is None:
            print(f"[raises] {mutant.program}:{mutant.line} {mutant.kind}: {mutant.text.strip()}", flush=True)
            continue
        comparison = compare(a.trace, b.trace)
        yield mutant, grade(comparison, mutant, a, b), comparison


def main() -> None:
    first, only = (0, "leave out those before this one"), ("", "mutants whose PROGRAM:LINE: holds this text")
    arguments = parse_options(__doc__, mutants=100, seed=0, first=first, only=only, folder=Path)
    torch.set_num_threads(1)
    chosen = [m for m in drawn(10**6, arguments.seed) if arguments.only in f"{m.program}:{m.line}:"]
    chosen = chosen[arguments.first : arguments.first + arguments.mutants]
    with tempfile.TemporaryDirectory() as temporary:
        results: Counter[str] = Counter()
        false = edits = 0
        for mutant, graded, comparison in run(chosen, arguments.folder or Path(temporary)):
            if graded.result != "equal":
                results[graded.result] += 1
                edits += graded.edit
            false += graded.is_false
            wrong = graded.result in ("missed", "unknown", "nothing") or graded.is_false
            found = f"{'FALSE ' * graded.is_false}{graded.result}, {graded.cause}{', edit' * graded.edit}"
            print(f"[{found}] {mutant.program}:{mutant.line} {mutant.kind}: {mutant.text.strip()}", flush=True)
            shown = comparison.shown
            if wrong:
                print(f"    {comparison.verdict.value}: {comparison.why}")
            if wrong and shown is not None:
                print(f"    {shown.op} {shown.a_index} {shown.b_index} {shown.site}: {shown.explanation}", flush=True)
        every = sum(results.values())
        named = results["line"] + results["op"] + results["data"]
        print(f"\n{every} mutants that compute something else: {named} found ({dict(results)}), {false} false")
        print(f"{edits} whose line is the first of the edited ones")
        sys.exit(named != every or false > 0)


if __name__ == "__main__":
    main()
