"""The runs of an experiment: each is made once, and again where it was asked for otherwise or settled nothing."""

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from rltrace.errors import RecordError, UsageError
from rltrace.experiment.confirm.run_cache import RunCache, RunSetting, TrialLog
from rltrace.experiment.confirm.steps_covered import StepsCovered
from rltrace.experiment.delta_debugging import minimise
from rltrace.experiment.rerun_command import Recipe
from rltrace.experiment.runner import RunRequest, RunResult
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

ACCOUNT = '{"selected": 1, "injected": 1, "propagated": 0, "missed": [], "other": []}'


class Made:
    """Replaces the processes: a run leaves a trace, and a replay its account."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.jobs: list[RunRequest] = []
        self.breaks: BaseException | None = None
        self.reports = True

    def run(self, jobs: Iterable[RunRequest]) -> Iterator[RunResult]:
        for job in jobs:
            self.names.append(job.name)
            self.jobs.append(job)
            TraceBuilder(job.trace).finish()
            if self.breaks is not None:
                raise self.breaks
            if "--result" in job.options and self.reports:
                Path(job.options[job.options.index("--result") + 1]).write_text(ACCOUNT)
            yield RunResult(job, 0)


@pytest.fixture
def made() -> Made:
    return Made()


def bench(folder: Path, made: Made, limit: int = 1 << 30, subject: str = "1") -> RunCache:
    """As a command that is given anew makes one."""
    recipe = Recipe(("python", "train.py"), folder, {})
    setting = RunSetting(
        folder / "runs", {"a": recipe, "b": recipe}, StepsCovered(3, 5), in_place=True, values_limit=limit
    )
    return RunCache(setting, {"a": subject}, made)


def test_what_was_run_is_not_run_again(tmp_path: Path, made: Made) -> None:
    for _ in range(2):
        again = bench(tmp_path, made)
        ran = again.record("A0", "a", values=True)
        assert ran.how == "ended with status 0"
        account = again.replay("lockstep", "b", ran.trace).account
        assert account.complete
    assert made.names == ["A0", "lockstep"]


def test_what_is_asked_for_otherwise_is_run_again(tmp_path: Path, made: Made) -> None:
    """A larger limit, other kinds, other rows: what is there answers another question."""
    bench(tmp_path, made, limit=1).record("A0", "a", values=True)
    trace = bench(tmp_path, made, limit=2).record("A0", "a", values=True).trace
    for kinds in (["mm"], ["mm"], ["mm", "add"]):
        bench(tmp_path, made).replay("A-from-B", "a", trace, kinds=kinds)
    for rows in ([1], [1], [2]):
        bench(tmp_path, made).replay("B-from-A", "b", trace, rows={"rank0/main": rows})
    assert made.names == ["A0"] * 2 + ["A-from-B"] * 2 + ["B-from-A"] * 2


def test_what_was_broken_off_or_settles_nothing_is_run_again(tmp_path: Path, made: Made) -> None:
    """Its trace can be looked at until then."""
    made.breaks = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, made).record("B0", "b", values=True)
    made.breaks = None
    first = bench(tmp_path, made)
    ran = first.record("B0", "b", values=True)
    first.discard_last()
    assert ran.trace.exists()
    bench(tmp_path, made).record("B0", "b", values=True)
    assert made.names == ["B0"] * 3


def test_a_replay_that_was_refused_or_left_no_word(tmp_path: Path, made: Made) -> None:
    """Both are reported, neither counts as made; a recording that could not begin is an error of the experiment."""
    made.reports = False
    assert "without a report on its injections" in (
        bench(tmp_path, made).replay("lockstep", "b", tmp_path).refused or ""
    )
    made.breaks = RecordError("no values")
    assert bench(tmp_path, made).replay("lockstep", "b", tmp_path).refused == "no values"
    with pytest.raises(RecordError):
        bench(tmp_path, made).record("B0", "b", values=True)
    assert made.names == ["lockstep", "lockstep", "B0"]


def test_a_folder_is_one_experiments(tmp_path: Path, made: Made) -> None:
    """Runs of other traces never count, and nothing is written among files that are no experiment's."""
    assert stat.S_IMODE(bench(tmp_path, made).folder.stat().st_mode) == 0o700  # it will hold tensors
    with pytest.raises(UsageError, match="another experiment"):
        bench(tmp_path, made, subject="2")
    (tmp_path / "runs" / "experiment.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        bench(tmp_path, made)
    (tmp_path / "runs" / "experiment.json").rename(tmp_path / "runs" / "letter.txt")
    with pytest.raises(UsageError, match="is not empty"):
        bench(tmp_path, made)


def test_a_control_from_elsewhere_takes_the_place_of_a_run(tmp_path: Path, made: Made) -> None:
    """It is copied once, and says where its trace was."""
    trace = TraceBuilder(tmp_path / "far.zarr").finish()
    note = bench(tmp_path, made).add_control("A0", trace)
    assert note == f"its trace is {trace}"
    assert open_trace(tmp_path / "runs" / "A0.zarr").processes
    rmtree(trace)
    assert bench(tmp_path, made).add_control("A0", trace) == note
    assert made.names == []


SUBJECT = {"a": "a.zarr", "b": "b.zarr", "steps": [0, 2]}


class Runs:
    """Runs that are repaired as ``needed`` says, and break off after so many."""

    def __init__(self, needed: frozenset[str], most: int = 1000) -> None:
        self.needed = needed
        self.most = most
        self.made: list[frozenset[str]] = []

    def __call__(self, classes: frozenset[str]) -> bool:
        if len(self.made) == self.most:
            raise KeyboardInterrupt
        self.made.append(classes)
        return self.needed <= classes


def test_each_trial_is_run_once(tmp_path: Path) -> None:
    """Asked again, the answer is the one that was written down."""
    runs = Runs(frozenset("a"))
    trials = TrialLog(tmp_path / "trials", SUBJECT, runs)
    assert [trials.repairs(set_) for set_ in ("ab", "b", "ba", "b")] == [True, False, True, False]
    assert runs.made == [frozenset("ab"), frozenset("b")]


@pytest.mark.parametrize("after", range(12))
def test_an_interrupted_search_resumes(tmp_path: Path, after: int) -> None:
    """Whenever it is interrupted, the rest of the trials is run and none again, and what comes out is the same."""
    needed = frozenset("bd")
    whole = Runs(needed)
    expected = minimise("abcdefgh", TrialLog(tmp_path / "whole", SUBJECT, whole).repairs)
    first, second = Runs(needed, after), Runs(needed)
    with pytest.raises(KeyboardInterrupt):
        minimise("abcdefgh", TrialLog(tmp_path / "trials", SUBJECT, first).repairs)
    assert minimise("abcdefgh", TrialLog(tmp_path / "trials", SUBJECT, second).repairs) == expected
    assert first.made + second.made == whole.made


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A file that ends in the middle of a line loses that trial alone, and can be written to again."""
    file = tmp_path / "trials"
    trials = TrialLog(file, SUBJECT, Runs(frozenset("a")))
    trials.repairs("a")
    trials.repairs("b")
    file.write_bytes(file.read_bytes()[:-5])
    again = Runs(frozenset("a"))
    assert [TrialLog(file, SUBJECT, again).repairs(set_) for set_ in "ab"] == [True, False]
    assert again.made == [frozenset("b")]
    assert [TrialLog(file, SUBJECT, again).repairs(set_) for set_ in "ab"] == [True, False]
    assert again.made == [frozenset("b")]


def test_a_damaged_line(tmp_path: Path) -> None:
    """A complete line that is no trial is refused with what to do, and stays as it is."""
    file = tmp_path / "trials"
    TrialLog(file, SUBJECT, Runs(frozenset())).repairs("a")
    file.write_bytes(damaged := file.read_bytes().replace(b"[", b"("))
    with pytest.raises(UsageError, match="damaged; remove it"):
        TrialLog(file, SUBJECT, Runs(frozenset()))
    assert file.read_bytes() == damaged


def test_flaky_trials_are_counted(tmp_path: Path) -> None:
    """A set counts as repairing only where it repairs every time; the log says how often it did."""
    answers = iter([True, True, False, True, True, True])
    trials = TrialLog(tmp_path / "trials", SUBJECT, lambda classes: next(answers), samples=3)
    assert [trials.repairs("a"), trials.repairs("b")] == [False, True]
    assert (trials.runs, trials.flaky) == (6, 1)


def test_trials_of_something_else(tmp_path: Path) -> None:
    """The trials of one experiment are never taken for those of another."""
    TrialLog(tmp_path / "trials", SUBJECT, Runs(frozenset()))
    with pytest.raises(UsageError, match="another experiment"):
        TrialLog(tmp_path / "trials", {**SUBJECT, "b": "c.zarr"}, Runs(frozenset()))
