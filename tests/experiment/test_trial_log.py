"""Trials are run once, several times where they may be flaky, and never again after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.experiment.confirm.run_cache import ClassTrial, OtherTrialsError, TrialLog
from rltrace.experiment.delta_debugging import minimise

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


def test_flaky_trials_are_counted(tmp_path: Path) -> None:
    """A set counts as repairing only where it repairs every time; the log says how often it did."""
    answers = iter([True, True, False, True, True, True])
    trials = TrialLog(tmp_path / "trials", SUBJECT, lambda classes: next(answers), samples=3)
    assert [trials.repairs("a"), trials.repairs("b")] == [False, True]
    assert trials.all == (ClassTrial(frozenset("a"), 3, 2), ClassTrial(frozenset("b"), 3, 3))
    assert [trial.is_flaky for trial in trials.all] == [True, False]


def test_trials_of_something_else(tmp_path: Path) -> None:
    """The trials of one experiment are never taken for those of another."""
    TrialLog(tmp_path / "trials", SUBJECT, Runs(frozenset()))
    with pytest.raises(OtherTrialsError, match="another experiment"):
        TrialLog(tmp_path / "trials", {**SUBJECT, "b": "c.zarr"}, Runs(frozenset()))
