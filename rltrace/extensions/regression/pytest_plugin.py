"""The pytest plugin: the mark ``reproducible``, the fixture ``compare_bits``, and two options.

Owns when a test's body runs again, with which fixtures. Loaded by every pytest where rltrace is installed, so that it
imports nothing heavy, prints nothing, and touches only tests that ask for it. ``pytest -p no:rltrace`` leaves it out.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rltrace.errors import RltraceError
from rltrace.recorder import current_session

if TYPE_CHECKING:
    from rltrace.extensions.regression.runs import RecordedRuns

MARK = "reproducible"
LEVELS = ("op", "step")
MAX_NAME = 100
"""Characters of a test's name that are in that of its folder."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rltrace", "reproducibility, by rltrace")
    group.addoption(
        "--rltrace-reports",
        metavar="DIR",
        help="Folder for the reports and traces of calls and runs that diverged.  [default: pytest's temporary folder]",
    )
    group.addoption(
        "--rltrace-lock-update", action="store_true", help="Write the locks of tests, instead of comparing with them."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f'{MARK}(runs=2, level="op", lock=None): run the test so many times, with its function-scoped fixtures set up '
        "anew, and fail at the first op that is not the same in all runs, or step that is not that of a lock (rltrace)",
    )


# --- the mark ---------------------------------------------------------------------------------------------------------
#
# The runs are one call phase of one test: one report, one place in an order, one worker of pytest-xdist. In between the
# test is torn down and set up by the hooks of pytest, so that plugins which act there (seeds, logs) act each time.

RUNS = pytest.StashKey["RecordedRuns"]()
LOCKS = pytest.StashKey[dict[Path, str]]()
"""The test of each lock, of this session."""


@dataclass(frozen=True)
class _Request:
    """Arguments of the mark. Raises ValueError where they are none."""

    runs: int = 2
    level: str = field(default="op", kw_only=True)
    lock: str | None = field(default=None, kw_only=True)
    """Name of a file, from the folder of the test's file."""

    def __post_init__(self) -> None:
        if not isinstance(self.runs, int) or self.runs < (2 if self.lock is None else 1):
            raise ValueError(f"runs is {self.runs!r}; two runs are the fewest that can be compared")
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is none of {', '.join(LEVELS)}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker(MARK)
    if mark is None or RUNS in item.stash:
        return (yield)
    try:
        request, lock = _request(item, mark)
    except (TypeError, ValueError) as error:
        raise pytest.fail.Exception(f"@pytest.mark.{MARK}: {error}", pytrace=False) from None
    if current_session() is not None:
        item.add_report_section("call", "rltrace", "runs once: this process is already being recorded")
        return (yield)
    from rltrace.extensions.regression.runs import RecordedRuns

    recorded_runs = item.stash[RUNS] = RecordedRuns(_folder(item) / "runs", request.runs, request.level)
    try:
        result = yield
        for _ in range(1, request.runs):
            _renew(item)
            _run_again(item, recorded_runs)
            if finding := recorded_runs.finding():
                pytest.fail(finding, pytrace=False)
        if lock is not None:
            _compare_with(lock, item, recorded_runs)
    finally:
        del item.stash[RUNS]
        recorded_runs.clean_up()
    return result


def _run_again(item: pytest.Item, recorded_runs: RecordedRuns) -> None:
    """Run the test once more; where it fails although it did not before, what differs is shown below its own error."""
    try:
        item.ihook.pytest_runtest_call(item=item)
    except (Exception, pytest.fail.Exception):
        with suppress(RltraceError):
            item.add_report_section("call", "rltrace", recorded_runs.finding() or "no recorded op differs from run 1")
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    recorded_runs = pyfuncitem.stash.get(RUNS, None)
    if recorded_runs is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    recorded_runs.run(lambda: pyfuncitem.obj(**arguments))
    return True


def _request(item: pytest.Item, mark: pytest.Mark) -> tuple[_Request, Path | None]:
    """What the mark asks for, and its lock. Raises TypeError or ValueError where that cannot be done."""
    request = _Request(*mark.args, **mark.kwargs)
    if why_not := _why_unsupported(item):
        raise ValueError(f"{item.name} {why_not}")
    if request.lock is None:
        return request, None
    path = item.path.parent / request.lock
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        path = path.with_stem(f"{path.stem}-{_file_name(item.callspec.id)}")
    other = item.config.stash.setdefault(LOCKS, {}).setdefault(path, item.nodeid)
    if other != item.nodeid:
        raise ValueError(f"{request.lock} is the lock of {other}; name another one for {item.nodeid}")
    return request, path


def _compare_with(lock: Path, item: pytest.Item, recorded_runs: RecordedRuns) -> None:
    """Compare the first run with a lock, or write it."""
    command = ("python", "-m", "pytest", item.nodeid)
    try:
        if item.config.getoption("rltrace_lock_update"):
            recorded_runs.write_lock(lock, command)
        elif not lock.exists():
            pytest.fail(f"{lock} does not exist; pytest --rltrace-lock-update writes it", pytrace=False)
        elif finding := recorded_runs.lock_finding(lock, command):
            pytest.fail(finding, pytrace=False)
    except RltraceError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _why_unsupported(item: pytest.Item) -> str:
    if not isinstance(item, pytest.Function):
        return "is not a Python function, and cannot be run again"
    unittest = sys.modules.get("unittest")
    if unittest is not None and item.cls is not None and issubclass(item.cls, unittest.TestCase):
        return "is a method of a unittest.TestCase; write it as a function, or in a class without a base"
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        return "is asynchronous; run the event loop within the test"
    return ""


def _renew(item: pytest.Item) -> None:
    """Tear the test down and set it up again: function-scoped fixtures, and the instance of its class."""
    assert isinstance(item, pytest.Function)
    _phase(item, "teardown", nextitem=item.parent)  # the parent: wider fixtures stay
    vars(item).pop("_instance", None)
    item._obj = None
    item._initrequest()
    _phase(item, "setup")


def _phase(item: pytest.Item, when: Any, **arguments: Any) -> None:
    """What pytest does in a phase, but for the log. Fixtures such as ``tmp_path`` rely on its report."""
    hook = getattr(item.ihook, f"pytest_runtest_{when}")
    call = pytest.CallInfo.from_call(
        lambda: hook(item=item, **arguments), when, (KeyboardInterrupt, pytest.exit.Exception)
    )
    item.ihook.pytest_runtest_makereport(item=item, call=call)
    if call.excinfo is not None:
        raise call.excinfo.value


# --- the fixture ------------------------------------------------------------------------------------------------------


@pytest.fixture
def compare_bits(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``compare_bits(f, g)``: fail unless two calls return the same bits, and name the first op that differs.

    ``compare_bits(f, under=context)`` calls ``f`` a second time, within the context manager. Both calls begin with the
    same states of Python's, NumPy's and torch's global generators. Results may be tensors, arrays, numbers, modules
    (their state) and containers of them; where both return None, the recorded ops are compared.
    """
    folder, count = _folder(request.node), 0

    def compare(
        f: Callable[[], object],
        g: Callable[[], object] | None = None,
        *,
        under: AbstractContextManager[object] | None = None,
    ) -> None:
        __tracebackhide__ = True
        nonlocal count
        if (g is None) == (under is None):
            raise TypeError("compare_bits takes two callables, or one and the context manager of its second call")
        from rltrace.extensions.regression.runs import compare_calls

        count += 1
        if finding := compare_calls(folder / f"calls-{count}", f, g or f, under):
            pytest.fail(finding)

    return compare


# --- folders ----------------------------------------------------------------------------------------------------------


def _folder(item: Any) -> Path:
    """The folder for what is recorded of a test. It may not exist."""
    name = _file_name(item.nodeid)[-MAX_NAME:]
    chosen = item.config.getoption("rltrace_reports")
    if chosen is not None:
        return Path(item.config.invocation_params.dir, chosen, name)
    factory: pytest.TempPathFactory = item._request.getfixturevalue("tmp_path_factory")
    return factory.getbasetemp() / "rltrace" / name


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")
