"""Any zarr reader can open a trace, in peace, and sees the same arrays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr

from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import SEGMENT_CELLS, SEGMENT_ROWS, Step
from rltrace.trace.read.reader import open_trace

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "trace-format.md"


def test_zarr_sees_every_array(written: tuple[Path, Rows]) -> None:
    """Rows, cells, tables and steps read by zarr are those read here, chunk by chunk (warnings are errors)."""
    path, _ = written
    group = zarr.open_group(str(path), mode="r")
    process = open_trace(path).processes[0]
    stream = process.streams[0]
    rows, cells = group["processes/0/streams/0/rows"], group["processes/0/streams/0/cells"]
    assert rows.shape[0] == len(stream.segments) * SEGMENT_ROWS
    for segment in stream.segments:
        own = stream.read_segment(segment)
        start = segment.index * SEGMENT_ROWS
        assert np.array_equal(rows[start : start + segment.rows], own.columns)
        assert not rows[start + segment.rows : start + SEGMENT_ROWS].any()
        start = segment.index * SEGMENT_CELLS
        found = cells[start : start + sum(segment.sections)]
        wanted = [own.links, own.integers, own.floats, own.digests]
        assert found.tobytes() == b"".join(section.tobytes() for section in wanted)
    text = bytes(group["processes/0/tables"][:]).replace(b"\0", b"")
    assert text.count(b"\n") == sum(len(table) for table in process.tables.values())


def test_zarr_sees_steps(sample: Path) -> None:
    """The rows of steps that are no padding are the steps."""
    steps = zarr.open_group(str(sample), mode="r")["processes/0/steps"][:]
    assert np.array_equal(steps[steps[:, Step.PREFIX_STRUCTURE] != 0], open_trace(sample).processes[0].steps)


def test_zarr_walks_the_whole_tree(sample: Path) -> None:
    """Listing everything in a trace warns of nothing, files that are no arrays included."""
    names = {name for name, _ in zarr.open_group(str(sample), mode="r").members(max_depth=None)}
    assert {"journal", "starts", "processes/0/tables", "processes/0/streams/1/cells"} <= names


def test_the_script_of_the_document_reads_a_trace(sample: Path) -> None:
    """The script in docs/reference/trace-format.md prints every row with nothing but zarr and NumPy."""
    text = DOCUMENT.read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script[1], str(sample)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 13
    assert lines[0].split()[:3] == ["0", "0", "aten.mm.default"]
    first = open_trace(sample).processes[0].streams[0].read(0, 1)
    assert lines[0].endswith(" ".join(f"{digest:016x}" for digest in first.digests.tolist()))
