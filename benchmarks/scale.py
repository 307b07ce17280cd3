"""How far traces go: one rank of up to a billion ops, opened and compared, and what 1,024 such ranks come to.

    python benchmarks/scale.py [--ops 10000000 100000000 1000000000] [--folder bench-out]

Writes the journals and tables of traces through the real writer. Their chunks of rows are one chunk, linked under many
names, except around the difference, and the digests in the journals are made up so that they show it; so a billion ops
take seconds to write and megabytes on disk. ``diff`` then runs on them as on any trace: what it asks of a store is
counted, and one run in a fresh process is timed. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from diff_speed import BATCH, STEP, Edit, compare, entries, numbered, opened, record, rows_at, template
from measure import fresh_folder, machine, table
from numpy.typing import NDArray

from rltrace import diff
from rltrace.live_diff.follower import Follower
from rltrace.trace.format.arrays import ArraySpec
from rltrace.trace.format.files import FileRequest, Folder, TraceStore
from rltrace.trace.format.journal import JournalWriter
from rltrace.trace.format.root import JOURNAL, PROCESSES, end_launch
from rltrace.trace.format.row_hashes import Chains, Digests, StepDigests
from rltrace.trace.format.rows import Rows
from rltrace.trace.read import reader
from rltrace.trace.write.writer import ProcessWriter

DIFFERENCE = 0.5
"""Where B's values begin to be others."""

NEAR = 3
"""Segments around it whose rows are written."""

PAGE = 1_000
"""Files that a bucket lists in one answer."""

RANKS = 1_024

BYTES_AN_OP = 5.6
"""On disk, of Stable-Baselines3's PPO (``record_cost.py``); a matter of the program."""

PUT, GET, STORED = 5e-6, 4e-7, 0.023
"""Assumed prices of S3 Standard in US dollars: of an upload or a list request, of a download request, and of a GB for a
month. Reading from another region or from outside is 0.02 to 0.09 a GB more."""


# --- traces -----------------------------------------------------------------------------------------------------------


def mixed(number: int) -> int:
    return (number * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF


class MadeUpChains(Chains):
    """Digests of the number of rows, and after the difference of the side as well; no row is hashed."""

    def __init__(self, differs: float) -> None:
        super().__init__()
        self._differs = differs

    def load(self, rows: Rows, tables: Any, ends: Iterable[int]) -> None:
        pass

    def advance_to(self, stop: int) -> None:
        self.rows = stop

    def digests(self) -> Digests:
        whole = mixed(self.rows)
        return Digests(whole, whole ^ (self.rows > self._differs), whole)

    def end_step(self) -> StepDigests:
        return StepDigests(*self.digests()[:2], 0)


class LinkingWriter(ProcessWriter):
    """Writes one chunk of rows and one of cells, and links them under every other name."""

    is_real = True

    def _write_chunk(self, folder: str, spec: ArraySpec, chunk: int, stored: NDArray[Any]) -> list[Any]:
        first = self._firsts.get(folder)
        if self.is_real or first is None or not folder.startswith("streams/"):
            written = super()._write_chunk(folder, spec, chunk, stored)
            self._firsts.setdefault(folder, written)
            return written
        key = f"{folder}/{spec.key(chunk)}"
        os.link(f"{self._folder}/{first[0]}", f"{self._folder}/{key}")
        return [key, *first[1:]]

    def __init__(self, folder: Path, name: str, journal: JournalWriter) -> None:
        super().__init__(folder, name, journal)
        self._firsts: dict[str, list[Any]] = {}

    def _fill_columns(self, rows: Rows) -> NDArray[np.uint32]:
        return super()._fill_columns(rows) if self.is_real else self._columns_buffer

    def _fill_cells(self, sections: Any) -> NDArray[np.uint64]:
        return super()._fill_cells(sections) if self.is_real else self._cells_buffer


def write(path: Path, ops: int, edit: Edit) -> Path:
    """One trace of about ``ops`` ops."""
    writer = opened(path, LinkingWriter)
    assert isinstance(writer, LinkingWriter)
    stream = writer.stream("rank0/main")
    total, batch = ops // STEP, template(BATCH)
    at = int(DIFFERENCE * total)
    writer._streams[stream] = MadeUpChains(at * STEP if edit.apart_from is not None else np.inf)
    writer.commit(stream, None, entries())
    for first in range(0, total, BATCH):
        steps = min(BATCH, total - first)
        writer.is_real = first == 0 or abs(first - at) < NEAR * BATCH
        rows = batch.cut(0, steps * STEP)
        if writer.is_real:
            rows, _ = numbered(rows, first, total, edit)
        ended = [record(first + k, (first + k + 1) * STEP) for k in range(steps)]
        writer.commit(stream, rows_at(rows, first * STEP), [], ended)
    writer.close("complete", {"status": 0})
    end_launch(path, {"status": 0, "signal": None})
    return path


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass
class CountingStore:
    """A folder, and what is asked of it: what the same would ask of a bucket."""

    store: Folder
    files: set[str] = field(default_factory=set)
    """Files that were read."""
    bytes: int = 0
    in_a_row: int = 0
    """Requests of which each began after the one before had ended, at most."""
    unlisted: str = ""
    _ahead: set[str] = field(default_factory=set)

    def size(self, key: str) -> int:
        return self.store.size(key)

    def holds(self, key: str) -> bool:
        return self.store.holds(key)

    def read(self, key: str, limit: int, digest: str = "") -> bytes:
        data = self.store.read(key, limit, digest)
        self.in_a_row += key not in self._ahead and key not in self.files
        self.bytes += 0 if key in self.files else len(data)
        self.files.add(key)
        return data

    def names(self, key: str) -> list[str]:
        return self.store.names(key)

    def walk(self) -> Iterator[tuple[str, int]]:
        return self.store.walk()

    def size_ahead(self, keys: Iterable[str]) -> None:
        pass

    def read_ahead(self, requests: Iterable[FileRequest]) -> None:
        new = {request.key for request in requests} - self._ahead
        self._ahead |= new
        self.in_a_row += bool(new)


def count_requests(a: Path, b: Path) -> list[CountingStore]:
    """What one comparison asks of two stores."""
    stores: list[CountingStore] = []

    def storage(path: Path, *, cached: bool) -> TraceStore:
        stores.append(CountingStore(Folder(path)))
        return stores[-1]

    with patch.object(reader, "_storage", storage):
        found = diff.compare(a, b)
    assert found.decisive is not None, found.why
    return stores


@dataclass(frozen=True)
class Measured:
    """One pair of traces."""

    ops: int
    journal: int
    """Bytes, of one side."""
    files: int
    open_seconds: float
    look_seconds: float
    """Of a look of ``record --against`` at two traces of which nothing is new but that they have grown."""
    gets: int
    """Of both sides, as all below."""
    bytes: int
    in_a_row: int
    seconds: float
    memory: int

    @property
    def pages(self) -> int:
        return -(-self.files // PAGE)


def measure(ops: int, folder: Path) -> Measured:
    a = write(folder / "a.zarr", ops, Edit("a"))
    equal = write(folder / "equal.zarr", ops, Edit("equal"))
    b = write(folder / "b.zarr", ops, Edit("b", apart_from=DIFFERENCE))
    stores = count_requests(a, b)
    begin = time.perf_counter()
    reader.open_trace(a)
    opened = time.perf_counter() - begin
    follower = Follower(a, equal)
    follower.look()
    begin = time.process_time()
    follower._sizes = []
    follower.look()
    look = time.process_time() - begin
    seconds, _, memory, _ = compare(a, b)
    found = Measured(
        ops,
        (a / PROCESSES / "0" / JOURNAL).stat().st_size,
        sum(1 for _ in Folder(a).walk()),
        opened,
        look,
        sum(len(store.files) for store in stores),
        sum(store.bytes for store in stores),
        max(store.in_a_row for store in stores),
        seconds,
        memory,
    )
    for trace in (a, b, equal):
        shutil.rmtree(trace)
    return found


def lines(found: Measured) -> list[object]:
    return [
        f"{found.ops:,}",
        f"{found.ops * BYTES_AN_OP / 1e9:,.2f} GB",
        f"{found.journal / 1e6:,.1f} MB",
        f"{found.files:,}",
        f"{found.pages:,}",
        f"{found.gets:,}",
        f"{found.bytes / 1e6:,.1f} MB",
        f"{found.in_a_row:,}",
        f"{found.open_seconds:.2f} s",
        f"{found.look_seconds:.2f} s",
        f"{found.seconds:.1f} s",
        f"{found.memory / 1e6:,.0f} MB",
    ]


HEADER = [
    "ops",
    "on disk",
    "journal",
    "files",
    "lists",
    "diff: reads",
    "bytes",
    "in a row",
    "open",
    "look",
    "diff, cold",
    "memory",
]


def all_ranks(found: Measured) -> list[list[object]]:
    """Of ``RANKS`` such ranks in one trace."""
    size, files = RANKS * found.ops * BYTES_AN_OP, RANKS * found.files
    return [
        ["on disk", f"{size / 1e12:,.1f} TB", f"{size / 1e9 * STORED:,.0f} $ a month"],
        ["files", f"{files / 1e6:,.1f} million", f"{files / PAGE:,.0f} lists, {files / PAGE * PUT:.2f} $"],
        ["uploads", f"{files / 1e6:,.1f} million", f"{files * PUT:,.0f} $"],
        ["journals", f"{RANKS * found.journal / 1e9:,.1f} GB", f"{RANKS * found.open_seconds:,.0f} s to open"],
        ["diff of one pair", f"{found.gets:,} reads", f"{found.bytes / 1e6:,.0f} MB, {found.gets * GET:.4f} $"],
        [
            "diff of all",
            f"{RANKS * found.gets:,} reads",
            f"{RANKS * found.bytes / 1e9:,.1f} GB, "
            f"{RANKS * found.gets * GET:.2f} $, {RANKS * found.seconds / 60:,.0f} min on one core",
        ],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=[10_000_000, 100_000_000, 1_000_000_000])
    parser.add_argument("--folder", type=Path, default=Path("bench-out"))
    options = parser.parse_args()
    found = []
    with fresh_folder(options.folder / "scale") as folder:
        for ops in options.ops:
            found.append(measure(ops, folder))
            print(lines(found[-1]), file=sys.stderr)
    print(f"{machine()}\n")
    print(table(HEADER, [lines(each) for each in found]))
    print(f"\n{RANKS:,} ranks of {found[-1].ops:,} ops:\n")
    print(table(["", "", ""], all_ranks(found[-1])))


if __name__ == "__main__":
    main()
