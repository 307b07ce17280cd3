"""What a report of two long traces costs: time, memory, and the size of the page. Prints Markdown.

python benchmarks/report_speed.py [--ops 10000000] [--folder bench-out]

Writes traces as ``diff_speed`` does, then times ``rltrace report`` on them in a fresh process.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from diff_speed import Edit, run_cold, write
from measure import fresh_folder, machine, parse_options, table

EDITS = (
    Edit("values diverge for good, half-way", apart_from=0.5),
    Edit("one value differs, half-way", bits_at=0.5),
    Edit("another order of independent ops in every step", swap=True),
    Edit("one op more in every step", log_always=True),
)


def report(a: Path, b: Path, page: Path) -> tuple[float, float, int, int]:
    """(seconds, of them on a processor, peak resident bytes, bytes of the report)."""
    *measured, _ = run_cold("report", a, b, "-o", str(page), "--force", "--quiet")
    return *measured, page.stat().st_size


def main() -> None:
    options = parse_options(__doc__, ops=10_000_000, folder=Path("bench-out"))
    lines = []
    with fresh_folder(options.folder / "report_speed") as folder:
        a = write(folder / "a.zarr", options.ops, Edit("a"))
        for edit in EDITS:
            b = write(folder / "b.zarr", options.ops, edit)
            found = [sorted(report(a, b, folder / f"r.{form}") for _ in range(3))[0] for form in ("md", "html")]
            (_, markdown, _, length), (seconds, busy, memory, size) = found
            cost = f"{seconds:.2f} s", f"{busy:.2f} s", f"{memory / 1e6:,.0f} MB", f"{size / 1e3:.0f} kB"
            lines.append([edit.name, f"{markdown:.2f} s", f"{length / 1e3:.1f} kB", *cost])
            print(lines[-1], file=sys.stderr)
            shutil.rmtree(b)
    print(machine())
    print(f"\nTraces of {options.ops:,} ops; the quickest of 3 cold runs, start-up included.\n")
    header = ["the second trace", "Markdown, on a processor", "its size"]
    print(table([*header, "page", "on a processor", "peak memory", "size"], lines))


if __name__ == "__main__":
    main()
