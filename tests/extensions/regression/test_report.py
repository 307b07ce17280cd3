"""The report of a run that was compared with its lock, word by word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rltrace.diff.base.model import NamedDifference, Verdict
from rltrace.extensions.regression.lock import LockComparison, LockFinding
from rltrace.extensions.regression.lock_check import LockCheck
from rltrace.extensions.regression.report import lock_document
from rltrace.report.text import document_text

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
