"""Kernel evidence in words, and in what two pieces of it differ."""

import pytest

from rltrace.diff.base.kernels import in_equal_blocks, is_another_grid, kernel_differences, same_launches
from rltrace.trace.kernels.evidence import geometry_text, kernel_text, kernel_texts, launches

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
        ({**GUESS, "names": [], "reported": []}, "neither oneDNN nor MKL reports anything, 2 threads"),
        ({**ATEN, "names": [], "reported": []}, "ATen AVX2, 2 threads"),
        ({"names": ["ampere_sgemm_128x64_tn", "some_kernel"]}, "ampere_sgemm_128x64_tn, some_kernel"),
        ({"library": "Inductor", "names": ["cpp_fused_0"], "vectors": "avx2"}, "cpp_fused_0, made for avx2"),
        ({"device": "cuda", "names": ["add", "add", "add", "mul"]}, "add ×3, mul"),
        ({"device": "cuda", "names": [], "launches": []}, "cuda, no kernel was launched"),
        ({"device": "cuda"}, "cuda"),
    ],
)
def test_in_words(evidence: dict[str, object], text: str | None) -> None:
    """What ran where a library reported it, without the copies that oneDNN makes on the way; else what is guessed."""
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
            [
                "kernels oneDNN reorder jit:uni + oneDNN eltwise jit:avx2 against"
                " (neither oneDNN nor MKL reports anything)"
            ],
        ),
        (
            {**ATEN, "names": [], "reported": []},
            {**ATEN, "isa": "default", "names": [], "reported": []},
            ["instruction set AVX2 against default"],
        ),
        ({"names": ["one"]}, {"names": ["two"]}, ["kernels one against two"]),
        ({"device": "cuda"}, {"device": "cuda", "names": ["one"], "launches": [[[1], [32]]]}, []),
        ({"names": ["one", "two", "three"]}, {"names": ["one", "2", "three"]}, ["kernels two against 2"]),
        ({"names": ["one"]}, {"names": ["one", "sum"]}, ["kernels one against one + sum"]),
        ({"names": ["one"]}, {"names": []}, ["kernels one against nothing"]),
    ],
)
def test_what_differs(a: dict[str, object], b: dict[str, object], differences: list[str]) -> None:
    """A guess counts only where no library was asked, and an answer only against an answer."""
    assert kernel_differences(a, b) == differences
    assert len(kernel_differences(b, a)) == len(differences)


RANDN = "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long)"


def on_a_grid(blocks: int, *more: list[object]) -> dict[str, object]:
    shapes = [[[blocks, 1, 1], [256, 1, 1]], *more]
    return {"device": "cuda", "names": [RANDN] * len(shapes), "launches": shapes}


def test_the_same_kernel_on_another_grid() -> None:
    """Its name is the same, and how it was launched is evidence of its own; both sides show their grid."""
    a, b = on_a_grid(160), on_a_grid(232)
    name = "distribution_elementwise_grid_stride_kernel<float 4>"
    assert kernel_differences(a, b) == [f"{name} in 160 blocks of 256 threads against 232 blocks of 256 threads"]
    assert is_another_grid(a, b) and not is_another_grid(a, a)
    assert in_equal_blocks(a, b) and not in_equal_blocks(on_a_grid(1, [[2], [32]]), on_a_grid(1, [[2], [64]]))
    assert not is_another_grid(a, {**b, "device": "xpu"})
    assert kernel_texts(a, b) == (f"{name} in 160 blocks of 256 threads", f"{name} in 232 blocks of 256 threads")
    assert kernel_texts(a, a) == (name, name)
    assert (same_launches(a, a), same_launches(a, b)) == (True, False)
    two = [on_a_grid(1, [[2], [32]]), on_a_grid(3, [[4], [32]])]
    assert kernel_differences(*two) == [f"{name} in 1 block of 256 threads against 3 blocks of 256 threads, and 1 more"]


def test_grids_that_are_not_known_or_make_no_sense() -> None:
    """Nothing is compared with them; copies have none."""
    a = on_a_grid(160)
    for odd in ({}, {"launches": None}, {"launches": []}, {"launches": [[1, 2]]}, {"launches": [["x", [1]]]}):
        other = {"device": "cuda", "names": a["names"], **odd}
        assert launches(other) is None
        assert kernel_differences(a, other) == []
    assert geometry_text(((), ())) == "? blocks of ? threads"
    assert geometry_text(((32, 8, 1), (1, 1, 1))) == "32×8 blocks of 1 thread"


def test_names_that_read_alike_are_shown_in_more_words() -> None:
    """Names are distinguished between the two sides of a difference, not only within one of them."""
    names = [f"void f<at::native::A<{number}>>(int)" for number in (1, 2)]
    a, b = ({"names": [name]} for name in names)
    assert kernel_text(a) == kernel_text(b)
    assert kernel_texts(a, b) == ("f (… A 1)", "f (… A 2)")
