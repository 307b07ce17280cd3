"""Programs with one line changed: the finding names the line, the first op that differs, or how the data came in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "edited_lines.py"


@pytest.mark.parametrize("program", ["critic.py", "resumed.py"])
def test_what_is_found_of_fixed_changes(cli: Any, program: str) -> None:
    """By a log of every op that knows nothing of rltrace; no cause that it contradicts, and no UNKNOWN."""
    result = cli.run(sys.executable, BENCHMARK, "--only", f"programs/{program}", "--mutants", 6, "--folder", cli.folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " mutants that compute something else: " in result.stdout
