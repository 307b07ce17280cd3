"""Files of one moment beside those of another: every file and folder of a trace put back to each of its earlier states.

Each is whole in itself, so that no checksum of its own gives it away; what vouches for it is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from memory import Memory, in_memory
from tampering import Files, load
from writer_log import WrittenProcess, check, followed

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.errors import RltraceError
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace


@dataclass
class Recording:
    """A recording, moment by moment."""

    path: Path
    moments: list[Files]
    """All files after each commit; the last ones are of the whole trace."""
    written: list[WrittenProcess]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("stale") / "whole.zarr"
    moments: list[Files] = []
    with followed() as written:
        trace = TraceBuilder(path)
        for step in range(3):
            first = trace.op(
                "aten.mm.default", inputs=[("outside", f"o{step}")], outputs=[f"h{step}"], module=f"m{step}"
            )
            trace.op("aten.add.Tensor", inputs=[first], outputs=[f"s{step}"])
            trace.end_step(parameters=f"p{step}", gradients="g", generators="r")
            trace.commit()
            moments.append(load(path))
        worker = trace.process("rank0/worker:1").stream()
        for draw in range(2):
            worker.op("aten.randn.default", rng=f"w{draw}", outputs=[f"w{draw}"])
            worker.commit()
            moments.append(load(path))
        trace.finish()
        moments.append(load(path))
    return Recording(path, moments, written)


def put_back(moments: list[Files]) -> Iterator[tuple[str, Files]]:
    """Every file and folder that was another one earlier, as it was then; what it is and the trace with it."""
    whole = moments[-1]
    keys = {"/".join(key.split("/")[:n]) for key in whole for n in range(1, key.count("/") + 2)}
    for number, moment in enumerate(moments[:-1]):
        for key in sorted(keys):
            then, now = (
                {name: data for name, data in files.items() if name == key or name.startswith(f"{key}/")}
                for files in (moment, whole)
            )
            if then != now:
                kept = {name: data for name, data in whole.items() if name not in now}
                yield f"{key} of moment {number}", {**kept, **then}


def test_every_file_put_back(recording: Recording, tmp_path: Path) -> None:
    """What is read is what was written; what lacks is said; and the trace compares equal to the whole one, or not at
    all."""
    spoilt = tmp_path / "spoilt.zarr"
    spoilt.mkdir()
    folders = {recording.path: Memory(recording.moments[-1])}
    verdicts, lacking, tried = set(), 0, 0
    with in_memory(folders):
        for what, files in put_back(recording.moments):
            tried += 1
            folders[spoilt] = Memory(files)
            try:
                trace = open_trace(spoilt)
                hurt = what.split(" ")[0]
                if trace.exit is None:
                    pass  # the end of the launch was not seen: what lacks reads as of a process that was killed
                elif hurt == "processes":
                    assert trace.holes, what
                else:
                    lacking += not check(trace, recording.written, what, hurt)
                verdict = compare(recording.path, spoilt).verdict
            except RltraceError:
                continue
            assert verdict in (Verdict.IDENTICAL, Verdict.UNKNOWN), what
            verdicts.add(verdict)
    assert verdicts == {Verdict.IDENTICAL, Verdict.UNKNOWN} and lacking > 20 and tried > 100
