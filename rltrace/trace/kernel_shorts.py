"""The name of a GPU kernel, short enough to show: what is left of a template over several lines.

Owns which words in template brackets say nothing of what is computed. Pure.
"""

from __future__ import annotations

import re

LONGEST = 60
"""Characters of a short name."""

_WRAPPERS = frozenset(
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
"""Words in template brackets that say nothing of what is computed."""

_VERSIONED = re.compile(r"_V_\d+(?:_SM_\w+)?|THRUST_\d+\w*|CUB_\d+\w*")
"""Namespaces that CUB and Thrust put their version and architectures into."""

_KINDS = {"float": "float", "double": "double", "Half": "half", "__half": "half", "BFloat16": "bfloat16"}
_KINDS |= {"__nv_bfloat16": "bfloat16", "bfloat16_t": "bfloat16", "half_t": "half", "nv_bfloat16": "bfloat16"}


def shortened(full: str) -> str:
    """``vectorized_elementwise_kernel<4 CUDAFunctor_add float>``."""
    plain = full.strip().replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if plain.startswith("_ZN"):
        return _cut(_last_part(plain))
    name = _function(plain)
    start = name.find("<")
    if start < 0:
        return _cut(plain if " " in name else name.rpartition("::")[2] or name)
    head, inside = name[:start], name[start + 1 :]
    base = head.rpartition("::")[2]
    if base == "kernel":  # which of many, its namespace says
        base = "::".join(head.split("::")[-2:])
    if "::Kernel" in head or base.startswith("Kernel"):  # cutlass: the one argument is the name
        inner = re.match(r"\w+", inside)
        if inner is not None and inner[0].startswith("cutlass"):
            return _cut(inner[0])
    told = _telling(inside[: _closing(inside)])
    return _cut(f"{base}<{' '.join(told)}>" if told else base)


def _last_part(mangled: str) -> str:
    """Of what nobody could demangle (some of nvcc's lambdas): the function, past its namespaces."""
    last, at = mangled, len("_ZN")
    while (length := re.match(r"\d+", mangled[at:])) is not None:
        at += len(length[0])
        last = mangled[at : at + int(length[0])] or last
        at += int(length[0])
    return last


def _function(name: str) -> str:
    """Without the type that it returns and the types of its arguments; as it is where it is no function of C++."""
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


def _telling(inside: str) -> list[str]:
    """A first number, up to two words that name what is computed, and the type."""
    first = re.match(r"\s*(?:\(\w+\)|\w+=)?(\d+)", inside)
    words = [word for word in re.findall(r"(?<!\w)[A-Za-z_]\w+", inside) if not _says_nothing(word)]
    kinds = list(dict.fromkeys(_KINDS[word] for word in words if word in _KINDS))
    named = list(dict.fromkeys(word for word in words if word not in _KINDS))
    return [*([first[1]] if first else []), *named[:2], *kinds[:1]]


def _says_nothing(word: str) -> bool:
    return word in _WRAPPERS or _VERSIONED.fullmatch(word) is not None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
