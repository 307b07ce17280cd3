"""Which settings are tried, and what follows from what came out under them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from rltrace.errors import UsageError
from rltrace.extensions.repro.explain import Tried, TriedResult, is_missing, pairs
from rltrace.extensions.repro.kernel_settings import OF, SWITCHES, KernelSetting, OpProfile, parse_setting, settings
from rltrace.extensions.repro.report import NEVER_RUN, conclusions, explanation, explanation_document
from rltrace.json import to_json
from rltrace.report.text import document_text
from rltrace.rerun import torch_flags

A, B, C = ("a" * 16,), ("b" * 16,), ("c" * 16,)
WHOSE = {A: ("a",), B: ("b",), C: ()}


def tried(setting: str, *results: tuple[str, ...]) -> Tried:
    made = tuple(TriedResult(result, 5, WHOSE[result]) for result in results)
    return Tried(KernelSetting(*setting.split("=")), 5 * len(results), made)


AT = {"a": "x:1", "b": "x:2"}


def text_of(found: list[Tried], left_out: Sequence[str] = ()) -> str:
    """What is printed of an op in two traces."""
    traces = {"a": "a.zarr", "b": "b.zarr"}
    return document_text(explanation_document(explanation("aten.mm.default", AT, found, left_out), traces))


def test_what_is_worth_a_try() -> None:
    """What the processor cannot do is left out; recorded thread counts are in; nothing else is left out on a CPU."""
    grid = settings(OpProfile("aten.mm.default", frozenset({"float32"})), ["avx", "avx2"], [3, None])
    words = [str(setting) for setting in grid.tries]
    assert words[0] == "as is"
    assert {"threads=1", "threads=3", "deterministic", "MKL_CBWR=COMPATIBLE", "ATEN_CPU_CAPABILITY=avx2"} <= set(words)
    assert {"mkldnn.enabled=off", "alignment=16", "alignment=4"} <= set(words)
    assert not [word for word in words if "512" in word]
    assert len(words) == len(set(words))
    assert grid.left_out == []


def on_gpu(name: str, *dtypes: str, everything: bool = False) -> tuple[set[str], set[str]]:
    """What is tried for an op on a GPU, and what is left out."""
    grid = settings(OpProfile(name, frozenset(dtypes), on_gpu=True), ["avx2"], [1], everything=everything)
    return {str(setting) for setting in grid.tries}, set(grid.left_out)


def test_what_is_worth_a_try_on_a_gpu() -> None:
    """Other things; those that are linked with the operator and its dtypes, and the rest is named."""
    tried, left_out = on_gpu("aten.addmm.default", "float32")
    assert {"tf32=on", "tf32=off", "NVIDIA_TF32_OVERRIDE=0", "cuda.blas=cublaslt", "DISABLE_ADDMM_CUDA_LT=1"} <= tried
    assert {"CUBLAS_WORKSPACE_CONFIG=:4096:8", "CUBLASLT_WORKSPACE_SIZE=32768", "deterministic"} <= tried
    assert {"cudnn.benchmark", "sdp", "cuda.linalg", "cuda.matmul.bf16_reduced"} <= left_out
    assert not [word for word in tried if "MKL" in word or "threads" in word]
    half, _ = on_gpu("aten.mm.default", "bfloat16")
    assert {"cuda.matmul.bf16_reduced=off"} <= half and "tf32=on" not in half
    conv, _ = on_gpu("aten.convolution_backward.default", "float32")
    assert {"cudnn.benchmark=on", "cudnn.deterministic=on", "cudnn.enabled=off", "tf32=off"} <= conv
    attention, _ = on_gpu("aten._scaled_dot_product_flash_attention.default", "bfloat16")
    assert {"sdp=flash", "sdp=mem_efficient", "sdp=math", "sdp=cudnn"} <= attention
    assert "cuda.linalg=magma" in on_gpu("aten.linalg_qr.default", "float32")[0]


def test_nothing_is_left_out_of_an_operator_that_no_rule_knows() -> None:
    """Of another library than ATen, everything is tried; so it is where that is asked for."""
    everything, left_out = on_gpu("aten.add.Tensor", "float32", everything=True)
    assert left_out == set()
    assert on_gpu("mine.fused.default", "float32") == (everything, left_out)
    tried, left_out = on_gpu("aten.add.Tensor", "float32")
    assert tried == {"as is", "deterministic", "alignment=16", "alignment=4"}
    assert {name.partition("=")[0] for name in everything - tried} == left_out


def test_the_settings_of_the_other_run() -> None:
    """All at once come first, where they are others; inputs that lay off are tried where an allocator puts them."""
    grid = settings(OpProfile("aten.add.Tensor", aligned=False), [], [1], other="b")
    assert [str(setting) for setting in grid.tries[:2]] == ["as is", "the settings of B"]
    assert grid.tries[1].options == ("--as", "b")
    assert "alignment=64" in map(str, grid.tries)
    nothing = settings(OpProfile("aten.randn.default", has_inputs=False), [], [1])
    assert not [setting for setting in nothing.tries if setting.name == "alignment"]
    found = [tried("", A), Tried(KernelSetting(OF, "b"), 5, (TriedResult(B, 5, ("b",)),))]
    assert list(conclusions(["a", "b"], found))[1] == "With the settings of B this machine gives B's bits."
    assert pairs(found) == []


def test_every_switch_is_one_of_the_scripts() -> None:
    """What may be written is what the process that runs the op can throw."""
    assert {*torch_flags.SWITCHES} - {"deterministic_algorithms", "tf32"} == SWITCHES


@pytest.mark.parametrize(
    "text", ["MKL_CBWR=AVX2", "threads=2", "deterministic", "cudnn.benchmark=on", "CUBLAS_WORKSPACE_CONFIG=:16:8"]
)
def test_a_setting_by_name(text: str) -> None:
    assert str(parse_setting(text)) == text
    assert parse_setting(text).options


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        ("MKL_CBWR", ["MKL_CBWR", "PATH=x", "", "threads=", "tf32="]),
        ("number from 1 on", ["threads=x", "threads=0", "OMP_NUM_THREADS=two", "alignment=-4"]),
        ("number from 1 on", ["deterministic,threads=1.5"]),
        ("twice", ["threads=1,threads=2"]),
    ],
)
def test_what_is_no_setting(error: str, texts: list[str]) -> None:
    """The error says what there is, or what a count is, before anything is run; nothing is set twice."""
    for text in texts:
        with pytest.raises(UsageError, match=error):
            parse_setting(text)


def test_the_setting_that_gives_the_other_bits() -> None:
    """One sentence for each side."""
    found = [tried("", A), tried("threads=2", A), tried("MKL_CBWR=AVX2", B), tried("deterministic", C)]
    assert list(conclusions(["a", "b"], found)) == [
        "This machine gives A's bits without any change.",
        "With MKL_CBWR=AVX2 this machine gives B's bits.",
    ]
    assert text_of(found).splitlines()[:9] == [
        "aten.mm.default",
        "",
        "  A        x:1 of a.zarr",
        "  B        x:2 of b.zarr",
        "",
        "Under each setting it gives",
        "  setting        result",
        "  as is          A's",
        "  threads=2      A's",
    ]
    assert "  deterministic  neither: cccccccccccccccc" in text_of(found)


def test_an_op_that_does_not_repeat_itself() -> None:
    """Under which settings, and which one heals it; a result that came now and then is no setting's."""
    found = [tried("", A, C), tried("threads=1", C), tried("deterministic", C)]
    assert list(conclusions(["a", "b"], found)) == [
        "Nondeterministic (as is); deterministic with threads=1, deterministic.",
        "A's bits came out in some of the runs.",
        "None of the settings tried gives B's bits.",
    ]
    (setting, *_) = to_json(explanation("op", AT, found))["settings"]
    assert (setting["repeats"], setting["gives"], setting["times"]) == (False, [], 10)


def test_a_first_call_that_differs() -> None:
    """As where a library chooses its code in it: what the later calls give counts, and no setting is held for it."""
    one = TriedResult(B, 1, ("b",)), TriedResult(A, 49, ("a",))
    failed = Tried(KernelSetting("tf32", "on"), 0, (), "RuntimeError: no")
    found = [Tried(KernelSetting(), 50, one), tried("threads=1", A), tried("threads=2", A), failed]
    assert list(conclusions(["a", "b"], found)) == [
        "In 1 of 3 processes the first call gave a result that no later call gave.",
        "The later calls repeat, so it is not the work of a setting.",
        "This machine gives A's bits without any change.",
        "B's bits came out in some of the first calls.",
    ]
    assert "  as is      first call B's, later calls A's\n" in text_of(found)
    (setting, *_) = to_json(explanation("op", AT, found))["settings"]
    assert (setting["repeats"], setting["first_differs"], setting["gives"]) == (False, True, ["a"])
    often = Tried(KernelSetting("threads", "2"), 50, (TriedResult(A, 30, ("a",)), TriedResult(B, 20, ("b",))))
    assert next(conclusions(["a", "b"], [*found, often])).startswith("Nondeterministic (as is, threads=2)")


def test_a_setting_that_cannot_be_run() -> None:
    """It stands there with the reason, and is no evidence; where none can be run, nothing is concluded."""
    failed = [Tried(KernelSetting(*name), 0, (), "RuntimeError: no") for name in ((), ("threads", "0"))]
    found = [tried("", A), failed[1]]
    assert "failed: RuntimeError: no" in text_of(found)
    assert list(conclusions(["a"], found)) == ["This machine gives A's bits without any change."]
    assert list(conclusions(["a", "b"], failed)) == [NEVER_RUN]


def test_several_at_once_by_name() -> None:
    """With commas."""
    both = parse_setting("MKL_CBWR=AVX2, threads=2")
    assert str(both) == "MKL_CBWR=AVX2 and threads=2"
    assert both.options == ("--mkl-cbwr", "AVX2", "--threads", "2")


def test_pairs_of_what_changed_something() -> None:
    """Those where both did come first; one value stands for others with the same result; what failed stands nowhere."""
    found = [
        tried("", A),
        tried("threads=1", A),
        tried("threads=2", B),
        tried("OMP_NUM_THREADS=2", B),
        tried("MKL_CBWR=AVX2", C),
        tried("MKL_CBWR=AVX512", C),
        Tried(KernelSetting("tf32", "on"), 0, (), "RuntimeError: no"),
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
    """Reported in one sentence, as a single one is."""
    both = KernelSetting("threads", "2", (KernelSetting("MKL_CBWR", "AVX2"),))
    found = [tried("", A), tried("threads=2", C), Tried(both, 5, (TriedResult(B, 5, ("b",)),))]
    assert is_missing("b", found[:2]) and not is_missing("b", found) and not is_missing("a", found)
    assert list(conclusions(["a", "b"], found))[1] == "With threads=2 and MKL_CBWR=AVX2 this machine gives B's bits."


def test_torch_itself_says_that_there_is_no_deterministic_form() -> None:
    """Asked of the running torch by running the op so: reported, and no other setting's error is taken for it."""
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as refused:
            torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
    trouble = f"RuntimeError: {str(refused.value).splitlines()[0]}"
    found = [tried("", A), Tried(KernelSetting("deterministic"), 0, (), trouble)]
    assert next(iter(conclusions(["a"], found))).startswith("PyTorch reports no deterministic implementation")
    found[1] = Tried(KernelSetting("threads", "0"), 0, (), "RuntimeError")
    assert len(list(conclusions(["a"], found))) == 1


def test_kernels_of_a_gpu_are_named_in_few_words() -> None:
    """Whole names in the JSON, words on the line; what oneDNN and MKL say is shown as it is."""
    names = ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(Params)",)
    found = [replace(tried("", A), kernels=names), replace(tried("threads=1", A), kernels=("MKL SGEMM(N,N,64,64,64)",))]
    lines = text_of(found, ["cudnn.benchmark"]).splitlines()
    assert lines[7:9] == [
        "  as is      A's  [cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4]",
        "  threads=1  A's  [MKL SGEMM(N,N,64,64,64)]",
    ]
    left_out = "Not tried, as no rule links them with this op (--everything tries them): cudnn.benchmark."
    assert left_out in " ".join(" ".join(lines).split())
    assert explanation("op", AT, found, ["sdp"]).left_out == ("sdp",)
    assert to_json(explanation("op", AT, found))["settings"][0]["kernels"] == list(names)
