"""Locks: what of a recording is in one, the file and its faults, and the first step that differs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.diff.base.model import NamedDifference, Verdict
from rltrace.errors import UsageError
from rltrace.extensions.regression.lock import (
    Lock,
    LockComparison,
    LockError,
    LockFinding,
    compare_locks,
    lock_of,
    lock_text,
    read_lock,
    write_lock,
)
from rltrace.extensions.regression.lock_check import LockCheck
from rltrace.extensions.regression.report import lock_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

Build = Callable[..., Lock]
FACTS = {
    "cpu.capability": "AVX512",
    "digest": "xxh3-64-pages/1",
    "env.OMP_NUM_THREADS": "2",
    "flag.cudnn.tf32": True,
    "git.revision": "0123",
    "host.cores": 64,
    "package.torch": "2.13.0",
    "source.train.py": "00ff",
    "torch.cuda": None,
    "torch.threads": 2,
}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a recording of two optimizers in turn, with one value changed, and locks it."""
    numbers = iter(range(100))

    def make(
        steps: int = 6, *, changed: tuple[int, str] | None = None, state: str = "complete", **facts: object
    ) -> Lock:
        trace = TraceBuilder(tmp_path / f"{next(numbers)}.zarr", level="step")
        for name, value in {**FACTS, **facts}.items():
            trace.fact(name.replace("__", "."), value)
        for step in range(steps):
            digests = {"parameters": f"p{step}", "gradients": f"g{step}", "generators": f"r{step // 4}"}
            if changed is not None and changed[0] <= step:
                digests[changed[1]] += " changed"
            trace.end_step(optimizer=("SGD", "Adam")[step % 2], ordinal=step % 2, **digests)
        trace.finish(state)
        return lock_of(open_trace(trace.path))

    return make


def test_what_is_in_it(build: Build) -> None:
    """Facts that select kernels, packages, variables and sources; not what changes with every commit or machine."""
    locked = build()
    kept = {name for name, value in FACTS.items() if value is not None} - {"digest", "git.revision", "host.cores"}
    assert set(locked.facts) == kept
    (process,) = locked.processes
    assert process.optimizers == ("SGD", "Adam")
    assert [step.optimizer for step in process.steps] == [0, 1, 0, 1, 0, 1]


def test_the_file(build: Build, tmp_path: Path) -> None:
    """It is read as it was written; equal locks have equal texts, and a step has a line of some 20 bytes."""
    locked = replace(build(), command=("python", "train.py", 'say "\x7f\u00fc"\n'), until=5)
    file = tmp_path / "train.lock"
    write_lock(file, locked)
    assert read_lock(file) == locked
    assert file.read_text() == lock_text(replace(locked, facts=dict(reversed(locked.facts.items()))), "train.lock")
    lines = file.read_text().split('steps = """\n')[1].splitlines()[:6]
    assert [line.split()[0] for line in lines] == ["0/0", "1/1", "2/0", "3/1", "4/0", "5/1"]
    assert [len(line.split()) for line in lines] == [4, 3, 3, 3, 4, 3]  # RNG states where they changed


def test_a_change_of_one_step_is_a_change_of_one_line(build: Build) -> None:
    """Of the parameters of one step, the lines of others are as they were."""
    one, other = (lock_text(build(changed=changed), "x").splitlines() for changed in (None, (5, "parameters")))
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1


def test_writing_replaces_the_whole_file_or_nothing(build: Build, tmp_path: Path) -> None:
    """A link stays a link, permissions stay, a failure leaves neither half a file nor another one."""
    locked, real, link = build(), tmp_path / "real.lock", tmp_path / "link.lock"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_lock(link, locked)
    assert link.is_symlink() and read_lock(real) == locked and real.stat().st_mode & 0o777 == 0o640
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LockError, match="cannot be written"):
        write_lock(tmp_path / "nowhere" / "train.lock", locked)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "version 2; this rltrace reads version 1"),
        ("version = 1\n", "", "its version is None"),
        ('name = "', "name = ", "it is no TOML .*line"),
        ("1/1 ", "<<<<<<< HEAD\n1/1 ", "'<<<<<<< HEAD' among the steps of rank0/main is no step"),
        ("2/0 ", "3/0 ", "step 3 of rank0/main is where step 2 should be"),
        ("3/1 ", "3/2 ", "step 3 of rank0/main is of optimizer 2, which is not listed"),
        ("0/0 ", "0/0 x", "is no step"),
        ("digest = ", "digest2 = ", '"digest" is missing'),
        ("[[processes]]", "[processes]", '"processes" is no list'),
        ("[sources]", "[sources]\nx = []", '"x" of \\[sources\\] is not text'),
    ],
)
def test_a_damaged_file(build: Build, tmp_path: Path, old: str, new: str, message: str) -> None:
    """It is refused with what is wrong, where, and what to do; never read as something else."""
    file = tmp_path / "train.lock"
    write_lock(file, build())
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(LockError, match=message) as raised:
        read_lock(file)
    assert "train.lock" in str(raised.value)
    assert "install a newer one" in str(raised.value) or "rltrace lock --force -o" in str(raised.value)


def test_every_cut_of_a_file_is_refused(build: Build, tmp_path: Path) -> None:
    """No beginning of a lock is a lock: a write that was cut off is noticed."""
    write_lock(tmp_path / "whole.lock", build(steps=2))
    text, file = (tmp_path / "whole.lock").read_text(), tmp_path / "cut.lock"
    for length in range(0, len(text.rstrip("\n")), 3):
        file.write_text(text[:length])
        with pytest.raises(LockError):
            read_lock(file)


def test_no_step(build: Build, tmp_path: Path) -> None:
    """A recording without optimizer steps cannot be locked, and what could make some is named."""
    with pytest.raises(LockError, match=r"no optimizer step to lock.*rltrace\.step"):
        build(steps=0)
    with pytest.raises(LockError, match=r"rltrace lock -o .* makes one"):
        read_lock(tmp_path / "missing.lock")


def test_equal_runs(build: Build) -> None:
    """Equal steps agree whatever facts differ; these are listed, and those that select kernels are known."""
    found = compare_locks(build(), build(package__torch="2.14.0", host__cores=2))
    assert (found.verdict, found.agrees, found.steps, found.first) == (Verdict.IDENTICAL, True, 6, None)
    assert [(fact.name, fact.a, fact.b) for fact in found.system] == [("package.torch", "2.13.0", "2.14.0")]


@pytest.mark.parametrize(
    ("step", "what", "differ"),
    [(0, "gradients", "gradients"), (3, "parameters", "parameters"), (5, "generators", "RNG states")],
)
def test_the_first_step_that_differs(build: Build, step: int, what: str, differ: str) -> None:
    """It is the first line that differs, with what of it does."""
    found = compare_locks(build(), build(changed=(step, what)))
    assert found.verdict is Verdict.DIVERGED and found.steps == step
    first = found.first
    assert (first.step, first.differ, first.optimizer) == (step, (differ,), ("SGD 0", "Adam 1")[step % 2])
    assert first.explanation.startswith(f"the {differ} at the end of this step differ")
    assert ("every step before is equal" in first.explanation) == (step > 0)


@pytest.mark.parametrize(("locked", "found", "why"), [(6, 4, "ends after 4 steps"), (4, 6, "goes on for 2 steps more")])
def test_another_number_of_steps(build: Build, locked: int, found: int, why: str) -> None:
    """A run that ends earlier or goes on leaves its lock there; one that was cut off leaves it open."""
    first = compare_locks(build(locked), build(found)).first
    assert (first.step, first.differ) == (4, ())
    assert why in first.explanation


def test_several_processes(tmp_path: Path) -> None:
    """The earliest step of any of them is named; a process that made no step in the run, or is new, counts."""
    locks = []
    for number, changed in enumerate(({}, {"rank0/main": 3, "rank1/main": 1}, {"rank1/main": 0})):
        trace = TraceBuilder(tmp_path / f"{number}.zarr", level="step")
        for name in ("rank0/main", "rank1/main", "rank0/worker:0"):
            for step in range(0 if "worker" in name or changed.get(name) == 0 else 4):
                differs = changed.get(name, 9) <= step
                trace.process(name).stream().end_step(parameters=differs, gradients="g", generators="r")
        locks.append(lock_of(open_trace(trace.finish())))
    assert [process.name for process in locks[0].processes] == ["rank0/main", "rank1/main"]
    first, gone, new = (
        compare_locks(*pair).first for pair in ((locks[0], locks[1]), (locks[0], locks[2]), (locks[2], locks[0]))
    )
    assert (first.process, first.step) == ("rank1/main", 1)
    assert gone.explanation == "rank1/main made no step; the lock has 4 steps of it"
    assert new.explanation == "the lock has no step of rank1/main, which made 4 steps"


def test_an_unfinished_run(build: Build) -> None:
    """What it lacks is no difference: nothing can be said beyond its end."""
    cut_off = replace(build(4), unfinished="the program ended with status 1")
    found = compare_locks(build(6), cut_off)
    assert (found.verdict, found.agrees) == (Verdict.UNKNOWN, None)
    assert found.why == "4 steps of 6 are equal, but the program ended with status 1"
    assert compare_locks(build(6).up_to(3), build(4)).agrees
    assert build(4, state="killed").unfinished.startswith("rank0/main is killed (it ended without an end record")


def test_digests_of_two_algorithms(build: Build) -> None:
    """They are not compared."""
    with pytest.raises(UsageError, match=r"cannot be compared.*--update"):
        compare_locks(replace(build(), digest="sha1"), build())


# --- report -----------------------------------------------------------------------------------------------------------


SYSTEM = (NamedDifference("host.cpu", "Xeon", "EPYC"), NamedDifference("env.MKL_CBWR", None, "AVX2"))
FIRST = LockFinding("rank0/main", 1200, "Adam", ("gradients",), "the gradients differ")
DIVERGED = LockCheck(
    Path("train.lock"),
    LockComparison(Verdict.DIVERGED, FIRST.explanation, 1200, FIRST, SYSTEM, "B adds --seed 2"),
    status=0,
    explanation="this is another machine (host.cpu)",
    advice=("rltrace diff a b",),
)


def test_a_step_that_differs() -> None:
    """Where, what differs from the lock with what selects kernels, the reason, and what to run next."""
    assert document_text(lock_document(DIVERGED)).splitlines() == [
        "DIVERGED  step 1,200 of rank0/main (Adam), against train.lock",
        "  The gradients differ.",
        "  The commands differ, A being the lock's: B adds --seed 2.",
        "",
        "What differs from the lock (lock | now)",
        "  This is another machine than the lock's.",
        "  host.cpu (selects kernels)  Xeon | EPYC",
        "  env.MKL_CBWR (selects kernels)  (unset) | AVX2",
        "",
        "Reason",
        "  This is another machine (host.cpu).",
        "",
        "Next",
        "  rltrace diff a b",
    ]


def test_equal_steps() -> None:
    """What differs although nothing moved is said to have changed nothing; a long value has a line for each side."""
    system = (NamedDifference("torch.mkl", "a " * 30, "b " * 30),)
    equal = LockComparison(Verdict.IDENTICAL, "all 3 steps are equal", 3, None, system, "")
    shown = document_text(lock_document(LockCheck(Path("train.lock"), equal, 0))).splitlines()
    assert shown[:4] == [
        "IDENTICAL  against train.lock",
        "  All 3 steps are equal.",
        "",
        "What differs from the lock, and changed nothing (lock | now)",
    ]
    assert [line.split()[0] for line in shown[4:]] == ["torch.mkl", "lock", "now"]


def test_an_update() -> None:
    """That the file is another one now, and how many facts moved."""
    shown = document_text(lock_document(replace(DIVERGED, updated=True, explanation="", advice=())))
    assert "  train.lock was written anew, with 2 facts that moved." in shown.splitlines()
