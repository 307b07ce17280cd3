"""What comparing two long traces at URLs costs, with latency put in. Prints Markdown.

python benchmarks/remote_reading.py [--ops 10000000] [--delay 0.05] [--repeats 3] [--folder bench-out]

The traces of ``diff_speed.py``, in a store on this machine that speaks S3 (or the one that AWS_ENDPOINT_URL names with
``--endpoint``, where they have been pushed to s3://bucket) and on a web server, each answer ``--delay`` seconds late.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from diff_speed import EDITS, Edit, write
from measure import RLTRACE, machine, parse_options, run, table
from network import Requests, requests, started, variables

COMPARED = (EDITS[0], EDITS[2], EDITS[3])


def main() -> None:
    options = parse_options(
        __doc__,
        ops=10_000_000,
        delay=(0.05, "seconds that each answer comes late"),
        repeats=3,
        folder=(Path, "where the traces are kept; default: nowhere"),
        endpoint=(str, "another store that speaks S3, with the variables for it set"),
    )
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rltrace-bench-"))
    try:
        bucket = folder / "bucket"
        bucket.mkdir(parents=True, exist_ok=True)
        for name, edit in (("a", Edit("a")), *((f"b{at}", edit) for at, edit in enumerate(COMPARED))):
            if not (bucket / f"{name}.zarr").exists():
                write(bucket / f"{name}.zarr", options.ops, edit)
        print(f"Machine: {machine()}. {options.ops:,} ops, answers {options.delay * 1000:.0f} ms late.\n")
        print(report(folder, options.delay, options.repeats, options.endpoint))
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def report(folder: Path, delay: float, repeats: int, endpoint: str | None) -> str:
    rows = []
    with ExitStack() as stack:
        web = stack.enter_context(started("store", folder))
        store = web if endpoint is None else urlsplit(endpoint).port or 80
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = [
            stack.enter_context(started("way", port, "--delay", delay, "--log", log / name))
            for name, port in (("S3", store), ("HTTP", web))
        ]
        bases = {"S3": "s3://bucket", "HTTP": f"http://127.0.0.1:{ways[1]}/bucket"}
        for name, base in bases.items():
            environment = (
                variables(ways[0]) if endpoint is None else {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ways[0]}"}
            )
            for at, edit in enumerate(COMPARED):
                found: list[tuple[float, Requests, float]] = []
                for _ in range(repeats):
                    with tempfile.TemporaryDirectory() as cache:
                        kept = {**environment, "RLTRACE_CACHE": cache}
                        pair = (f"{base}/a.zarr", f"{base}/b{at}.zarr")
                        first, asked = once(pair, kept, log / name)
                        found.append((first, asked, once(pair, kept, log / name)[0]))
                requests_, serial, size = (
                    median(getattr(r, n) for _, r, _ in found) for n in ("count", "serial", "bytes")
                )
                times = [f"{median(times):.1f} s" for times in ([f for f, _, _ in found], [g for _, _, g in found])]
                rows.append([edit.name, name, f"{requests_:.0f}", f"{serial:.0f}", f"{size / 1e6:.1f} MB", *times])
    return table(["difference", "store", "requests", "in a row", "bytes", "time", "again, with what is kept"], rows)


def once(pair: tuple[str, str], environment: dict[str, str], log: Path) -> tuple[float, Requests]:
    """Seconds of a comparison, and what it asked for."""
    begin = log.stat().st_size
    shell = '"$@" > /dev/null; test $? -le 1'
    seconds = run(
        ["sh", "-c", shell, "sh", RLTRACE, "diff", *pair, "--no-tui", "--format", "json"], environment
    ).seconds
    time.sleep(0.3)  # connections that are idle are closed, and logged
    return seconds, requests(log, begin)


if __name__ == "__main__":
    main()
