"""Programs with JAX that tests start; a module that imports this is skipped where JAX is not installed.

JAX is never imported by the tests themselves: it starts threads, after which no other test of the process could fork.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rltrace.trace.read.reader import Trace, open_trace

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

OTHER_ISA = "--xla_cpu_max_isa=SSE4_2"
"""A flag of XLA under which most processors compute other bits."""


class JaxPrograms:
    """Programs in a folder, each run once."""

    def __init__(self, folder: Path, sources: Mapping[str, str], **variables: str) -> None:
        """``variables`` of the environment are those of all programs."""
        self.folder = folder
        self.printed: dict[str, str] = {}
        """By the name of a trace, what its program printed."""
        self._plain: dict[object, str] = {}
        self._variables = {"JAX_PLATFORMS": "cpu", **variables}
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source)

    def start(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """How a command ends in the folder, and what it prints."""
        environment = {**os.environ, **self._variables, **variables}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=1200)

    def run(self, *command: str, **variables: str) -> str:
        """Standard output of a command that succeeds."""
        ended = self.start(*command, **variables)
        assert not ended.returncode, ended.stderr
        return ended.stdout

    def plain(self, program: str, *words: str, **variables: str) -> str:
        """What a program prints that is not recorded."""
        key = program, words, tuple(variables.items())
        if key not in self._plain:
            self._plain[key] = self.run(sys.executable, f"{program}.py", *words, **variables)
        return self._plain[key]

    def recorded(
        self,
        name: str,
        program: str,
        *words: str,
        verb: tuple[str, ...] = ("record",),
        options: tuple[str, ...] = (),
        **variables: str,
    ) -> Trace:
        """The trace of this name; ``words``: the program's arguments, ``options`` the verb's."""
        if name not in self.printed:
            command = sys.executable, "-m", "rltrace", *verb, "--quiet", "-o", f"{name}.zarr", *options, "--"
            self.printed[name] = self.run(*command, sys.executable, f"{program}.py", *words, **variables)
        return open_trace(self.folder / f"{name}.zarr")
