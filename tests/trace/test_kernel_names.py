"""Names of GPU kernels, as they came out of profilers: what each says, and how reports show it.

The names are from public places: NVIDIA/cutlass#1025, #999, #2286 and pull request 896 (CUTLASS's own), from profiles
in pytorch/pytorch#51382, #75240, #90204, microsoft/onnxruntime#9244, sgl-project/sglang#22353, karpathy/nanochat#105,
GindaChen/nsys-ai#582, huggingface/blog#3408, CoffeeBeforeArch/nvbit_tools#1, aiqm/torchani#518, and from published
profiler tables of PyTorch programs on A100, H100, B200 and AMD's GPUs.
"""

import pytest

from rltrace.diff.base.kernels import kernel_differences
from rltrace.extensions.kernels.profiler.launch_matching import demangle
from rltrace.trace.kernels.evidence import kernel_text
from rltrace.trace.kernels.names import MAX_SHORT, distinct_names

TF32 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4::Params)"
)
SHORT_TF32, SHORT_FP32 = (
    "cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4",
    "cutlass_80_simt_sgemm_128x128_8x4_nt_align1",
)
FP32 = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(cutlass_80_simt_sgemm::Params)"

OTHERS = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native:"
        ":AddFunctor<float>>, at::detail::Array<char*, 3>>(int, float, float)",
        "vectorized_elementwise_kernel<4 AddFunctor float>",
    ),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kerne"
        "l_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambd"
        "a(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
        "elementwise_kernel<128 direct_copy_kernel_cuda bfloat16>",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasLt::cub"
        "lasSplitKParams<float>, float const*)",
        "splitKreduce_kernel<32 float 16 1 1 0>",
    ),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bf"
        "loat16, float, false, true, true, false, 6, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__"
        "nv_bfloat16 const>, float> >(cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float> >)",
        "gemvx::kernel<bfloat16 0 1 1 0 6 0>",
    ),
    (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, at:"
        ":native::<unnamed>::UnaryOpFunctor<c10::BFloat16, (int)2, (int)1, (int)1>, at::native::Copy<c10::BFloat16, c"
        "10::BFloat16>>(T1, T2, T3...)",
        "multi_tensor_apply_kernel<UnaryOpFunctor Copy bfloat16>",
    ),
    (
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<float, std::plus<float> >::"
        "Policy900, float const*, float*, at_cuda_detail::cub::ScanTileState<float, true>, std::plus<float>, at_cuda_"
        "detail::cub::NullType, int, float, false>(float const*, float*, int)",
        "DeviceScanKernel<plus float>",
    ),
    (
        "_ZN2at6native32tensor_kernel_scan_innermost_dimIdZZZNS0_31launch_logcumsumexp_cuda_kernelERKNS_10TensorBaseE"
        "S4_lENKUlvE_clEvENKUlvE_clEvEUlddE_EEvPT_PKS8_jjjS8_T0_",
        "tensor_kernel_scan_innermost_dim<laun…cumsumexp_cuda_kernel>",
    ),
    (
        "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400200_NS::detail::wrapped_scan_"
        "config<rocprim::ROCPRIM_400200_NS::default_config, long>, (rocprim::ROCPRIM_400200_NS::detail::target_arch)9"
        "42, rocprim::ROCPRIM_400200_NS::detail::scan_impl<long, std::plus<long> >(void*)>(long)",
        "scan_impl<plus long>",
    ),
    (
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "add_rmsnorm_quant_kernel<bfloat16 256 16 0 0 1 1>",
    ),
    (
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdPipelineProblemID"
        "F16bDF16bfNS_18Rmsnorm2dFwdTraitsILb1ELNS_21Rmsnorm2dFusedAddEnumE0EEEEEEEEEJNSM_5KargsEEEEvDpT1_",
        "Rmsnorm2dFwd<Rmsnorm2dFwdPipelineOnePass bfloat16>",
    ),
    ("_Z11mine_kernelILi4EDF16bLi8EEvPT_", "mine_kernel<4 bfloat16 8>"),
    ("_Z11mine_kernelILi4E3a b", "mine_kernel<4>"),
    (
        "triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_18",
        "triton_red_fused_add_addmm_mul_native…plit_unsqueeze_view_18",
    ),
    ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]"),
    ("__amd_rocclr_fillBufferAligned", "__amd_rocclr_fillBufferAligned"),
    ("triton_poi_fused__unsafe_view_gelu_mul_0", "triton_poi_fused__unsafe_view_gelu_mul_0"),
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ),
    ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
    ("_gdn_fla_recompute_w_packed_kernel", "_gdn_fla_recompute_w_packed_kernel"),
    ("oneDNN convolution jit:avx512_core", "oneDNN convolution jit:avx512_core"),
    ("MKL SGEMM(N,N,256,64,784) CNR:AVX2", "MKL SGEMM(N,N,256,64,784) CNR:AVX2"),
    ("extern_kernels.mm", "extern_kernels.mm"),
    ("", ""),
]


@pytest.mark.parametrize(("full", "short"), OTHERS)
def test_what_is_left_of_templates(full: str, short: str) -> None:
    """What is computed and with which type; names that are none of these are left as they are."""
    assert distinct_names([full]) == [short]


def test_each_name_in_its_shortest_form_that_is_distinct() -> None:
    """The short name, also where one is given twice, of each once."""
    assert distinct_names([TF32, TF32, FP32]) == [SHORT_TF32, SHORT_TF32, SHORT_FP32]
    assert distinct_names([]) == []


TENSILE = "Cijk_Alik_Bljk_BBS_BH_MT32x32x256_MI16x16x1_SN_GSUAMBSK_ISA942_NTA0_NEPBS8_K1"

SHORT = [
    (TENSILE, "Tensile gfx942 BBS MT32x32x256 MI16x16 SK"),
    ("Cijk_Ailk_Bljk_SB_MT16x16x16_SE_AF0EM1_GSU1_ISA000_K1_WGM1", "Tensile SB MT16x16x16"),
    ("k" * MAX_SHORT, "k" * MAX_SHORT),
    ("k" * (MAX_SHORT + 1), f"{'k' * 37}…{'k' * 22}"),
    ("void f<(((8)>(0))), at::native::AddFunctor<float> >(int)", "f<AddFunctor float>"),
    ("void f<at::native::AddFunctor<float", "f<AddFunctor float>"),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#3}::operator()() const::{lambda(long)#1}, 4, at::native::memory::LoadWithCast<1>,"
        " at::native::memory::StoreWithCast<1> >(int)",
        "unrolled_elementwise_kernel<direct_co…uda LoadWithCast long>",
    ),
]


@pytest.mark.parametrize(("full", "short"), SHORT)
def test_a_short_name_keeps_what_distinguishes_kernels(full: str, short: str) -> None:
    """A name that was cut off is read as far as it goes."""
    assert distinct_names([full]) == [short]
    assert len(short) <= MAX_SHORT


REDUCTION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::func_wrapper_t<bool, at::native::"
    "and_kernel_cuda(at::TensorIterator&)::{lambda()#1}>, unsigned int, bool, 4> >(at::native::ReduceOp<bool>)"
)

ALIKE = [
    (REDUCTION, REDUCTION.replace("bool, 4> >(", "bool, 4, 4> >("), "", " (… 4)"),
    ("void f<at::native::A<1>>(int)", "void f<at::native::A<2>>(int)", " (… A 1)", " (… A 2)"),
    (
        TENSILE.replace("NTA0_NEPBS8", "NLCA1_NLCB1_ONLL1_PGR2_PLR1"),
        TENSILE.replace("NTA0_NEPBS8", "NLCA3_NLCB3_ONLL0_PGR1_PLR0"),
        " (… NLCA1 NLCB1 ONLL1 PGR2 …)",
        " (… NLCA3 NLCB3 ONLL0 PGR1 …)",
    ),
    ("_ZN7ck_tile6kentryILi1ENS_4NormEEEvv", "_ZN7ck_tile6kentryILi2ENS_4NormEEEvv", " (… 1)", " (… 2)"),
    (TENSILE, TENSILE.replace("NTA0_NEPBS8", "NTA4_NEPBS16"), " (… NTA0 NEPBS8)", " (… NTA4 NEPBS16)"),
    (
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdILNS_21Rmsnorm2dFusedAddEnumE0EEEEEvDpT1_",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdILNS_21Rmsnorm2dFusedAddEnumE1EEEEEvDpT1_",
        " (… Rmsnorm2dFusedAddEnum 0)",
        " (… Rmsnorm2dFusedAddEnum 1)",
    ),
]


@pytest.mark.parametrize(("a", "b", "tail_a", "tail_b"), ALIKE)
def test_names_that_differ_in_their_tail_show_what_differs(a: str, b: str, tail_a: str, tail_b: str) -> None:
    """And never the whole names, which may have thousands of characters."""
    shown = distinct_names([a, b])
    assert shown[0].endswith(tail_a) and shown[1].endswith(tail_b) and shown[0] != shown[1]
    assert shown[0].removesuffix(tail_a) == shown[1].removesuffix(tail_b)
    assert max(map(len, shown)) <= MAX_SHORT


def test_names_that_differ_in_more_than_there_is_room_for_have_checksums() -> None:
    """Also then no two of a trace look alike, in at most as many characters."""
    names = [f"k_{'x' * 40}_{'y' * 30}{n}_{'z' * 40}" for n in range(40)]
    shown = distinct_names(names)
    assert len(set(shown)) == len(names) and max(map(len, shown)) <= MAX_SHORT
    assert distinct_names(names) == shown
    two = [f"{TENSILE}_QQQQQQQQQ_RRRRRRRRRRRR_S{n}" for n in (1, 2)]
    *alike, other = distinct_names([*two, f"{TENSILE}_T"])
    assert [len(name.rpartition(" ~")[2]) for name in alike] == [4, 4] and alike[0] != alike[1]
    assert other == "Tensile gfx942 BBS MT32x32x256 MI16x16 SK (… T)"


def test_a_long_name_with_a_long_tail_is_cut_in_its_middle() -> None:
    """Half of what there is room for is its beginning."""
    one, other = (TENSILE.replace("NTA0_NEPBS8", f"NLCA{n}_NLCB{n}_ONLL{n}_PGR{n}") for n in (1, 2))
    assert distinct_names([one, other])[0] == "Tensile gfx942 B…2x256 MI16x16 SK (… NLCA1 NLCB1 ONLL1 PGR1)"


def test_a_difference_of_kernels_in_a_sentence() -> None:
    """As the report has it."""
    a, b = {"names": [TF32]}, {"names": [FP32]}
    assert kernel_differences(a, b) == [f"kernels {SHORT_TF32} against {SHORT_FP32}"]
    assert kernel_differences(a, {"names": []}) == [f"kernels {SHORT_TF32} against nothing"]
    pinned, pageable = ({"names": [f"Memcpy DtoH (Device -> {memory})"]} for memory in ("Pinned", "Pageable"))
    assert kernel_differences(pinned, pageable) == [] and kernel_differences(pinned, a) != []
    assert kernel_text(a) == SHORT_TF32


MANGLED = [
    (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        "vectorized_elementwise_kernel<4 CUDAFunctor_add float>",
    ),
    (
        "_ZN7cutlass7Kernel2I68cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8EEvNT_6ParamsE",
        "cutlass_80_wmma_tensorop_bf16_s161616…_16x16_128x1_tn_align8",
    ),
    (
        "_Z17gemv2T_kernel_valIiiffffLi128ELi16ELi4ELi4ELb0ELb1E18cublasGemvParamsExIi30cublasGemvTensorStridedBatched"
        "IKfES3_S1_IfEfEEvT11_T4_S7_",
        "gemv2T_kernel_val<float 128 16 4 4 0 1>",
    ),
    (
        "_ZN3cub16DeviceScanKernelINS_15AgentScanPolicyILi128ELi15EiLNS_18BlockLoadAlgorithmE2ELNS_17CacheLoadModifierE0E"
        "LNS_19BlockStoreAlgorithmE2ELNS_18BlockScanAlgorithmE2ENS_15MemBoundScalingILi128ELi15EiEEEEPKiPiNS_13ScanTile"
        "StateIiLb1EEENS_3SumEiiEEvT0_T1_T2_iT3_T4_T5_",
        "DeviceScanKernel<Sum int>",
    ),
]


@pytest.mark.parametrize(("mangled", "words"), MANGLED)
def test_a_mangled_name_is_kept_as_c_writes_it(mangled: str, words: str) -> None:
    """What a driver hands out mangled, torch puts into words where a name is recorded; ROCm's endings are gone."""
    whole = demangle(mangled)
    assert not whole.startswith("_Z") and "(" in whole
    assert distinct_names([whole]) == [words]
    assert demangle(f"{mangled}.kd") == whole


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", "_gdn_fla_recompute_w_packed_kernel", "_Znonsense", ""])
def test_any_other_name_is_kept_as_it_is(name: str) -> None:
    """Nothing is made of what is not mangled, or cannot be read."""
    assert demangle(name) == name
