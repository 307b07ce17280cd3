"""Faults of the system under the recorder: the program notices nothing, and the trace is a beginning that says why.

``python benchmarks/faults.py --every`` does the same for every system call.
"""

import errno
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED, CALLS, ALLOCATIONS = 5, 260, 24_000
"""A recording with the sizes that this seed draws makes about so many."""


@pytest.fixture(scope="module")
def faults() -> Any:
    """The benchmark of that name."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.delitem(sys.modules, "faults", raising=False)
        yield __import__("faults")


@pytest.fixture(scope="module")
def drawn(faults: Any) -> list[Any]:
    """A start record that is half written, and calls and an allocation drawn by chance."""
    draw = random.Random(1)
    return [
        faults.Fault(SEED, 2, errno.ENOSPC, 2, short=True),
        *draw.sample(list(faults.every_call(CALLS, SEED)), 4),
        faults.Fault(SEED, allocation=draw.randint(1, ALLOCATIONS)),
    ]


@pytest.fixture(scope="module")
def folder(faults: Any, drawn: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording without a fault, one with a log, and one under each fault."""
    made: Path = tmp_path_factory.mktemp("faults")
    faults.run(made, [faults.Fault(SEED), faults.Fault(SEED, log=True), *drawn])
    return made


def test_faults(faults: Any, drawn: list[Any], folder: Path) -> None:
    """Output, weights and status are as without; what is recorded is a beginning, and one sentence says why."""
    found = [faults.check(folder, fault, faults.Fault(SEED)) for fault in drawn]
    assert sum(not outcome.whole for outcome in found) > len(found) // 2
    assert any(outcome.rows > 0 for outcome in found if not outcome.whole)


def test_power_cuts(faults: Any, folder: Path) -> None:
    """Nothing is synced: whatever part of the changes is left on the disk, no row is read that was not written."""
    found = faults.cut(folder, faults.Fault(SEED, log=True), 100, random.Random(1))
    assert {"whole", "a beginning", "named holes", "no process"} <= found.keys()


def test_the_log_is_whole(faults: Any, folder: Path) -> None:
    """The changes in the log, all of them done, make the trace: a power cut of another recording would show nothing."""
    own = folder / faults.Fault(SEED, log=True).name

    class AllOfIt(random.Random):
        def choice(self, options: Any) -> Any:
            return options[-1] if options[-1] == 1.0 else options[0]

    faults.after_power_cut(faults.changes(own / "log"), own / "again.zarr", os.fspath(own / "t.zarr"), AllOfIt(0))
    files = [file.relative_to(own / "t.zarr") for file in (own / "t.zarr").rglob("*") if file.is_file()]
    assert all((own / "again.zarr" / file).read_bytes() == (own / "t.zarr" / file).read_bytes() for file in files)
    assert len(files) > 20
