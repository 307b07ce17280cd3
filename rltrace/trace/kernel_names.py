"""Names of GPU kernels, read: library, architecture, tile and precision where the name tells, and short enough to show.

Owns what is known of how libraries call their kernels: CUTLASS (its profiler's documentation of procedural names),
cuBLAS and cuDNN (``ampere_…``, ``sm80_xmma_…``, ``nvjet_…``; not documented, told by their own tokens), PyTorch's own
templates, Inductor, NCCL, attention kernels. Pure; a name that is none of these is left as it is. What a name does not
say is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

Reader = Callable[[str, str, "re.Match[str]"], "KernelName"]

LONGEST = 60
"""Characters of a short name."""


@dataclass(frozen=True)
class KernelName:
    """What one name says; what it does not is ""."""

    full: str
    short: str
    """Without return type, arguments, namespaces and most of what stands in template brackets."""
    library: str = ""
    """cutlass, cuBLAS, cuDNN, ATen, Inductor, NCCL …"""
    architecture: str = ""
    """``sm80``, ``ampere``."""
    tile: str = ""
    """``128×64``: rows and columns of the output that a block of threads computes."""
    precision: str = ""
    """What is multiplied, and summed in where that is said: ``tf32``, ``bf16``, ``fp16 summed in fp16``."""

    @property
    def words(self) -> str:
        """``cutlass 128×128 tf32`` where the name tells so much; else the short name."""
        if not (self.library and (self.tile or self.precision)):
            return self.short
        return " ".join(filter(None, [self.library, self.tile, self.precision]))


@lru_cache(maxsize=4096)
def read_name(full: str) -> KernelName:
    """What a (demangled) name tells."""
    short = _short(full)
    for pattern, read in _FORMS:
        found = pattern.search(full)
        if found is not None:
            return read(full, short, found)
    return KernelName(full, short)


def in_words(names: Sequence[str]) -> list[str]:
    """Each in as few words as tell it from the others: its words, or the short name, or all of it."""
    read = [read_name(name) for name in names]
    for told in ([name.words for name in read], [name.short for name in read]):
        if len(set(told)) == len(set(names)):
            return told
    return list(names)


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

_SUMMED = {"h": "fp16", "s": "fp32", "d": "fp64", "i": "int32"}
"""The letter before ``gemm``, or before the shape of the tensor core's instruction: what is summed in."""


_PRODUCT = re.compile(
    r"(?:^|_)([hsdi])(\d{3,5})?(tf32|bf16|f16|fp16)?(?:gemm|fprop|dgrad|wgrad)(?:_relu|_optimized|_analytic)*"
    r"(?:_(tf32|bf16|f16|fp16|s8|u8))?"
)


def _gemm_precision(full: str, *, tensor_cores: bool) -> str:
    """Of a name with ``[type_]s16816gemm[_type]`` or ``sgemm`` in it."""
    found = _PRODUCT.search(full)
    if found is None:
        return ""
    letter, shape, inside, after = found.groups()
    before = re.search(r"_(tf32|bf16|f16|fp16|e4m3|e5m2|s8)_$", full[: found.start(1)])
    told = inside or after or (before[1] if before else "")
    if told:
        multiplied = _TYPES[told]
        return f"{multiplied} summed in fp16" if letter == "h" else multiplied
    if letter == "h":
        return "fp16 summed in fp16"
    if letter == "s" and (shape == "1688" or (shape is not None and tensor_cores)):
        return "tf32"  # CUTLASS names float32 on tensor cores so, where no other type is said
    return {"s": "fp32", "d": "fp64", "i": ""}[letter]


def _xmma_precision(full: str) -> str:
    """``f32f32_tf32f32_f32``: types of A and B, of what is multiplied and summed in, of the output."""
    kind = "tf32|bf16|f16|f32|f64|e4m3|e5m2|i8"
    found = re.search(rf"_(?:{kind}){{2}}_({kind})(f16|f32|f64|i32)_", full)
    if found is None:
        return ""
    multiplied = _TYPES[found[1]]
    return f"{multiplied} summed in fp16" if multiplied == "fp16" and found[2] == "f16" else multiplied


# --- forms of names -------------------------------------------------------------------------------------------------


def _cutlass(full: str, short: str, found: re.Match[str]) -> KernelName:
    library = "cuDNN" if "cudnn" in full[: found.start()] else "cutlass"
    tensor_cores = "tensorop" in found[0]
    architecture = f"sm{found['arch']}" if found["arch"] else ""
    return KernelName(
        full, short, library, architecture, _tile(found["tile"]), _gemm_precision(found[0], tensor_cores=tensor_cores)
    )


def _cublas(full: str, short: str, found: re.Match[str]) -> KernelName:
    return KernelName(
        full, short, "cuBLAS", found["arch"], _tile(found["tile"]), _gemm_precision(full, tensor_cores=False)
    )


def _xmma(full: str, short: str, found: re.Match[str]) -> KernelName:
    library = "cuDNN" if "cudnn" in full or "implicit_gemm" in full else "cuBLAS"
    tile = re.search(r"tilesize(\d+x\d+)", full)
    return KernelName(full, short, library, found["arch"], _tile(tile and tile[1]), _xmma_precision(full))


def _nvjet(full: str, short: str, found: re.Match[str]) -> KernelName:
    types = {"tst": "bf16", "tss": "bf16", "hsh": "fp16", "hss": "fp16"}
    return KernelName(
        full, short, "cuBLAS", found["arch"] or "", _tile(found["tile"]), types.get(found["types"] or "", "")
    )


def _attention(full: str, short: str, found: re.Match[str]) -> KernelName:
    efficient = re.search(r"fmha_cutlass[FB]_(f16|bf16|f32)_(?:not)?aligned_(\d+x\d+)(?:_\w*?)?_(sm\d+)", full)
    if efficient is not None:
        told = _TYPES[efficient[1]]
        return KernelName(full, short, "memory-efficient attention", efficient[3], _tile(efficient[2]), told)
    traits = re.search(r"traits<(\d+), (\d+), (\d+)", full.replace("(int)", ""))
    kind = "bf16" if "bfloat16" in full else "fp16" if "half_t" in full else ""
    tile = f"{traits[2]}x{traits[3]}" if traits else None
    return KernelName(full, short, "flash attention", "", _tile(tile), kind)


def _plain(library: str) -> Reader:
    return lambda full, short, found: KernelName(full, short, library)


def _tile(text: str | None) -> str:
    return (text or "").replace("x", "×")


_FORMS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"fmha_cutlass|flash_(?:fwd|bwd)|flash::"), _attention),
    (
        re.compile(r"cutlass(?:_(?P<arch>\d{2,3}))?_(?:wmma_)?(?:tensorop|simt)_\w*?gemm\w*?_(?P<tile>\d+x\d+)"),
        _cutlass,
    ),
    (re.compile(r"cutlass(?:3x_sm(?P<arch>\d+))?_(?:tensorop|simt)_\w*?(?P<tile>\d+x\d+)"), _cutlass),
    (re.compile(r"\b(?P<arch>maxwell|volta|turing|ampere|ada|hopper)_\w*?gemm\w*?_(?P<tile>\d+x\d+)"), _cublas),
    (re.compile(r"\b(?P<arch>sm\d+)_xmma_"), _xmma),
    (re.compile(r"\bnvjet_(?:(?P<arch>sm\d+)_)?(?P<types>[a-z]+)_(?:mma_)?(?P<tile>\d+x\d+)"), _nvjet),
    (re.compile(r"\bcutlass::"), _plain("cutlass")),
    (re.compile(r"\bnccl\w*Kernel"), _plain("NCCL")),
    (
        re.compile(r"cublas|gemv\w*_kernel|gemmSN_\w+|splitKreduce_kernel|\bdot_kernel|\breduce_1Block_kernel"),
        _plain("cuBLAS"),
    ),
    (re.compile(r"cudnn|implicit_convolve_|precomputed_convolve_|winograd"), _plain("cuDNN")),
    (re.compile(r"^triton_(?:poi|red|per|tem|mm)_"), _plain("Inductor")),
    (re.compile(r"^(?:\[CUDA )?(?:[Mm]emcpy|[Mm]emset)"), _plain("memory")),
    (re.compile(r"\bat::|\bat_cuda_detail::|softmax_warp_"), _plain("ATen")),
)
"""The first that is found counts."""


# --- short names ----------------------------------------------------------------------------------------------------

_WRAPPERS = frozenset(
    """
    at native std array detail char long int unsigned short bool void const c10 cuda lambda operator anonymous namespace
    TensorIteratorBase TensorIterator Array gpu_kernel_impl gpu_kernel_impl_nocast AUnaryFunctor BUnaryFunctor
    BinaryFunctor OffsetCalculator TrivialOffsetCalculator LoadWithoutCast StoreWithoutCast func_wrapper_t func_wrapper
    ReduceOp binary_internal memory policies function_traits opmath_type accscalar_t true false pytorch_flash cutlass
    """.split()  # noqa: SIM905  forty lines are not clearer
)
"""Words in template brackets that say nothing of what is computed."""

_KINDS = {"float": "float", "double": "double", "Half": "half", "__half": "half", "BFloat16": "bfloat16"}
_KINDS |= {"__nv_bfloat16": "bfloat16", "bfloat16_t": "bfloat16", "half_t": "half"}


def _short(full: str) -> str:
    """``vectorized_elementwise_kernel<4 CUDAFunctor_add float>``."""
    name = full.strip().removeprefix("void ")
    start = _bracket(name)
    if start is None:
        called = name.partition("(")[0]
        return _cut(name if " " in called else called.rpartition("::")[2] or name)
    head, inside = name[:start], name[start + 1 :]
    base = head.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").rpartition("::")[2]
    if "::Kernel" in head or base.startswith("Kernel"):  # cutlass: the one argument is the name
        inner = re.match(r"\w+", inside)
        if inner is not None and inner[0].startswith("cutlass"):
            return _cut(inner[0])
    told = _telling(inside[: _closing(inside)])
    return _cut(f"{base}<{' '.join(told)}>" if told else base)


def _bracket(name: str) -> int | None:
    """Where the template's arguments begin; None: it is none."""
    plain = name.replace("<unnamed>", "\0unnamed\0")
    at, call = plain.find("<"), plain.replace("(anonymous namespace)", "\0" * 21).find("(")
    return None if at < 0 or -1 < call < at else at


def _closing(text: str) -> int:
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">" and text[at - 1] != "-")
        if depth == 0:
            return at
    return len(text)


def _telling(inside: str) -> list[str]:
    """A first number, up to two words that name what is computed, and the type."""
    first = re.match(r"\s*(?:\(\w+\)|\w+=)?(\d+)", inside)
    words = [word for word in re.findall(r"(?<!\w)[A-Za-z_]\w+", inside) if word not in _WRAPPERS]
    kinds = list(dict.fromkeys(_KINDS[word] for word in words if word in _KINDS))
    named = list(dict.fromkeys(word for word in words if word not in _KINDS))
    return [*([first[1]] if first else []), *named[:2], *kinds[:1]]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
