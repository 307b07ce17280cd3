"""Names of GPU kernels, parsed: library, architecture, tile and precision, and a short name to show.

A field that a name does not contain is not guessed, and an unknown name is left as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache, partial
from itertools import accumulate
from zlib import crc32

# --- precision --------------------------------------------------------------------------------------------------------


_TYPES = {
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "f32": "fp32",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "f8": "fp8",
    "e2m1": "fp4",
    "e2m3": "fp6",
    "e3m2": "fp6",
    "f4": "fp4",
    "f6": "fp6",
    "i8": "int8",
    "s8": "int8",
    "u8": "int8",
}

_COMPLEX = {f"c{kind}": f"complex {_TYPES[kind]}" for kind in ("bf16", "f16", "f32", "f64", "i8")}
_TYPES |= _COMPLEX

_SUMMED = {"s": "fp32", "d": "fp64", "i": "", "c": "complex fp32", "z": "complex fp64"}
"""Type by the letter before ``gemm``, or of the accumulator before the shape of the tensor core's instruction."""

_NAMED = "tf32|bf16|fp16|f16|e4m3|e5m2|s8|u8"

_PRODUCT = re.compile(
    rf"(?:^|_)g?([hsdicz])(\d{{3,6}})?({_NAMED})?(?:c?gemm|cudnn|fprop|dgrad|wgrad)"
    rf"(?:_(?:d?relu|d?gelu|bgrad[ab]|optimized|analytic))*(?P<planar>_planar_complex)?(?:_({_NAMED}))?"
)


def _gemm_precision(full: str) -> str:
    """Precision of a name with ``[type_]s16816gemm[_type]`` or ``sgemm`` in it."""
    found = _PRODUCT.search(full)
    if found is None:
        return ""
    letter, shape, inside, planar, after = found.groups()
    named = inside or after
    if not named and letter == "s" and shape is not None:  # on tensor cores
        others = {*re.findall(rf"(?<![a-z0-9])({_NAMED})(?![a-z0-9])", full)}
        if len(others) > 1:
            return ""
        named = next(iter(others), "tf32")  # CUTLASS's name for float32 on tensor cores
    if not named:
        return "fp16 summed in fp16" if letter == "h" else _SUMMED[letter]
    kind = f"complex {_TYPES[named]}" if planar else _TYPES[named]
    return f"{kind} summed in fp16" if letter == "h" else kind


_KIND = "c?(?:bf16|f16|f32|f64|i8)|tf32|e4m3|e5m2|i32"
_XMMA = re.compile(rf"_((?:{_KIND})+)_((?:{_KIND})+)_(?:{_KIND})_")


def _xmma_precision(full: str) -> str:
    """``f32f32_tf32f32_f32``: types of A and B, of the multiplication and the accumulator, of the output."""
    found = _XMMA.search(full)
    if found is None:
        return ""
    operands, computed = (re.findall(_KIND, part) for part in found.groups())
    *multiplied, summed = computed
    is_complex = operands[0] in _COMPLEX
    kinds = [_TYPES.get(kind, "") for kind in dict.fromkeys(multiplied or operands[:2])]
    kinds = [f"complex {kind}" if is_complex and not kind.startswith("complex") else kind for kind in kinds if kind]
    return _multiplied("×".join(dict.fromkeys(kinds)), summed)


def _multiplied(kind: str, summed: str) -> str:
    return f"{kind} summed in fp16" if kind == "fp16" and summed == "f16" else kind


_CLASSES = (
    (r"float_e2m1_t|Float4_e2m1", "fp4"),
    (r"float_e[45]m[32]_t|Float8_e[45]m[32]", "fp8"),
    (r"tfloat32_t", "tf32"),
    (r"b(?:float|hfloat)16_t|BFloat16|__(?:nv|hip)_bfloat16|DF16b", "bf16"),
    (r"half_t\b|half_t[A-Z]|\bHalf\b|__half\b", "fp16"),
)
"""C++ classes of types, narrow ones first: a product of fp8 may have an output of bf16."""


def _class_precision(full: str) -> str:
    """Precision by the classes in the template arguments; "" where it is not clear which one is multiplied."""
    kinds = [kind for pattern, kind in _CLASSES if re.search(pattern, full)]
    return "" if {"bf16", "fp16"} <= {*kinds} else next(iter(kinds), "")


# --- kernel forms -----------------------------------------------------------------------------------------------------
#
# Naming schemes: CUTLASS (its profiler's documentation of procedural names), cuBLAS and cuDNN (``ampere_…``,
# ``sm80_xmma_…``, ``nvjet_…``; undocumented), Tensile (rocBLAS and hipBLASLt), MIOpen, attention kernels,
# PyTorch's templates, CUB, Inductor, NCCL.


@dataclass(frozen=True)
class KernelName:
    """One name, parsed; a field that the name does not contain is ""."""

    full: str
    short: str
    """Without return type, arguments, namespaces and most template arguments; at most ``MAX_SHORT`` characters."""
    library: str = ""
    """cutlass, cuBLAS, cuDNN, ATen, Inductor, NCCL …"""
    architecture: str = ""
    """``sm80``, ``ampere``, ``gfx942``."""
    tile: str = ""
    """``128×64``: rows and columns of the output tile of a block of threads."""
    precision: str = ""
    """Of the multiplication, and of the accumulator if named: ``tf32``, ``bf16``, ``fp16 summed in fp16``."""
    operation: str = ""
    """Where one library has several: ``forward head-64`` of attention, ``wrw`` of MIOpen."""

    @property
    def words(self) -> str:
        """``cutlass 128×128 tf32`` if these fields are known; else the short name."""
        if not (self.library and (self.tile or self.precision)):
            return self.short
        return " ".join(filter(None, [self.library, self.operation, self.tile, self.precision]))


@dataclass(frozen=True)
class Fields:
    """What one form of names contains."""

    library: str
    architecture: str = ""
    tile: str = ""
    precision: str = ""
    operation: str = ""


Reader = Callable[[str, "re.Match[str]"], Fields]


def _cutlass(full: str, found: re.Match[str]) -> Fields:
    library = "cuDNN" if "cudnn" in full[: found.start()] else "cutlass"
    architecture = f"sm{found['arch']}" if found["arch"] else ""
    return Fields(library, architecture, _tile(found["tile"]), _gemm_precision(found[0]))


def _cutlass_3(full: str, found: re.Match[str]) -> Fields:
    """``…gemm_bf16_bf16_f32_void_bf16_128x128x64``: A, B, accumulator, C, D, and the tile of a block."""
    kinds = dict.fromkeys(_TYPES[found[operand]] for operand in ("a", "b"))
    precision = _multiplied("×".join(kinds), found["summed"])
    if "tensorop" in found[0] and (within := re.search(r"x\d+_?(3x|9x)?(tf32|bf16)gemm", full)):
        precision = f"{within[1]}{within[2]}" if within[1] else within[2]  # float32 by products of these
    elif "tensorop" in found[0] and precision == "fp32":
        precision = "tf32"  # what float32 is on tensor cores
    library = "cuDNN" if found["convolution"] else "cutlass"
    scaled = "block-scaled " if found["scaled"] else ""
    return Fields(library, f"sm{found['arch']}", _tile(found["tile"]), scaled + precision)


def _of_maker(library: str, full: str, found: re.Match[str]) -> Fields:
    """``ampere_sgemm_128x64_tn``."""
    return Fields(library, found["arch"], _tile(found["tile"]), _gemm_precision(full))


def _xmma(full: str, found: re.Match[str]) -> Fields:
    is_convolution = re.search(r"cudnn|implicit_gemm|convolution|fprop|dgrad|wgrad", full)
    tile = None if "depthwise" in full else re.search(r"tilesize(\d+x\d+)", full)
    library = "cuDNN" if is_convolution else "cuBLAS"
    return Fields(library, found["arch"], _tile(tile and tile[1]), _xmma_precision(full))


_NVJET = {"t": "bf16", "h": "fp16", "q": "fp8", "r": "fp8", "d": "fp64"}
"""Precision by the first letter. For ``s``, float32, the name itself contains tf32 or not."""


def _nvjet(full: str, found: re.Match[str]) -> Fields:
    precision = found["more"] or _NVJET.get(found["types"][0], "")
    return Fields("cuBLAS", found["arch"] or "", _tile(found["tile"]), precision)


_TENSILE = {"H": "fp16", "B": "bf16", "S": "fp32", "D": "fp64", "F8": "fp8", "B8": "fp8", "I8": "int8", "X": "tf32"}


def _tensile(full: str, found: re.Match[str]) -> Fields:
    """``Cijk_Alik_Bljk_HHS_BH_…_MT64x64x32_…_ISA1201_…``: types, the tile of a work group, the instruction set."""
    tile = re.search(r"_MT(\d+x\d+)", full)
    return Fields("Tensile", _instruction_set(full), _tile(tile and tile[1]), _TENSILE[found["types"]])


def _instruction_set(full: str) -> str:
    found = re.search(r"_ISA([1-9]\w*?)_|_(gfx\w+)$", f"{full}_")
    return "" if found is None else found[2] or f"gfx{found[1]}"


def _miopen(full: str, found: re.Match[str]) -> Fields:
    """``igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_…``: a convolution's forward or a gradient of it."""
    return Fields("MIOpen", "", _tile(found["tile"]), _TYPES.get(found["kind"], ""), found["direction"])


_CONSTANTS = re.compile(r"cute::tuple<" + r",\s*".join([r"cute::C<(?:\(int\))?(\d+)>"] * 3))


def _attention(full: str, found: re.Match[str]) -> Fields:
    efficient = re.search(
        r"fmha_cutlass([FB])_(f16|bf16|f32)_(?:not)?aligned_(\d+x\d+)(?:_(?:k(\d+)|\w*?))?(?:_\w*?)?_(sm\d+)", full
    )
    if efficient is not None:
        direction, kind, tile, head, architecture = efficient.groups()
        operation = ("forward" if direction == "F" else "backward") + (f" head≤{head}" if head else "")
        return Fields("memory-efficient attention", architecture, _tile(tile), _TYPES[kind], operation)
    traits = re.search(r"traits<(\d+), (\d+), (\d+)", full.replace("(int)", ""))
    kind = "bf16" if "bfloat16" in full else "fp16" if "half_t" in full else "fp8" if "float_e4m3" in full else ""
    version = re.search(r"(?:Fwd|Bwd|Forward|Backward)Sm(\d+)", full)
    rows, columns, head = (traits[2], traits[3], traits[1]) if traits else (_cute_tile(full) or ("", "", ""))
    backward = re.search(r"flash_bwd|FlashAttnBwd|Backward|Bwd", full) is not None
    forward = re.search(r"flash_fwd|FlashAttnFwd|Forward|Fwd", full) is not None
    direction = "backward" if backward and not forward else "forward" if forward and not backward else ""
    operation = " ".join(filter(None, [direction, "split-KV" * ("splitkv" in full), f"head-{head}" * bool(head)]))
    tile = f"{rows}x{columns}" if rows else None
    return Fields("flash attention", f"sm{version[1]}" if version else "", _tile(tile), kind, operation)


def _cudnn_attention(full: str, found: re.Match[str]) -> Fields:
    direction = "backward" if re.search(r"bprop|_bwd", full) else "forward" if re.search(r"fprop|_fwd", full) else ""
    return Fields("cuDNN attention", found["arch"], _tile(found["tile"]), "", direction)


_SHAPE = re.compile(r"GemmShape(?:<(\d+), (\d+), (\d+)>|ILi(\d+)ELi(\d+)ELi(\d+)E)")
"""CUTLASS 2's tile of a block, demangled and mangled."""


def _templated_cutlass(full: str, found: re.Match[str]) -> Fields:
    version = re.search(r"arch::Sm(\d+)|[Mm]ainloopSm(\d+)", full)
    architecture = f"sm{version[1] or version[2]}" if version else ""
    shape = _cute_tile(full) or tuple(filter(None, getattr(_SHAPE.search(full), "groups", tuple)()))
    library = "cuDNN" if "cudnn" in full[: len("_ZN19cutlass_cudnn_train")] else "cutlass"
    return Fields(library, architecture, _tile("x".join(shape[:2])), _class_precision(full))


def _cute_tile(full: str) -> tuple[str, str, str] | None:
    """The first shape of constants that is too large to be a cluster of blocks: rows, columns, depth."""
    shapes = (found.groups() for found in _CONSTANTS.finditer(full))
    return next(
        ((rows, columns, depth) for rows, columns, depth in shapes if min(map(int, (rows, columns, depth))) > 8), None
    )


def _plain(library: str, full: str, found: re.Match[str]) -> Fields:
    return Fields(library)


def _magma(precision: str, full: str, found: re.Match[str]) -> Fields:
    """cuBLAS has a copy of some of MAGMA's kernels."""
    return Fields("cuBLAS (MAGMA)" if "cublas" in full else "MAGMA", precision=precision)


def _tile(text: str | None) -> str:
    return (text or "").replace("x", "×")


_ARCHITECTURE = r"(?:\b|_)(?P<arch>maxwell|volta|turing|ampere|ada|hopper|blackwell)"
_OPERAND = r"c?(?:bf16|f16|f32|f64|i8)|tf32|e4m3|e5m2|e2m1|e2m3|e3m2|f8|f6|f4|s8|u8"
_SCALED = r"(?:ue\dm\dx)?"

FORMS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"cudnn_generated_\w*?sdpa_(?P<arch>sm\d+)_\w*?knob_\d+_(?P<tile>\d+x\d+)"), _cudnn_attention),
    (re.compile(r"fmha_cutlass|flash_(?:fwd|bwd)|flash::|FlashAttention"), _attention),
    (
        re.compile(
            r"cutlass3x_sm(?P<arch>\d+)_(?:\w*?)(?:tensorop|simt)_\w*?"
            r"(?:(?P<convolution>(?:implicit_gemm|conv[23]d)_\w*?(?:fprop|dgrad|wgrad)\w*?)|gemm)_(?P<scaled>block_scaled_)?"
            rf"{_SCALED}(?P<a>{_OPERAND})_{_SCALED}(?P<b>{_OPERAND})_(?P<summed>[a-z]+\d+)_\w*?(?<=_)(?P<tile>\d+x\d+)x\d+_"
        ),
        _cutlass_3,
    ),
    (
        re.compile(r"cutlass(?:_(?P<arch>\d{2,3}))?_(?:wmma_)?(?:tensorop|simt)_\w*?gemm\w*?_(?P<tile>\d+x\d+)"),
        _cutlass,
    ),
    (re.compile(r"cutlass(?:3x_sm(?P<arch>\d+))?_(?:tensorop|simt)_\w*?_(?P<tile>\d+x\d+)(?=_|$)"), _cutlass),
    (re.compile(rf"{_ARCHITECTURE}_\w*?cudnn\w*?_(?P<tile>\d+x\d+)"), partial(_of_maker, "cuDNN")),
    (re.compile(rf"{_ARCHITECTURE}_\w*?gemm\w*?_(?P<tile>\d+x\d+)"), partial(_of_maker, "cuBLAS")),
    (re.compile(r"\b(?P<arch>sm\d+)_xmma_"), _xmma),
    (
        re.compile(
            r"\bnvjet_(?:(?P<arch>sm\d+)_)?(?P<types>[a-z]+)_(?:(?P<more>tf32|bf16|fp16)_)?(?:mma_)?(?P<tile>\d+x\d+)"
        ),
        _nvjet,
    ),
    (re.compile(r"\bCijk_\w+?_(?P<types>F8|B8|I8|[HBSDX])[A-Z0-9]*_"), _tensile),
    (
        re.compile(r"^igemm_(?P<direction>fwd|bwd|wrw)_\w*?_(?P<kind>bf16|fp16|fp32|int8)_\w*?bt(?P<tile>\d+x\d+)"),
        _miopen,
    ),
    (re.compile(r"^(?:void )?cutlass\w*::|^_ZN\d+cutlass"), _templated_cutlass),
    (re.compile(r"\bnccl\w*Kernel"), partial(_plain, "NCCL")),
    (re.compile(r"magma_sgemm"), partial(_magma, "fp32")),
    (re.compile(r"magma_dgemm"), partial(_magma, "fp64")),
    (
        re.compile(r"cublas|gemv\w*_kernel|gemmSN_\w+|splitKreduce_kernel|\bdot_kernel|\breduce_1Block_kernel"),
        partial(_plain, "cuBLAS"),
    ),
    (re.compile(r"cudnn|implicit_convolve_|precomputed_convolve_|winograd"), partial(_plain, "cuDNN")),
    (re.compile(r"^triton_(?:poi|red|per|tem|mm|for|spl)_"), partial(_plain, "Inductor")),
    (re.compile(r"^(?:\[CUDA )?(?:[Mm]emcpy|[Mm]emset)|^__amd_rocclr_"), partial(_plain, "memory")),
    (re.compile(r"^(?:void )?(?:at_cuda_detail::)?(?:hip)?cub::"), partial(_plain, "CUB")),
    (re.compile(r"^(?:void )?(?:at_cuda_detail::)?thrust::"), partial(_plain, "Thrust")),
    (re.compile(r"^(?:void )?rocprim::"), partial(_plain, "rocPRIM")),
    (re.compile(r"^(?:void )?ck(?:_tile)?::|^_ZN(?:2ck|7ck_tile)"), partial(_plain, "Composable Kernel")),
    (re.compile(r"\bat::|\bat_cuda_detail::|softmax_warp_|^_ZN2at"), partial(_plain, "ATen")),
)
"""The first pattern that is found counts."""


@lru_cache(maxsize=4096)
def read_name(full: str) -> KernelName:
    """Parse a demangled name."""
    for pattern, read in FORMS:
        found = pattern.search(full)
        if found is not None:
            fields = read(full, found)
            return KernelName(
                full,
                shortened(full),
                fields.library,
                fields.architecture,
                fields.tile,
                fields.precision,
                fields.operation,
            )
    return KernelName(full, shortened(full))


# --- short names ------------------------------------------------------------------------------------------------------


MAX_SHORT = 60
"""Characters of a short name."""

_TAIL = 22
"""Characters of its end that a name keeps where it is cut: Inductor's number, the type."""

_BOILERPLATE = frozenset(
    """
    at native std array detail char unsigned signed void const c10 cuda lambda operator decltype nullptr nullptr_t
    anonymous namespace unnamed TensorIteratorBase TensorIterator TensorBase Tensor Array ArrayRef Scalar
    gpu_kernel_impl gpu_kernel_impl_nocast BinaryFunctor OffsetCalculator TrivialOffsetCalculator LoadWithoutCast
    StoreWithoutCast func_wrapper_t func_wrapper ReduceOp true false size_t CUDAGeneratorImpl PhiloxCudaState
    NullType ScanTileState ReduceByKeyScanTileState TensorInfo TensorListMetadata TensorListScalarListMetadata
    FusedOptimizerTensorListMetadata _cuda_scatter_gather_internal_kernel cublasGemvTensorStridedBatched
    cublasGemvTensorBatched cublasGemvTensor cudnnKernelDataType_t ADAM_MODE tuple Sm70 Sm75 Sm80 Sm89 Sm90 Sm100
    MatrixShape GemmShape sequence Tuple integral_constant _GLOBAL__N_1
    """.split()  # noqa: SIM905  a dozen lines are not clearer
)
"""Words in template brackets that do not describe the computation."""

_MACHINERY = re.compile(
    r"\w*(?:Polic(?:y|ies)\w*|Algorithm|Params\w*|[Tt]raits\w*|Problem|Scaling|_config\w*|config_selector|Generic2dBlockShape)"
    r"|enable_\w+|CUB_\d+\w*|THRUST_\d+\w*|ROCPRIM_\d+_NS|_V_\d+(?:_SM_\w+)?|target_arch"
)
"""Words for how a kernel is tuned or wrapped, and namespaces with a version."""

_FLOATS = {
    "float": "float",
    "double": "double",
    "Half": "half",
    "__half": "half",
    "half_t": "half",
    "DF16_": "half",
    "BFloat16": "bfloat16",
    "bfloat16_t": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "__hip_bfloat16": "bfloat16",
    "DF16b": "bfloat16",
}
_TYPE_NAMES = {**_FLOATS, **{kind: kind.removesuffix("_t") for kind in ("long", "int", "short", "bool", "uint8_t")}}
_SCALAR = {"AUnaryFunctor": "AUnary", "BUnaryFunctor": "BUnary"}
"""Of ATen's binary functions with a number as first, or as second operand."""

_SORTS = re.compile(r"Device\w*Sort")

_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel", "kentry", "trampoline_kernel"})
"""Functions that only call the class, or the algorithm, among their template arguments."""


def shortened(full: str) -> str:
    """A short name such as ``vectorized_elementwise_kernel<4 CUDAFunctor_add float>``.

    Where much is left out (of a long name without template, of Tensile's solutions, of templates that only call a
    class) it ends with a checksum of the full name: ``Tensile gfx942 BBS MT16x32x512 MI16x16 SK ~3fa9``.
    """
    short, is_partial = _shortened(full)
    return f"{_cut(short, MAX_SHORT - len(CHECKSUM) - 1)} {_checksum(full)}" if is_partial else _cut(short)


CHECKSUM = "~0000"


def _checksum(full: str) -> str:
    return f"~{crc32(full.encode()) & 0xFFFF:04x}"


def _shortened(full: str) -> tuple[str, bool]:
    """The short name, not cut, and whether much is left out of it or will be."""
    plain = full.strip().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if plain.startswith("Cijk_"):
        return _short_tensile(plain), True
    if plain.startswith("_Z"):
        base, tokens = _mangled_tokens(plain)
        literals = [token for token in tokens if token.isdigit()]
        first = literals.pop(0) if literals and tokens[0] == literals[0] else ""
        return _templated(base, [token for token in tokens if not token.isdigit()], first, literals)
    name = _function(plain)
    if "<" not in name:
        short = plain if " " in name else name.rpartition("::")[2] or name
        return short, len(short) > MAX_SHORT
    head, _, inside = name.partition("<")
    inside = inside[: _closing(inside)]
    base = head.rpartition("::")[2]
    if base == "kernel":  # distinct only with its namespace
        base = "::".join(head.split("::")[-2:])
    procedural = re.match(r"cutlass\w+(?!\w|::)", inside)
    if procedural is not None:  # the one argument is the name
        return procedural[0], False
    first, *literals = _literals(inside) or [""]
    if not re.match(r"\s*(?:\(\w+\)|\w+=)?\d", inside):
        first, literals = "", [*filter(None, [first]), *literals]
    return _templated(base, _words(inside), first, literals)


def _templated(base: str, arguments: Sequence[str], first: str, literals: Sequence[str]) -> tuple[str, bool]:
    """The first number, up to two words that name the computation, and the type; without words, all numbers."""
    words = [_SCALAR.get(word, word) for word in dict.fromkeys(arguments) if not _is_boilerplate(word)]
    named = [word for word in words if word not in _TYPE_NAMES]
    kinds = list(dict.fromkeys(_TYPE_NAMES[word] for word in words if word in _TYPE_NAMES))
    if _SORTS.match(base):  # of keys and values
        kinds = kinds[:2]
    else:  # integers are often those of an index
        kinds = ([kind for kind in kinds if kind in _FLOATS.values()] or kinds)[:1]
    is_wrapper = base in _WRAPPERS and bool(named)
    if is_wrapper:
        base, named, first = named[0], named[1:2], ""
    shown = [*([first] if first else []), *named[:2], *kinds, *([] if named or is_wrapper else literals)]
    return (f"{base}<{' '.join(shown)}>" if shown else base), is_wrapper


def _words(inside: str) -> list[str]:
    """Identifiers in template brackets, without namespaces, enumerations, pointers to bytes and unsigned sizes."""
    plain = re.sub(r"(\w)\([^()]*\)::", r"\1 ", inside)  # of a function with a lambda in it: its arguments
    plain = re.sub(r"\((?:\w+::)*\w+\)-?\d+|\bunsigned (?:int|long)\b|\bchar(?: const)?\*", " ", plain)
    return re.findall(r"(?<!\w)([A-Za-z_]\w+)(?!\w|::)", plain.replace("unsigned char", "uint8_t"))


def _literals(inside: str) -> list[str]:
    """The numbers among the outermost template arguments; 1 of ``true``."""
    flat = inside
    while (inner := re.sub(r"<[^<>]*>", "", flat)) != flat:
        flat = inner
    found = re.findall(
        r"(?:^|,)\s*(?:\((?:int|long|bool|unsigned int)\)|\w+=)?(\d+(?=[ul]*\s*(?:,|$))|true|false)", flat
    )
    return [{"true": "1", "false": "0"}.get(value, value) for value in found]


def _is_boilerplate(word: str) -> bool:
    return word in _BOILERPLATE or _MACHINERY.fullmatch(word) is not None


_MANGLED = re.compile(
    r"S[0-9A-Z]*_|T\d*_|A\d+_|Dv\d+_|Ul[^E]*E\d*_"
    r"|(?P<type>DF16b|DF16_)"
    r"|L[a-z](?P<number>\d+)E|E(?P<enumerator>\d+)(?=E)"
    r"|L?(?P<length>\d+)"
)
"""What has digits in a mangled name: substitutions, types, values, and the length of an identifier before it."""


def _mangled_tokens(mangled: str) -> tuple[str, list[str]]:
    """The function in a name that cannot be demangled, and identifiers and numbers among its template arguments.

    libstdc++ cannot demangle some of nvcc's lambdas, deep names (CUTLASS), and the type of bfloat16 in clang's names.
    """
    base, tokens, at, is_inside = "", list[str](), 2, False
    while at < len(mangled):
        found = _MANGLED.match(mangled, at)
        if found is None:
            is_inside = bool(base)
            at += 1
            continue
        at = found.end()
        if value := found["type"] or found["number"] or found["enumerator"]:
            tokens.append(value)
        elif found["length"]:
            word = mangled[at : at + int(found["length"])]
            if not word.isidentifier():
                break
            at += len(word)
            if not is_inside:
                base = word
            elif re.match(r"L?\d", mangled[at:]) is None:  # no namespace
                tokens.append(word)
    return base or mangled, tokens


def _function(name: str) -> str:
    """The name without return type and argument types; unchanged where it is not a C++ function."""
    depth, nested, start = 0, 0, 0
    for at, letter in enumerate(name):
        if letter in "()" and depth:  # within template brackets: a comparison, or the arguments of a function
            nested += 1 if letter == "(" else -1
        elif nested:
            continue
        elif letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif depth == 0 and letter == "(":
            return name[:at] if name[:at].rstrip() != name[:at] else name[start:at]
        elif depth == 0 and letter == " " and re.search(r"^(?:void|static)$|>(?:::type)?$", name[start:at]):
            start = at + 1
    return name[start:]


def _closing(text: str) -> int | None:
    """Where the template bracket before ``text`` is closed; None: nowhere. What is in parentheses does not count."""
    while (inner := re.sub(r"\([^()]*\)", lambda found: " " * len(found[0]), text)) != text:
        text = inner
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return at
    return None


def _short_tensile(full: str) -> str:
    """``Tensile gfx942 BBS MT16x32x512 MI16x16 SK``: what distinguishes solutions comes late in their names."""
    types = re.match(r"Cijk_\w+?_([A-Z][A-Z0-9]*?)_", full)
    tile, instruction = re.search(r"_(MT\d+x\d+x\d+)", full), re.search(r"_(MI\d+x\d+)", full)
    split = re.search(r"_SK\d|GSUAMBSK", full)
    return " ".join(
        filter(
            None,
            [
                "Tensile",
                _instruction_set(full),
                types[1] if types else "",
                tile[1] if tile else "",
                instruction[1] if instruction else "",
                "SK" if split else "",
            ],
        )
    )


def _cut(text: str, length: int = MAX_SHORT) -> str:
    """The text, cut in its middle where it is longer: Inductor's number and a template's type are at the end."""
    end = min(_TAIL, length // 2)
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


# --- names beside each other ------------------------------------------------------------------------------------------


MAX_TAIL = 24
"""Characters of what only one of several names has."""


def distinct_names(names: Sequence[str]) -> list[str]:
    """The shortest form of each name that keeps different names distinct: at most ``MAX_SHORT`` characters each.

    Its words, these with the architecture, the short name, or the short name with what only this one of those alike
    has: ``reduce_kernel<512 MeanOps float> (… 4 1)``.
    """
    shown: dict[str, str] = {}
    left = list(dict.fromkeys(names))
    for form in (_words_of, _words_with_architecture, _short_of):
        forms = {name: form(name) for name in left}
        count = Counter([*forms.values(), *shown.values()])
        shown |= {name: text for name, text in forms.items() if count[text] == 1}
        left = [name for name in left if name not in shown]
    for short in dict.fromkeys(map(_short_of, left)):
        shown |= _with_tails(short, [name for name in left if _short_of(name) == short])
    return [shown[name] for name in names]


def _words_of(name: str) -> str:
    read = read_name(name)
    return _short_of(name) if read.words == read.short else read.words


def _words_with_architecture(name: str) -> str:
    read = read_name(name)
    return _short_of(name) if read.words == read.short else f"{read.words} {read.architecture}".strip()


def _short_of(name: str) -> str:
    return _cut(_shortened(name)[0])


def _with_tails(short: str, names: Sequence[str]) -> dict[str, str]:
    """Each name as ``short`` with what is not in all of ``names``; with a checksum where that is too long to show."""
    whole = {name: _tokens(name) for name in names}
    common, *others = whole.values()
    for tokens in others:
        blocks = SequenceMatcher(None, common, tokens, autojunk=False).get_matching_blocks()
        common = [token for block in blocks for token in common[block.a : block.a + block.size]]
    tails = {name: _tail(tokens, common) for name, tokens in whole.items()}
    alike = Counter(tails.values())
    ends = {
        name: f" {_checksum(name)}" if alike[tail] > 1 else f" (… {tail})" if tail else ""
        for name, tail in tails.items()
    }
    return {name: f"{_cut(short, MAX_SHORT - len(end))}{end}" for name, end in ends.items()}


def _tail(tokens: Sequence[str], common: Sequence[str]) -> str:
    """What ``tokens`` have beside ``common``, as far as there is room; a number with the word before it."""
    shown: list[str] = []
    end = 0
    for block in SequenceMatcher(None, tokens, common, autojunk=False).get_matching_blocks():
        own = tokens[end : block.a]
        if own and own[0].isdigit() and end and not tokens[end - 1].isdigit():
            shown.append(tokens[end - 1])
        shown += own
        end = block.a + block.size
    room = list(accumulate(len(token) + 1 for token in shown))
    fitting = sum(length <= MAX_TAIL for length in room)
    return " ".join([*shown[:fitting], *(["…"] if fitting < len(shown) else [])])


def _tokens(name: str) -> list[str]:
    """What names are compared by: the words of a template; of one word its parts."""
    if name.startswith("_Z"):
        return _mangled_tokens(name)[1]
    words = re.findall(r"\w+", _function(name))
    return words if len(words) > 1 else re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", name)
