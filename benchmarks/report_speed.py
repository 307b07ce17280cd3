"""What a report of two long traces costs: time, memory, and the size of the page. Prints Markdown.

python benchmarks/report_speed.py [--ops 10000000] [--folder bench-out]

Writes traces as ``diff_speed`` does, then times ``rltrace report`` on them in a fresh process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from diff_speed import Edit, evict, write
from measure import RLTRACE, machine, table

EDITS = (
    Edit("values diverge for good, half-way", apart_from=0.5),
    Edit("one value differs, half-way", bits_at=0.5),
    Edit("another order of independent ops in every step", swap=True),
    Edit("one op more in every step", log_always=True),
)


def report(a: Path, b: Path, page: Path, *how: str) -> tuple[float, float, int, int]:
    """(seconds, of them on a processor, peak resident bytes, bytes of the report) of one verb in a fresh process."""
    for path in (a, b):
        evict(path)
    begin = time.perf_counter()
    process = subprocess.Popen([RLTRACE, "report", str(a), str(b), "-o", str(page), "--force", "--quiet", *how])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"rltrace report ended with {os.waitstatus_to_exitcode(status)}")
    seconds = time.perf_counter() - begin
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, page.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("bench-out"))
    options = parser.parse_args()
    folder = options.folder / "report_speed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    a = write(folder / "a.zarr", options.ops, Edit("a"))
    lines = []
    for edit in EDITS:
        b = write(folder / "b.zarr", options.ops, edit)
        found = [sorted(report(a, b, folder / f"r.{form}") for _ in range(3))[0] for form in ("md", "html")]
        (_, markdown, _, length), (seconds, busy, memory, size) = found
        lines.append(
            [
                edit.name,
                f"{markdown:.2f} s",
                f"{length / 1e3:.1f} kB",
                f"{seconds:.2f} s",
                f"{busy:.2f} s",
                f"{memory / 1e6:,.0f} MB",
                f"{size / 1e3:.0f} kB",
            ]
        )
        print(lines[-1], file=sys.stderr)
        shutil.rmtree(b)
    shutil.rmtree(folder)
    print(machine())
    print(f"\nTraces of {options.ops:,} ops; the quickest of 3 cold runs, start-up included.\n")
    columns = [
        "the second trace",
        "Markdown, on a processor",
        "its size",
        "page",
        "on a processor",
        "peak memory",
        "size",
    ]
    print(table(columns, lines))


if __name__ == "__main__":
    main()
