"""Names of GPU kernels, parsed: library, architecture, tile and precision, and a short name to show.

A field that a name does not contain is not guessed, and an unknown name is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# --- kernel forms -----------------------------------------------------------------------------------------------------
#
# Naming schemes: CUTLASS (its profiler's documentation of procedural names), cuBLAS and cuDNN (``ampere_…``,
# ``sm80_xmma_…``, ``nvjet_…``; undocumented), Tensile (rocBLAS and hipBLASLt), attention kernels,
# PyTorch's templates, CUB, Inductor, NCCL.


Fields = tuple[str, str, str, str]
"""Library, architecture, tile, precision; "": not in the name."""

Reader = Callable[[str, "re.Match[str]"], Fields]

# --- precision ------------------------------------------------------------------------------------------------------

_TYPES = {
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "f32": "fp32",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "i8": "int8",
    "s8": "int8",
    "u8": "int8",
}

_SUMMED = {"s": "fp32", "d": "fp64", "i": ""}
"""Accumulator type by the letter before ``gemm``, or before the shape of the tensor core's instruction."""


_PRODUCT = re.compile(
    r"(?:^|_)([hsdi])(\d{3,6})?(tf32|bf16|f16|fp16)?(?:gemm|cudnn|fprop|dgrad|wgrad)(?:_relu|_optimized|_analytic)*"
    r"(?:_(tf32|bf16|f16|fp16|s8|u8))?"
)


def _gemm_precision(full: str, *, tensor_cores: bool) -> str:
    """Precision of a name with ``[type_]s16816gemm[_type]`` or ``sgemm`` in it."""
    found = _PRODUCT.search(full)
    if found is None:
        return ""
    letter, shape, inside, after = found.groups()
    before = re.search(r"_(tf32|bf16|f16|fp16|e4m3|e5m2|s8)_$", full[: found.start(1)])
    named = inside or after or (before[1] if before else "")
    if named:
        multiplied = _TYPES[named]
        return f"{multiplied} summed in fp16" if letter == "h" else multiplied
    if letter == "h":
        return "fp16 summed in fp16"
    if letter == "s" and (shape == "1688" or (shape is not None and tensor_cores)):
        return "tf32"  # CUTLASS's name for float32 on tensor cores
    return _SUMMED[letter]


def _xmma_precision(full: str) -> str:
    """``f32f32_tf32f32_f32``: types of A and B, of the multiplication and the accumulator, of the output."""
    kind = "tf32|bf16|f16|f32|f64|e4m3|e5m2|i8"
    found = re.search(rf"_(?:{kind}){{2}}_({kind})(f16|f32|f64|i32)_", full)
    return "" if found is None else _multiplied(found[1], found[2])


def _multiplied(kind: str, summed: str) -> str:
    multiplied = _TYPES[kind]
    return f"{multiplied} summed in fp16" if multiplied == "fp16" and summed == "f16" else multiplied


# --- products and convolutions --------------------------------------------------------------------------------------


def _cutlass(full: str, found: re.Match[str]) -> Fields:
    library = "cuDNN" if "cudnn" in full[: found.start()] else "cutlass"
    architecture = f"sm{found['arch']}" if found["arch"] else ""
    precision = _gemm_precision(found[0], tensor_cores="tensorop" in found[0])
    return library, architecture, _tile(found["tile"]), precision


def _cutlass_3(full: str, found: re.Match[str]) -> Fields:
    """``…gemm_bf16_bf16_f32_void_bf16_128x128x64``: A, B, accumulator, C, D, and the tile of a block."""
    tensor_cores = found["a"] == "f32" and "tensorop" in found[0]  # for which float32 is tf32
    precision = "tf32" if tensor_cores else _multiplied(found["a"], found["summed"])
    return "cutlass", f"sm{found['arch']}", _tile(found["tile"]), precision


def _cublas(full: str, found: re.Match[str]) -> Fields:
    return "cuBLAS", found["arch"], _tile(found["tile"]), _gemm_precision(full, tensor_cores=False)


def _cudnn(full: str, found: re.Match[str]) -> Fields:
    return "cuDNN", found["arch"], _tile(found["tile"]), _gemm_precision(full, tensor_cores=False)


def _xmma(full: str, found: re.Match[str]) -> Fields:
    library = "cuDNN" if "cudnn" in full or "implicit_gemm" in full else "cuBLAS"
    tile = re.search(r"tilesize(\d+x\d+)", full)
    return library, found["arch"], _tile(tile and tile[1]), _xmma_precision(full)


_NVJET = {"t": "bf16", "h": "fp16", "q": "fp8", "r": "fp8", "d": "fp64"}
"""Precision by the first letter. For ``s``, float32, the name itself contains tf32 or not."""


def _nvjet(full: str, found: re.Match[str]) -> Fields:
    precision = found["more"] or _NVJET.get(found["types"][0], "")
    return "cuBLAS", found["arch"] or "", _tile(found["tile"]), precision


_TENSILE = {"H": "fp16", "B": "bf16", "S": "fp32", "D": "fp64", "F8": "fp8", "B8": "fp8", "I8": "int8", "X": "tf32"}


def _tensile(full: str, found: re.Match[str]) -> Fields:
    """``Cijk_Alik_Bljk_HHS_BH_…_MT64x64x32_…_ISA1201_…``: types, the tile of a work group, the instruction set."""
    tile, isa = re.search(r"_MT(\d+x\d+)", full), re.search(r"_ISA([1-9]\w*?)_|_(gfx\w+)$", f"{full}_")
    architecture = "" if isa is None else isa[2] or f"gfx{isa[1]}"
    kind = _TENSILE.get(found["types"][:2]) or _TENSILE.get(found["types"][:1], "")
    return "Tensile", architecture, _tile(tile and tile[1]), kind


# --- attention ------------------------------------------------------------------------------------------------------

_CONSTANTS = re.compile(r"cute::tuple<" + r",\s*".join([r"cute::C<(?:\(int\))?(\d+)>"] * 3))


def _attention(full: str, found: re.Match[str]) -> Fields:
    efficient = re.search(r"fmha_cutlass[FB]_(f16|bf16|f32)_(?:not)?aligned_(\d+x\d+)(?:_\w*?)?_(sm\d+)", full)
    if efficient is not None:
        return "memory-efficient attention", efficient[3], _tile(efficient[2]), _TYPES[efficient[1]]
    traits = re.search(r"traits<(\d+), (\d+), (\d+)", full.replace("(int)", ""))
    kind = "bf16" if "bfloat16" in full else "fp16" if "half_t" in full else "fp8" if "float_e4m3" in full else ""
    architecture = re.search(r"(?:Fwd|Bwd|Forward|Backward)Sm(\d+)", full)
    tile = f"{traits[2]}x{traits[3]}" if traits else _cute_tile(full)
    return "flash attention", f"sm{architecture[1]}" if architecture else "", _tile(tile), kind


def _cudnn_attention(full: str, found: re.Match[str]) -> Fields:
    return "cuDNN attention", found["arch"], _tile(found["tile"]), ""


def _cute(full: str, found: re.Match[str]) -> Fields:
    kinds = [
        kind for name, kind in (("bfloat16_t", "bf16"), ("half_t", "fp16"), ("tfloat32_t", "tf32")) if name in full
    ]
    architecture = re.search(r"arch::Sm(\d+)|[Mm]ainloopSm(\d+)", full)
    version = f"sm{architecture[1] or architecture[2]}" if architecture else ""
    return "cutlass", version, _tile(_cute_tile(full)), kinds[0] if kinds else ""


def _cute_tile(full: str) -> str | None:
    """The first shape of constants that is too large to be a cluster of blocks."""
    shapes = (found.groups() for found in _CONSTANTS.finditer(full))
    return next(
        (f"{rows}x{columns}" for rows, columns, depth in shapes if min(map(int, (rows, columns, depth))) > 8), None
    )


# --- the rest -------------------------------------------------------------------------------------------------------


def _plain(library: str, precision: str = "") -> Reader:
    return lambda full, found: (library, "", "", precision)


def _tile(text: str | None) -> str:
    return (text or "").replace("x", "×")


_KIND = "tf32|bf16|f16|f32|f64|e4m3|e5m2|s8|u8"

FORMS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"cudnn_generated_\w*?sdpa_(?P<arch>sm\d+)_\w*?knob_\d+_(?P<tile>\d+x\d+)"), _cudnn_attention),
    (re.compile(r"fmha_cutlass|flash_(?:fwd|bwd)|flash::|FlashAttention"), _attention),
    (
        re.compile(
            rf"cutlass3x_sm(?P<arch>\d+)_(?:\w*?)(?:tensorop|simt)_\w*?gemm_(?P<a>{_KIND})_(?:{_KIND})_(?P<summed>\w+?)"
            rf"_\w+?_\w+?_(?P<tile>\d+x\d+)x\d+_"
        ),
        _cutlass_3,
    ),
    (
        re.compile(r"cutlass(?:_(?P<arch>\d{2,3}))?_(?:wmma_)?(?:tensorop|simt)_\w*?gemm\w*?_(?P<tile>\d+x\d+)"),
        _cutlass,
    ),
    (re.compile(r"cutlass(?:3x_sm(?P<arch>\d+))?_(?:tensorop|simt)_\w*?_(?P<tile>\d+x\d+)(?=_|$)"), _cutlass),
    (re.compile(r"\b(?P<arch>maxwell|volta|turing|ampere|ada|hopper)_\w*?cudnn\w*?_(?P<tile>\d+x\d+)"), _cudnn),
    (re.compile(r"\b(?P<arch>maxwell|volta|turing|ampere|ada|hopper)_\w*?gemm\w*?_(?P<tile>\d+x\d+)"), _cublas),
    (re.compile(r"\b(?P<arch>sm\d+)_xmma_"), _xmma),
    (
        re.compile(
            r"\bnvjet_(?:(?P<arch>sm\d+)_)?(?P<types>[a-z]+)_(?:(?P<more>tf32|bf16|fp16)_)?(?:mma_)?(?P<tile>\d+x\d+)"
        ),
        _nvjet,
    ),
    (re.compile(r"\bCijk_\w+?_(?P<types>F8|B8|I8|[HBSDX])[A-Z0-9]*_"), _tensile),
    (re.compile(r"\bcutlass::"), _cute),
    (re.compile(r"\bnccl\w*Kernel"), _plain("NCCL")),
    (re.compile(r"magma_sgemm"), _plain("MAGMA", "fp32")),
    (re.compile(r"magma_dgemm"), _plain("MAGMA", "fp64")),
    (
        re.compile(r"cublas|gemv\w*_kernel|gemmSN_\w+|splitKreduce_kernel|\bdot_kernel|\breduce_1Block_kernel"),
        _plain("cuBLAS"),
    ),
    (re.compile(r"cudnn|implicit_convolve_|precomputed_convolve_|winograd"), _plain("cuDNN")),
    (re.compile(r"^triton_(?:poi|red|per|tem|mm|for|spl)_"), _plain("Inductor")),
    (re.compile(r"^(?:\[CUDA )?(?:[Mm]emcpy|[Mm]emset)|^__amd_rocclr_"), _plain("memory")),
    (re.compile(r"^(?:void )?(?:at_cuda_detail::)?(?:hip)?cub::"), _plain("CUB")),
    (re.compile(r"^(?:void )?(?:at_cuda_detail::)?thrust::"), _plain("Thrust")),
    (re.compile(r"^(?:void )?rocprim::"), _plain("rocPRIM")),
    (re.compile(r"\bat::|\bat_cuda_detail::|softmax_warp_|^_ZN2at"), _plain("ATen")),
)
"""The first pattern that is found counts."""


# --- short names ------------------------------------------------------------------------------------------------------


MAX_SHORT = 60
"""Characters of a short name."""

_BOILERPLATE = frozenset(
    """
    at native std array detail char long int unsigned signed short bool void const c10 cuda lambda operator
    anonymous namespace unnamed TensorIteratorBase TensorIterator TensorBase Tensor Array gpu_kernel_impl
    gpu_kernel_impl_nocast
    AUnaryFunctor BUnaryFunctor BinaryFunctor OffsetCalculator TrivialOffsetCalculator LoadWithoutCast StoreWithoutCast
    func_wrapper_t func_wrapper ReduceOp binary_internal memory policies function_traits opmath_type accscalar_t true
    false pytorch_flash cutlass instance size_t uint8_t templates CUDAGeneratorImpl PhiloxCudaState
    at_cuda_detail cub thrust cuda_cub detail scan reduce core NullType ScanTileState TensorInfo
    TensorListMetadata TensorListScalarListMetadata FusedOptimizerTensorListMetadata
    _cuda_scatter_gather_internal_kernel cudnn cublasLt cublasGemvParams cublasGemvParamsEx cublasDotParams
    cublasGemvTensorStridedBatched cublasGemvTensorBatched cublasGemvTensor cudnnKernelDataType_t
    ADAM_MODE cute tuple flash arch Flash_fwd_kernel_traits Flash_bwd_kernel_traits Flash_kernel_traits
    """.split()  # noqa: SIM905  forty lines are not clearer
)
"""Words in template brackets that do not describe the computation."""

_VERSIONED = re.compile(r"_V_\d+(?:_SM_\w+)?|THRUST_\d+\w*|CUB_\d+\w*")
"""Namespaces of CUB and Thrust that contain their version and architectures."""

_KINDS = {"float": "float", "double": "double", "Half": "half", "__half": "half", "BFloat16": "bfloat16"}
_KINDS |= {"__nv_bfloat16": "bfloat16", "bfloat16_t": "bfloat16", "half_t": "half", "nv_bfloat16": "bfloat16"}


def shortened(full: str) -> str:
    """A short name such as ``vectorized_elementwise_kernel<4 CUDAFunctor_add float>``."""
    plain = full.strip().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if plain.startswith("_ZN"):
        return _cut(_last_part(plain))
    name = _function(plain)
    start = name.find("<")
    if start < 0:
        return _cut(plain if " " in name else name.rpartition("::")[2] or name)
    head, inside = name[:start], name[start + 1 :]
    base = head.rpartition("::")[2]
    if base == "kernel":  # distinct only with its namespace
        base = "::".join(head.split("::")[-2:])
    if "::Kernel" in head or base.startswith("Kernel"):  # cutlass: the one argument is the name
        inner = re.match(r"\w+", inside)
        if inner is not None and inner[0].startswith("cutlass"):
            return _cut(inner[0])
    words = _main_words(inside[: _closing(inside)])
    return _cut(f"{base}<{' '.join(words)}>" if words else base)


def _last_part(mangled: str) -> str:
    """The function in a name that cannot be demangled (some of nvcc's lambdas), without namespaces."""
    last, at = mangled, len("_ZN")
    while (length := re.match(r"\d+", mangled[at:])) is not None:
        at += len(length[0])
        last = mangled[at : at + int(length[0])] or last
        at += int(length[0])
    return last


def _function(name: str) -> str:
    """The name without return type and argument types; unchanged where it is not a C++ function."""
    depth, start = 0, 0
    for at, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">" and name[at - 1] != "-":
            depth -= 1
        elif depth == 0 and letter == "(":
            return name[:at] if name[:at].rstrip() != name[:at] else name[start:at]
        elif depth == 0 and letter == " " and (name[:at].endswith(">::type") or name[start:at] in ("void", "static")):
            start = at + 1
    return name[start:]


def _closing(text: str) -> int:
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">" and text[at - 1] != "-")
        if depth == 0:
            return at
    return len(text)


def _main_words(inside: str) -> list[str]:
    """The first number, up to two words that name the computation, and the type."""
    first = re.match(r"\s*(?:\(\w+\)|\w+=)?(\d+)", inside)
    words = [word for word in re.findall(r"(?<!\w)[A-Za-z_]\w+", inside) if not _is_boilerplate(word)]
    kinds = list(dict.fromkeys(_KINDS[word] for word in words if word in _KINDS))
    named = list(dict.fromkeys(word for word in words if word not in _KINDS))
    return [*([first[1]] if first else []), *named[:2], *kinds[:1]]


def _is_boilerplate(word: str) -> bool:
    return word in _BOILERPLATE or _VERSIONED.fullmatch(word) is not None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHORT else f"{text[: MAX_SHORT - 1]}…"


# --- kernel names -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelName:
    """One name, parsed; a field that the name does not contain is ""."""

    full: str
    short: str
    """Without return type, arguments, namespaces and most template arguments."""
    library: str = ""
    """cutlass, cuBLAS, cuDNN, ATen, Inductor, NCCL …"""
    architecture: str = ""
    """``sm80``, ``ampere``, ``gfx942``."""
    tile: str = ""
    """``128×64``: rows and columns of the output tile of a block of threads."""
    precision: str = ""
    """Of the multiplication, and of the accumulator if named: ``tf32``, ``bf16``, ``fp16 summed in fp16``."""

    @property
    def words(self) -> str:
        """``cutlass 128×128 tf32`` if these fields are known; else the short name."""
        if not (self.library and (self.tile or self.precision)):
            return self.short
        return " ".join(filter(None, [self.library, self.tile, self.precision]))


@lru_cache(maxsize=4096)
def read_name(full: str) -> KernelName:
    """Parse a demangled name."""
    for pattern, read in FORMS:
        found = pattern.search(full)
        if found is not None:
            return KernelName(full, shortened(full), *read(full, found))
    return KernelName(full, shortened(full))


def distinct_names(names: Sequence[str]) -> list[str]:
    """The shortest form that keeps the names distinct: their words, their short names, or the full names."""
    read = [read_name(name) for name in names]
    for shown in ([name.words for name in read], [name.short for name in read]):
        if len(set(shown)) == len(set(names)):
            return shown
    return list(names)
