"""What a recorded process hands on to processes that would not inherit it."""

from __future__ import annotations

from pathlib import Path

import rltrace
from rltrace.launch.command import child_environment, recording_variables
from rltrace.recorder.base.options import RecordOptions


def test_recording_variables_are_all_that_a_child_inherits(tmp_path: Path) -> None:
    """Given to an environment with nothing else, it makes of it what the launcher made of the program's."""
    variables = child_environment(
        RecordOptions(str(tmp_path / "a.zarr")), {"host.cores": 2}, {"PYTHONPATH": "/home/me/lib"}
    )
    assert recording_variables({**variables, "HOME": "/home/me/"}) == variables
    cached = {**variables, "RLTRACE_CACHE": "/cache"}
    assert recording_variables({**cached, "HOME": "/home/me/"}) == cached


def test_outside_of_a_recording_nothing_is() -> None:
    """A program may ask whether it is recorded or not."""
    assert recording_variables({"PYTHONPATH": "/home/me/lib"}) == {}
    assert rltrace.environment() == {}
