"""Which settings are tried, and what follows from what came out under them."""

from __future__ import annotations

import pytest
import torch

from rltrace.errors import UsageError
from rltrace.experiment.explain import Setting, Tried, is_missing, pairs, parse_setting, settings
from rltrace.report.explain import conclusions, explain_json, explain_lines

A, B, C = ("a" * 16,), ("b" * 16,), ("c" * 16,)
WHOSE = {A: ("a",), B: ("b",), C: ()}


def tried(setting: str, *results: tuple[str, ...]) -> Tried:
    made = tuple((result, 5, WHOSE[result]) for result in results)
    return Tried(Setting(*setting.split("=")), 5 * len(results), made)


def test_what_is_worth_a_try() -> None:
    """What the processor cannot do is left out; recorded thread counts are in; on a GPU it is other things."""
    words = [str(setting) for setting in settings(["avx", "avx2"], [3, None], on_gpu=False)]
    assert words[0] == "as it is here"
    assert {"threads=1", "threads=3", "deterministic", "MKL_CBWR=COMPATIBLE", "ATEN_CPU_CAPABILITY=avx2"} <= set(words)
    assert not [word for word in words if "512" in word]
    assert len(words) == len(set(words))
    on_gpu = [str(setting) for setting in settings([], [1], on_gpu=True)]
    assert on_gpu[-2:] == ["tf32=on", "tf32=off"]
    assert not [word for word in on_gpu if "MKL" in word]


@pytest.mark.parametrize("text", ["MKL_CBWR=AVX2", "threads=2", "deterministic"])
def test_a_setting_by_name(text: str) -> None:
    assert str(parse_setting(text)) == text
    assert parse_setting(text).options


@pytest.mark.parametrize("text", ["MKL_CBWR", "PATH=x", "", "threads="])
def test_what_is_no_setting(text: str) -> None:
    """Told with what there is."""
    with pytest.raises(UsageError, match="MKL_CBWR"):
        parse_setting(text)


def test_the_setting_that_gives_the_other_bits() -> None:
    """One sentence for each side."""
    found = [tried("", A), tried("threads=2", A), tried("MKL_CBWR=AVX2", B), tried("deterministic", C)]
    assert list(conclusions(["a", "b"], found)) == [
        "This machine gives A's bits as it is.",
        "With MKL_CBWR=AVX2 this machine gives B's bits.",
    ]
    lines = list(explain_lines("aten.mm.default", {"a": "x:1", "b": "x:2"}, ["a", "b"], found))
    assert lines[:3] == ["aten.mm.default  (x:1 in A, x:2 in B)", "  as it is here  A's", "  threads=2      A's"]
    assert lines[4] == "  deterministic  neither: cccccccccccccccc"


def test_an_op_that_does_not_repeat_itself() -> None:
    """Under which settings, and which one heals it; a result that came now and then is no setting's."""
    found = [tried("", A, C), tried("threads=1", C), tried("deterministic", C)]
    assert list(conclusions(["a", "b"], found)) == [
        "It does not repeat itself (as it is here); it does with threads=1, deterministic.",
        "A's bits came out now and then.",
        "Nothing that was tried gives B's bits.",
    ]
    (told, *_) = explain_json("op", {"a": "x:1"}, ["a", "b"], found)["settings"]
    assert (told["repeats"], told["gives"], told["times"]) == (False, [], 10)


def test_a_setting_that_cannot_be_run() -> None:
    """It stands there with the reason, and is no evidence."""
    found = [tried("", A), Tried(Setting("threads", "0"), 0, (), "RuntimeError: no")]
    assert "could not be run: RuntimeError: no" in "\n".join(explain_lines("op", {"a": "x:1"}, ["a"], found))
    assert list(conclusions(["a"], found)) == ["This machine gives A's bits as it is."]


def test_several_at_once_by_name() -> None:
    """With commas; nothing is set twice."""
    both = parse_setting("MKL_CBWR=AVX2, threads=2")
    assert str(both) == "MKL_CBWR=AVX2 and threads=2"
    assert both.options == ("--mkl-cbwr", "AVX2", "--threads", "2")
    with pytest.raises(UsageError, match="twice"):
        parse_setting("threads=1,threads=2")


def test_pairs_of_what_changed_something() -> None:
    """Those where both did come first; one value stands for others with the same result; what failed stands nowhere."""
    found = [
        tried("", A),
        tried("threads=1", A),
        tried("threads=2", B),
        tried("OMP_NUM_THREADS=2", B),
        tried("MKL_CBWR=AVX2", C),
        tried("MKL_CBWR=AVX512", C),
        Tried(Setting("tf32", "on"), 0, (), "RuntimeError: no"),
        tried("deterministic", A),
    ]
    assert [str(pair) for pair in pairs(found)] == [
        "threads=2 and MKL_CBWR=AVX2",
        "OMP_NUM_THREADS=2 and MKL_CBWR=AVX2",
        "threads=1 and MKL_CBWR=AVX2",
        "threads=2 and deterministic",
        "OMP_NUM_THREADS=2 and deterministic",
        "MKL_CBWR=AVX2 and deterministic",
    ]
    assert pairs([tried("", A), tried("threads=1", A), tried("deterministic", A)]) == []


def test_the_pair_that_gives_the_other_bits() -> None:
    """Told in one sentence, as a single one is."""
    both = Setting("threads", "2", (Setting("MKL_CBWR", "AVX2"),))
    found = [tried("", A), tried("threads=2", C), Tried(both, 5, ((B, 5, ("b",)),))]
    assert is_missing("b", found[:2]) and not is_missing("b", found) and not is_missing("a", found)
    assert list(conclusions(["a", "b"], found))[1] == "With threads=2 and MKL_CBWR=AVX2 this machine gives B's bits."


def test_torch_itself_says_that_there_is_no_deterministic_form() -> None:
    """Asked of the running torch by running the op so: told, and no other setting's trouble is taken for it."""
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as refused:
            torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
    trouble = f"RuntimeError: {str(refused.value).splitlines()[0]}"
    found = [tried("", A), Tried(Setting("deterministic"), 0, (), trouble)]
    assert next(iter(conclusions(["a"], found))).startswith("PyTorch says that it has no deterministic form")
    assert len(list(conclusions(["a"], [tried("", A), Tried(Setting("threads", "0"), 0, (), "RuntimeError")]))) == 1
