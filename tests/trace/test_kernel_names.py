"""Names of GPU kernels, as they came out of profilers: what each says, and how reports show it.

The names are from public places: NVIDIA/cutlass#1025, #999, #2286 and pull request 896 (CUTLASS's own), from profiles
in pytorch/pytorch#51382, #75240, #90204, microsoft/onnxruntime#9244, sgl-project/sglang#22353, karpathy/nanochat#105,
GindaChen/nsys-ai#582, huggingface/blog#3408, CoffeeBeforeArch/nvbit_tools#1, aiqm/torchani#518, and from published
profiler tables of PyTorch programs on A100, H100, B200 and AMD's GPUs.
"""

from __future__ import annotations

import pytest

from rltrace.diff.base.kernels import kernel_differences
from rltrace.extensions.kernels.profiler.launch_matching import demangle
from rltrace.trace.kernels.evidence import kernel_text
from rltrace.trace.kernels.names import MAX_SHORT, distinct_names, read_name


@pytest.fixture(autouse=True)
def parsed_anew() -> None:
    """No name is read from the cache, which a process forked from this one has, too."""
    read_name.cache_clear()


TF32 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4::Params)"
)
FP32 = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>(cutlass_80_simt_sgemm::Params)"

PRODUCTS = [
    (TF32, "cutlass", "sm80", "128×64", "tf32"),
    (FP32, "cutlass", "sm80", "128×128", "fp32"),
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", "cutlass", "sm80", "128×128", "fp16"),
    ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "cutlass", "", "256×128", "tf32"),
    ("cutlass_tensorop_tf32_s1688gemm_tf32_256x128_16x3_nn_align4", "cutlass", "", "256×128", "tf32"),
    ("cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16", "cutlass", "sm80", "128×64", "int8"),
    ("ampere_sgemm_128x64_tn", "cuBLAS", "ampere", "128×64", "fp32"),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn", "cuBLAS", "ampere", "64×64", "fp16"),
    (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "cuBLAS",
        "sm90",
        "128×128",
        "tf32",
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
    ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT", "cuBLAS", "sm100", "64×16", "bf16"),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "cuBLAS", "", "256×128", "fp16"),
    ("nvjet_sss_tf32_128x256_TNT", "cuBLAS", "", "128×256", "tf32"),
    ("nvjet_sm100_qqsss_128x128_128x8_2x4_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "cuBLAS", "sm100", "128×128", "fp8"),
    (
        "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_void_bf16_128x256x64_1x1x1_0_tnn_align8"
        "_warpspecialized_pingpong_epi_tma",
        "cutlass",
        "sm90",
        "128×256",
        "bf16",
    ),
    (
        "cutlass3x_sm90_tensorop_gemm_e4m3_e4m3_f32_f32_f32_128x128x128_2x1x1_0_tnn_align16",
        "cutlass",
        "sm90",
        "128×128",
        "fp8",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>"
        "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8::Params)",
        "cutlass",
        "sm80",
        "16×16",
        "bf16",
    ),
    (
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
        "cute::tuple<int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarp"
        "Specialized<2, cute::tuple<cute::C<16>, cute::C<1>, cute::C<1> > >, cute::tuple<cute::C<128>, cute::C<256>,"
        " cute::C<64> >, cutlass::bfloat16_t> > > >(at::cuda::detail::Params)",
        "cutlass",
        "sm90",
        "128×256",
        "bf16",
    ),
    (
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x10_nhwc_align4>"
        "(cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x10_nhwc_align4::Params)",
        "cuDNN",
        "",
        "64×64",
        "tf32",
    ),
    (
        "Cijk_Alik_Bljk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN_LDSB0_AFC1_GSUAMB_GLS0_ISA1201_IU1_K1",
        "Tensile",
        "gfx1201",
        "64×64",
        "fp16",
    ),
    ("Cijk_Ailk_Bljk_SB_MT16x16x16_SE_AF0EM1_GSU1_ISA000_K1_WGM1", "Tensile", "", "16×16", "fp32"),
    ("cutlass_80_tensorop_s16816gemm_bgradb_bf16_64x64_32x6_nn_align8", "cutlass", "sm80", "64×64", "bf16"),
    ("cutlass_75_tensorop_s1688gemm_planar_complex_f16_64x64_nn_align1", "cutlass", "sm75", "64×64", "complex fp16"),
    (
        "cutlass3x_sm90_tensorop_s64x128x8gemm_f32_f32_f32_f32_f32_128x128x32_1x1x1_0_tnn_align4",
        "cutlass",
        "sm90",
        "128×128",
        "tf32",
    ),
    ("ampere_s1688gemm_128x128_ldg4_stages_32x3_nn", "cuBLAS", "ampere", "128×128", "tf32"),
    ("ampere_gcgemm_64x64_nt", "cuBLAS", "ampere", "64×64", "complex fp32"),
    ("volta_sgemm_fp16_32x128_tn", "cuBLAS", "volta", "32×128", "fp16"),
    ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "cuDNN", "volta", "128×64", "fp32"),
    (
        "sm89_xmma_gemm_e4m3e5m2bf16_e4m3e5m2f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x32",
        "cuBLAS",
        "sm89",
        "128×128",
        "fp8",
    ),
    (
        "cutlass3x_sm100_bstensorop_s128x128x32gemm_block_scaled_ue8m0xe4m3_ue8m0xe4m3_f32_bf16_bf16_128x128x128_0_nnn",
        "cutlass",
        "sm100",
        "128×128",
        "block-scaled fp8",
    ),
    (
        "cutlass3x_sm100_tensorop_s128x256x16implicit_gemm_wgrad_f16_f16_f32_void_f16_f32_128x256x64_dyn_cga_align8_2sm",
        "cuDNN",
        "sm100",
        "128×256",
        "fp16",
    ),
    (
        "_ZN7cutlass6KernelINS_4gemm6kernel11GemmGroupedINS1_11threadblock12MmaPipelinedINS1_9GemmShapeILi128ELi128ELi8"
        "EEENS_10bfloat16_tEEEEEEvNT_6ParamsE",
        "cutlass",
        "",
        "128×128",
        "bf16",
    ),
]

OPERATIONS = [
    ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x64_wt32x32x8_ws1x1_wr1x1", "MIOpen wrw 64×128 bf16", ""),
    (
        "void cutlass::device_kernel<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2, cute::tuple<"
        "cute::C<80>, cute::C<128>, cute::C<64> >, cutlass::float_e4m3_t, float> > >(flash::Params)",
        "flash attention backward head-64 80×128 fp8",
        "sm90",
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwd"
        "Sm90<2, cute::tuple<cute::C<8>, cute::C<8>, cute::C<8> >, cute::tuple<cute::C<128>, cute::C<176>,"
        " cute::C<128> >, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, false> > > >(flash::Params)",
        "flash attention forward head-128 128×176 bf16",
        "sm90",
    ),
    (
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
        "memory-efficient attention forward 64×64 fp32",
        "sm80",
    ),
    (
        "fmha_cutlassB_bf16_aligned_128x64_k96_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
        "memory-efficient attention backward head≤96 128×64 bf16",
        "sm80",
    ),
    (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false,"
        " cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)",
        "flash attention forward head-64 128×128 bf16",
        "",
    ),
    (
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false,"
        " cutlass::half_t>, false, false>(pytorch_flash::Flash_fwd_params)",
        "flash attention forward split-KV head-128 64×128 fp16",
        "",
    ),
    (
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 64, 128, 8, 2, 4,"
        " 4, true, false, cutlass::bfloat16_t>, false, false>(pytorch_flash::Flash_bwd_params)",
        "flash attention backward head-64 64×128 bf16",
        "",
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "cuDNN attention forward 64×128",
        "sm90",
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
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}"
        "::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
        "elementwise_kernel<128 direct_copy_kernel_cuda bfloat16>",
        "ATen",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>"
        "(cublasLt::cublasSplitKParams<float>, float const*)",
        "splitKreduce_kernel<32 float 16 1 1 0>",
        "cuBLAS",
    ),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16,"
        " __nv_bfloat16, float, false, true, true, false, 6, false, cublasGemvParamsEx<int, cublasGemvTensorStrided"
        "Batched<__nv_bfloat16 const>, float> >(cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float> >)",
        "gemvx::kernel<bfloat16 0 1 1 0 6 0>",
        "cuBLAS",
    ),
    (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>,"
        " at::native::<unnamed>::UnaryOpFunctor<c10::BFloat16, (int)2, (int)1, (int)1>, at::native::Copy<c10::BFloat16,"
        " c10::BFloat16>>(T1, T2, T3...)",
        "multi_tensor_apply_kernel<UnaryOpFunctor Copy bfloat16>",
        "ATen",
    ),
    (
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<float, std::plus<float> >::"
        "Policy900, float const*, float*, at_cuda_detail::cub::ScanTileState<float, true>, std::plus<float>,"
        " at_cuda_detail::cub::NullType, int, float, false>(float const*, float*, int)",
        "DeviceScanKernel<plus float>",
        "CUB",
    ),
    (  # torch 2.11; libstdc++ cannot demangle it
        "_ZN2at6native32tensor_kernel_scan_innermost_dimIdZZZNS0_31launch_logcumsumexp_cuda_kernelERKNS_10TensorBaseES4_l"
        "ENKUlvE_clEvENKUlvE_clEvEUlddE_EEvPT_PKS8_jjjS8_T0_",
        "tensor_kernel_scan_innermost_dim<laun…cumsumexp_cuda_kernel>",
        "ATen",
    ),
    (
        "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400200_NS::detail::"
        "wrapped_scan_config<rocprim::ROCPRIM_400200_NS::default_config, long>, (rocprim::ROCPRIM_400200_NS::detail::"
        "target_arch)942, rocprim::ROCPRIM_400200_NS::detail::scan_impl<long, std::plus<long> >(void*)>(long)",
        "scan_impl<plus long> ~4edf",
        "rocPRIM",
    ),
    (
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "add_rmsnorm_quant_kernel<bfloat16 256 16 0 0 1 1>",
        "",
    ),
    (
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdPipelineProblemIDF16b"
        "DF16bfNS_18Rmsnorm2dFwdTraitsILb1ELNS_21Rmsnorm2dFusedAddEnumE0EEEEEEEEEJNSM_5KargsEEEEvDpT1_",
        "Rmsnorm2dFwd<Rmsnorm2dFwdPipelineOnePass bfloat16> ~703e",
        "Composable Kernel",
    ),
    ("_Z11mine_kernelILi4EDF16bLi8EEvPT_", "mine_kernel<4 bfloat16 8>", ""),
    ("_Z11mine_kernelILi4E3a b", "mine_kernel<4>", ""),
    (
        "triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_18",
        "triton_red_fused_add_addmm_mul_…plit_unsqueeze_view_18 ~d86f",
        "Inductor",
    ),
    ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]", "memory"),
    ("__amd_rocclr_fillBufferAligned", "__amd_rocclr_fillBufferAligned", "memory"),
    ("triton_poi_fused__unsafe_view_gelu_mul_0", "triton_poi_fused__unsafe_view_gelu_mul_0", "Inductor"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "NCCL"),
    ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)", "memory"),
    ("_gdn_fla_recompute_w_packed_kernel", "_gdn_fla_recompute_w_packed_kernel", ""),
    ("oneDNN convolution jit:avx512_core", "oneDNN convolution jit:avx512_core", ""),
    ("MKL SGEMM(N,N,256,64,784) CNR:AVX2", "MKL SGEMM(N,N,256,64,784) CNR:AVX2", ""),
    ("extern_kernels.mm", "extern_kernels.mm", ""),
    ("", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("full", "library", "architecture", "tile", "precision"), PRODUCTS)
def test_what_the_name_of_a_product_says(full: str, library: str, architecture: str, tile: str, precision: str) -> None:
    """Library, architecture, tile and precision, where they are there; the whole name is kept."""
    name = read_name(full)
    assert (name.library, name.architecture, name.tile, name.precision) == (library, architecture, tile, precision)
    assert name.full == full and name.words == f"{library} {tile} {precision}"
    assert len(name.short) <= MAX_SHORT
    assert ("~" in name.short) == (
        "<" in name.short or library == "Tensile" or (len(full) > MAX_SHORT and "::" not in full)
    )


@pytest.mark.parametrize(("full", "short", "library"), OTHERS)
def test_what_is_left_of_templates(full: str, short: str, library: str) -> None:
    """What is computed and with which type; names that are none of these are left as they are."""
    name = read_name(full)
    assert (name.short, name.library, name.words) == (short, library, short)


@pytest.mark.parametrize(("full", "words", "architecture"), OPERATIONS)
def test_an_operation_is_named_with_its_direction(full: str, words: str, architecture: str) -> None:
    """And attention with its head size, where the name has it; one that is only a bound is written as one."""
    name = read_name(full)
    assert (name.words, name.architecture) == (words, architecture)
    assert len(name.words) <= MAX_SHORT


def test_a_convolution_of_cudnn_is_not_called_a_product_of_cublas() -> None:
    """Both have kernels whose names begin alike; a depthwise convolution's three sizes are no tile of a product."""
    name = read_name(
        "sm80_xmma_depthwise_convolution_fprop_tiling_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize1x10x10_1x3x3"
    )
    assert (name.library, name.tile, name.precision) == ("cuDNN", "", "fp16 summed in fp16")
    assert (
        read_name("sm90_xmma_fprop_image_first_layer_f16f16_f32_f16_nhwckrsc_nhwc_hmma_k16c4r3s3").words == "cuDNN fp16"
    )
    wgrad = "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<float> >(int)"
    assert read_name(wgrad).library == "cuDNN" and read_name(wgrad).short.startswith("ReduceSplitK<float>")
    copy = "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int, cublasLtEpilogue_t, int)"
    assert read_name(copy).words == "cuBLAS (MAGMA) fp32"


def test_each_name_in_its_shortest_form_that_is_distinct() -> None:
    """Words, then words with the architecture, then the short name, then what only one of those alike has."""
    other = TF32.replace("16x6_tn", "16x6_nn")
    older = TF32.replace("cutlass_80", "cutlass_75")
    assert distinct_names([TF32, FP32]) == ["cutlass 128×64 tf32", "cutlass 128×128 fp32"]
    assert distinct_names([TF32, TF32, FP32]) == ["cutlass 128×64 tf32", "cutlass 128×64 tf32", "cutlass 128×128 fp32"]
    assert distinct_names([TF32, older]) == ["cutlass 128×64 tf32 sm80", "cutlass 128×64 tf32 sm75"]
    assert distinct_names([TF32, other, FP32]) == [
        "cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4",
        "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4",
        "cutlass 128×128 fp32",
    ]
    assert distinct_names([]) == []


TENSILE = "Cijk_Alik_Bljk_BBS_BH_MT32x32x256_MI16x16x1_SN_GSUAMBSK_ISA942_NTA0_NEPBS8_K1"

SHORT = [
    (TENSILE, "Tensile gfx942 BBS MT32x32x256 MI16x16 SK ~0000"),
    ("Cijk_Ailk_Bljk_SB_MT16x16x16_SE_AF0EM1_GSU1_ISA000_K1_WGM1", "Tensile SB MT16x16x16 ~0000"),
    ("k" * MAX_SHORT, "k" * MAX_SHORT),
    ("k" * (MAX_SHORT + 1), f"{'k' * 31}…{'k' * 22} ~0000"),
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
    """Where much is left out it ends with a checksum; a name that was cut off is read as far as it goes."""
    shown = read_name(full).short
    assert shown[-4:].isalnum() if short.endswith("~0000") else "~" not in shown
    assert shown.replace(shown[-4:], "0000") == short if short.endswith("~0000") else shown == short
    assert len(shown) <= MAX_SHORT


def test_a_precision_that_is_not_clear_is_not_said() -> None:
    """Two types that the name does not tie to the operands, or none at all."""
    assert read_name("cutlass_80_tensorop_s16816gemm_x_f16_bf16_64x64_nn").precision == ""
    assert read_name("ampere_foogemm_64x64_nn").words == "cuBLAS 64×64"
    assert read_name("ampere_foogemm_64x64_nn").precision == ""
    assert read_name("sm80_xmma_gemm_execute_tilesize64x64x32").words == "cuBLAS 64×64"
    assert read_name("sm80_xmma_gemm_execute_tilesize64x64x32").precision == ""
    assert read_name("void flash::prepare_varlen_num_blocks_kernel<1, true>(int)").operation == ""
    both = "void cutlass::device_kernel<G<cutlass::half_t, cutlass::bfloat16_t> >(int)"
    assert read_name(both).precision == ""


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
    assert kernel_differences(a, b) == ["kernels cutlass 128×64 tf32 against cutlass 128×128 fp32"]
    assert kernel_differences(a, {"names": []}) == ["kernels cutlass 128×64 tf32 against nothing"]
    pinned, pageable = ({"names": [f"Memcpy DtoH (Device -> {memory})"]} for memory in ("Pinned", "Pageable"))
    assert kernel_differences(pinned, pageable) == [] and kernel_differences(pinned, a) != []
    assert kernel_text(a) == "cutlass 128×64 tf32"


MANGLED = [
    (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        "vectorized_elementwise_kernel<4 CUDAFunctor_add float>",
    ),
    (
        "_ZN7cutlass7Kernel2I68cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8EEvNT_6ParamsE",
        "cutlass 16×16 bf16",
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
    assert read_name(whole).words == words
    assert demangle(f"{mangled}.kd") == whole


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", "_gdn_fla_recompute_w_packed_kernel", "_Znonsense", ""])
def test_any_other_name_is_kept_as_it_is(name: str) -> None:
    """Nothing is made of what is not mangled, or cannot be read."""
    assert demangle(name) == name


PAIRS = [
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", TF32, "cuBLAS 256×128 fp16 against cutlass 128×64 tf32"),
    (
        "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT",
        "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_splitK_TNT",
        "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT against nvjet_sm90_tst_192x8_64x8_2x1_v_bz_splitK_TNT",
    ),
    ("ampere_sgemm_128x64_tn", TF32, "cuBLAS 128×64 fp32 against cutlass 128×64 tf32"),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "cuDNN attention forward 64×128 against memory-efficient attention forward 64×128 bf16",
    ),
    (
        "Cijk_Ailk_Bljk_BBS_BH_Bias_MT128x128x16_ISA1201_K1",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_MT64x128x16_ISA1201_K1",
        "Tensile 128×128 bf16 against Tensile 64×128 bf16",
    ),
]


@pytest.mark.parametrize(("a", "b", "sentence"), PAIRS)
def test_two_names_in_a_sentence(a: str, b: str, sentence: str) -> None:
    """Library, tile and precision of both where that distinguishes them; else more of the names."""
    assert kernel_differences({"names": [a]}, {"names": [b]}) == [f"kernels {sentence}"]
