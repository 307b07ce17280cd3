"""What oneDNN and MKL print, taken apart. The lines are as they came from torch 2.13 and older versions of oneDNN."""

import pytest

from rltrace.rerun.library_output import parse

MATMUL = (
    "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:ab::f0"
    " wei:bf16::blocked:ab::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user attr-post-ops:sum,,64x784:784x256,19.2241"
)
GELU = (
    "onednn_verbose,v1,primitive,exec,cpu,eltwise,jit:avx2,forward_training,data:f32::blocked:ab::f0,"
    "attr-scratchpad:user,alg:eltwise_gelu_erf alpha:0 beta:0,64x784,6.40918"
)
SGEMM = (
    "MKL_VERBOSE SGEMM(N,N,256,64,784,0x7ffcce149650,0x564c6dd35800,256,0x564c6dd04780,784,0x7ffcce149670,"
    "0x564c6ddf9880,256) 24.29ms CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:2"
)
HEADER = (
    "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture Intel(R) Architecture"
    " processors, Lnx 2.60GHz lp64 gnu_thread"
)


@pytest.mark.parametrize(
    ("line", "name", "reported"),
    [
        (MATMUL, "oneDNN matmul brg_matmul:avx512_core_bf16", "matmul,brg_matmul:avx512_core_bf16,undef,"),
        (GELU, "oneDNN eltwise jit:avx2", "eltwise,jit:avx2,forward_training,"),
        (
            "onednn_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:abcd:f0,,alg:direct,mb2,0.1",
            "oneDNN convolution jit:avx2",
            "convolution,jit:avx2,forward_training,",
        ),
        (SGEMM, "MKL SGEMM(N,N,256,64,784)", "SGEMM(N,N,256,64,784,*,*,256,*,784,*,*,256) CNR:OFF NThr:2"),
        (SGEMM.replace("CNR:OFF", "CNR:AVX2"), "MKL SGEMM(N,N,256,64,784) CNR:AVX2", "SGEMM(N,N,256,64,784,*"),
        (
            "MKL_VERBOSE FFT(srfo784*64:784:784,input_strides:{0,1},tLim:2,desc:0x564c6df21840) 15.60us CNR:OFF TID:0"
            "  NThr:2",
            "MKL FFT(srfo784*64:784:784,input_strides:{0,1},tLim:2)",
            "FFT(srfo784*64:784:784,",
        ),
    ],
)
def test_a_line(line: str, name: str, reported: str) -> None:
    """The name is library, primitive or function, and implementation or shape; times and addresses are left out."""
    said = parse([line])
    assert said.names == (name,)
    assert said.reported[0].startswith(reported)
    assert "0x" not in said.reported[0] and "ms" not in said.reported[0].split()[-1]


def test_what_the_libraries_say_of_themselves() -> None:
    """It is not taken for what they run."""
    said = parse(
        [
            HEADER,
            "onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)",
            "onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2",
            "onednn_verbose,v1,info,cpu,isa:Intel AVX2",
            "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,exec_time",
        ]
    )
    assert said.names == ()
    assert said.libraries == {"MKL": HEADER.removeprefix("MKL_VERBOSE "), "oneDNN": "v3.12.0, isa:Intel AVX2"}


def test_lines_of_several_threads_have_one_order() -> None:
    """Whichever printed first; and equal ones in a row are counted."""
    first, second = SGEMM, SGEMM.replace("TID:0", "TID:1").replace("784,0", "16,0")
    assert parse([first, second]) == parse([second, first])
    assert parse([GELU, GELU, MATMUL]).names == ("oneDNN eltwise jit:avx2 ×2", parse([MATMUL]).names[0])


def test_the_lines_of_others_are_passed_over() -> None:
    """A program may print whatever it likes, even something that begins alike."""
    for line in (
        "loss 3.1",
        "",
        "onednn_verbose,",
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul",
        "MKL_VERBOSE",
    ):
        assert parse([line]).names == ()
