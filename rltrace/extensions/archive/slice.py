"""Slices: traces with all digests, but rows of a few steps only, to copy to another machine.

Owns the contents of a slice. Chunks are copied unchanged and verified; journals are rewritten, with commit records
without files where the rows are left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from rltrace.errors import DamagedTraceError, HoleError, UsageError
from rltrace.trace.format import chunk_codec as codec
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    ACTIVATION_DIGESTS,
    CELLS,
    ROWS,
    SERIES,
    STEPS,
    TABLES,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
)
from rltrace.trace.format.files import UnreadableError, write_whole
from rltrace.trace.format.journal import JournalWriter, Record, heads_record
from rltrace.trace.format.location import Location
from rltrace.trace.format.process_start import MAX_START_BYTES, STARTS
from rltrace.trace.format.root import JOURNAL, PROCESSES, record_error, remove_existing
from rltrace.trace.format.rows import ChunkFile, Segment
from rltrace.trace.format.schema import VALUE_CHUNK, Column, ValueIndex, ValueKind
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import LONGEST_DOCUMENT, Trace, open_trace
from rltrace.trace.read.stream import StreamTrace

SPECS = {"rows": ROWS, "cells": CELLS}


@dataclass(frozen=True)
class SliceResult:
    """A slice that was written."""

    path: Path
    rows: int
    """Rows in the slice. Segments are copied whole, so a few rows before and after the steps are included."""
    of: int
    """Rows of the source."""
    bytes: int


def slice_trace(
    source: Location | str, first_step: int, end_step: int, destination: Path | str, *, force: bool = False
) -> SliceResult:
    """Write steps ``first_step`` to ``end_step`` (half open) of ``source`` to ``destination``, a new trace.

    Raises UsageError for missing steps or an existing destination, HoleError for damage in these steps,
    DamagedTraceError for a damaged journal, RecordError where the destination cannot be written.
    """
    if not 0 <= first_step < end_step:
        raise UsageError(f"--steps {first_step}:{end_step} holds no step; give the first and the one after the last")
    trace = open_trace(source)
    destination = Path(destination)
    if destination.exists() and destination.resolve() == trace.path.resolve():
        raise UsageError(f"{source} cannot be replaced by a slice of itself")
    _check_source(trace, first_step, end_step)
    chosen = {p.base: _chosen(trace, p, first_step, end_step) for p in trace.processes}
    _check_chosen(trace, chosen, first_step, end_step)
    if destination.is_symlink() or destination.exists():
        remove_existing(destination, force)
    building = destination.with_name(destination.name + ".partial")
    try:
        building.mkdir(mode=0o700)
        _copy_root(trace, building)
        for process in trace.processes:
            _copy_process(trace, process, building, chosen[process.base])
        _write_journal(building, _root_records(trace, building, first_step, end_step))
        building.rename(destination)
    except OSError as error:
        raise record_error(f"the slice {destination} cannot be written", error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    rows = sum(
        s.rows
        for p in trace.processes
        for st in p.streams
        for s in st.segments
        if (st.index, s.index) in chosen[p.base]
    )
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    return SliceResult(destination, rows, sum(p.after_op for p in trace.processes), size)


Chosen = set[tuple[int, int]]
"""(stream, segment) of the segments in the slice."""


def _check_source(trace: Trace, first_step: int, end_step: int) -> None:
    if trace.nodes:
        raise UsageError(f"{trace.path} was recorded by {len(trace.nodes)} machines; slice {trace.nodes[0].path}, …")
    if trace.slice is not None:
        first, end = trace.slice["first_step"], trace.slice["end_step"]
        if not first <= first_step < end_step <= end:
            raise UsageError(f"{trace.path} is a slice and holds steps {first}:{end} only")
    damage = [*trace.journal.damage, *(why for p in trace.processes for why in p.record_damage)]
    if damage:
        raise DamagedTraceError(f"{trace.path} cannot be sliced: {damage[0]}")


def _check_chosen(trace: Trace, chosen: dict[str, Chosen], first_step: int, end_step: int) -> None:
    if any(chosen.values()) or not any(p.after_op for p in trace.processes):
        return
    steps = max((len(p.steps) for p in trace.processes), default=0)
    raise UsageError(f"{trace.path} has no rows of steps {first_step}:{end_step}; it has {steps} finished steps")


def _chosen(trace: Trace, process: ProcessTrace, first_step: int, end_step: int) -> Chosen:
    """Segments with rows of these steps. Raises HoleError where one of them cannot be read."""
    chosen = set()
    for stream in process.streams:
        for segment, low, high in _step_ranges(trace, process, stream):
            if low >= end_step or high < first_step:
                continue
            chosen.add((stream.index, segment.index))
    return chosen


def _step_ranges(trace: Trace, process: ProcessTrace, stream: StreamTrace) -> Iterator[tuple[Segment, int, int]]:
    """Each segment with its lowest and highest step, bounded by its neighbours' steps where it is unreadable."""
    ranges: list[tuple[int, int] | None] = []
    for segment in stream.segments:
        try:
            steps = stream.read_segment(segment).column(Column.STEP)
            ranges.append((int(steps.min()), int(steps.max())))
        except HoleError:
            ranges.append(None)
    for i, segment in enumerate(stream.segments):
        if not segment.files:
            continue
        known = ranges[i]
        if known is None:
            low = next((r[1] for r in reversed(ranges[:i]) if r), 0)
            high = next((r[0] for r in ranges[i:] if r), np.iinfo(np.int64).max)
            known = low, high
        yield segment, *known


def _copy_root(trace: Trace, building: Path) -> None:
    for folder in ("journal", STARTS, PROCESSES):
        (building / folder).mkdir(mode=0o700)
    for key in ("", "journal/", f"{STARTS}/", f"{PROCESSES}/"):
        _copy_document(trace, building, key)
    for name in trace.folder.names(STARTS):
        if name != "zarr.json" and name.endswith((".json", ".name", ".failed", ".left-out")):
            write_whole(os.fspath(building / STARTS / name), _read(trace, f"{STARTS}/{name}", MAX_START_BYTES))


def _root_records(trace: Trace, building: Path, first_step: int, end_step: int) -> list[Record]:
    """The launch's records, with the heads of the journals as they are in the slice."""
    heads = heads_record(building / PROCESSES, JOURNAL)
    records = [heads if record["type"] == "journals" else record for record in trace.journal.records]
    return [*records, {"type": "slice", "first_step": first_step, "end_step": end_step}]


def _copy_process(trace: Trace, process: ProcessTrace, building: Path, chosen: Chosen) -> None:
    base = building / process.base
    streams = [f"streams/{stream.index}" for stream in process.streams]
    arrays = [f"{stream}/{name}" for stream in streams for name in SPECS]
    series = ["series"] if process.sample_parts else []
    for folder in ("", "journal", "tables", "steps", *series, "streams", *streams, *arrays):
        (base / folder).mkdir(mode=0o700)
        _copy_document(trace, building, f"{process.base}/{folder}/" if folder else f"{process.base}/")
    for _, _, files in process.table_records:
        for file in files:
            _copy_chunk(trace, process, building, TABLES, file)
    for spec, parts in ((STEPS, process.step_parts), (SERIES, process.sample_parts)):
        for part in parts:
            if part.file is not None:
                _copy_chunk(trace, process, building, spec, part.file)
    for stream in process.streams:
        for segment in stream.segments:
            if (stream.index, segment.index) in chosen:
                for spec, file in zip(SPECS.values(), segment.files, strict=True):
                    _copy_chunk(trace, process, building, spec, file)
    digest_chunks, tensors = _copy_activations(trace, process, building, chosen)
    chunks = _copy_values(trace, process, building, chosen, tensors) if process.value_request is not None else set()
    _write_journal(base, [_thinned(record, chosen, chunks, digest_chunks) for record in process.journal.records])


def _thinned(record: Record, chosen: Chosen, value_chunks: set[int], digest_chunks: set[int]) -> Record:
    if record["type"] == "activations":
        digests = record["digests"]
        files = enumerate(digests["files"], digests["chunk"])
        carried = [file if chunk in digest_chunks else None for chunk, file in files]
        return {**record, "digests": {**digests, "files": carried}}
    if record["type"] == "values":
        chunks = enumerate(record["bytes_files"], record["bytes_chunk"])
        return {**record, "bytes_files": [file if chunk in value_chunks else None for chunk, file in chunks]}
    if record["type"] != "commit" or (record["stream"], record["segment"]) in chosen:
        return record
    return {**record, "files": []}


def _copy_activations(
    trace: Trace, process: ProcessTrace, building: Path, chosen: Chosen
) -> tuple[set[int], NDArray[np.uint64]]:
    """Copy the descriptions of activation rows, and the digests of those in chosen segments.

    Returns the numbers of the copied chunks of digests, and the digests of the tensors.
    """
    activations = process.activations
    if not activations:
        return set(), np.zeros(0, np.uint64)
    _copy_folders(trace, process, building, "activations", *(spec.name for spec in ACTIVATION_ARRAYS))
    segments = {
        stream.index: [(s.first, s.stop) for s in stream.segments if (stream.index, s.index) in chosen]
        for stream in process.streams
    }
    needed, tensors = activations.digest_chunks_of(
        lambda stream, first, stop: any(first < end and begin < stop for begin, end in segments.get(stream, ()))
    )
    for part in process.activation_parts:
        for spec, array in part.arrays:
            for chunk, file in enumerate(array.files, array.chunk):
                if file is not None and (spec is not ACTIVATION_DIGESTS or chunk in needed):
                    _copy_chunk(trace, process, building, spec, file)
    return needed, tensors


def _copy_folders(trace: Trace, process: ProcessTrace, building: Path, *folders: str) -> None:
    for folder in folders:
        (building / process.base / folder).mkdir(mode=0o700)
        _copy_document(trace, building, f"{process.base}/{folder}/")


def _copy_values(
    trace: Trace, process: ProcessTrace, building: Path, chosen: Chosen, tensors: NDArray[np.uint64]
) -> set[int]:
    """Copy the index of values, and the bytes that chosen rows need; returns the numbers of the copied chunks.

    ``tensors``: digests of the tensors whose activation rows are in the slice.
    """
    _copy_folders(trace, process, building, "values", VALUE_INDEX.name, VALUE_BYTES.name)
    found = process.values.rows_of(np.concatenate([_digests_of(process, chosen), tensors]))
    first = found[:, ValueIndex.OFFSET] // VALUE_CHUNK
    stop = (found[:, ValueIndex.OFFSET] + found[:, ValueIndex.LENGTH] + VALUE_CHUNK - 1) // VALUE_CHUNK
    needed = {chunk for low, high in zip(first.tolist(), stop.tolist(), strict=True) for chunk in range(low, high)}
    for part in process.value_parts:
        for file in filter(None, part.rows.files):
            _copy_chunk(trace, process, building, VALUE_INDEX, file)
        for chunk, carried in enumerate(part.files, part.first_chunk):
            if carried is not None and chunk in needed:
                _copy_chunk(trace, process, building, VALUE_BYTES, carried)
    return needed


OF_ROWS: Final = (ValueKind.INPUT, ValueKind.SAME_INPUT, ValueKind.STORAGE, ValueKind.CONTENT)
"""Kinds of values that are not results, and go where their row goes."""


def _digests_of(process: ProcessTrace, chosen: Chosen) -> NDArray[np.uint64]:
    """Digests in the chosen rows, and those of their recorded inputs."""
    index = process.values.index
    inputs = np.isin(index[:, ValueIndex.KIND], OF_ROWS)
    digests = [np.zeros(0, np.uint64)]
    for stream in process.streams:
        own = index[inputs & (index[:, ValueIndex.STREAM] == stream.index)]
        for segment in stream.segments:
            if (stream.index, segment.index) in chosen:
                digests.append(stream.read_segment(segment).digests)
                within = (own[:, ValueIndex.ROW] >= segment.first) & (own[:, ValueIndex.ROW] < segment.stop)
                digests.append(own[within, ValueIndex.DIGEST])
    return np.unique(np.concatenate(digests))


def _copy_chunk(trace: Trace, process: ProcessTrace, building: Path, spec: ArraySpec, file: ChunkFile) -> None:
    key = f"{process.base}/{file.key}"
    data = _read(trace, key, codec.max_bytes(spec))
    if len(data) != file.length or xxh3_64_hexdigest(data) != file.digest:
        raise HoleError(f"{key} is not what was written; the slice would lack it")
    write_whole(os.fspath(building / key), data)


def _copy_document(trace: Trace, building: Path, key: str) -> None:
    write_whole(os.fspath(building / key / "zarr.json"), _read(trace, f"{key}zarr.json", LONGEST_DOCUMENT))


def _read(trace: Trace, key: str, limit: int) -> bytes:
    try:
        return trace.folder.read(key, limit)
    except UnreadableError as error:
        raise HoleError(f"{key} {error}; the slice would lack it") from None


def _write_journal(folder: Path, records: list[Record]) -> None:
    JournalWriter(os.fspath(folder / JOURNAL)).append(records)
