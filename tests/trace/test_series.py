"""Samples of series are read back as they were taken, whatever becomes of the process or of a chunk."""

from pathlib import Path

import numpy as np

from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import SAMPLE_CHUNK, Sample
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace


def write(path: Path, commits: list[int], end: str = "complete") -> Path:
    """A trace whose commits bring so many samples each, numbered from 0, of two series in turn."""
    builder = TraceBuilder(path)
    builder.op("aten.add.Tensor", outputs=["sum"])
    number = 0
    for count in commits:
        for _ in range(count):
            builder.sample(("even", "odd")[number % 2], number)
            number += 1
        builder.commit()
    builder.end_step()
    return builder.finish(end)


def process_of(path: Path) -> ProcessTrace:
    return open_trace(path).processes[0]


def numbers(process: ProcessTrace) -> list[float]:
    found: list[float] = process.samples[:, Sample.VALUE].copy().view(np.float64).tolist()
    return found


def layout(path: Path) -> list[tuple[int, int, bool]]:
    """(first, count, whether they are in a chunk) of each part."""
    return [(part.first, part.rows, part.chunk is not None) for part in process_of(path).sample_parts]


def test_samples_are_in_full_chunks_and_none_waits_for_one(tmp_path: Path) -> None:
    """A killed process has its last samples in the journal, a finished one in a chunk; both have all."""
    commits = [SAMPLE_CHUNK - 3, 0, 5, 2]
    count = sum(commits)
    killed, finished = write(tmp_path / "k.zarr", commits, "killed"), write(tmp_path / "f.zarr", commits)
    full = (0, SAMPLE_CHUNK, True)
    assert layout(killed) == [full, (SAMPLE_CHUNK, 2, False), (SAMPLE_CHUNK + 2, 2, False)]
    assert layout(finished) == [full, (SAMPLE_CHUNK, 4, True)]
    for path in (killed, finished):
        process = process_of(path)
        assert numbers(process) == list(range(count))
        names = [payload["name"] for payload in process.tables["series"].payloads]  # type: ignore[index]
        assert names == ["even", "odd"] and process.samples[:3, Sample.SERIES].tolist() == [0, 1, 0]
        assert not verify(path).damage


def test_a_lost_chunk_is_said_and_costs_what_no_record_holds(tmp_path: Path) -> None:
    """Rows and verdicts stay; what the journal still has of the samples is read."""
    path = write(tmp_path / "a.zarr", [SAMPLE_CHUNK - 3, 5, 2], "killed")
    (path / "processes/0/series/c.0.0").write_bytes(b"?")
    process = process_of(path)
    assert numbers(process) == [*range(SAMPLE_CHUNK - 3), *range(SAMPLE_CHUNK, SAMPLE_CHUNK + 4)]
    assert process.state == "damaged"
    assert [why for why in process.other_holes if why.startswith(f"samples 0 to {SAMPLE_CHUNK - 1}: ")]
    assert process.streams[0].read(0, 1)


def test_a_trace_without_series_has_no_array_of_them(tmp_path: Path) -> None:
    """Nothing is written for a feature that a program does not use."""
    path = write(tmp_path / "a.zarr", [0])
    assert not (path / "processes/0/series").exists()
    assert len(process_of(path).samples) == 0 and not verify(path).damage


def test_numbers_that_no_sample_can_have_are_damage(tmp_path: Path) -> None:
    """A chunk whose checksums are right may still lie; its samples are not read then."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.sample("x", 1.0, step=1 << 60)
    process = process_of(builder.finish())
    assert numbers(process) == [] and process.other_holes[0].endswith("is inconsistent")
