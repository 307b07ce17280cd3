"""The mark and the fixture in small test sessions within this process."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rltrace
from rltrace.extensions.regression import pytest_plugin
from rltrace.extensions.regression.runs import compare_calls

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
PLAIN = ("-p", "no:rltrace", "-p", "no:cacheprovider", "-W", "default")
"""Without the plugin as it may be installed: a module cannot be registered under two names."""

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A session within this process forgets what was imported in it; torch cannot be imported twice."""
    torch.optim.SGD([torch.ones(1)])
    folder = tmp_path_factory.mktemp("first") / "calls"
    assert compare_calls(folder, lambda: torch.ones(1), lambda: torch.zeros(1), None) is not None


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """``run(source, …)``: the outcome of tests in ``source``; reports go to the folder ``reports``."""

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import random, pytest, rltrace, torch\n{source}")
        return pytester.runpytest_inprocess(
            *PLAIN, "--rltrace-reports=reports", "-rA", *arguments, plugins=[pytest_plugin]
        )

    return run


def expect(result: pytest.RunResult, *lines: str) -> None:
    """These lines are printed in this order, others between them."""
    result.stdout.fnmatch_lines(lines)


def test_equal_runs_pass_and_leave_nothing(run: Run, pytester: pytest.Pytester) -> None:
    """Each has its fixtures of function scope, a folder and an instance of the class; wider fixtures are shared."""
    result = run(
        """
log = []

@pytest.fixture(scope="module")
def wide():
    log.append("wide")

@pytest.fixture
def seeded(tmp_path, wide):
    torch.manual_seed(0)
    log.append("up")
    yield tmp_path
    log.append("down")

@pytest.mark.reproducible(3)
@pytest.mark.parametrize("size", [2, 3])
class TestAgent:
    def test_updates(self, seeded, size):
        assert not hasattr(self, "weight") and not list(seeded.iterdir())
        (seeded / "file").touch()
        self.weight = torch.randn(size, requires_grad=True)
        self.weight.exp().sum().backward()

def test_order():
    assert log == ["wide"] + ["up", "down"] * 6
"""
    )
    result.assert_outcomes(passed=3)
    assert list((pytester.path / "reports").iterdir()) == []


DIVERGED = """
@pytest.mark.reproducible
def test_draws():
    torch.ones(2).mul(2)
    torch.randn(2)

@pytest.mark.xfail
@pytest.mark.reproducible(level="step")
def test_updates():
    torch.randn(2)
    rltrace.step()
"""


def test_runs_that_diverge_fail_with_the_words_of_diff(run: Run, pytester: pytest.Pytester) -> None:
    """The summary has the op, the text its line and the cause, and the report and both traces are there."""
    result = run(DIVERGED)
    result.assert_outcomes(failed=1, xfailed=1)
    expect(
        result,
        "Runs 1 and 2 of 2: DIVERGED  op 2, rank0/main, cause: rng",
        "  op       aten.randn.default",
        "             torch.randn(2)",
        "FAILED *test_draws - Failed: *",
    )
    result.stdout.no_fnmatch_line("*_pytest/*")  # callers of the test are in no stack
    (page,) = (pytester.path / "reports").glob("*test_draws/runs/report.html")
    assert "aten.randn.default" in page.read_text()
    assert len(list(page.parent.glob("run-*.zarr"))) == 2
    run(DIVERGED.replace("randn", "zeros")).assert_outcomes(passed=1, xpassed=1)
    assert list((pytester.path / "reports").iterdir()) == []  # no report of an earlier session stays


def test_the_outcomes_of_a_body_are_shown_as_ever(run: Run) -> None:
    """An assertion with its values, a skip with its reason; below what only a later run asserts is what differs."""
    result = run(
        """
runs = []

@pytest.mark.reproducible
def test_asserts():
    assert torch.ones(1).item() == 2

@pytest.mark.reproducible
def test_asserts_later():
    runs.append(1)
    total = torch.full((2,), float(len(runs))).sum().item()
    assert total == 2

@pytest.mark.reproducible
def test_skips():
    pytest.skip("no simulator")

@pytest.fixture
def broken():
    yield
    raise ValueError("at its end")

@pytest.mark.reproducible
def test_breaks(broken):
    pass
"""
    )
    result.assert_outcomes(failed=3, skipped=1, errors=1)
    expect(
        result,
        "E       assert 1.0 == 2",
        "E       assert 4.0 == 2",
        "*Captured rltrace call*",
        "Runs 1 and 2 of 2: DIVERGED  op 0, rank0/main, cause: arguments",
        "E       ValueError: at its end",
        "SKIPPED * no simulator",
    )
    result.stdout.no_fnmatch_line("*pytest_plugin*")


def test_what_cannot_be_run_again_is_refused(run: Run) -> None:
    """With what to do."""
    result = run(
        """
import unittest

class TestCase(unittest.TestCase):
    @pytest.mark.reproducible
    def test_method(self): pass

@pytest.mark.reproducible
async def test_async(): pass

@pytest.mark.reproducible(runs=1)
def test_once(): pass

@pytest.mark.reproducible(level="all")
def test_level(): pass

@pytest.mark.reproducible(times=3)
def test_word(): pass
"""
    )
    result.assert_outcomes(failed=5)
    expect(
        result,
        "*test_method is a method of a unittest.TestCase; *",
        "*test_async is asynchronous; *",
        "*runs is 1; two runs are the fewest that can be compared",
        "*level 'all' is none of op, step",
        "*unexpected keyword argument 'times'",
    )


def test_a_process_that_is_recorded_runs_it_once(run: Run, tmp_path: Path) -> None:
    """Recordings cannot be nested."""
    with rltrace.record(tmp_path / "whole.zarr"):
        result = run("@pytest.mark.reproducible\ndef test_a(): torch.randn(2)")
    result.assert_outcomes(passed=1)
    expect(result, "runs once: this process is already being recorded")


def test_calls_are_compared_by_their_results(run: Run, pytester: pytest.Pytester) -> None:
    """Of two programs or of one under two settings, from the same generators; a difference names the first op."""
    result = run(
        """
import contextlib

@contextlib.contextmanager
def doubled():
    global factor
    factor = 2
    yield
    factor = 1

factor = 1

def scaled():
    return {"loss": torch.ones(3).mul(factor).sum()}

def test_equal(compare_bits):
    compare_bits(lambda: torch.randn(2) * random.random(), lambda: torch.randn(2).mul(random.random()))
    compare_bits(lambda: torch.randn(2), under=torch.inference_mode())

def test_settings(compare_bits):
    compare_bits(scaled, scaled)
    compare_bits(scaled, under=doubled())

def test_programs(compare_bits):
    x = torch.ones(2)
    compare_bits(lambda: x.mul(2).sin().sum(), lambda: x.add(1).mul(3).sum())

def test_no_result(compare_bits):
    state = torch.zeros(2)
    compare_bits(lambda: print(state.add_(1)), under=torch.inference_mode())

def test_arguments(compare_bits):
    compare_bits(scaled)
"""
    )
    result.assert_outcomes(passed=1, failed=4)
    expect(
        result,
        ">       compare_bits(scaled, under=doubled())",
        "E       Failed: the result[[]'loss'[]]: 1 of 1 elements differ, |A - B| up to 3*",
        "E       The two calls: DIVERGED  op 1, rank0/main, cause: arguments",
        "E       Failed: the result: 1 of 1 elements differ*",
        "E       Both calls' ops in order: 0 ops of equal results, then",
        "E         A  aten.mul.Tensor float32[[]2[]] (ATen * at test_it.py:* in test_programs.*",
        "E         B  aten.add.Tensor float32[[]2[]] (ATen * at test_it.py:* in test_programs.*",
        "E       Failed: The two calls: DIVERGED  op 0, rank0/main, cause: outside",
        "E       TypeError: compare_bits takes two callables, or one and *",
    )
    folders = {page.parent.name for page in (pytester.path / "reports").rglob("report.html")}
    assert folders == {"calls-1", "calls-2"}


LOCKED = """
@pytest.mark.reproducible(level="step", lock="draws.lock")
def test_draws():
    for seed in (0, 1):
        torch.manual_seed(seed)
        rltrace.step()

@pytest.mark.reproducible(1, lock="sizes.lock", level="step")
@pytest.mark.parametrize("size", [2, 3])
def test_sizes(size):
    torch.manual_seed(size)
    rltrace.step()
"""


def test_a_run_makes_the_steps_of_its_lock(run: Run, pytester: pytest.Pytester) -> None:
    """A parametrized test has one lock each. A step that is another fails with what finds the op."""
    missing = run(LOCKED)
    missing.assert_outcomes(failed=3)
    expect(missing, "*draws.lock does not exist; pytest --rltrace-lock-update writes it")
    run(LOCKED, "--rltrace-lock-update").assert_outcomes(passed=3)
    assert sorted(path.name for path in pytester.path.glob("*.lock")) == ["draws.lock", "sizes-2.lock", "sizes-3.lock"]
    run(LOCKED).assert_outcomes(passed=3)
    moved = run(LOCKED.replace("(0, 1)", "(0, 2)"))
    moved.assert_outcomes(failed=1, passed=2)
    expect(
        moved,
        "DIVERGED  step 1 of rank0/main *",
        "  The RNG states at the end of this step differ; *",
        "  rltrace lock --check *draws.lock -- python -m pytest test_it.py::test_draws",
        "  */reports/test_it.py-test_draws/runs/run-1.zarr",
    )


def test_a_lock_that_cannot_be_used_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    """That of another test, or of a test without a step; and a file that is none."""
    (pytester.path / "b.lock").write_text("b")
    result = run(
        """
@pytest.mark.reproducible(1, lock="a.lock")
class TestBoth:
    def test_one(self): rltrace.step()
    def test_other(self): rltrace.step()

@pytest.mark.reproducible(1, lock="b.lock")
def test_damaged(): rltrace.step()

@pytest.mark.reproducible(1, lock="c.lock")
def test_nothing(): pass
""",
        "--rltrace-lock-update",
        "-k",
        "not damaged",
    )
    result.assert_outcomes(failed=2, passed=1, deselected=1)
    expect(
        result,
        "*a.lock is the lock of test_it.py::TestBoth::test_one; name another one for test_it.py::*",
        "*run-1.zarr has no optimizer step to lock*",
    )
    result.stdout.no_fnmatch_line("*another exception*")
    damaged = pytester.runpytest_inprocess(*PLAIN, "-k", "damaged", plugins=[pytest_plugin])
    damaged.assert_outcomes(failed=1, deselected=3)
    expect(damaged, "*b.lock is not a lock*")


def test_workers_of_xdist_run_and_report(pytester: pytest.Pytester) -> None:
    """The text comes back from the worker."""
    pytester.makepyfile(test_it=f"import random, pytest, rltrace, torch\n{DIVERGED}")
    result = pytester.runpytest_inprocess(*PLAIN, "-p", pytest_plugin.__name__, "-n1")
    result.assert_outcomes(failed=1, xfailed=1)
    expect(result, "Runs 1 and 2 of 2: DIVERGED  op 2, rank0/main, cause: rng")


@pytest.mark.parametrize("off", [False, True])
def test_an_installed_plugin_is_left_out_by_its_name(pytester: pytest.Pytester, off: bool) -> None:
    """``pytest -p no:rltrace``. What installs it is the entry point of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    facts = pytester.mkdir("rltrace_debugger-0.dist-info")
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    points = project["entry-points"]["pytest11"]
    (facts / "entry_points.txt").write_text("\n".join(["[pytest11]", *(f"{k} = {v}" for k, v in points.items())]))
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("--markers", *(("-p", "no:rltrace") if off else ()))
    assert ("@pytest.mark.reproducible" in result.stdout.str()) is not off


def test_the_example_passes(pytester: pytest.Pytester) -> None:
    """Its tests in one file; those of libraries take longer."""
    pytester.copy_example(str(ROOT / "examples" / "test_determinism.py"))
    result = pytester.runpytest_inprocess(*PLAIN, "-k", "update or acting", plugins=[pytest_plugin])
    result.assert_outcomes(passed=2, deselected=7)
