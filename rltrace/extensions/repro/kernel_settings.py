"""Settings that can change the kernel of an op on this machine: their syntax, and which are worth a try.

Owns the grid. On a CPU all of them are tried for every op. On a GPU there are many, so rules link them with operators
and dtypes (PyTorch's notes on CUDA semantics and on reproducibility, the documentation of cuBLAS). Settings that are
left out are reported; for unknown operators all are tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rltrace.errors import UsageError
from rltrace.fingerprint.host import ACTING, INSTRUCTIONS

OPTIONS: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "--cpu-capability",
    "MKL_CBWR": "--mkl-cbwr",
    "ONEDNN_MAX_CPU_ISA": "--onednn-isa",
    "OMP_NUM_THREADS": "--omp-threads",
    "threads": "--threads",
    "tf32": "--tf32",
    "alignment": "--alignment",
}
"""Settings with a value, and the script's options for them; others use ``--set``."""

COUNTS = ("threads", "OMP_NUM_THREADS", "alignment")
"""Settings whose value is a number from 1 on."""

SWITCHES = frozenset(
    """
    sdp matmul_precision cuda.matmul.tf32 cuda.matmul.precision cuda.matmul.fp16_reduced cuda.matmul.bf16_reduced
    cuda.matmul.fp16_accumulation cuda.blas cuda.linalg cudnn.enabled cudnn.benchmark cudnn.deterministic cudnn.tf32
    cuda.conv.precision cudnn.depthwise_kernel mkldnn.enabled mkldnn.deterministic mkldnn.matmul.precision
    mkldnn.conv.precision sdp.flash sdp.mem_efficient sdp.math sdp.cudnn sdp.math_reduced
    grad_mode inference_mode flush_denormal default_dtype deterministic_warn_only
    """.split()  # noqa: SIM905  twenty lines are not clearer
)
"""Settings of torch, by their names in ``rltrace.rerun.torch_flags``, which needs torch."""

DETERMINISTIC = "deterministic"
OF = "the settings of "
"""Name of the setting that stands for all recorded settings of a side."""

ALIGNMENTS = ("16", "4")
"""In bytes. Kernels check whether 16 bytes can be read at once, and the offset of an address from that."""


@dataclass(frozen=True)
class KernelSetting:
    """One way to run the op; a name without a value is a switch. Empty: unchanged."""

    name: str = ""
    value: str = ""
    more: tuple[KernelSetting, ...] = ()
    """Further settings."""

    def __str__(self) -> str:
        if self.name == OF:
            own = f"{OF}{self.value.upper()}"
        else:
            own = f"{self.name}={self.value}" if self.value else self.name or "as is"
        return " and ".join([own, *map(str, self.more)])

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the script."""
        more = tuple(option for other in self.more for option in other.options)
        if not self.name:
            return more
        if self.name == DETERMINISTIC:
            return (f"--{DETERMINISTIC}", *more)
        if self.name == OF:
            return ("--as", self.value, *more)
        if self.name in OPTIONS:
            return (OPTIONS[self.name], self.value, *more)
        return ("--set", f"{self.name}={self.value}", *more)


def parse_setting(text: str) -> KernelSetting:
    """``threads=1``, ``MKL_CBWR=AVX2``, ``deterministic``, several with commas between. Raises UsageError."""
    first, *more = (_parse_one(part.strip(), text) for part in text.split(","))
    names = [setting.name for setting in (first, *more)]
    if len(set(names)) < len(names):
        raise UsageError(f"--setting {text}: it sets a name twice")
    return KernelSetting(first.name, first.value, tuple(more))


def _parse_one(text: str, whole: str) -> KernelSetting:
    name, _, value = text.partition("=")
    if value and name in COUNTS and not (value.isdecimal() and int(value)):
        raise UsageError(f"--setting {whole}: {name} is a number from 1 on, not {value!r}")
    if text == DETERMINISTIC or (value and (name in OPTIONS or name in SWITCHES or name.startswith(ACTING))):
        return KernelSetting(name, value)
    names = ", ".join([*OPTIONS, *sorted(SWITCHES)])
    raise UsageError(
        f"--setting {whole}: give {DETERMINISTIC}, or NAME=VALUE with NAME a variable that selects kernels or one "
        f"of {names}"
    )


# --- on a GPU -------------------------------------------------------------------------------------------------------

PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "_scaled_mm", "_int_mm",
    "_grouped_mm", "_scaled_grouped_mm", "_addmm_activation", "addr", "matmul", "bilinear", "_trilinear",
)  # fmt: skip
CONVOLUTIONS = ("convolution", "cudnn_conv", "miopen_conv", "_slow_conv", "slow_conv", "thnn_conv", "conv_", "_conv_")
NORMS = ("native_batch_norm", "_native_batch_norm", "_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
RECURRENT = ("_cudnn_rnn", "miopen_rnn")
ATTENTION = (
    "_scaled_dot_product_", "scaled_dot_product_", "_fused_sdp_choice", "_flash_attention", "_efficient_attention",
    "_cudnn_attention", "_native_multi_head_attention", "_transformer_encoder_layer", "_triton_multi_head_attention",
)  # fmt: skip
LINALG = (
    "linalg_", "_linalg_", "cholesky", "_cholesky", "geqrf", "ormqr", "lu_", "_lu_", "triangular_solve", "lstsq", "svd",
)  # fmt: skip

FLOAT32, HALF, BFLOAT16 = ("float32", "complex64"), ("float16",), ("bfloat16",)
ANY: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A setting for GPUs, and the operators that it is linked with."""

    name: str
    values: tuple[str, ...]
    operators: tuple[str, ...]
    """Prefixes of their names."""
    dtypes: tuple[str, ...] = ANY
    """One of which must be among the inputs; empty: any."""

    def concerns(self, operator: str, dtypes: Iterable[str]) -> bool:
        return operator.startswith(self.operators) and (not self.dtypes or not {*self.dtypes}.isdisjoint(dtypes))


RULES = (
    Rule("tf32", ("on", "off"), (*PRODUCTS, *CONVOLUTIONS, *RECURRENT, *ATTENTION, *LINALG), FLOAT32),
    Rule("NVIDIA_TF32_OVERRIDE", ("0",), (*PRODUCTS, *CONVOLUTIONS, *RECURRENT, *ATTENTION, *LINALG), FLOAT32),
    Rule("cuda.matmul.fp16_reduced", ("on", "off"), (*PRODUCTS, *ATTENTION), HALF),
    Rule("cuda.matmul.fp16_accumulation", ("on", "off"), (*PRODUCTS, *ATTENTION), HALF),
    Rule("cuda.matmul.bf16_reduced", ("on", "off"), (*PRODUCTS, *ATTENTION), BFLOAT16),
    Rule("cuda.blas", ("cublas", "cublaslt"), PRODUCTS),
    Rule("CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8", ":0:0"), (*PRODUCTS, *LINALG)),
    Rule("CUBLASLT_WORKSPACE_SIZE", ("1024", "32768"), PRODUCTS),
    Rule("DISABLE_ADDMM_CUDA_LT", ("1",), ("addmm", "linear", "_addmm_activation")),
    Rule("cudnn.enabled", ("off",), (*CONVOLUTIONS, *NORMS, *RECURRENT, *ATTENTION)),
    Rule("cudnn.benchmark", ("on", "off"), (*CONVOLUTIONS, *RECURRENT)),
    Rule("cudnn.deterministic", ("on",), (*CONVOLUTIONS, *RECURRENT, *ATTENTION)),
    Rule("cuda.linalg", ("cusolver", "magma"), LINALG),
    Rule("sdp", ("flash", "mem_efficient", "math", "cudnn"), ATTENTION),
    Rule("sdp.math_reduced", ("on",), ATTENTION, (*HALF, *BFLOAT16)),
)

# --- the grid -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpProfile:
    """The facts of an op that select settings."""

    name: str = ""
    """``aten.addmm.default``."""
    dtypes: frozenset[str] = frozenset()
    """dtypes of its inputs."""
    on_gpu: bool = False
    has_inputs: bool = True
    """It has an input that is not empty."""
    aligned: bool = True
    """Its inputs are aligned as an allocator aligns them."""
    grad_mode: bool = True
    flush_denormal: bool = False
    """As recorded, like ``grad_mode``."""


@dataclass
class SettingsGrid:
    """The settings to try, the unchanged op first."""

    tries: list[KernelSetting] = field(default_factory=lambda: [KernelSetting()])
    left_out: list[str] = field(default_factory=list)
    """Names of settings that no rule links with the op."""


def settings(
    op: OpProfile,
    processor: Iterable[str],
    threads: Iterable[int | None],
    *,
    other: str = "",
    everything: bool = False,
) -> SettingsGrid:
    """Every setting worth a try. ``processor``: its features (``avx2``); ``threads``: recorded numbers of threads;
    ``other``: a side that ran under other settings than the first.
    """
    grid = SettingsGrid()
    if other:
        grid.tries.append(KernelSetting(OF, other))
    if op.on_gpu:
        _on_gpu(grid, op, everything)
    else:
        _on_cpu(grid, op, processor, threads)
    if op.has_inputs:
        values = ALIGNMENTS if op.aligned else ("64", *ALIGNMENTS)
        grid.tries += [KernelSetting("alignment", value) for value in values]
    return grid


def _on_cpu(grid: SettingsGrid, op: OpProfile, processor: Iterable[str], threads: Iterable[int | None]) -> None:
    has = {"", *processor}
    cores = os.cpu_count() or 1
    counts = sorted({1, cores, *(count for count in threads if count)})
    grid.tries += [*(KernelSetting("threads", str(count)) for count in counts), KernelSetting(DETERMINISTIC)]
    grid.tries += [
        KernelSetting(variable, value)
        for variable, values in INSTRUCTIONS.items()
        for value, needs in values
        if needs in has
    ]
    grid.tries.append(KernelSetting("mkldnn.enabled", "off"))
    grid.tries.append(KernelSetting("grad_mode", "off" if op.grad_mode else "on"))
    grid.tries.append(KernelSetting("flush_denormal", "off" if op.flush_denormal else "on"))


def _on_gpu(grid: SettingsGrid, op: OpProfile, everything: bool) -> None:
    grid.tries.append(KernelSetting(DETERMINISTIC))
    namespace, _, rest = op.name.partition(".")
    operator = rest.partition(".")[0]
    for rule in RULES:
        if everything or namespace != "aten" or rule.concerns(operator, op.dtypes):
            grid.tries += [KernelSetting(rule.name, value) for value in rule.values]
        else:
            grid.left_out.append(rule.name)
