"""The smallest set of classes that repairs a run, against every subset tried."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.experiment.delta_debugging import NothingToSearchError, minimise

Classes = frozenset[int]

CLAUSES = st.lists(st.frozensets(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=4)
"""A run is repaired where one class of each clause at least is injected: every monotone predicate is of this form."""


def repairs_all(clauses: list[Classes], given_classes: Classes) -> bool:
    return all(clause & given_classes for clause in clauses)


def all_subsets(classes: range) -> list[Classes]:
    return [frozenset(c) for size in range(len(classes) + 1) for c in combinations(classes, size)]


@given(CLAUSES)
def test_the_set_is_minimal(clauses: list[Classes]) -> None:
    """It repairs the run, and no proper subset does; each set is asked for once."""
    asked: list[Classes] = []

    def repairs(classes: Classes) -> bool:
        asked.append(classes)
        return repairs_all(clauses, classes)

    found = minimise(range(8), repairs)
    kept = frozenset(found)
    assert repairs_all(clauses, kept)
    assert not any(repairs_all(clauses, smaller) for smaller in all_subsets(range(8)) if smaller < kept)
    assert len(asked) == len(set(asked))


@given(st.randoms(use_true_random=False))
def test_any_predicate_at_all(random: object) -> None:
    """Also where more classes repair less: what comes out repairs, and needs each of its classes."""
    answers: dict[Classes, bool] = {frozenset(range(5)): True, frozenset(): False}

    def repairs(classes: Classes) -> bool:
        return answers.setdefault(classes, random.random() < 0.5)

    found = minimise(range(5), repairs)
    kept = frozenset(found)
    assert answers[kept]
    assert all(not repairs(kept - {c}) for c in kept)


def test_one_class_takes_few_trials() -> None:
    """Of a hundred classes one matters: all, none, and each left out once, and the one by itself."""
    asked = 0

    def repairs(classes: Classes) -> bool:
        nonlocal asked
        asked += 1
        return 42 in classes

    assert minimise(range(100), repairs) == (42,)
    assert asked == 1 + 1 + 100 + 1


@pytest.mark.parametrize(("answer", "message"), [(False, "do not repair"), (True, "needs none")])
def test_controls_come_first(answer: bool, message: str) -> None:
    """Where all classes do not repair the run, or none are needed, nothing is searched."""
    with pytest.raises(NothingToSearchError, match=message):
        minimise([1, 2], lambda classes: answer)
