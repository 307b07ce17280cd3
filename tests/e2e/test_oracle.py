"""The oracle that verdicts are checked against: what it logs, and how its logs are compared."""

from pathlib import Path
from typing import Any

from oracle_log import Difference, first_difference, noise

PROGRAM = """
import os, threading, torch
kept = torch.ones(2)
torch.add(kept, 1, out=torch.empty(2))
kept.view(1, 2)
kept.sum().item()
child = os.fork()
if child == 0:
    kept.mul_(3)
    os._exit(0)
os.waitpid(child, 0)
other = threading.Thread(target=lambda: torch.zeros(5))
other.start()
other.join()
kept.add_(1)
"""


def test_the_oracle_logs_the_ops_of_one_thread(cli: Any) -> None:
    """Every op in order, what it wrote hashed, views and fresh memory without a hash; no other thread, no child."""
    (cli.folder / "program.py").write_text(PROGRAM)
    assert cli.python("oracle.py", "log", "program.py").returncode == 0
    lines = [line.split() for line in (cli.folder / "log").read_text().splitlines()]
    names = [name.split(".")[1] for name, _ in lines]
    assert names == ["ones", "empty", "add", "view", "sum", "_local_scalar_dense", "add_"]
    hashes = [bits for _, bits in lines]
    assert [i for i, bits in enumerate(hashes) if bits == "-"] == [1, 3]
    assert hashes[2] == hashes[6]


def log(folder: Path, name: str, *rows: str) -> Path:
    path = folder / name
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_rows_that_differ_anyway_are_dropped(tmp_path: Path) -> None:
    """Only what two unchanged runs agree on can speak against a third, also where one of them ends."""
    one = log(tmp_path, "1", "add 1", "copy 2", "add 3", "mul 4", "mul 5")
    two = log(tmp_path, "2", "add 1", "copy 9", "sub 3", "mul 4", "mul 5")
    changed = log(tmp_path, "3", "add 1", "copy 7", "add 8", "mul 4", "mul 6")
    assert first_difference(one, two, changed) == Difference("mul", nth=1, row=4, other="mul")
    assert first_difference(one, two, two) is None
    longer = log(tmp_path, "longer", "add 1", "copy 2", "add 3", "mul 4", "mul 5", "add 6")
    assert first_difference(one, one, longer) == Difference("add", nth=2, row=5, other="")
    assert first_difference(longer, longer, one) == Difference("add", nth=2, row=5, other="")
    found = noise(one, two)
    assert (found.ops, found.rows, found.names) == (5, 2, 1)
