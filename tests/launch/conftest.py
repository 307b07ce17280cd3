"""Real interpreters under the bootstrap, with a package called ``torch`` that a test has written.

With such a package the recorder itself cannot start: every attempt to start it leaves a failure note in the trace. So
the notes count how often, and in which processes, the bootstrap has called the recorder.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rltrace.launch.command import child_environment
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.process_start import parse_start
from rltrace.trace.format.root import create_trace

Result = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Bench:
    """A folder with programs and modules in it, and a trace."""

    folder: Path

    @property
    def trace(self) -> Path:
        return self.folder / "t.zarr"

    def module(self, name: str, code: str = "") -> Path:
        """Write a module or a package's ``__init__`` into the folder of modules."""
        path = self.folder / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return path

    def environment(self, *, recorded: bool = True, variables: Mapping[str, str] = {}) -> dict[str, str]:
        plain = {**os.environ, "PYTHONPATH": str(self.folder / "modules"), **variables}
        return child_environment(RecordOptions(str(self.trace)), {}, plain) if recorded else plain

    def run(self, command: Sequence[object], *, recorded: bool = True, **variables: str) -> Result:
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment(recorded=recorded, variables=variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def python(self, code: str, *arguments: object, recorded: bool = True, **variables: str) -> Result:
        """Run a program in a file of its own."""
        program = self.folder / "program.py"
        program.write_text(code)
        return self.run([sys.executable, program, *arguments], recorded=recorded, **variables)

    def start_records(self) -> list[dict[str, Any]]:
        """Records of the Python processes that started, in the order of their start."""
        return self.notes("json")

    def calls(self) -> list[dict[str, Any]]:
        """Failure notes: one for each time that the recorder was called."""
        return self.notes("failed")

    def notes(self, ending: str) -> list[dict[str, Any]]:
        """All small files of the trace with this ending."""
        found = []
        for path in (self.trace / "starts").glob(f"*.{ending}"):
            if path.name != "zarr.json":
                record = parse_start(path.read_bytes())
                assert record is not None, path.read_text()
                found.append(record)
        return sorted(found, key=lambda record: json.dumps(record.get("time", 0)))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An empty trace, and a package called torch that imports at once."""
    bench = Bench(tmp_path)
    bench.module("torch/__init__.py", "from torch import part\nready = True\n")
    bench.module("torch/part.py", "value = 1\n")
    create_trace(bench.trace, {"command": []})
    return bench
