"""Faults of the system under the recorder: what fails is drawn or swept, and what it leaves is checked.

python benchmarks/faults.py [--every] [--folder bench-out]

A child trains a tiny model, recorded, while the Nth system call on its trace fails (``ERRORS``), once or ever after, in
the middle of a write, or while an allocation of a commit fails. A seed draws the sizes of segments and queues. Whatever
fails: the program prints the same, computes the same weights and ends with the same status; the trace holds the first
rows of a recording without the fault, or names what is missing; and one sentence says why.

Then the power is cut: of what a recording changed on the disk, any part is left that may be, and that is read.

Without ``--every`` a sample of these. Needs a C compiler. Prints Markdown.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kills import are_equal
from measure import parse_options, table

from rltrace.errors import RltraceError
from rltrace.extensions.archive.verify import verify
from rltrace.launch.summary import recorded
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace

HERE = Path(__file__).parent
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EINTR)
EXTENT = ("once", "ever", "writes")
OUT_OF_MEMORY = ("MemoryError", "SystemError", "not enough memory")
"""What Python says of an allocation that fails; some ufuncs of NumPy; and Zstandard."""
NOT_BEGUN = ("took its name and is missing", ".json is missing", ".json is not what was written")
"""What a reader says of a process that could not begin to record."""
SEEDS = 6
"""Draws of sizes of segments and queues."""
COMPILE = ("cc", "-shared", "-fPIC", "-O1", "-ftls-model=initial-exec")


@dataclass(frozen=True)
class Fault:
    """One fault, and the sizes of segments and queues of the recorder that meets it."""

    seed: int
    call: int = 0
    """Number of the system call that fails; 0: none does."""
    error: int = 0
    ever: int = 0
    """1: all calls after it fail, too; 2: all writes."""
    short: bool = False
    """It writes half of its bytes first."""
    allocation: int = -1
    """Number of the allocation that fails; 0: they are only counted; -1: not even that."""
    log: bool = False
    """Every change of the trace is logged."""

    @property
    def name(self) -> str:
        how = EXTENT[self.ever] + ("-short" if self.short else "") + ("-log" if self.log else "")
        return f"{self.seed}-{self.call}-{errno.errorcode.get(self.error, 'none')}-{how}-{self.allocation}"

    @property
    def kind(self) -> str:
        if self.allocation >= 0:
            return "allocation"
        return f"{errno.errorcode[self.error]}, {EXTENT[self.ever]}{', half written' if self.short else ''}"


def library(folder: Path) -> Path:
    """Compile faults.c. Raises FileNotFoundError without a compiler, CalledProcessError on another system."""
    made = folder / "faults.so"
    subprocess.run([*COMPILE, "-o", made, HERE / "faults.c", "-ldl"], check=True, capture_output=True)
    return made


def run(folder: Path, faults: Sequence[Fault]) -> None:
    """Record under each fault, in a folder of its name."""
    for fault in faults:
        shutil.rmtree(folder / fault.name, ignore_errors=True)
        (folder / fault.name).mkdir(parents=True)
    variables = {"LD_PRELOAD": os.fspath(library(folder)), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if any(fault.allocation >= 0 for fault in faults):
        variables["PYTHONMALLOC"] = "malloc"
    command = [sys.executable, HERE / "programs" / "faulted.py", folder]
    cases = json.dumps([{**asdict(fault), "name": fault.name} for fault in faults])
    subprocess.run(command, input=cases, text=True, check=True, env={**os.environ, **variables})


class Counts(NamedTuple):
    """What a recording without a fault does."""

    calls: int
    allocations: int


def counts(folder: Path, fault: Fault) -> Counts:
    return Counts(*map(int, (folder / fault.name / "counts").read_text().split()))


@dataclass(frozen=True)
class Outcome:
    """What a fault came to."""

    fault: Fault
    rows: int
    whole: bool
    """Nothing is missing."""
    said: tuple[str, ...]
    """What the launcher says of it."""


def check(folder: Path, fault: Fault, reference: Fault) -> Outcome:
    """What is left under a fault. Raises AssertionError where it is not as the docstring of this file says."""
    own, other = folder / fault.name, folder / reference.name
    for name in ("out", "err", "status"):
        assert (own / name).read_text() == (other / name).read_text(), (fault, name, (own / name).read_text())
    trace, whole = open_trace(own / "t.zarr"), open_trace(other / "t.zarr")
    rows = check_rows(trace, whole)
    said = (*recorded(own / "t.zarr").failures, *filter(None, [(own / "launcher").read_text()]))
    is_whole = rows == whole.processes[0].after_op and trace.processes[0].state == "complete" and not trace.holes
    if not is_whole:
        assert 1 <= len(said) <= 1 + bool(fault.ever), (fault, said)
        reasons = (os.strerror(fault.error),) if fault.allocation < 0 else OUT_OF_MEMORY
        assert sum(any(reason in why for reason in reasons) for why in said) == 1, (fault, said)
        states = {process.state for process in (*trace.processes, *trace.unrecorded)}
        assert states <= {"damaged", "never-recorded", *(("killed",) if fault.ever else ())}, (fault, states)
    holes = [hole.why for hole in trace.holes]
    assert not [why for why in holes if not why.endswith(NOT_BEGUN)], (fault, holes)
    return Outcome(fault, rows, is_whole, said)


def check_rows(trace: Trace, whole: Trace) -> int:
    """Number of rows in a trace of which each equals that of the whole one. Raises AssertionError."""
    (reference,) = whole.processes
    return sum(same_rows(process, reference) for process in trace.processes)


def same_rows(part: ProcessTrace, reference: ProcessTrace) -> int:
    whole = reference.streams[0]
    for stream in part.streams:
        assert stream.rows <= whole.rows
        for segment in stream.segments:
            try:
                rows = stream.read_segment(segment)
            except RltraceError:
                assert any(first <= segment.first < first + count for first, count, _ in stream.holes)
                continue
            assert are_equal(rows, whole.read(segment.first, segment.stop))
    steps = part.steps
    assert len(steps) <= len(reference.steps)
    assert all(any(np.array_equal(step, other) for other in reference.steps) for step in steps)
    return int(part.after_op)


# --- power cuts -------------------------------------------------------------------------------------------------------
#
# What may be on a disk after a power cut, of files that nobody synced: of the entries of each folder the first so many
# changes; of a file that has an entry any length that it ever had, and of its data, sector by sector, what any write
# left there, or zeros.


SECTOR = 512
HEAD = struct.Struct("<cIIqQ")


class Change(NamedTuple):
    """One change of a file or a folder, as faults.c logs it."""

    what: str
    """c create, t truncate as it is opened, w write, l set the length, r rename, u unlink, d make a folder."""
    path: str
    to: str
    offset: int
    data: bytes


def changes(log: Path) -> list[Change]:
    """The log of a recording."""
    data, at, found = log.read_bytes(), 0, []
    while at < len(data):
        what, one, two, offset, length = HEAD.unpack_from(data, at)
        at += HEAD.size
        parts = []
        for size in (one, two, length):
            parts.append(data[at : at + size])
            at += size
        found.append(Change(what.decode(), parts[0].decode(), parts[1].decode(), offset, parts[2]))
    return found


class File:
    """The lengths that a file had, and the writes to each sector."""

    def __init__(self) -> None:
        self.sizes = [0]
        self.content = bytearray()
        self.versions: dict[int, list[bytes]] = {}

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.content.extend(bytes(max(0, end - len(self.content))))
        self.content[offset:end] = data
        self.sizes.append(len(self.content))
        for sector in range(offset // SECTOR, -(-end // SECTOR)):
            own = bytes(self.content[sector * SECTOR : (sector + 1) * SECTOR])
            self.versions.setdefault(sector, [b""]).append(own)

    def resize(self, length: int) -> None:
        self.content = self.content[:length].ljust(length, b"\0")
        self.sizes.append(length)

    def after(self, draw: random.Random, kept: float) -> bytes:
        """What may be left of it; ``kept``: the share of files of which everything is."""
        if draw.random() < kept:
            return bytes(self.content)
        size = draw.choice((self.sizes[-1], draw.choice(self.sizes)))
        share = draw.choice((0.0, 0.5, 1.0))
        left = bytearray(size)
        for sector, versions in self.versions.items():
            own = versions[-1] if draw.random() < share else draw.choice(versions)
            begin = sector * SECTOR
            left[begin : begin + len(own)] = own
        return bytes(left[:size])


def after_power_cut(done: Sequence[Change], folder: Path, root: str, draw: random.Random) -> None:
    """Write to ``folder`` what may be left after these changes below ``root``; at least the folder is."""
    files: dict[str, File] = {}
    events: dict[str, list[tuple[str, str, File | None]]] = {}
    for change in done:
        path, parent = change.path, os.path.dirname(change.path)  # noqa: PTH120
        match change.what:
            case "c":
                files[path] = File()
                events.setdefault(parent, []).append(("add", path, files[path]))
            case "d":
                events.setdefault(parent, []).append(("folder", path, None))
            case "t":
                files[path].resize(0)
            case "w":
                files[path].write(change.offset, change.data)
            case "l":
                files[path].resize(change.offset)
            case "r":
                files[change.to] = file = files.pop(path)
                events.setdefault(parent, []).extend([("add", change.to, file), ("drop", path, None)])
            case "u":
                files.pop(path, None)
                events.setdefault(parent, []).append(("drop", path, None))
            case _:
                raise ValueError(f"the recorder does what this file knows nothing of: {change}")
    kept, whole = draw.choice((0.0, 0.5, 0.9, 1.0)), draw.choice((0.0, 0.5, 1.0))
    _restore(
        root,
        folder,
        events,
        lambda file: file.after(draw, kept),
        lambda n: n if draw.random() < whole else draw.randint(0, n),
    )


def _restore(
    path: str,
    to: Path,
    events: dict[str, list[tuple[str, str, File | None]]],
    content: Callable[[File], bytes],
    count: Callable[[int], int],
) -> None:
    """Write a folder with its entries after some of their changes, and the folders in it."""
    to.mkdir(parents=True, exist_ok=True)
    entries: dict[str, File | None] = {}
    own = events.get(path, [])
    for what, name, file in own[: count(len(own))]:
        if what == "drop":
            entries.pop(name, None)
        else:
            entries[name] = file
    for name, file in entries.items():
        target = to / Path(name).name
        if file is None:
            _restore(name, target, events, content, count)
        else:
            target.write_bytes(content(file))


def cut(folder: Path, fault: Fault, states: int, draw: random.Random) -> Counter[str]:
    """Read what is left of a recording by so many power cuts; how often what was read. Raises AssertionError."""
    own = folder / fault.name
    log, whole, found = changes(own / "log"), open_trace(own / "t.zarr"), Counter[str]()
    for _ in range(states):
        left = own / "left.zarr"
        shutil.rmtree(left, ignore_errors=True)
        after_power_cut(
            log[: draw.choice((len(log), draw.randint(1, len(log))))], left, os.fspath(own / "t.zarr"), draw
        )
        found[_read(left, whole)] += 1
    return found


def _read(left: Path, whole: Trace) -> str:
    try:
        trace = open_trace(left)
    except RltraceError as error:
        return f"refused: {type(error).__name__}"
    rows = check_rows(trace, whole)
    assert verify(left).damage or not trace.holes, trace.holes
    if not trace.processes:
        return "no process"
    all_rows = rows == whole.processes[0].after_op
    assert all_rows or trace.processes[0].state != "complete" or trace.holes
    return "whole" if all_rows and not trace.holes else "named holes" if trace.holes else "a beginning"


# --- faults -----------------------------------------------------------------------------------------------------------


def references(seeds: Iterable[int]) -> list[Fault]:
    """Recordings without a fault; the second of each seed counts allocations."""
    return [Fault(seed, allocation=allocation) for seed in seeds for allocation in (-1, 0)]


def every_call(calls: int, seed: int) -> Iterator[Fault]:
    """Every system call, failing with every error."""
    for call in range(1, calls + 1):
        for error in ERRORS:
            yield Fault(seed, call, error)
            if error != errno.EINTR:  # ever after: Python repeats the call
                yield Fault(seed, call, error, ever=1)
            if error in (errno.ENOSPC, errno.EDQUOT):
                yield Fault(seed, call, error, ever=2)
        yield Fault(seed, call, errno.ENOSPC, short=True, ever=2)


def sampled(folder: Path, seeds: Iterable[int], some: int, draw: random.Random) -> list[Fault]:
    """A few faults of every kind, at calls and allocations drawn by chance."""
    found = []
    for seed in seeds:
        calls = counts(folder, Fault(seed)).calls
        found += draw.sample(list(every_call(calls, seed)), some)
        found += some_allocations(folder, seed, max(1, some // 4), draw)
    return found


def some_allocations(folder: Path, seed: int, some: int, draw: random.Random) -> list[Fault]:
    """So many allocations, each of which fails in one recording."""
    allocations = counts(folder, Fault(seed, allocation=0)).allocations
    return [Fault(seed, allocation=place) for place in draw.sample(range(1, allocations + 1), some)]


def main() -> None:
    every = (False, "of the first seed every system call with every error")
    cuts = (1000, "power cuts of each seed's recording")
    options = parse_options(__doc__, every=every, cuts=cuts, folder=Path("bench-out"))
    folder = (options.folder / "faults").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draw = random.Random(0)
    run(folder, references(range(SEEDS)))
    faults = sampled(folder, range(SEEDS), 20, draw)
    if options.every:
        whole = [*every_call(counts(folder, Fault(0)).calls, 0), *some_allocations(folder, 0, 200, draw)]
        faults = [*whole, *sampled(folder, range(1, SEEDS), 40, draw)]
    wrong = report(folder, faults)
    logged = [Fault(seed, log=True) for seed in range(SEEDS)]
    run(folder, logged)
    found = sum((cut(folder, fault, options.cuts, draw) for fault in logged), Counter[str]())
    print(f"\n{found.total():,} power cuts; what was read is as written.\n")
    print(table(["read", "cuts"], [[what, f"{count:,}"] for what, count in found.most_common()]))
    sys.exit(wrong)


def report(folder: Path, faults: Sequence[Fault]) -> bool:
    """Record under each fault, and print what came of it; whether anything is wrong."""
    outcomes, wrong = [], []
    for some in portions(faults):
        run(folder, some)
        for fault in some:
            try:
                outcomes.append(check(folder, fault, Fault(fault.seed)))
            except (AssertionError, RltraceError, OSError, LookupError) as error:
                wrong.append((fault, error))
            else:
                shutil.rmtree(folder / fault.name)
    print(f"{len(outcomes):,} recordings with a fault; each program printed, computed and ended as without one.\n")
    kinds = Counter(outcome.fault.kind for outcome in outcomes)
    rows = []
    for kind, count in sorted(kinds.items()):
        own = [outcome for outcome in outcomes if outcome.fault.kind == kind]
        whole, none = sum(o.whole for o in own), sum(not o.whole and not o.rows for o in own)
        rows.append([kind, *(f"{number:,}" for number in (count, whole, count - whole - none, none))])
    print(table(["fails", "recordings", "whole", "beginning", "nothing"], rows))
    for fault, error in wrong:
        print(f"\nWRONG {fault.name}: {error!r}")
    return bool(wrong)


def portions(faults: Sequence[Fault], size: int = 200) -> Iterator[Sequence[Fault]]:
    """Faults in portions, those of allocations by themselves, which take another allocator."""
    for kind in (False, True):
        chosen = [fault for fault in faults if (fault.allocation >= 0) == kind]
        for first in range(0, len(chosen), size):
            yield chosen[first : first + size]


if __name__ == "__main__":
    main()
