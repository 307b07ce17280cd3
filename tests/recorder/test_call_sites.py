"""Call sites: the innermost user frame, its source line, and a key that survives what happens between two runs."""

import gc
import importlib.util
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch
from recorded import Record, Recorded, Row
from torch import nn

from rltrace.portable_keys import portable_path
from rltrace.recorder import current_session

Load = Callable[..., ModuleType]

PROGRAM = """
import torch

def work(x):
    y = x.sin()
    return inner(y)

def inner(y):
    return (y * 2).cos()

class Thing:
    def method(self, x):
        return [v.exp() for v in (x, x)]

def main():
    x = torch.ones(3)
    work(x)
    Thing().method(x)
    (lambda v: v.tan())(x)
    return x
"""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write source text to a file in a folder and import it under a name of its own."""
    names: list[str] = []

    def load_(text: str, folder: str = "here", file: str = "program.py", package: bool = False) -> ModuleType:
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if package:
            (path.parent / "__init__.py").touch()
        path.write_text(text)
        name = f"loaded_{len(names)}_{tmp_path.name}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load_
    for name in names:
        del sys.modules[name]


def keys(got: Recorded) -> list[int]:
    return [row.site_key for row in got.rows]


def frames(row: Row) -> list[tuple[str, str, str]]:
    """(file, function, source) of each user frame."""
    return [(f["file"], f["function"], f["source"]) for f in row.stack]


def test_the_innermost_user_frame_comes_first(record: Record, load: Load) -> None:
    """File, qualified function, line and source text; the callers behind it in order."""
    program = load(PROGRAM)
    got = record(program.main)
    row = got.one("cos")
    assert frames(row)[:3] == [
        ("program.py", "inner", "return (y * 2).cos()"),
        ("program.py", "work", "return inner(y)"),
        ("program.py", "main", "work(x)"),
    ]
    assert row.stack[0]["line"] == 9
    assert row.stack[0]["path"].endswith("here/program.py")
    names = {row.name: row.stack[0]["function"] for row in got.rows}
    assert names["exp"] in ("Thing.method", "Thing.method.<locals>.<listcomp>")
    assert names["tan"] == "main.<locals>.<lambda>"


def test_frames_of_torch_and_of_the_recorder_are_no_user_frames(record: Record) -> None:
    """Those of torch are recorded and flagged, those of the recorder's hooks are not even recorded."""
    with record.block() as got:
        nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
    for row in got.rows:
        assert "nn.Sequential" in row.line
    frames = got.table("frames")
    files = {frames[number]["file"] for site in got.table("sites") for number in site}
    assert "torch/nn/modules/linear.py" in files
    assert not any(file.startswith("rltrace/") for file in files)


def test_folders_line_numbers_and_indentation_change_no_key(record: Record, load: Load) -> None:
    """The project checked out elsewhere; lines added on top, so that all below shift; a block around a line."""
    deeper = PROGRAM.replace("    y = x.sin()", "    if True:\n        y = x.sin()")
    texts = PROGRAM, PROGRAM, "import math\n# a comment\nMORE = 3\n" + PROGRAM, deeper
    a, elsewhere, shifted, indented = (record(load(text, f"{i}").main) for i, text in enumerate(texts))
    assert keys(a) == keys(elsewhere) == keys(shifted) == keys(indented)
    assert a.chains == elsewhere.chains
    assert a.rows[0].stack[0]["path"] != elsewhere.rows[0].stack[0]["path"]
    assert shifted.rows[0].stack[0]["line"] == a.rows[0].stack[0]["line"] + 3


def test_other_words_another_place_or_function_is_another_key(record: Record, load: Load) -> None:
    """Another text of the line; the same one called from elsewhere, or in a function of another name."""
    other = PROGRAM.replace("y = x.sin()", "y = x.sin().abs()")
    renamed = PROGRAM.replace("def inner", "def other").replace("inner(y)", "other(y)")
    a, b, c = (record(load(text, f"{i}").main) for i, text in enumerate((PROGRAM, other, renamed)))
    assert a.one("sin").site_key != b.one("sin").site_key
    assert a.one("cos").site_key != c.one("cos").site_key
    with record.block() as got:
        load(PROGRAM, "d").work(torch.ones(3))
    assert got.one("cos").site_key != a.one("cos").site_key


def test_packages_keep_their_place(record: Record, load: Load) -> None:
    """A file in a package goes by its path from the package's parent."""
    got = record(load(PROGRAM, "deep/pack", package=True).main)
    assert got.one("cos").stack[0]["file"] == "pack/program.py"


def test_each_depth_of_a_recursion_is_a_site(record: Record) -> None:
    """The stack differs, so the site does; the innermost frame is the same line."""

    def dive(x: torch.Tensor, depth: int) -> torch.Tensor:
        return dive(x.sin(), depth - 1) if depth else x

    rows = record(lambda: dive(torch.ones(1), 4)).named("sin")
    assert len({row.site_key for row in rows}) == 4
    assert {row.line for row in rows} == {"return dive(x.sin(), depth - 1) if depth else x"}
    assert [len(row.stack) for row in rows] == [len(rows[0].stack) + i for i in range(4)]


def test_code_without_source_has_names_and_no_text(record: Record) -> None:
    """``exec``, ``eval`` and compiled templates."""
    scope: dict[str, Any] = {"torch": torch}
    with record.block() as got:
        exec("def made(x):\n    return x.sin()\nmade(torch.ones(1))", scope)
        eval("torch.ones(1).cos()", scope)
    assert frames(got.one("sin"))[:2] == [("<string>", "made", ""), ("<string>", "<module>", "")]
    assert frames(got.one("cos"))[0] == ("<string>", "<module>", "")
    assert frames(got.one("cos"))[1][2].startswith("eval(")


def test_a_function_that_was_pickled_by_value_is_of_its_file(record: Record) -> None:
    """cloudpickle, which sends functions to workers so, leaves the file's name to the globals of a function."""

    def work() -> Any:
        return torch.ones(1).sin()

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        sent = cloudpickle.loads(cloudpickle.dumps(work))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    ours, theirs = (record(one).one("sin") for one in (work, sent))
    assert frames(theirs)[0] == frames(ours)[0]
    assert theirs.line == "return torch.ones(1).sin()"


PASSING_NAMES = {
    "a notebook's kernel": ("/tmp/ipykernel_{pid}/{count}.py", "/tmp/ipykernel_1/2.py"),
    "ipython": ("<ipython-input-{count}-0123456789ab>", "<ipython-input-3-ba9876543210>"),
    "a temporary file": ("/tmp/tmp{letters}.py", "/somewhere/tmp_23456ab.py"),
    "a temporary folder": ("/tmp/tmp{letters}/train.py", "/somewhere/else/train.py"),
    "torch.package": ("<torch_package_{count}>.models/net.py", "<torch_package_0>.models/net.py"),
    "torch.fx": ("<eval_with_key>.{count} from /here/a.py:{count} in forward", "<eval_with_key>.0"),
    "doctest": ("<doctest agent.act[{count}]>", "<doctest agent.act[0]>"),
    "an address": ("<template Loss at 0x{pid}>", "<template Loss at 0x7f00>"),
}


@pytest.mark.parametrize("name", PASSING_NAMES)
def test_file_names_that_another_run_draws_anew_change_no_key(record: Record, name: str) -> None:
    """Process ids, counters, addresses, random letters: none of them is part of where an op was called."""
    source = "def made(x):\n    return x.sin()\nmade(torch.ones(1))\n"

    def program(file: str) -> Callable[[], None]:
        def run() -> None:
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(source, file, "exec"), {"torch": torch})

        return run

    one, other = PASSING_NAMES[name]
    a, b = (record(program(file.format(pid=4711, count=17, letters="x1_y2z3w"))) for file in (one, other))
    assert a.one("sin").line == "return x.sin()"
    assert frames(a.one("sin")) == frames(b.one("sin"))
    assert keys(a) == keys(b)
    assert a.chains == b.chains


@pytest.mark.parametrize(
    "file", ["/project/tmp_agent.py", "/project/template.py", "<string>", "<stdin>", "/project/ipykernel_launcher.py"]
)
def test_other_file_names_are_kept(file: str) -> None:
    """Only what is drawn anew goes."""
    assert portable_path(file) == Path(file).name


def test_generated_methods_and_wrapped_callables(record: Record, load: Load) -> None:
    """A dataclass's methods have no source; a partial has no frame: where they were called distinguishes them."""
    got, other = (record(load(GENERATED, folder).main) for folder in ("here", "else/where"))
    assert frames(got.one("sin"))[:2] == [
        ("program.py", "Point.__post_init__", "self.length = self.x.sin()"),
        ("<string>", "__create_fn__.<locals>.__init__", ""),
    ]
    assert [frames(row)[1][2] for row in got.named("mul")] == ["half(x)", "list(map(half, [x]))"]
    assert keys(got) == keys(other)


GENERATED = """
import dataclasses
import functools
import torch

@dataclasses.dataclass
class Point:
    x: torch.Tensor
    def __post_init__(self):
        self.length = self.x.sin()

def scaled(x, factor):
    return x.mul(factor)

half = functools.partial(scaled, factor=0.5)

def main():
    x = Point(torch.ones(())).x
    half(x)
    list(map(half, [x]))
"""


def test_code_made_at_run_time_does_not_pile_up(record: Record) -> None:
    """A function compiled anew for each call: one frame, one site, as its content is one; its code may go."""
    alive: list[weakref.ref[Any]] = []

    def program(times: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                scope: dict[str, Any] = {}
                exec("def made(x):\n    return x.sin()", scope)
                scope["made"](torch.ones(1))
                alive.append(weakref.ref(scope["made"].__code__))

        return run

    few, many = record(program(3)), record(program(600))
    assert len(few.table("sites")) == len(many.table("sites"))
    assert len(few.table("frames")) == len(many.table("frames"))
    assert len({row.site_key for row in many.named("sin")}) == 1
    gc.collect()
    assert sum(reference() is not None for reference in alive) < 2_000


def test_code_at_the_address_of_dead_code_is_not_taken_for_it(record: Record) -> None:
    """Keys are addresses of code objects: those that a key names stay alive."""
    with record.block() as got:
        for i in range(400):
            scope: dict[str, Any] = {}
            exec(f"def made_{i % 7}(x):\n    return x.sin()", scope)
            scope[f"made_{i % 7}"](torch.ones(1))
    rows = got.named("sin")
    assert [row.stack[0]["function"] for row in rows] == [f"made_{i % 7}" for i in range(400)]


def test_backward_has_the_stack_of_the_call_that_started_it(record: Record) -> None:
    """``loss.backward()``, and the line of the program that called it."""
    with record.block() as got:
        x = torch.ones(2, requires_grad=True)
        loss = x.sin().sum()
        loss.backward()
        torch.autograd.grad((x * x).cos().sum(), x)
    (by_backward,) = [row for row in got.named("cos") if row.phase.name == "BACKWARD"]
    (by_grad,) = got.named("neg") or got.named("sin")[1:]
    assert by_backward.line == "loss.backward()"
    assert by_grad.line.startswith("torch.autograd.grad(")


def test_frames_are_let_go(record: Record) -> None:
    """A frame that is held would hold the program's tensors."""
    dead: list[bool] = []

    class Held:
        pass

    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = Held()
            self.reference = weakref.ref(held)
            return x.sin()

    with record.block():
        layer = Layer()
        leaf = torch.ones(1, requires_grad=True)
        layer(leaf).sum().backward()
        dead.append(layer.reference() is None)
    assert dead == [True]


def test_the_home_folder_is_not_spelled_out(record: Record, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the name of a person."""
    program = load(PROGRAM)
    monkeypatch.setenv("HOME", str(Path(program.__file__ or "").parents[1]))
    got = record(program.main)
    assert got.rows[0].stack[0]["path"] == "~/here/program.py"


def test_stacks_end_where_a_caller_asks_for_it(record: Record, engine: str) -> None:
    """The callers of that function are in no stack, so one body called from two lines has the same sites."""

    def body() -> None:
        torch.ones(2).sin()

    def bottom() -> None:
        body()

    with record.block(engine=engine) as got:
        current_session().end_stacks_at(bottom.__code__)
        bottom()
        bottom()
    rows = got.named("sin")
    assert [[frame["function"].rpartition(".")[2] for frame in row.stack] for row in rows] == [["body"], ["body"]]
    assert len({row.site_key for row in rows}) == 1
