"""Facts of torch, NumPy and the packages around them, from what the process has loaded.

Imports none of them. Reads only what changes nothing: no CUDA initialisation, no getter that warns. Facts that PyTorch
fixes at their first query (threads, instruction set) are separate from those of its build.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

Facts = dict[str, str | int | float | bool | None]

PACKAGES = frozenset(
    """
    accelerate ale-py apex bitsandbytes box2d box2d-py brax cleanrl cupy d3rlpy deepspeed dm-control envpool flash-attn
    gym gymnasium intel-openmp jax jaxlib lightning mkl mujoco mujoco-py numba numpy opencv-python
    opencv-python-headless peft pettingzoo pillow procgen pybullet pytorch-lightning ray sample-factory sb3-contrib
    scipy skrl stable-baselines3 supersuit tensordict tianshou torch torchaudio torchrl torchvision transformers triton
    trl vllm xformers
    """.split()  # noqa: SIM905  a list of seventy lines is not clearer
)
"""Packages that can change numerics or the results of an environment; every ``nvidia-…`` is recorded too."""


def packages() -> Facts:
    """Installed versions as ``package.NAME``, read from the names of their metadata folders."""
    found: Facts = {}
    for folder in sys.path:
        if not folder.rstrip("/").endswith(("site-packages", "dist-packages")):
            continue
        try:
            entries = os.listdir(folder)  # noqa: PTH208  names are all that is needed
        except OSError:
            continue
        for entry in entries:
            stem, ending = os.path.splitext(entry)  # noqa: PTH122
            if ending not in (".dist-info", ".egg-info"):
                continue
            name, _, version = stem.partition("-")
            name = name.lower().replace("_", "-").replace(".", "-")
            if version and (name in PACKAGES or name.startswith("nvidia-")):
                found.setdefault(f"package.{name}", version.split("-py")[0])
    return found


def numpy_build() -> Facts:
    """NumPy's version and BLAS; nothing where the program has not loaded it."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return {}
    config = getattr(numpy.__config__, "CONFIG", {})
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {
        "numpy.version": numpy.__version__,
        "numpy.blas": " ".join(str(blas[key]) for key in ("name", "version") if key in blas) or None,
    }


def torch_build() -> Facts:
    """Facts of the build of the loaded torch."""
    torch = _torch()
    if torch is None:
        return {}
    version = torch.version
    return {
        "torch.version": str(torch.__version__),
        "torch.git": version.git_version,
        "torch.debug": bool(version.debug),
        "torch.cuda": version.cuda,
        "torch.hip": getattr(version, "hip", None),
    }


def torch_config() -> Facts:
    """Libraries that torch was built with, and the instruction set its own kernels use."""
    torch = _torch()
    if torch is None:
        return {}
    found: Facts = {"cpu.capability": torch.backends.cpu.get_cpu_capability()}
    for line in torch.__config__.show().splitlines():
        text = line.strip(" -")
        for start, name in _CONFIG_LINES.items():
            if text.startswith(start):
                found[name] = text
        if text.startswith("Build settings:"):
            settings = dict(item.strip().partition("=")[::2] for item in text[len("Build settings:") :].split(","))
            found |= {f"torch.{name.lower()}": settings[name] for name in _SETTINGS if name in settings}
    return found


_CONFIG_LINES = {
    "Intel(R) oneAPI Math Kernel": "torch.mkl",
    "Intel(R) Math Kernel": "torch.mkl",
    "Intel(R) MKL-DNN": "torch.onednn",
    "oneDNN": "torch.onednn",
    "OpenMP": "torch.openmp",
    "GCC": "torch.compiler",
    "clang": "torch.compiler",
}
_SETTINGS = ("BLAS_INFO", "LAPACK_INFO", "BUILD_TYPE", "USE_MKL", "USE_MKLDNN", "USE_OPENMP")


def torch_threads() -> Facts:
    """Thread counts of the calling thread's process."""
    torch = _torch()
    if torch is None:
        return {}
    return {"torch.threads": torch.get_num_threads(), "torch.interop_threads": torch.get_num_interop_threads()}


def torch_flags() -> Facts:
    """Current settings that a program can change."""
    torch = _torch()
    if torch is None:
        return {}
    found: Facts = {}
    for name, read in _FLAGS.items():
        try:
            value = read(torch)
        except Exception:  # a setting that this torch does not have, or whose getter raises
            continue
        found[f"flag.{name}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return found


_FLAGS: dict[str, Any] = {
    "deterministic_algorithms": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "deterministic_warn_only": lambda torch: torch.is_deterministic_algorithms_warn_only_enabled(),
    "fill_uninitialized_memory": lambda torch: torch.utils.deterministic.fill_uninitialized_memory,
    "default_dtype": lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
    "matmul_precision": lambda torch: torch.get_float32_matmul_precision(),
    # torch.backends.cuda.matmul.allow_tf32 and its like may warn when both old and new settings were used
    "cuda.matmul.tf32": lambda torch: torch._C._get_cublas_allow_tf32(),
    # torch._C gives a pair from 2.10 on, of which this is the first: with split-k or without
    "cuda.matmul.fp16_reduced": lambda torch: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "cuda.matmul.fp16_split_k": lambda torch: _matmul(torch).allow_fp16_reduced_precision_reduction_split_k,
    "cuda.matmul.bf16_reduced": lambda torch: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "cuda.matmul.bf16_split_k": lambda torch: _matmul(torch).allow_bf16_reduced_precision_reduction_split_k,
    "cuda.matmul.fp16_accumulation": lambda torch: torch._C._get_cublas_allow_fp16_accumulation(),
    "cuda.blas": lambda torch: str(torch._C._get_blas_preferred_backend()).rpartition(".")[2],
    "cuda.linalg": lambda torch: str(torch._C._get_linalg_preferred_backend()).rpartition(".")[2],
    "cudnn.benchmark_limit": lambda torch: torch._C._cuda_get_cudnn_benchmark_limit(),
    "cuda.matmul.precision": lambda torch: torch._C._get_fp32_precision_getter("cuda", "matmul"),
    "precision": lambda torch: torch._C._get_fp32_precision_getter("generic", "all"),
    "cuda.precision": lambda torch: torch._C._get_fp32_precision_getter("cuda", "all"),
    "cuda.rnn.precision": lambda torch: torch._C._get_fp32_precision_getter("cuda", "rnn"),
    "cuda.conv.precision": lambda torch: torch._C._get_fp32_precision_getter("cuda", "conv"),
    "mkldnn.conv.precision": lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "conv"),
    "mkldnn.matmul.precision": lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "matmul"),
    "mkldnn.enabled": lambda torch: torch._C._get_mkldnn_enabled(),
    "mkldnn.deterministic": lambda torch: torch._C._get_mkldnn_deterministic(),
    "cudnn.enabled": lambda torch: torch._C._get_cudnn_enabled(),
    "cudnn.benchmark": lambda torch: torch._C._get_cudnn_benchmark(),
    "cudnn.deterministic": lambda torch: torch._C._get_cudnn_deterministic(),
    "cudnn.tf32": lambda torch: torch._C._get_cudnn_allow_tf32(),
    "cudnn.depthwise_kernel": lambda torch: torch._C._get_cudnn_depthwise_kernel(),
    "sdp.flash": lambda torch: torch._C._get_flash_sdp_enabled(),
    "sdp.mem_efficient": lambda torch: torch._C._get_mem_efficient_sdp_enabled(),
    "sdp.math": lambda torch: torch._C._get_math_sdp_enabled(),
    "sdp.math_reduced": lambda torch: torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
    "sdp.priority": lambda torch: ",".join(map(str, torch._C._get_sdp_priority_order())),
    "mkldnn.tf32": lambda torch: torch._C._get_onednn_allow_tf32(),
    "cpu.fp16_reduced": lambda torch: torch._C._get_cpu_allow_fp16_reduced_precision_reduction(),
    "sdp.cudnn": lambda torch: torch._C._get_cudnn_sdp_enabled(),
    "sdp.fa3": lambda torch: torch._C._get_fa3_sdp_enabled(),
    "sdp.overrideable": lambda torch: torch._C._get_overrideable_sdp_enabled(),
    "sdp.rocm": lambda torch: str(torch._C._get_rocm_fa_preferred_backend()).rpartition(".")[2],
}


def _matmul(torch: Any) -> Any:
    return torch.backends.cuda.matmul


def ray() -> Facts:
    """The process's role in Ray, whose workers may not inherit the recorder's variables; empty: none."""
    worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    if getattr(worker, "mode", None) == 1:
        return {"ray.role": "worker"}
    was_driver = getattr(worker, "gcs_error_subscriber", None) is not None  # remains after the shutdown
    return {"ray.role": "driver"} if was_driver or getattr(worker, "mode", None) is not None else {}


def _torch() -> Any:
    """The loaded torch; None while it is not, or not completely, imported."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "version") else None


def xla_flags(facts: Mapping[str, object]) -> Mapping[str, str] | None:
    """Flags of ``XLA_FLAGS`` by their names; one that is given twice counts as the last. None: they are in a file."""
    words = str(facts.get("env.XLA_FLAGS") or "").split()
    if words and not words[0].startswith("--"):
        return None
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {name: value if equals else "true" for name, equals, value in pairs}


def is_on(flags: Mapping[str, str], name: str) -> bool:
    """Whether a flag is given as true."""
    return flags.get(name, "false").lower() in ("true", "1")
