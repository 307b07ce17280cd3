"""The native engine in tests: its library where there is one, and libraries that are none."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.json import to_json
from rltrace.native.library import (
    BUILD_RECORD,
    BuildRecord,
    LoadedLibrary,
    content_digest,
    load,
    name_of,
    sources_digest,
    target_of,
    torch_folder,
)
from rltrace.trace.format.schema import TABLES, Column, RowFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.stream import StreamTrace


def native_library() -> LoadedLibrary:
    """The library that ``make set-up`` has built, loaded; ``why_not``: there is none, or it is refused."""
    import torch

    from rltrace.recorder.core.native_engine import CONSTANTS

    return load(Path(torch.__file__).parent, CONSTANTS)


def hide_modes(kind: type) -> None:
    """Until a recording begins torch's functions choose as without such modes, as they do under the recorder's."""
    library = native_library()
    if library.module is not None:
        library.module.hide_modes(kind)


def fitting_record() -> BuildRecord:
    """The record of a library for this torch and this Python, with the file ``library.so``."""
    target = target_of(torch_folder())
    return BuildRecord(target, "c++ (GNU 12)", ("-O2",), "", sources_digest(), "library.so", content_digest(CONTENT))


CONTENT = b"not a library"


def write_library(folder: Path, record: BuildRecord | None = None, content: bytes = CONTENT, **changes: Any) -> Path:
    """A folder with ``content`` as a library, and its record with some fields changed; the folder."""
    record = (record or fitting_record())._replace(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / record.file).write_bytes(content)
    (folder / BUILD_RECORD).write_text(json.dumps(to_json(record)))
    return folder


def cached(cache: Path, number: int = 0) -> Path:
    """A folder in a cache, for this torch and the sources as they are."""
    record = fitting_record()
    return cache / "engine" / f"{name_of(record.target, record.sources)}-{number}"


def differences(a: Path, b: Path) -> list[str]:
    """Where the rows, cells, steps and tables of two traces differ; empty: nowhere. Not where memory was unwritten."""
    found: list[str] = []
    first, second = open_trace(a), open_trace(b)
    names = [[(process.name, [s.name for s in process.streams]) for process in t.processes] for t in (first, second)]
    if names[0] != names[1]:
        return [f"streams {names}"]
    for p, q in zip(first.processes, second.processes, strict=True):
        if not np.array_equal(p.steps, q.steps):
            found.append(f"{p.name}: steps")
        tables = [t for t in TABLES if list(p.tables[t].keys) != list(q.tables[t].keys)]
        found += [f"{p.name}: table {table}" for table in tables]
        for s, t in zip(p.streams, q.streams, strict=True):
            found += [f"{s.name}: {what}" for what in _row_differences(p, s, t)]
    return found


def _row_differences(process: ProcessTrace, s: StreamTrace, t: StreamTrace) -> list[str]:
    if s.rows != t.rows:
        return [f"{s.rows} and {t.rows} rows"]
    a, b = s.read(0, s.rows), t.read(0, t.rows)
    ops = process.tables["ops"].payloads
    differing = np.argwhere(a.columns != b.columns)
    found = [f"row {i}, {ops[a.columns[i, Column.OP]]}: {Column(c).name}" for i, c in differing[:5]]
    sections = "links", "link_notes", "integers", "floats"
    found += [name for name in sections if getattr(a, name).tobytes() != getattr(b, name).tobytes()]
    owners = np.repeat(np.arange(s.rows), np.diff(a.digest_offsets))
    unmarked = (a.columns[owners, Column.FLAGS] & RowFlag.MARKED) == 0
    if not np.array_equal(a.digests[unmarked], b.digests[unmarked]):
        i = owners[unmarked][np.argmax(a.digests[unmarked] != b.digests[unmarked])]
        found.append(f"row {i}, {ops[a.columns[i, Column.OP]]}: digests")
    return found
