"""Names of GPU kernels, as they came out of profilers: what each tells, and what is made of it for people.

The names are from public places: NVIDIA/cutlass#1025, #999, #2286 and pull request 896 (CUTLASS's own), from profiles
in pytorch/pytorch#51382, #90204, microsoft/onnxruntime#9244, sgl-project/sglang#22353, karpathy/nanochat#105,
GindaChen/nsys-ai#582, huggingface/blog#3408, CoffeeBeforeArch/nvbit_tools#1, and from published profiler tables of
PyTorch programs on A100, H100 and B200.
"""

from __future__ import annotations

import pytest
import torch

from rltrace.diff.judging.kernels import kernel_differences
from rltrace.trace.evidence import kernel_text
from rltrace.trace.kernel_names import LONGEST, in_words, read_name

TF32 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4::Params)"
)
FP32 = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(cutlass_80_simt_sgemm::Params)"

PRODUCTS = [
    (TF32, "cutlass", "sm80", "128×64", "tf32"),
    (FP32, "cutlass", "sm80", "128×128", "fp32"),
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", "cutlass", "sm80", "128×128", "fp16"),
    ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1", "cutlass", "sm75", "256×128", "bf16"),
    ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "cutlass", "", "256×128", "tf32"),
    ("cutlass_tensorop_tf32_s1688gemm_tf32_256x128_16x3_nn_align4", "cutlass", "", "256×128", "tf32"),
    ("cutlass_tensorop_h16816gemm_128x128_32x5_nn_align8", "cutlass", "", "128×128", "fp16 summed in fp16"),
    ("cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16", "cutlass", "sm80", "128×64", "int8"),
    ("ampere_sgemm_128x64_tn", "cuBLAS", "ampere", "128×64", "fp32"),
    ("ampere_sgemm_64x32_sliced1x4_nn", "cuBLAS", "ampere", "64×32", "fp32"),
    ("volta_sgemm_128x64_nn", "cuBLAS", "volta", "128×64", "fp32"),
    (
        "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
        "cuBLAS",
        "ampere",
        "64×64",
        "fp16",
    ),
    ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn", "cuBLAS", "ampere", "256×128", "bf16"),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", "cuBLAS", "turing", "128×128", "fp16"),
    (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "cuBLAS",
        "sm90",
        "128×128",
        "tf32",
    ),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "cuBLAS",
        "sm90",
        "64×64",
        "bf16",
    ),
    (
        "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize256x64x32_stage3_warpsize4x1x1_g1"
        "_tensor16x8x16_execute_kernel__5x_cudnn",
        "cuDNN",
        "sm80",
        "256×64",
        "fp16",
    ),
    ("nvjet_tst_128x24_64x11_2x1_v_bz_TNT", "cuBLAS", "", "128×24", "bf16"),
    ("nvjet_sm90_hss_320x128", "cuBLAS", "sm90", "320×128", "fp16"),
    ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", "cuBLAS", "sm100", "64×16", "bf16"),
    (
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
        "memory-efficient attention",
        "sm80",
        "64×64",
        "fp32",
    ),
    (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false,"
        " cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)",
        "flash attention",
        "",
        "128×128",
        "bf16",
    ),
]

OTHERS = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float,"
        " at::native::AddFunctor<float>>, at::detail::Array<char*, 3>>(int, float, float)",
        "vectorized_elementwise_kernel<4 AddFunctor float>",
        "ATen",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<int=4, at::native::BinaryFunctor<float, float, bool,"
        " at::native::CompareEqFunctor<float>>, at::detail::Array<char*, int=3>>(int, float, float)",
        "vectorized_elementwise_kernel<4 CompareEqFunctor float>",
        "ATen",
    ),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}"
        "::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
        "elementwise_kernel<128 direct_copy_kernel_cuda bfloat16>",
        "ATen",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>"
        "(cublasLt::cublasSplitKParams<float>, float const*)",
        "splitKreduce_kernel<32 float>",
        "cuBLAS",
    ),
    ("triton_poi_fused__unsafe_view_gelu_mul_0", "triton_poi_fused__unsafe_view_gelu_mul_0", "Inductor"),
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "NCCL",
    ),
    ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)", "memory"),
    ("_gdn_fla_recompute_w_packed_kernel", "_gdn_fla_recompute_w_packed_kernel", ""),
    ("oneDNN convolution jit:avx512_core", "oneDNN convolution jit:avx512_core", ""),
    ("MKL SGEMM(N,N,256,64,784) CNR:AVX2", "MKL SGEMM(N,N,256,64,784) CNR:AVX2", ""),
    ("extern_kernels.mm", "extern_kernels.mm", ""),
    ("", "", ""),
]


@pytest.mark.parametrize(("full", "library", "architecture", "tile", "precision"), PRODUCTS)
def test_what_a_product_tells(full: str, library: str, architecture: str, tile: str, precision: str) -> None:
    """Library, architecture, tile and precision, where they are there; the whole name is kept."""
    name = read_name(full)
    assert (name.library, name.architecture, name.tile, name.precision) == (library, architecture, tile, precision)
    assert name.full == full and name.words == f"{library} {tile} {precision}"
    assert len(name.short) <= LONGEST


@pytest.mark.parametrize(("full", "short", "library"), OTHERS)
def test_what_is_left_of_templates(full: str, short: str, library: str) -> None:
    """What is computed and with which type; names that are none of these are left as they are."""
    name = read_name(full)
    assert (name.short, name.library, name.words) == (short, library, short)


def test_in_no_more_words_than_tell_them_apart() -> None:
    """Two that read alike are told by their short names, and these by the whole, where they have to be."""
    other = TF32.replace("16x6_tn", "16x6_nn")
    assert in_words([TF32, FP32]) == ["cutlass 128×64 tf32", "cutlass 128×128 fp32"]
    assert in_words([TF32, TF32, FP32]) == ["cutlass 128×64 tf32", "cutlass 128×64 tf32", "cutlass 128×128 fp32"]
    assert in_words([TF32, other])[1] == "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4"
    alike = ["void f<at::native::A<1>>(int)", "void f<at::native::A<2>>(int)"]
    assert in_words(alike) == alike
    assert in_words([]) == []


def test_a_difference_of_kernels_in_a_sentence() -> None:
    """As the report has it."""
    a, b = {"names": [TF32]}, {"names": [FP32]}
    assert kernel_differences(a, b) == ["kernels cutlass 128×64 tf32 against cutlass 128×128 fp32"]
    assert kernel_differences(a, {"names": []}) == ["kernels cutlass 128×64 tf32 against nothing"]
    assert kernel_text(a) == "cutlass 128×64 tf32"


def test_torch_demangles() -> None:
    """What a driver hands out mangled, torch puts into words; that is done where a name is recorded."""
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
    told = read_name(torch._C._demangle(mangled))
    assert told.short == "vectorized_elementwise_kernel<4 CUDAFunctor_add float>"
