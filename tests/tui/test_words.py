"""Words within a width."""

from __future__ import annotations

from rltrace_tui import words


def test_labels_stand_in_a_column() -> None:
    """Text is wrapped beside its label, never under it."""
    lines = [line.plain for line in words.labelled("cause", "one two three four", 20)]
    assert lines == ["cause   one two", "        three four"]


def test_text_of_a_report_is_wrapped_under_where_it_begins() -> None:
    """Labelled lines are wrapped beside their label; wide columns are given up before a value is wrapped."""
    lines = [
        line.plain for line in words.text_lines(["", "on disk   12 bytes in 3 files", "  name             a value"], 20)
    ]
    assert lines == ["on disk  12 bytes in", "         3 files", "  name  a value"]
    assert all(len(line) <= 20 for line in lines)
