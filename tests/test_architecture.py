"""Which module may be loaded by whom, seen in a fresh interpreter (import contracts see only what is written)."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` ran in a fresh interpreter."""
    program = f"{code}\nimport sys\nprint('MODULES', *sorted({{m.partition('.')[0] for m in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = next(line for line in result.stdout.splitlines() if line.startswith("MODULES "))
    return set(line.split()[1:])


RUN = """
import sys
sys.argv = ["rltrace", *{arguments!r}]
from rltrace.commands.main import main
try:
    main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["record", "--help"], ["diff", "--help"], ["show", "--help"], ["ops", "--help"], ["replay", "--help"]],
)
def test_help_loads_neither_torch_nor_zarr(arguments: list[str]) -> None:
    """Help is there at once: the heavy packages are loaded by the verb that needs them, when it runs."""
    assert not {"torch", "zarr", "textual"} & modules_after(RUN.format(arguments=arguments))


@pytest.mark.parametrize(
    "module",
    [
        "rltrace.diff",
        "rltrace.trace.read.reader",
        "rltrace.report.diff_text",
        "rltrace.report.diff_json",
        "rltrace.report.html.page",
        "rltrace.selectors",
        "rltrace",
    ],
)
def test_reading_and_comparing_loads_no_torch(module: str) -> None:
    """A trace can be read, compared and reported on a machine that has no torch."""
    assert "torch" not in modules_after(f"import {module}")


def test_writer_loads_neither_zarr_nor_torch() -> None:
    """The writer runs inside the recorded program, where every import is start-up time."""
    assert not {"torch", "zarr"} & modules_after("import rltrace.trace.write.writer")


@pytest.mark.parametrize(
    "module", ["rltrace.digest", "rltrace.selectors", "rltrace.portable_keys", "rltrace.fingerprint"]
)
def test_leaves_load_no_torch(module: str) -> None:
    """Definitions are needed on both sides of a comparison, so they come without torch."""
    assert not {"torch", "zarr"} & modules_after(f"import {module}")
