"""What comparing two long traces costs. Prints Markdown.

python benchmarks/diff_speed.py [--ops 10000000] [--folder bench-out]

Writes traces of repetitive rows through the real writer (a step is 640 ops, every op has a digest of its own), which
differ in one way each, then times ``rltrace diff`` on them in a fresh process with the files out of the page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import RLTRACE, folder_size, fresh_folder, machine, parse_options, table

from rltrace.portable_keys import frame_key, portable_key, site_key
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.format.rows import Rows, StepRecord, TableEntry
from rltrace.trace.format.schema import Column, Kind, RowFlag, pack_link
from rltrace.trace.write.writer import ProcessWriter

STEP = 640
"""Ops of a step: about what Stable-Baselines3 PPO runs per optimizer step, rollout included."""

FREE, FREE_OPS = 320, 8
"""Place in a step of ops that don't depend on each other, and how many there are."""

BATCH = 102
"""Steps of a commit: almost a whole segment."""


@dataclass(frozen=True)
class Edit:
    """How the second trace differs."""

    name: str
    verdict: str = ""
    bits_at: float | None = None
    """One digest differs at this place, from 0 to 1, and is equal again afterwards."""
    apart_from: float | None = None
    """Every digest differs from here on."""
    log_at: float | None = None
    """Two ops more in one step, from a log line."""
    swap: bool = False
    """In every step, eight independent ops ran in another order."""
    log_always: bool = False
    """In every step, one op more, from a log line."""


EDITS = (
    Edit("equal", "identical"),
    Edit("one value differs, half-way", "diverged", bits_at=0.5),
    Edit("values diverge for good, half-way", "diverged", apart_from=0.5),
    Edit("values diverge for good, at 99 %", "diverged", apart_from=0.99),
    Edit("two ops more in one step, half-way", "same-values", log_at=0.5),
    Edit("another order of independent ops in every step", "same-values", swap=True),
    Edit("one op more in every step", "same-values", log_always=True),
)


def entries() -> list[TableEntry]:
    """Tables of a small program: 60 ops, 140 sites."""
    found = [TableEntry(t, 0, portable_key(t, p), p) for t, p in (("modules", ""), ("scalars", []), ("structures", []))]
    found += [TableEntry(t, 0, portable_key(t, {}), {}) for t in ("kernels", "settings")]
    found.append(TableEntry("sites", 0, site_key([]), []))
    kernel = {"library": "ATen", "isa": "AVX2", "threads": 1}
    found.append(TableEntry("kernels", 1, portable_key("kernels", kernel), kernel))
    found += [TableEntry("ops", k, portable_key("ops", k), f"aten.op{k}.default") for k in range(60)]
    for k in range(140):
        frame = {"file": "train.py", "line": k, "function": "train", "source": f"line {k}", "internal": False}
        key = frame_key("train.py", "train", f"line {k}")
        found += [TableEntry("frames", k, key, frame), TableEntry("sites", k + 1, site_key([key]), [k])]
    optimizer = {"ordinal": 0, "class": "Adam"}
    return [*found, TableEntry("optimizers", 0, portable_key("optimizers", optimizer), optimizer)]


def template(steps: int) -> Rows:
    """Rows of that many steps; digests, step numbers and losses are filled in later."""
    rows = STEP * steps
    place = np.arange(rows) % STEP
    columns = np.zeros((rows, len(Column)), np.uint32)
    columns[:, Column.KIND] = Kind.OP
    columns[:, Column.OP] = place * 7 % 60
    columns[:, Column.SITE] = 1 + place % 140
    columns[:, Column.KERNEL] = 1
    columns[:, Column.LINKS] = np.where(place > 2, 2, 0)
    columns[:, Column.DIGESTS] = 1
    is_loss = place == STEP - 1
    columns[is_loss, Column.FLAGS] = RowFlag.VALUE_FLOAT
    columns[is_loss, Column.FLOATS] = 1
    has_links = place[place > 2]
    back = np.where((has_links >= FREE) & (has_links < FREE + FREE_OPS), has_links - FREE, 0)
    links = np.stack([pack_link(1, 0) + (back << 12), pack_link(2, 0) + (back << 12)], axis=1).reshape(-1)
    empty = np.empty(0, np.int64)
    return Rows(0, columns, links, empty, np.zeros(steps), np.zeros(rows, np.uint64))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Incompressible digests: the SplitMix64 finaliser of row numbers."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)


def opened(path: Path, kind: type[ProcessWriter] = ProcessWriter) -> ProcessWriter:
    """The writer of the one process of a new trace."""
    create_trace(path, {"command": ["python", "train.py"], "options": {"level": "op"}})
    writer = kind.open(path, {"name": "rank0/main"})
    writer.facts("op", "benchmark", {"cpu.capability": "AVX2"})
    return writer


def write(path: Path, ops: int, edit: Edit) -> Path:
    """One trace of about ``ops`` ops."""
    writer = opened(path)
    stream = writer.stream("rank0/main")
    writer.commit(stream, None, entries())
    total = ops // STEP
    batch, row = template(BATCH), 0
    for first in range(0, total, BATCH):
        steps = min(BATCH, total - first)
        rows, ends = numbered(batch.cut(0, steps * STEP), first, total, edit)
        writer.commit(stream, rows_at(rows, row), [], [record(first + k, row + end) for k, end in enumerate(ends)])
        row += len(rows)
    writer.close("complete", {"status": 0})
    end_launch(path, {"status": 0})
    return path


def numbered(rows: Rows, first: int, total: int, edit: Edit) -> tuple[Rows, list[int]]:
    """The template's rows as those of steps ``first`` on, with the edit in them, and where each step ends."""
    number = first * STEP + np.arange(len(rows))
    rows.column(Column.STEP)[:] = number // STEP
    seen = number.copy()
    if edit.apart_from is not None:
        seen[number >= int(edit.apart_from * total) * STEP] += 1 << 40
    if edit.bits_at is not None:
        seen[number == int(edit.bits_at * total) * STEP + 300] += 1 << 40
    digests = mixed(seen)
    losses = (digests[STEP - 1 :: STEP] >> np.uint64(11)).astype(np.float64) / 2**53
    done = Rows(0, rows.columns.copy(), rows.links, rows.integers, losses, digests)
    order = np.arange(len(rows))
    steps = len(rows) // STEP
    if edit.swap:
        free = order.reshape(steps, STEP)[:, FREE : FREE + FREE_OPS]
        keys = mixed(free.astype(np.uint64) + np.uint64(first * STEP))
        free[:] = np.take_along_axis(free, np.argsort(keys, axis=1), axis=1)
    if edit.log_always:
        logged = np.arange(steps) * STEP + FREE
        order = np.insert(order, logged, -1 - logged)
    if edit.log_at is not None and 0 <= (at := int(edit.log_at * total) - first) < steps:
        cut = at * STEP + FREE
        order = np.insert(order, [cut, cut], [-1 - cut, -2 - cut])
    return rearranged(done, order)


def rearranged(rows: Rows, order: np.ndarray) -> tuple[Rows, list[int]]:
    """Rows in another order, by their old places, and where each step ends; -1 - n is a log row that is like row n."""
    extra = order < 0
    source = np.where(extra, -1 - order, order)
    place = np.empty(len(rows), np.int64)
    place[source[~extra]] = np.flatnonzero(~extra)
    columns = rows.columns[source]
    columns[extra, Column.SITE] = columns[extra, Column.LINKS] = 0
    counts = columns[:, Column.LINKS].astype(np.int64)
    owner = np.repeat(np.arange(len(order)), counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    cells = rows.links[rows.link_offsets[source[owner]] + nth]
    distance = owner - place[source[owner] - (cells >> 12)]  # no link of these rows leads out of its step
    links = (distance << 12) | (cells & 0xFFF)
    done = Rows(0, columns, links, rows.integers, rows.floats, rows.digests[source])
    return done, (place[STEP - 1 :: STEP] + 1).tolist()


def rows_at(rows: Rows, first: int) -> Rows:
    return Rows(first, rows.columns, rows.links, rows.integers, rows.floats, rows.digests)


def record(step: int, end: int) -> StepRecord:
    return StepRecord(step, 0, 0, step, 0, 1, 0, end, True, step, step, (step,) * 4)


def evict(path: Path) -> None:
    """Drop a trace's files from the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def run_cold(verb: str, a: Path, b: Path, *options: str) -> tuple[float, float, int, bytes]:
    """(seconds, of them on a processor, peak resident bytes, what it prints) of one verb in a fresh process."""
    evict(a)
    evict(b)
    begin = time.perf_counter()
    process = subprocess.Popen([RLTRACE, verb, str(a), str(b), *options], stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit(f"rltrace {verb} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text


def compare(a: Path, b: Path) -> tuple[float, float, int, dict[str, object]]:
    """As ``run_cold``, of ``rltrace diff``, with its report."""
    *measured, text = run_cold("diff", a, b, "--format", "json")
    return *measured, json.loads(text)


def main() -> None:
    only = ("", "compare only traces whose description holds this text")
    options = parse_options(__doc__, ops=10_000_000, folder=Path("bench-out"), only=only)
    lines = []
    with fresh_folder(options.folder / "diff_speed") as folder:
        a = write(folder / "a.zarr", options.ops, Edit("a"))
        for number, edit in enumerate(edit for edit in EDITS if options.only in edit.name):
            b = write(folder / f"b{number}.zarr", options.ops, edit)
            runs = [compare(a, b) for _ in range(3)]
            seconds, busy, memory, report = sorted(runs, key=lambda r: r[0])[1]
            assert report["verdict"] == edit.verdict, (edit.name, report["verdict"], report["why"])
            search = report["search"]
            assert isinstance(search, dict)
            cost = f"{seconds:.2f} s", f"{busy:.2f} s", f"{memory / 1e6:,.0f} MB"
            read = len(search["probes"]), search["chunks_read"], f"{search['bytes_read'] / 1e6:.1f} MB"
            lines.append([edit.name, report["verdict"], *cost, *read])
            print(lines[-1], file=sys.stderr)
            shutil.rmtree(b)
        size, _ = folder_size(a)
    print(machine())
    print(f"\nTraces of {options.ops:,} ops, {size / 1e6:,.0f} MB each; median of 3 cold runs, start-up included.\n")
    header = ["the second trace", "verdict", "time", "on a processor", "peak memory"]
    print(table([*header, "probes", "chunks read", "bytes read"], lines))


if __name__ == "__main__":
    main()
