"""Which module may be loaded by whom, seen in a fresh interpreter (import contracts see only what is written)."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Container
from graphlib import TopologicalSorter
from pathlib import Path


def modules_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` ran in a fresh interpreter."""
    program = f"{code}\nimport sys\nprint('MODULES', *sorted({{m.partition('.')[0] for m in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = next(line for line in result.stdout.splitlines() if line.startswith("MODULES "))
    return set(line.split()[1:])


HELP = """
import contextlib, sys
from rltrace.commands.main import main
for arguments in ["--help"], *([verb, "--help"] for verb in ("record", "diff", "show", "ops", "replay")):
    sys.argv = ["rltrace", *arguments]
    with contextlib.suppress(SystemExit):
        main()
"""


def test_help_loads_nothing_heavy() -> None:
    """Help is there at once: the heavy packages are loaded by the verb that needs them, when it runs."""
    assert not {"torch", "zarr", "numpy", "textual"} & modules_after(HELP)


def test_reading_and_comparing_loads_no_torch() -> None:
    """A trace can be read, compared and reported on a machine that has no torch."""
    names = "rltrace.diff, rltrace.trace.read.reader, rltrace.report.text, rltrace.json, rltrace.extensions.page.page"
    assert "torch" not in modules_after(f"import rltrace, {names}")


def test_writer_and_leaves_load_neither_zarr_nor_torch() -> None:
    """The writer runs inside the recorded program, where every import is start-up time; every pytest loads a leaf."""
    leaves = "rltrace.digest, rltrace.selectors, rltrace.portable_keys, rltrace.fingerprint, rltrace.pytest_plugin"
    assert not {"torch", "zarr"} & modules_after(f"import rltrace.trace.write.writer, {leaves}")


# --- what is written --------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module of the library and the interface, by its dotted name."""
    found = {}
    for top, base in ((ROOT / "rltrace", ROOT), (ROOT / "tui" / "rltrace_tui", ROOT / "tui")):
        for path in sorted(top.rglob("*.py")):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.Module, known: Container[str]) -> set[str]:
    """Modules that a module imports anywhere: at its top, for type checking alone, within functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_no_modules_import_each_other() -> None:
    """Not in a circle of any length, lazy imports and those for type checking counted."""
    trees = modules()
    arrows = {name: imported(tree, trees) & trees.keys() for name, tree in trees.items()}
    TopologicalSorter({name: targets - {name} for name, targets in arrows.items()}).prepare()


def test_no_public_class_has_the_name_of_another() -> None:
    """A name leads to one class, so a reader who meets it knows which is meant."""
    places: dict[str, list[str]] = {}
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


LIMIT = 7
"""Parameters of a function, ``self`` aside."""

LONGER = {"rltrace.testing.builder.end_step", "rltrace.testing.builder.event", "rltrace.testing.builder.op"}
"""Functions with more. Those of the builder stay: their keywords are the fields of what a test writes."""


def test_no_function_has_many_parameters() -> None:
    """What belongs together is passed as one; an exception that is none any more is taken off the list."""
    found = set()
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len(names) - (names[:1] in (["self"], ["cls"])) > LIMIT:
                    found.add(f"{module}.{node.name}")
    assert found == LONGER


RULED_OUT = (
    r"told|tells?|manieth|held against|holds against|lonely|keepers?|births?|horizon|nobody|whoever|somebody|"
    r"stand.ins?|stands? in for|part(ed|ings?)|come apart|became of|anyhow|put in|read out"
)
"""Words of the glossary's list that have no other meaning here; "part" and "alone" have."""


PLAIN = ("rltrace", "tests", "tui")
"""Folders whose Python files the test of words covers."""


def test_no_word_that_the_glossary_rules_out() -> None:
    """Neither in a name, nor in a docstring, a comment or a message; the version log says what the words were."""
    word = re.compile(rf"(?<![a-z])({RULED_OUT})(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in PLAIN
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if word.search(line) and "# 3.0" not in line
    ]
    assert found == []
