"""What committing and reading rows costs. Prints Markdown.

    python benchmarks/trace_io.py [--segments 16]

Records Stable-Baselines3 PPO once, then writes its rows again and again into a fresh trace, a full segment at a time,
and reads them back: real rows, no training in the way.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from measure import PROGRAMS, RLTRACE, folder_size, machine, parse_options, run, table

from rltrace.extensions.archive.verify import verify
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.rows import Rows, TableEntry
from rltrace.trace.format.schema import SEGMENT_ROWS
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.write.writer import ProcessWriter

ENVIRONMENT_STEPS = 1024
"""About 100,000 ops: more than a segment."""


def recorded(folder: Path) -> Trace:
    """A real trace to take rows from."""
    path = folder / "real.zarr"
    program = [sys.executable, str(PROGRAMS / "ppo_cartpole.py"), str(ENVIRONMENT_STEPS)]
    run([RLTRACE, "record", "--quiet", "-o", str(path), "--", *program])
    return open_trace(path)


def longest(trace: Trace) -> StreamTrace:
    return max((stream for process in trace.processes for stream in process.streams), key=lambda stream: stream.rows)


def entries(trace: Trace) -> list[TableEntry]:
    tables = trace.processes[0].tables
    return [
        TableEntry(name, number, int(key), payload)
        for name, entry in tables.items()
        for number, (key, payload) in enumerate(zip(entry.keys, entry.payloads, strict=True))
    ]


def timed(function: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1e3


def write(path: Path, rows: Rows, table_entries: list[TableEntry], segments: int) -> list[float]:
    """Milliseconds of each commit of a whole segment."""
    create_trace(path, {"command": ["trace_io"]})
    writer = ProcessWriter.open(path, {"name": "rank0/main"})
    stream = writer.stream("rank0/main")
    writer.commit(stream, None, table_entries)
    times = []
    for number in range(segments):
        batch = replace(rows, first=number * SEGMENT_ROWS)
        times.append(timed(lambda batch=batch: writer.commit(stream, batch)))  # type: ignore[misc]
    writer.close("complete", {})
    return times


def read(path: Path) -> list[float]:
    """Milliseconds of reading each whole segment, and of reading one row of each, from a fresh reader."""
    stream = longest(open_trace(path))
    return [timed(lambda i=i: stream.read(i, i + SEGMENT_ROWS)) for i in range(0, stream.rows, SEGMENT_ROWS)]  # type: ignore[misc]


def report(folder: Path, segments: int) -> str:
    real = recorded(folder)
    rows = longest(real).read(0, SEGMENT_ROWS)
    path = folder / "written.zarr"
    commits = write(path, rows, entries(real), segments)
    size, files = folder_size(path)
    ops = segments * SEGMENT_ROWS
    opened = median(timed(lambda: open_trace(path)) for _ in range(5))
    reads = read(path)
    verified = timed(lambda: verify(path))
    lines = [
        [
            f"commit of {SEGMENT_ROWS:,} rows",
            f"{median(commits):.1f} ms",
            f"{median(commits) / SEGMENT_ROWS * 1e3:.2f} µs",
        ],
        ["open the trace", f"{opened:.1f} ms", ""],
        [f"read {SEGMENT_ROWS:,} rows", f"{median(reads):.1f} ms", f"{median(reads) / SEGMENT_ROWS * 1e3:.2f} µs"],
        [f"verify {ops:,} rows", f"{verified:.0f} ms", f"{verified / ops * 1e3:.2f} µs"],
    ]
    title = f"Machine: {machine()}. {ops:,} rows, {size:,} bytes ({size / ops:.1f} an op) in {files} files."
    return title + "\n\n" + table(["what", "time", "per op"], lines)


def main() -> None:
    options = parse_options(__doc__, segments=16)
    with tempfile.TemporaryDirectory(prefix="rltrace-bench-") as folder:
        print(report(Path(folder), options.segments))


if __name__ == "__main__":
    main()
