"""The native engine in tests: its library where there is one, and libraries that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def native_library() -> LoadedLibrary:
    """The library that ``make set-up`` has built, loaded; ``why_not``: there is none, or it is refused."""
    import torch

    from rltrace.recorder.session.engine_choice import CONSTANTS

    return load(Path(torch.__file__).parent, CONSTANTS)


def fitting_record() -> BuildRecord:
    """The record of a library for this torch and this Python, with the file ``library.so``."""
    folder = torch_folder()
    target = folder and target_of(folder)
    assert target
    return BuildRecord(target, "c++ (GNU 12)", ("-O2",), "", sources_digest(), "library.so", content_digest(CONTENT))


CONTENT = b"not a library"


def write_library(folder: Path, record: BuildRecord | None = None, content: bytes = CONTENT, **changes: Any) -> Path:
    """A folder with ``content`` as a library, and its record with some fields changed; the folder."""
    record = replace(record or fitting_record(), **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / record.file).write_bytes(content)
    (folder / BUILD_RECORD).write_text(json.dumps(to_json(record)))
    return folder


def cached(cache: Path, number: int = 0) -> Path:
    """A folder in a cache, for this torch and the sources as they are."""
    record = fitting_record()
    return cache / "engine" / f"{name_of(record.target, record.sources)}-{number}"
