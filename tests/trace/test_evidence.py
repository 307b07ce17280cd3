"""Kernel evidence in words, and in what two pieces of it differ."""

from __future__ import annotations

import pytest

from rltrace.diff.judging.kernels import kernel_differences
from rltrace.trace.evidence import kernel_text

GUESS = {"library": "oneDNN", "isa": "auto", "threads": 2}
ATEN = {"library": "ATen", "isa": "AVX2", "threads": 2}
JIT = {**GUESS, "names": ["oneDNN reorder jit:uni", "oneDNN eltwise jit:avx2"], "reported": ["reorder", "eltwise 8x8"]}


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({}, None),
        (GUESS, "oneDNN auto, 2 threads"),
        (JIT, "oneDNN eltwise jit:avx2, 2 threads"),
        ({**GUESS, "names": ["oneDNN reorder jit:uni"], "reported": ["x"]}, "oneDNN reorder jit:uni, 2 threads"),
        ({**GUESS, "names": [], "reported": []}, "neither oneDNN nor MKL says a word, 2 threads"),
        ({**ATEN, "names": [], "reported": []}, "ATen AVX2, 2 threads"),
        ({"names": ["ampere_sgemm_128x64_tn", "some_kernel"]}, "cuBLAS 128×64 fp32, some_kernel"),
    ],
)
def test_in_words(evidence: dict[str, object], text: str | None) -> None:
    """What ran where somebody said it, without the copies that oneDNN makes on the way; else what is guessed."""
    assert kernel_text(evidence) == text


@pytest.mark.parametrize(
    ("a", "b", "differences"),
    [
        (GUESS, GUESS, []),
        (GUESS, {**GUESS, "isa": "AVX2"}, ["instruction set auto against AVX2"]),
        (JIT, GUESS, []),
        (JIT, {**JIT, "isa": "AVX2"}, []),
        (JIT, {**JIT, "threads": 1}, ["threads 2 against 1"]),
        (JIT, {**JIT, "reported": ["reorder", "eltwise 8x9"]}, ["eltwise 8x8 against eltwise 8x9"]),
        (
            JIT,
            {**JIT, "names": [], "reported": []},
            ["kernels oneDNN reorder jit:uni + oneDNN eltwise jit:avx2 against (neither oneDNN nor MKL says a word)"],
        ),
        (
            {**ATEN, "names": [], "reported": []},
            {**ATEN, "isa": "default", "names": [], "reported": []},
            ["instruction set AVX2 against default"],
        ),
        ({"names": ["one"]}, {"names": ["two"]}, ["kernels one against two"]),
    ],
)
def test_what_differs(a: dict[str, object], b: dict[str, object], differences: list[str]) -> None:
    """A guess counts only where nobody was asked, and an answer only against an answer."""
    assert kernel_differences(a, b) == differences
    assert len(kernel_differences(b, a)) == len(differences)
