"""Traces and programs that the tests of this room share."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from trace_fixtures import batches, sample, trace, written  # noqa: F401  fixtures

Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts Python code in a process of its own, which does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
