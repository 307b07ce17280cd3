"""Several runs of one program in groups, and the op at which each group left."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Do, recorded, training

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.diff.groups import Group, Grouping, GroupSplit, compare_pairs, findings_of, group, mark_nondeterministic


def with_noise(*changes: tuple[int, str]) -> list[Do]:
    """The training program, in which the ops at these places compute something else with no reason recorded."""
    program = training()
    for place, noise in changes:
        program[place] = replace(program[place], noise=noise)
    return program


def grouped(folder: Path, programs: Sequence[list[Do]]) -> Grouping:
    paths = [folder / f"run-{number}.zarr" for number in range(len(programs))]
    for path, program in zip(paths, programs, strict=True):
        recorded(path, program)
    return group(paths)


CRITIC = next(place for place, do in enumerate(training()) if do.module == "critic.0")
LATER = max(place for place, do in enumerate(training()) if do.name == "aten.mean.default")
"""The loss of the last step: nothing but the number read from it depends on it."""


def test_runs_that_agree_are_one_group(tmp_path: Path) -> None:
    """Nothing diverges, nothing is undecided."""
    found = grouped(tmp_path, [training()] * 3)
    assert (found.tree, found.agrees, found.undecided) == (Group((0, 1, 2)), True, ())


def test_two_groups_diverge_at_an_op(tmp_path: Path) -> None:
    """The op and its cause are those of a comparison of two runs, one of each group."""
    found = grouped(tmp_path, [training(), with_noise((CRITIC, "x")), training(), with_noise((CRITIC, "x"))])
    assert isinstance(found.tree, GroupSplit)
    assert found.tree.branches == (Group((0, 2)), Group((1, 3)))
    pair = compare(tmp_path / "run-0.zarr", tmp_path / "run-1.zarr")
    assert found.tree.finding == pair.decisive
    assert found.agrees is False


def test_an_op_that_nothing_was_changed_for(tmp_path: Path) -> None:
    """Of runs of one command, the same kernel that gives other bits from the same inputs was seen not to repeat itself;
    an op at which they diverge for another reason was not.
    """
    other = [replace(do, floats=(1.0,)) if k == LATER else do for k, do in enumerate(training())]
    found = grouped(tmp_path, [training(), with_noise((CRITIC, "x")), other])
    assert {finding.repeats for finding in findings_of(found.tree)} == {None}
    by_cause = {finding.cause: finding for finding in findings_of(mark_nondeterministic(found.tree))}
    assert {cause: finding.repeats for cause, finding in by_cause.items()} == {
        Cause.SAME_KERNEL: False,
        Cause.ARGUMENTS: None,
    }
    assert by_cause[Cause.SAME_KERNEL].explanation.endswith("; it is nondeterministic from run to run")


def test_an_unfinished_run_is_in_no_group(tmp_path: Path) -> None:
    """Equal so far is not equal: the run is named with the reason, and the whole is undecided."""
    recorded(tmp_path / "a.zarr", training(4))
    recorded(tmp_path / "b.zarr", training(2), state="killed")
    found = group([tmp_path / "a.zarr", tmp_path / "b.zarr"])
    assert (found.tree, found.agrees) == (Group((0,)), None)
    assert [(u.run, u.against) for u in found.undecided] == [(1, 0)]
    assert "equal so far" in found.undecided[0].why


def test_one_run_is_a_group(tmp_path: Path) -> None:
    """A single trace is compared with nothing."""
    assert grouped(tmp_path, [training()]).groups == (Group((0,)),)


@settings(max_examples=8)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=3, max_size=3), min_size=1, max_size=5))
def test_groups_are_the_classes_of_equal_runs(
    tmp_path_factory: pytest.TempPathFactory, choices: list[list[str]]
) -> None:
    """However runs choose at three places, those that chose alike are a group, and every divergence is at a first
    choice in which its branches differ."""
    program = training()
    places = [place for place, do in enumerate(program) if do.name == "aten.mean.default"][:3]
    programs = [with_noise(*zip(places, choice, strict=True)) for choice in choices]
    found = grouped(tmp_path_factory.mktemp("runs"), programs)
    classes: dict[tuple[str, ...], list[int]] = {}
    for run, choice in enumerate(choices):
        classes.setdefault(tuple(choice), []).append(run)
    assert sorted(g.runs for g in found.groups) == sorted(tuple(runs) for runs in classes.values())
    _check(found.tree, choices, places)


def _check(node: Group | GroupSplit, choices: list[list[str]], places: list[int]) -> None:
    if isinstance(node, Group):
        return
    ways = [{tuple(choices[run]) for run in branch.runs} for branch in node.branches]
    depth = next(k for k in range(3) if len({way[k] for branch in ways for way in branch}) > 1)
    rows = [place for place, do in enumerate(training()) if do.is_op]
    assert node.finding.a_index == rows.index(places[depth])
    assert all(len({way[depth] for way in branch}) == 1 for branch in ways)
    for branch in node.branches:
        _check(branch, choices, places)


def test_pairs_are_compared_in_other_processes(tmp_path: Path) -> None:
    """In the order of the pairs, with the results that they have in this one; so are groups."""
    paths = [tmp_path / f"{name}.zarr" for name in "abcd"]
    for path, program in zip(paths, [training(), with_noise((CRITIC, "x")), training(3), training()], strict=True):
        recorded(path, program)
    pairs = [(paths[0], other) for other in paths[1:]]
    apart = list(compare_pairs(pairs, jobs=2, worth=0.0))
    assert apart == [compare(*pair) for pair in pairs]
    assert group(paths, compare_all=lambda pairs: compare_pairs(pairs, jobs=1)) == group(paths)
