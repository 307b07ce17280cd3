"""A program that starts others: each has the name of what it runs, whichever of them is there first."""

from __future__ import annotations

import sys
from typing import Any

from rltrace.trace.reader import open_trace

PARENT = """
import os, subprocess, sys, torch
torch.ones(2).sin()
started = [subprocess.Popen([sys.executable, name, *sys.argv[1:]]) for name in ("evaluate.py", "plot.py")]
assert [child.wait() for child in started] == [0, 0]
subprocess.run([sys.executable, "evaluate.py"], env={**os.environ, "RANK": "1"}, check=True)
"""

CHILD = """
import os, sys, torch
torch.ones(3).{op}()
"""


def test_children_are_named_by_what_they_run(cli: Any) -> None:
    """Two at once, and one with a rank of its own, as a launcher of ranks would start it."""
    for name, code in (("train.py", PARENT), ("evaluate.py", CHILD), ("plot.py", CHILD)):
        (cli.folder / name).write_text(code.replace("{op}", "cos" if name == "plot.py" else "tan"))
    result = cli.rltrace("record", "--quiet", "-o", "a.zarr", "--", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    ran = {
        process.name: {process.tables["ops"].payloads[row[1]] for row in process.streams[0].read(0, 2).columns}
        for process in open_trace(cli.folder / "a.zarr").processes
    }
    ones = "aten.ones.default"
    assert ran == {
        "rank0/main": {ones, "aten.sin.default"},
        "rank0/child:evaluate.py": {ones, "aten.tan.default"},
        "rank0/child:plot.py": {ones, "aten.cos.default"},
        "rank1/main": {ones, "aten.tan.default"},
    }
