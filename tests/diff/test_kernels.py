"""Which of the settings that differ is named with a kernel."""

import pytest

from rltrace.diff.base.kernels import choice_text, reported_differences, settings_choosing, settings_text
from rltrace.diff.base.model import NamedDifference

MKLDNN, CUBLAS, CUDNN, FLASH = (
    f"flag.{name}" for name in ("mkldnn.enabled", "cuda.matmul.tf32", "cudnn.benchmark", "sdp.flash")
)
CAPABILITY, MKL_CBWR, THREADS = "env.ATEN_CPU_CAPABILITY", "env.MKL_CBWR", "env.OMP_NUM_THREADS"
ONEDNN_ISA, ISA, CPU, DEVICES = "env.ONEDNN_MAX_CPU_ISA (rank1/main)", "cpu.capability", "host.cpu", "cuda.devices"
NAMES = (CUBLAS, CUDNN, MKLDNN, FLASH, ISA, DEVICES, CAPABILITY, MKL_CBWR, THREADS, ONEDNN_ISA, CPU, "package.torch")
DIFFER = tuple(NamedDifference(name, None, "x") for name in NAMES)

ONEDNN = {"library": "oneDNN", "isa": "auto", "threads": 1}
ATEN = {"library": "ATen", "isa": "AVX2", "threads": 1}
MKL = {"library": "MKL"}
GPU = {"device": "cuda"}
REGION = {"library": "Inductor", "names": ["extern_kernels.addmm", "cpp_fused_tanh_0"], "code": "aa"}


@pytest.mark.parametrize(
    ("op", "a", "b", "names"),
    [
        ("aten.gelu.default", ONEDNN, ONEDNN, [ONEDNN_ISA, MKLDNN, CPU]),
        ("aten.addmm.default", MKL, MKL, [MKL_CBWR, CPU]),
        (
            "aten.addmm.default",
            {**MKL, "names": ["oneDNN matmul jit:avx2"], "reported": ["…"]},
            {**MKL, "names": [], "reported": []},
            [ONEDNN_ISA, MKLDNN, MKL_CBWR, CPU],
        ),
        ("aten.softmax.int", ATEN, ATEN, [CAPABILITY, ISA, CPU]),
        ("aten.softmax.int", ATEN, {**ATEN, "threads": 2}, [THREADS, CAPABILITY, ISA, CPU]),
        ("aten.mm.default", GPU, GPU, [CUBLAS, DEVICES]),
        ("aten.convolution.default", GPU, GPU, [CUDNN, DEVICES]),
        ("aten._scaled_dot_product_flash_attention.default", GPU, GPU, [FLASH, DEVICES]),
        ("aten.add.Tensor", GPU, GPU, [DEVICES]),
        (
            "inductor.compiled_graph",
            REGION,
            {**REGION, "names": ["torch.ops.mkldnn._linear_pointwise.default"], "code": "bb"},
            [MKL_CBWR, CAPABILITY, ISA, ONEDNN_ISA, MKLDNN, CPU],
        ),
        ("mine.op.default", {}, {}, [CPU]),
    ],
)
def test_what_chooses_the_kernel_of_an_op(
    op: str, a: dict[str, object], b: dict[str, object], names: list[str]
) -> None:
    """Its library chooses, or on a GPU the op; what can be set comes before what follows from it."""
    assert [setting.name for setting in settings_choosing(op, a, b, DIFFER)] == names


def test_in_a_sentence() -> None:
    """The first of them; nothing where none is known to, or where it only says what the kernels say."""
    setting = NamedDifference(MKL_CBWR, None, "AVX2")
    text = choice_text("aten.mm.default", MKL, MKL, [setting])
    assert text == ", which MKL_CBWR chooses: unset against AVX2"
    assert choice_text("aten.add.Tensor", ATEN, ATEN, [setting]) == ""
    restated = NamedDifference(ISA, "AVX2", "AVX512")
    assert choice_text("aten.add.Tensor", ATEN, ATEN, [restated]) == ""


def test_parameters_of_one_implementation() -> None:
    """The first line that differs, of those that both sides have; then the grid."""
    side = {"library": "oneDNN", "names": ["jit"], "reported": ["matmul 4x4", "matmul 8x8"]}
    other = {**side, "reported": ["matmul 4x4", "matmul 8x9", "reorder"]}
    assert list(reported_differences(side, other)) == ["matmul 8x8 against matmul 8x9"]
    assert list(reported_differences(side, {**side, "reported": ["matmul 4x4"]})) == []
    assert list(reported_differences(side, {"library": "oneDNN"})) == []


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("aten.sort.default", CAPABILITY),
        ("torch.ops.x", CAPABILITY),
        ("extern_kernels.addmm", MKL_CBWR),
        ("mkldnn.linear", ONEDNN_ISA),
    ],
)
def test_libraries_of_a_region(name: str, first: str) -> None:
    """The settings of a region are those of the libraries that its code calls."""
    region = {"library": "Inductor", "names": [name], "reported": ["…"]}
    assert settings_choosing("inductor.fused.default", region, region, DIFFER)[0].name == first


def test_a_setting_without_words() -> None:
    """It is said what it was on both sides."""
    differing = [NamedDifference("default_dtype", "float32", "float64"), NamedDifference("grad_mode", "on", "off")]
    text = settings_text("aten.mm.default", ({}, {}), differing)
    assert text == "default_dtype was float32 in A and float64 in B, and B ran it without grad mode"


def test_the_precision_of_products_on_a_cpu() -> None:
    """Below "highest" oneDNN takes products from MKL; CUDA's flags, which change with it, say nothing of this op."""
    differing = [NamedDifference("cuda.matmul.tf32", "False", "True"), NamedDifference("matmul_precision", "a", "b")]
    text = settings_text("aten.addmm.default", (MKL, MKL), differing)
    assert text == "matmul_precision was a in A and b in B"


@pytest.mark.parametrize(("count", "more"), [(2, ""), (3, ""), (4, ", and 1 more settings differ")])
def test_many_settings(count: int, more: str) -> None:
    """Three are named."""
    names = ["grad_mode", "inference_mode", "flush_denormal", "deterministic_algorithms"][:count]
    clauses = ["with grad mode", "in inference mode", "with denormal numbers flushed to zero"][:count]
    text = settings_text("aten.mm.default", ({}, {}), [NamedDifference(name, "off", "on") for name in names])
    assert text == ", and ".join(f"B ran it {clause}" for clause in clauses) + more
