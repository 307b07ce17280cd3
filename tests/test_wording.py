"""Words that every report uses."""

import pytest

from rltrace.wording import counted, joined, ordinal


def test_one_of_a_thing_is_singular() -> None:
    """A count of one has no plural, and thousands are separated."""
    assert [counted(n, "identical op") for n in (0, 1, 2_000)] == [
        "0 identical ops",
        "1 identical op",
        "2,000 identical ops",
    ]
    assert counted(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("n", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (112, "112th"), (2001, "2,001st")]
)
def test_ordinals(n: int, text: str) -> None:
    """Counts as people say them."""
    assert ordinal(n) == text


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), ([0, 1], "0 and 1"), ("abc", "a, b and c")])
def test_lists(words: list[object], text: str) -> None:
    """The last word has an "and" before it, where it is not the only one."""
    assert joined(words) == text
