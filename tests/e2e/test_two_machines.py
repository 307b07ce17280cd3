"""``docs/guide/proving.md``: its two machines, command by command, as two folders and two CPU settings."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shown import ROOT, differs, run, shown_on, without

PAGE = ROOT / "docs" / "guide" / "proving.md"
OF_THE_PROCESSOR = "Kinds of op (operator, kernel and line) that give different results: 1"
"""Instruction sets and distances."""

STATUSES = {"rltrace diff": 1, "--arms": 3}
"""By what a command holds; all others end with 0."""


@pytest.mark.timeout(900)  # ten runs of a program; it hangs in none
def test_page(tmp_path: Path, needs_change: Callable[[str, str], None]) -> None:
    """Every command ends and says what the page shows; the outcome is CONFIRMED, and the draw is all that it takes."""
    needs_change("ATEN_CPU_CAPABILITY=default", "normal (16,)")
    program = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(program[1])
    folder = tmp_path
    for shown in shown_on(PAGE):
        if shown.command.startswith("cd "):
            folder = (folder / shown.command.removeprefix("cd ")).resolve()
            continue
        now = run(shown.command, folder)
        status = next((status for words, status in STATUSES.items() if words in shown.command), 0)
        assert now.status == status, now.output
        page, found = (without(f"{text}\n", OF_THE_PROCESSOR) for text in (shown.output, now.output))
        assert not differs(page, found), differs(page, found)
    outcome = json.loads((tmp_path / "one" / "a-b.confirm.json").read_text())
    assert (outcome["word"], [kind["matters"] for kind in outcome["classes"]]) == ("confirmed", [True])
    assert outcome["classes"][0]["op"] == "aten.randn.default"
