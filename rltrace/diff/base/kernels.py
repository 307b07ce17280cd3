"""Comparison of kernel evidence: whether another kernel ran an op on the other side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from rltrace.diff.base.model import NamedDifference
from rltrace.trace.kernels.evidence import (
    ATEN,
    DETAILS,
    INFERRED,
    LAUNCHES,
    REPORTED,
    SILENT,
    Evidence,
    geometry_text,
    joined,
    launches,
    whole_names,
)
from rltrace.trace.kernels.names import distinct_names


def kernel_differences(a: Evidence, b: Evidence) -> list[str]:
    """``isa AVX2 against AVX512`` for every difference between two pieces of evidence; kernel names come first."""
    skip = (*DETAILS, *INFERRED) if _is_reported(a) and _is_reported(b) else DETAILS
    others = [key for key in dict.fromkeys([*a, *b]) if key not in skip and a.get(key) != b.get(key)]
    return [
        *reported_differences(a, b),
        *(f"{_word(key)} {_value(a.get(key))} against {_value(b.get(key))}" for key in others),
    ]


def is_another_grid(a: Evidence, b: Evidence) -> bool:
    """Whether only the launch geometry differs: the same kernels ran on other blocks or threads."""
    return whole_names(a) == whole_names(b) and len(kernel_differences(a, b)) == len(list(_grids(a, b))) == 1


def in_equal_blocks(a: Evidence, b: Evidence) -> bool:
    """Whether all blocks have as many threads as on the other side."""
    return [block for _, block in launches(a) or ()] == [block for _, block in launches(b) or ()]


def identifies_kernel(evidence: Evidence) -> bool:
    """Whether the evidence names a kernel, and not only a device."""
    return bool(evidence.keys() - {"device"})


def same_launches(a: Evidence, b: Evidence) -> bool:
    """Whether profilers on both sides saw the same launches of the same kernels."""
    return LAUNCHES in a and LAUNCHES in b and not kernel_differences(a, b)


def _is_reported(evidence: Evidence) -> bool:
    """Whether a library reported what it ran, so that nothing has to be inferred from the operator's name."""
    return REPORTED in evidence and (bool(evidence.get("names")) or evidence.get("library") != ATEN)


def reported_differences(a: Evidence, b: Evidence) -> Iterator[str]:
    """Differences between the kernels by name; none where a side has neither reports nor a profile."""
    if (REPORTED in a) != (REPORTED in b) or (whole_names(a) is None) != (whole_names(b) is None):
        return
    if _kernels(a) != _kernels(b):
        yield f"kernels {' against '.join(_names(a, b))}"
        return
    lines = zip(_lines(a), _lines(b), strict=False)
    found = next(((x, y) for x, y in lines if x != y), None)
    if found is not None:  # the same implementation, called with other parameters
        yield f"{found[0]} against {found[1]}"
    yield from _grids(a, b)


def _kernels(evidence: Evidence) -> list[str]:
    """What ran, by name; copies are alike, as where one reads and writes changes nothing of what it copies."""
    return ["Memcpy" if name.startswith("Memcpy ") else name for name in whole_names(evidence) or ()]


def _grids(a: Evidence, b: Evidence) -> Iterator[str]:
    """The first of the same kernels that was launched on another grid, or in other blocks."""
    on_a, on_b = launches(a), launches(b)
    if on_a is None or on_b is None or whole_names(a) != whole_names(b):
        return
    words = distinct_names(whole_names(a) or ())
    found = [(word, x, y) for word, x, y in zip(words, on_a, on_b, strict=True) if x != y]
    if found:
        word, x, y = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"{word} in {geometry_text(x)} against {geometry_text(y)}{more}"


def _names(a: Evidence, b: Evidence) -> list[str]:
    """Kernel names of each side, shortened, without the launches that both sides begin and end with."""
    known = [whole_names(side) or () for side in (a, b)]
    words = dict(zip(chain(*known), distinct_names(list(chain(*known))), strict=True))
    none = f"({SILENT})" if REPORTED in a else "nothing"
    return [joined([words[name] for name in side], " + ") or none for side in _differing_parts(*known)]


def _differing_parts(a: Sequence[str], b: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Two lists without their common ends; both whole where one of them would be empty."""
    shorter = min(len(a), len(b))
    first = next((k for k in range(shorter) if a[k] != b[k]), shorter)
    last = next((k for k in range(shorter - first) if a[-1 - k] != b[-1 - k]), shorter - first)
    left = a[first : len(a) - last], b[first : len(b) - last]
    return left if all(left) else (a, b)


def _lines(evidence: Evidence) -> list[str]:
    lines = evidence.get(REPORTED)
    return list(map(str, lines)) if isinstance(lines, list) else []


def _word(key: str) -> str:
    return {"isa": "instruction set", "vectors": "Inductor's instruction set"}.get(key, key)


def _value(value: object) -> str:
    return "nothing" if value is None else str(value)


# --- rules ------------------------------------------------------------------------------------------------------------
#
# Rules from a library or kind of operator to the facts known to choose its kernels. Sources: the run-time controls of
# oneDNN, the documentation of oneMKL (conditional numerical reproducibility), PyTorch's notes on reproducibility and on
# CUDA semantics, and measurements of this project on a CPU (docs/guide/kernels.md).


THREADS = ("env.OMP_NUM_THREADS", "env.MKL_NUM_THREADS", "torch.threads")

_MKL = ("env.MKL_CBWR", "env.MKL_ENABLE_INSTRUCTIONS", "env.MKL_", "torch.mkl")

BY_LIBRARY = {
    "oneDNN": ("env.ONEDNN_", "env.DNNL_", "flag.mkldnn.", "flag.matmul_precision", "torch.onednn"),
    "MKL": (*_MKL, "flag.matmul_precision", "flag.mkldnn.matmul."),  # by which oneDNN takes its products
    "LAPACK": _MKL,
    "ATen": ("env.ATEN_CPU_CAPABILITY", "cpu.capability"),
    "Inductor": ("env.TORCHINDUCTOR_", "env.ATEN_CPU_CAPABILITY", "cpu.capability", "torch.version"),
}
"""Prefixes of facts: first those that can be set, then those that follow from them."""

PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "linear", "dot", "vdot", "_scaled_mm", "_int_mm",
    "_grouped_mm", "_scaled_grouped_mm", "_addmm_activation",
)  # fmt: skip
CONVOLUTIONS = (
    "convolution", "cudnn_", "native_batch_norm", "_native_batch_norm", "_batch_norm", "_cudnn_rnn", "miopen_",
    "_slow_conv", "slow_conv", "_conv_", "conv_",
)  # fmt: skip
DECOMPOSITIONS = ("linalg_", "_linalg_", "cholesky", "_cholesky", "geqrf", "ormqr", "lu_", "triangular_solve", "svd")

ON_A_GPU = (
    (
        PRODUCTS,
        (
            "flag.cuda.matmul.",
            "flag.matmul_precision",
            "flag.cuda.precision",
            "flag.precision",
            "env.NVIDIA_TF32_",
            "env.TORCH_ALLOW_TF32_",
            "flag.cuda.blas",
            "env.TORCH_BLAS_PREFER_",
            "env.DISABLE_ADDMM_",
            "env.CUBLAS",
            "env.TORCH_CUBLASLT_",
            "env.PYTORCH_TUNABLEOP_",
            "cuda.cublas",
            "package.nvidia-cublas",
        ),
    ),
    (
        CONVOLUTIONS,
        (
            "flag.cudnn.",
            "flag.cuda.conv.",
            "flag.cuda.rnn.",
            "flag.cuda.precision",
            "flag.precision",
            "env.NVIDIA_TF32_",
            "env.CUDNN_",
            "env.TORCH_CUDNN_",
            "env.MIOPEN_",
            "cuda.cudnn",
            "package.nvidia-cudnn",
        ),
    ),
    (("_scaled_dot_product_", "_efficient_attention", "_flash_attention", "_cudnn_attention"), ("flag.sdp.",)),
    (
        DECOMPOSITIONS,
        ("flag.cuda.linalg", "env.TORCH_LINALG_PREFER_", "cuda.cusolver", "package.nvidia-cusolver", "cuda.cublas"),
    ),
)
"""Prefixes of operator names, and prefixes of the facts that choose their kernels."""

ANY_GPU = ("flag.deterministic_algorithms", "cuda.devices", "cuda.multiprocessors", "torch.cuda", "cuda.driver")

IN_EVIDENCE = ("cpu.capability", "torch.threads")
"""Facts that the kernel evidence repeats."""

PROCESSOR = ("host.cpu", "host.isa")

BY_MULTIPROCESSORS = ("cuda.multiprocessors", "cuda.devices")
"""Facts that choose how many blocks of a kernel start; not how many threads a block has."""

CHANGE_KERNEL_CODE = (
    "torch.version",
    "torch.git",
    "torch.cuda",
    "torch.hip",
    "cuda.devices",
    "cuda.driver",
    "cuda.cu",
    "package.",
)
"""Facts that can change the code of a GPU kernel while its name stays the same."""


def settings_choosing(
    op: str, a: Evidence, b: Evidence, settings: Sequence[NamedDifference]
) -> tuple[NamedDifference, ...]:
    """The differing settings that are known to choose the kernel of ``op``, the most specific first."""
    starts = tuple(dict.fromkeys(_starts(op, a, b)))
    ranked = [(rank, setting) for setting in settings if (rank := _rank(setting.name, starts)) is not None]
    return tuple(setting for _, setting in sorted(ranked, key=lambda pair: pair[0]))


def choice_text(op: str, a: Evidence, b: Evidence, settings: Sequence[NamedDifference]) -> str:
    """``, which MKL_CBWR chooses: unset against AVX2``; "" where no rule links a difference with this op."""
    first = next(
        (setting for setting in settings_choosing(op, a, b, settings) if setting.name not in IN_EVIDENCE), None
    )
    if first is None:
        return ""
    return f", which {first.name.removeprefix('env.')} chooses: {first.a or 'unset'} against {first.b or 'unset'}"


def code_settings(settings: Sequence[NamedDifference]) -> tuple[NamedDifference, ...]:
    """The differing settings that can change what a GPU kernel of the same name computes."""
    return tuple(setting for setting in settings if setting.name.startswith(CHANGE_KERNEL_CODE))


def _starts(op: str, a: Evidence, b: Evidence) -> Iterable[str]:
    devices = {str(evidence["device"]) for evidence in (a, b) if evidence.get("device")}
    if devices:
        name = op.split(".")[1] if op.count(".") >= 2 else op
        if is_another_grid(a, b) and in_equal_blocks(a, b):
            yield from BY_MULTIPROCESSORS
        for operators, starts in ON_A_GPU:
            if name.startswith(operators):
                yield from starts
        yield from ANY_GPU
        return
    if a.get("threads") != b.get("threads"):
        yield from THREADS
    for library in (*_libraries(a), *_libraries(b)):
        yield from BY_LIBRARY.get(library, ())
    yield from PROCESSOR


def _libraries(evidence: Evidence) -> list[str]:
    """Libraries that reported kernels or that a region's code calls; else the one inferred from the operator's name."""
    if evidence.get("library") == "Inductor":
        return list(dict.fromkeys(map(_library_of, whole_names(evidence) or ())))
    clauses = dict.fromkeys(name.split(" ")[0] for name in whole_names(evidence) or ())
    return list(clauses) or [str(evidence.get("library") or "")]


def _library_of(name: str) -> str:
    """The library of a call in Inductor's CPU code: ``extern_kernels.addmm``, ``cpp_fused_tanh_0``."""
    if "mkldnn" in name or "convolution" in name:
        return "oneDNN"
    if "mkl" in name or name.startswith("extern_kernels."):
        return "MKL"
    return "ATen" if name.startswith(("aten.", "torch.ops.")) else "Inductor"


def _rank(name: str, starts: Sequence[str]) -> int | None:
    bare = name.partition(" (")[0]  # without the name of another process
    return next((rank for rank, start in enumerate(starts) if bare.startswith(start)), None)


# --- settings ---------------------------------------------------------------------------------------------------------
#
# Settings of torch under which an op ran (table "settings"): which of them can explain different bits, and their text.


Settings = Mapping[str, object]

THREADS_SETTING = "threads"
"""Also in the kernel evidence."""

AFFECT_EVERY_OP: Mapping[str, tuple[str, str]] = {
    "grad_mode": ("with grad mode", "without grad mode"),
    "inference_mode": ("in inference mode", "outside inference mode"),
    "flush_denormal": ("with denormal numbers flushed to zero", "with denormal numbers kept"),
    "deterministic_algorithms": ("with deterministic algorithms", "without deterministic algorithms"),
    "default_dtype": ("", ""),
}
"""Settings that can change the bits of any op, with their text where they are on and where they are off."""


def settings_differences(a: Settings, b: Settings) -> tuple[NamedDifference, ...]:
    """Every setting that differs; none where those of a side are not known."""
    names = [name for name in dict.fromkeys([*a, *b]) if name != THREADS_SETTING] if a and b else []
    return tuple(
        NamedDifference(name, _text(a.get(name)), _text(b.get(name)))
        for name in sorted(names, key=lambda name: name not in AFFECT_EVERY_OP)
        if a.get(name) != b.get(name)
    )


def settings_text(op: str, kernels: tuple[Evidence, Evidence], differences: Sequence[NamedDifference]) -> str:
    """``B ran it without grad mode``: the differences that can change what ``op`` computes; "" for none."""
    facts = [replace(one, name=f"flag.{one.name}") for one in differences if one.name not in AFFECT_EVERY_OP]
    chosen = settings_choosing(op, *kernels, facts)
    clauses = [_in_words(one) for one in differences if one.name in AFFECT_EVERY_OP]
    clauses += [f"{one.name.removeprefix('flag.')} was {one.a} in A and {one.b} in B" for one in chosen]
    return ", and ".join(clauses[:3]) + (f", and {len(clauses) - 3} more settings differ" if len(clauses) > 3 else "")


def _in_words(one: NamedDifference) -> str:
    on, off = AFFECT_EVERY_OP[one.name]
    if not on:
        return f"{one.name} was {one.a} in A and {one.b} in B"
    return f"B ran it {on if one.b == 'on' else off}"


def _text(value: object) -> str | None:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else None if value is None else str(value)
