"""Launches joined to rows on real profiles of GPUs that others have published: what Kineto writes down there.

Three stretches, as facts (names, ids, microseconds): the last layer in a step of a network on a Tesla V100, May 2021,
from the tests of Kineto's viewer (pytorch/kineto, tb_plugin/test/gpu_metrics_input.json); a product in a backward pass
on a card that runs kernels for Ampere, October 2022, from those of Holistic Trace Analysis
(facebookresearch/HolisticTraceAnalysis, tests/data/call_stack/backward_thread.json); and a product of BERT on an H100,
from those of TraceLens (AMD-AGI/TraceLens, tests/traces/h100). No recorder ran in these programs: the brackets of a
dispatch mode are put around the ops that it would have seen; all else is as it was written, but for the length of some
names.
"""

import pytest

from rltrace.extensions.kernels.profiler.launch_matching import BRACKET, Launch, ProfilerEvent, join
from rltrace.trace.kernels.names import distinct_names

PROGRAM, ENGINE = 24_572, 24_610
"""Threads: the program's, and the autograd engine's for the device."""

OPS = {  # torch's id: name, thread, start, duration
    33: ("empty_strided", PROGRAM, 645, 51),
    34: ("copy_", PROGRAM, 720, 65),
    32: ("to", PROGRAM, 631, 168),
    54: ("as_strided", PROGRAM, 1978, 14),
    53: ("transpose", PROGRAM, 1968, 36),
    52: ("t", PROGRAM, 1941, 98),
    56: ("view", PROGRAM, 2077, 60),
    58: ("empty", PROGRAM, 2233, 41),
    57: ("mm", PROGRAM, 2161, 197),
    60: ("view", PROGRAM, 2416, 17),
    59: ("_unsafe_view", PROGRAM, 2384, 79),
    55: ("matmul", PROGRAM, 2057, 422),
    61: ("add_", PROGRAM, 2497, 103),
    51: ("linear", PROGRAM, 1932, 683),
    64: ("empty", PROGRAM, 2827, 41),
    66: ("empty", PROGRAM, 2955, 35),
    67: ("as_strided", PROGRAM, 3020, 11),
    65: ("sum", PROGRAM, 2930, 176),
    63: ("mse_loss", PROGRAM, 2753, 445),
    74: ("fill_", PROGRAM, 3576, 49),
    73: ("zero_", PROGRAM, 3553, 97),
    83: ("empty_strided", PROGRAM, 4150, 53),
    82: ("empty_like", PROGRAM, 4137, 81),
    84: ("fill_", PROGRAM, 4235, 50),
    81: ("ones_like", PROGRAM, 4128, 169),
    89: ("empty", ENGINE, 4708, 79),
    88: ("empty_like", ENGINE, 4680, 146),
    91: ("fill_", ENGINE, 4885, 93),
    90: ("zero_", ENGINE, 4858, 147),
    87: ("zeros_like", ENGINE, 4647, 369),
    92: ("mse_loss_backward", ENGINE, 5048, 122),
    86: ("mse_loss_backward", ENGINE, 4603, 614),
}

CALLS = (  # of the runtime: name, CUPTI's id, the op's, thread, start, duration
    ("cudaMemcpyAsync", 323, 34, PROGRAM, 752, 12),
    ("cudaStreamSynchronize", 324, 34, PROGRAM, 765, 7),
    ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 363, 57, PROGRAM, 2305, 2),
    ("cudaLaunchKernel", 364, 57, PROGRAM, 2309, 15),
    ("cudaLaunchKernel", 369, 61, PROGRAM, 2558, 15),
    ("cudaLaunchKernel", 377, 63, PROGRAM, 2895, 16),
    ("cudaLaunchKernel", 388, 65, PROGRAM, 3075, 15),
    ("cudaLaunchKernel", 395, 74, PROGRAM, 3601, 16),
    ("cudaLaunchKernel", 429, 84, PROGRAM, 4262, 15),
    ("cudaLaunchKernel", 440, 91, ENGINE, 4932, 30),
    ("cudaLaunchKernel", 446, 92, ENGINE, 5127, 26),
)

COPY = "Memcpy HtoD (Pageable -> Device)"
GEMM, ADD = "gemmSN_TN_kernel_64addr", "unrolled_elementwise_kernel<AddFunctor>"
MSE, SUM, FILL = "mse_kernel_cuda", "reduce_kernel<512, 1, ReduceOp>", "vectorized_elementwise_kernel<4, FillFunctor>"
MSE_BACKWARD = "mse_backward_cuda_kernel"
"""Names of kernels, without most of their template arguments."""

ONE, WARPS = (1, 1, 1), (64, 1, 1)

ON_DEVICE = (  # name, CUPTI's id, the op's, start, duration, grid, block
    (COPY, 323, 34, 767, 1, (), ()),
    (GEMM, 364, 57, 2325, 2, (1, 2, 1), (128, 1, 1)),
    (ADD, 369, 61, 2575, 2, ONE, WARPS),
    (MSE, 377, 63, 2912, 1, ONE, WARPS),
    (SUM, 388, 65, 3092, 2, ONE, (32, 1, 1)),
    (FILL, 395, 74, 3619, 1, ONE, WARPS),
    (FILL, 429, 84, 4279, 1, ONE, WARPS),
    (FILL, 440, 91, 4962, 1, ONE, WARPS),
    (MSE_BACKWARD, 446, 92, 5153, 2, ONE, WARPS),
)

ROWS = (33, 34, 52, 56, 57, 59, 61, 63, 73, 83, 84, 86)
"""Ops that a mode below autograd sees, those aside that run within another of them."""

EXPECTED = {34: [COPY], 57: [GEMM], 61: [ADD], 63: [MSE, SUM], 73: [FILL], 84: [FILL], 86: [FILL, MSE_BACKWARD]}
"""What was launched for each, by what stands in the profile; nothing for the others."""


def host(name: str, thread: int, start: float, duration: float, correlation: int = 0) -> ProfilerEvent:
    """An event of the host; microseconds."""
    return ProfilerEvent(name, int(1000 * start), int(1000 * (start + duration)), thread, correlation)


def step(*, named: bool = True) -> list[ProfilerEvent]:
    """The step on the V100; ``named``: launches name the op around them, as they do there."""
    events = [host(f"aten::{name}", thread, start, took, id_) for id_, (name, thread, start, took) in OPS.items()]
    for id_ in ROWS:
        _, thread, start, took = OPS[id_]
        events.append(host(BRACKET, thread, start - 0.2, took + 0.4))
    for name, correlation, op, thread, start, took in CALLS:
        call = host(name, thread, start, took, correlation)
        events.append(call._replace(linked=op * named, runtime=True))
    for name, correlation, op, start, took, grid, block in ON_DEVICE:
        event = host(name, 0, start, took, correlation)
        events.append(event._replace(linked=op * named, device=True, grid=grid, block=block))
    return events


@pytest.mark.parametrize("named", [True, False])
def test_a_step_on_a_v100(named: bool) -> None:
    """Copies, nested ops, several kernels of an op, the engine's thread: by ids, or by when calls ran."""
    joined = join(step(named=named), [f"aten.{OPS[id_][0]}.default" for id_ in ROWS])
    assert (joined.why, joined.lost, joined.strays) == ("", frozenset(), ())
    found = {id_: [launch.name for launch in launches] for id_, launches in zip(ROWS, joined.launches, strict=True)}
    assert found == {id_: EXPECTED.get(id_, []) for id_ in ROWS}
    assert joined.launches[ROWS.index(57)] == (Launch(GEMM, (1, 2, 1), (128, 1, 1)),)


def test_a_row_whose_kernel_is_missing_on_the_device_is_lost() -> None:
    """Its launch was seen on the host alone; the other rows keep theirs."""
    events = [event for event in step() if not (event.device and event.correlation == 446)]
    joined = join(events, [f"aten.{OPS[id_][0]}.default" for id_ in ROWS])
    assert (joined.why, joined.lost) == ("", frozenset({ROWS.index(86)}))
    assert [launch.name for launch in joined.launches[ROWS.index(63)]] == [MSE, SUM]


CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>"


def test_a_product_in_a_backward_pass_on_ampere() -> None:
    """There the launch names no op at all; the call stands within the op, on the engine's thread."""
    engine, start = 24_922, 1_666_149_715_364_000
    call = ProfilerEvent("cudaLaunchKernel", 374_000, 384_000, engine, 2_131_433, runtime=True)
    kernel = ProfilerEvent(CUTLASS, 64_509_000, 64_554_000, 0, 2_131_433, 0, True, (32, 1, 2), (128, 1, 1))
    events = [
        host("autograd::engine::evaluate_function: AddmmBackward0", engine, 322, 145, 67_242),
        host("AddmmBackward0", engine, 324, 102, 67_243),
        host(BRACKET, engine, 329.8, 58.4),
        host("aten::mm", engine, 330, 58, 67_247),
        call,
        kernel,
    ]
    moved = [event._replace(start=event.start + 1000 * start, end=event.end + 1000 * start) for event in events]
    joined = join(moved, ["aten.mm.default"])
    assert joined.launches == ((Launch(CUTLASS, (32, 1, 2), (128, 1, 1)),),)
    assert (joined.lost, joined.strays) == (frozenset(), ())
    assert distinct_names([CUTLASS]) == ["cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4"]


PRODUCT = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)"


def product(*, captured: bool = False) -> list[ProfilerEvent]:
    """An ``addmm`` on the H100: cuBLASLt clears 0 bytes, for which the device does nothing, and launches a kernel."""
    thread, op = 19_392, 49
    calls = (
        ("cudaDeviceGetAttribute", 8365, 848.9, 0.6),
        ("cudaMemsetAsync", 8367, 850.7, 0.3),
        ("cuLaunchKernel", 8368, 851.3, 7.6),
    )
    runtime = [
        host(name, thread, start, took, id_)._replace(linked=op, runtime=True) for name, id_, start, took in calls
    ]
    kernel = host(PRODUCT, 0, 860.4, 5.8, 8368)._replace(linked=op, device=True, grid=(40, 2, 1), block=(128, 1, 1))
    around = [
        host(BRACKET, thread, 821.6, 39.8),
        host("aten::addmm", thread, 821.8, 39.4, op),
        host("aten::empty", thread, 831, 3.2, 50),
    ]
    return [*around, *runtime, *([] if captured else [kernel])]


def test_a_memset_of_nothing_does_not_lose_the_kernel_of_a_product() -> None:
    """The row has the kernel that was seen; where that is captured into a graph, nothing of the row is known."""
    joined = join(product(), ["aten.addmm.default"])
    assert joined.launches == ((Launch(PRODUCT, (40, 2, 1), (128, 1, 1)),),)
    assert (joined.why, joined.lost, joined.strays) == ("", frozenset(), ())
    assert join(product(captured=True), ["aten.addmm.default"]).lost == {0}


def test_a_copy_that_is_missing_beside_nothing_else_is_lost() -> None:
    """A row of which only a copy or memset is expected has nothing if that is not on the device."""
    for name in ("cudaMemcpyAsync", "cudaMemsetAsync", "hipMemcpyWithStream", "hipMemset"):
        call = host(name, PROGRAM, 12, 3, 7)._replace(runtime=True)
        events = [host(BRACKET, PROGRAM, 9, 20), host("aten::copy_", PROGRAM, 10, 10, 3), call]
        assert join(events, ["aten.copy_.default"]).lost == {0}, name


OTHERS = {  # ops from the outside in, the row's last: name, start, duration, id; calls; what ran: CUPTI's id, the op's
    "MI250": (
        [("aten::to", 127.4, 172.4, 5), ("aten::_to_copy", 137.5, 146.2, 6), ("aten::copy_", 182.9, 84.6, 8)],
        [("hipMemcpyWithStream", 189.6, 60.2, 117, 8)],
        [("Memcpy HtoD (Host -> Device)", 205.5, 22.4, 117, 8)],
    ),
    "A100": (  # no call names an op
        [
            ("aten::_convolution", 30_525_553, 10_841_121.3, 181),
            ("aten::cudnn_convolution", 30_525_577, 10_840_892, 182),
        ],
        [("cudaLaunchKernel", 38_310_706, 3_055_567, 5110, 0), ("cudaLaunchKernel", 41_366_294, 18.4, 5112, 0)],
        [
            ("void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::Params)", 41_366_270, 4, 5110, 0),
            ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", 41_366_307, 1_035, 5112, 0),
        ],
    ),
    "B200": (
        [("aten::linear", 6439.4, 1734, 249), ("aten::addmm", 6458.3, 1707.6, 253)],
        [("cuLaunchKernelEx", 8122.6, 28.6, 377, 253)],
        [("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", 8149.7, 7.9, 377, 253)],
    ),
}
"""From profiles of a small training program on an MI250 and of AlexNet on an A100 (HolisticTraceAnalysis, tests/data),
and of vLLM on a B200 (TraceLens, tests/traces/b200)."""


@pytest.mark.parametrize("device", OTHERS)
def test_one_row_on_other_devices(device: str) -> None:
    """Composite ops around it, calls of ROCm's runtime and of CUDA's driver, calls that name no op."""
    ops, calls, ran = OTHERS[device]
    *outer, (name, start, took, id_) = ops
    events = [
        *(host(op, PROGRAM, begin, whole, number) for op, begin, whole, number in outer),
        host(BRACKET, PROGRAM, start - 0.1, took + 0.2),
        host(name, PROGRAM, start, took, id_),
        *(host(call, PROGRAM, *at)._replace(linked=op, runtime=True) for call, *at, op in calls),
        *(host(kernel, 0, *at)._replace(linked=op, device=True) for kernel, *at, op in ran),
    ]
    joined = join(events, [f"{name.replace('::', '.')}.default"])
    assert (joined.why, joined.lost, joined.strays) == ("", frozenset(), ())
    assert [launch.name for launch in joined.launches[0]] == [kernel for kernel, *_ in ran]


def test_kernels_of_a_graph_launch_are_no_rows() -> None:
    """One call of SGLang's decoding on an MI300X starts hundreds: they are counted by name and by the call."""
    call = host("hipGraphLaunch", PROGRAM, 463_751.9, 1572.6, 92_178)._replace(runtime=True)
    kernels = [
        ("vectorized_gather_kernel", 463_765.9),
        ("add_rmsnorm_quant_kernel", 463_779.4),
        ("Cijk_Alik_Bljk_BBS_BH", 463_785.1),
        ("add_rmsnorm_quant_kernel", 463_810.2),
    ]
    ran = [host(name, 0, start, 5, 92_178)._replace(device=True) for name, start in kernels]
    around = [host(BRACKET, PROGRAM, 10, 20, 2), host("aten::mm", PROGRAM, 11, 18, 3)]
    joined = join([*around, call, *ran], ["aten.mm.default"])
    assert (joined.why, joined.launches) == ("", ((),))
    assert joined.strays == (
        ("vectorized_gather_kernel", "hipGraphLaunch", 1),
        ("add_rmsnorm_quant_kernel", "hipGraphLaunch", 2),
        ("Cijk_Alik_Bljk_BBS_BH", "hipGraphLaunch", 1),
    )
