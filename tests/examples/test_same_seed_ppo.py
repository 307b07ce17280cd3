"""``docs/stories/same_seed_ppo.md``: runs of one seed that fall into groups, and the flag that heals it."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from shown import PAGES, Shown, expect, run, shown_on


def test_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are those of the final weights, whatever the races did; two ops part them, and healed ones none."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # threads that wait take no processor time from other tests
    racing, weights, first_call, healed, healed_weights = shown_on(PAGES / "same_seed_ppo.md")
    checked = run(racing.command.replace("-n 7", "-n 3"), folder)  # the page has the time for seven
    printed = run(weights.command, folder)
    groups = groups_of(checked.output)
    assert len(frozenset[str]().union(*groups)) == 3
    assert groups == groups_of_weights(printed)
    assert checked.status == (1 if len(groups) > 1 else 0)
    causes = divergences_of(racing.output), divergences_of(first_call.output)
    assert [len(each) for each in causes] == [1, 1]
    assert divergences_of(checked.output) <= causes[0] | causes[1]

    again = run(healed.command, folder)
    expect([healed], [again])
    assert groups_of(again.output) == groups_of_weights(run(healed_weights.command, folder))
    assert again.status == 0


def groups_of(report: str) -> set[frozenset[str]]:
    """Numbers of the runs of each group, as ``rltrace check`` prints them."""
    lines = re.findall(r"^  group \d+ +\d+ runs?: (.*)$", report, flags=re.MULTILINE)
    return {frozenset(re.findall(r"run (\d+)", line)) for line in lines}


def groups_of_weights(printed: Shown) -> set[frozenset[str]]:
    """Numbers of the runs that ended with the same weights, as the runs themselves printed them."""
    runs = defaultdict(set)
    for number, digest in re.findall(r"run-(\d+)\.out:final weights (\w+)", printed.output):
        runs[digest].add(number)
    return {frozenset(numbers) for numbers in runs.values()}


def divergences_of(report: str) -> set[tuple[str, str, str]]:
    """Op and cause, place and source line of each divergence."""
    facts = r"^ +op +(\S+)\n +cause +(\S+)\n +site +(.*\n +.*)$"
    return {(op, cause, " ".join(site.split())) for op, cause, site in re.findall(facts, report, flags=re.MULTILINE)}
