"""What stands in the way of the same bits follows from the facts of a process, and from nothing that is not known."""

import pytest

from rltrace.extensions.doctor.checks import Fact, Scope, obstacles
from rltrace.fingerprint.libraries import xla_flags

MKL = "Intel(R) oneAPI Math Kernel Library Version"
CPU: dict[str, Fact] = {
    "python.hash_randomization": True,
    "torch.threads": 8,
    "flag.deterministic_algorithms": False,
    "flag.fill_uninitialized_memory": True,
    "cpu.capability": "AVX512",
    "torch.mkl": f"{MKL} 2024.2",
    "torch.onednn": "Intel(R) MKL-DNN v3.12.0",
}
GPU: dict[str, Fact] = {
    **CPU,
    "cuda.devices": "NVIDIA H200 (sm_90)",
    "cuda.cudnn": 91002,
    "torch.cuda": "13.0",
    "flag.cudnn.benchmark": True,
    "flag.cudnn.deterministic": False,
    "flag.cuda.matmul.tf32": True,
    "flag.cudnn.tf32": True,
    "flag.cuda.matmul.bf16_reduced": True,
    "flag.cuda.matmul.fp16_reduced": False,
}

JAX_CPU: dict[str, Fact] = {
    "host.cores_allowed": 8,
    "jax.platform": "cpu",
    "jax.default_matmul_precision": "None",
    "jax.default_prng_impl": "threefry2x32",
    "jax.threefry_partitionable": True,
    "jax.compilation_cache": False,
}
JAX_GPU: dict[str, Fact] = {**JAX_CPU, "jax.platform": "gpu", "jax.devices": "1 × NVIDIA H200", "jax.jaxlib": "0.10.2"}


def said(facts: dict[str, Fact], scope: Scope) -> str:
    return "\n".join(f"{o.what}: {o.how}" for o in obstacles(facts) if o.scope is scope)


def test_nothing_is_known() -> None:
    """Without facts nothing is claimed."""
    assert obstacles({}) == ()


def test_a_plain_cpu_process() -> None:
    """Here: the hash seed, threads, memory; elsewhere: whatever chooses kernels by the processor."""
    here, elsewhere = said(CPU, Scope.HERE), said(CPU, Scope.ELSEWHERE)
    assert [text in here for text in ("PYTHONHASHSEED=0", "8 threads", "torch.empty", "torch.tanh")] == [True] * 4
    for setting in ("OMP_NUM_THREADS=8", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"):
        assert setting in elsewhere
        assert setting not in here


@pytest.mark.parametrize(
    ("fact", "value", "gone"),
    [
        ("python.hash_randomization", False, "PYTHONHASHSEED"),
        ("torch.threads", 1, "1 threads, and"),
        ("env.OMP_NUM_THREADS", "8", "the number of threads"),
        ("env.ATEN_CPU_CAPABILITY", "avx2", "ATen's kernels"),
        ("torch.threads", 1, "MKL chooses the code of a vector function"),
        ("torch.mkl", f"{MKL} 2025.0", "MKL chooses the code of a vector function"),
        ("env.MKL_CBWR", "AVX2", "MKL chooses its code path"),
        ("torch.mkl", None, "MKL chooses"),
        ("env.DNNL_MAX_CPU_ISA", "AVX2", "oneDNN chooses"),
        ("flag.deterministic_algorithms", True, "8 threads, and"),
        ("flag.deterministic_algorithms", True, "torch.empty"),
    ],
)
def test_what_is_set_is_no_obstacle(fact: str, value: Fact, gone: str) -> None:
    """Each setting takes away its own obstacle, and no other."""
    before, after = obstacles(CPU), obstacles({**CPU, fact: value})
    assert not any(o.what.startswith(gone) for o in after)
    settled = {o.what.split("(")[0] for o in before} - {o.what.split("(")[0] for o in after}
    assert len(settled) <= 2
    assert len(after) >= len(before) - 2


def test_a_gpu() -> None:
    """cuDNN's benchmark, atomic operations, TF32 and sums in bfloat16; no setting makes two kinds of GPU agree."""
    here, elsewhere = said(GPU, Scope.HERE), said(GPU, Scope.ELSEWHERE)
    for setting in ("cudnn.benchmark = False", "cudnn.deterministic = True", "use_deterministic_algorithms(True)"):
        assert setting in here
    assert "TF32 is allowed (products and convolutions)" in elsewhere
    assert "bf16" in elsewhere
    assert "fp16" not in elsewhere
    assert "NVIDIA H200" in elsewhere


@pytest.mark.parametrize(
    ("facts", "name", "value", "scope", "setting"),
    [
        (GPU, "env.PYTORCH_TUNABLEOP_ENABLED", "1", Scope.HERE, "PYTORCH_TUNABLEOP_ENABLED=0"),
        (GPU, "env.TORCHINDUCTOR_MAX_AUTOTUNE", "1", Scope.HERE, "TORCHINDUCTOR_MAX_AUTOTUNE=0"),
        (GPU, "env.WORLD_SIZE", "8", Scope.ELSEWHERE, "NCCL_ALGO=Ring"),
        (GPU, "flag.matmul_precision", "medium", Scope.ELSEWHERE, "set_float32_matmul_precision('highest')"),
        (JAX_CPU, "env.XLA_FLAGS", "--xla_cpu_enable_fast_math", Scope.ELSEWHERE, "no --xla_cpu_enable_fast_math"),
        (JAX_CPU, "jax.default_prng_impl", "unsafe_rbg", Scope.ELSEWHERE, "JAX_DEFAULT_PRNG_IMPL=threefry2x32"),
        (JAX_CPU, "jax.threefry_partitionable", False, Scope.ELSEWHERE, "JAX_THREEFRY_PARTITIONABLE=true"),
        (JAX_CPU, "jax.compilation_cache", True, Scope.ELSEWHERE, "JAX_ENABLE_COMPILATION_CACHE=false"),
    ],
)
def test_what_chooses_otherwise(facts: dict[str, Fact], name: str, value: Fact, scope: Scope, setting: str) -> None:
    """Reported where it is on, or set otherwise than JAX does, and nowhere else."""
    assert setting in said({**facts, name: value}, scope)
    assert setting not in said(facts, Scope.HERE) + said(facts, Scope.ELSEWHERE)


def test_tf32_by_its_newer_name() -> None:
    """Where old flags and new were mixed torch does not answer for the old ones; a variable forbids it in any case."""
    mixed = {name: value for name, value in GPU.items() if not name.endswith(".tf32")}
    assert "TF32" not in said(mixed, Scope.ELSEWHERE)
    mixed["flag.cuda.matmul.precision"] = "tf32"
    assert "TF32 is allowed (products):" in said(mixed, Scope.ELSEWHERE)
    assert "TF32" not in said({**mixed, "env.NVIDIA_TF32_OVERRIDE": "0"}, Scope.ELSEWHERE)


def test_deterministic_algorithms_on_a_gpu_need_a_workspace() -> None:
    """cuBLAS repeats itself on several streams with a fixed workspace only."""
    facts = {**GPU, "flag.deterministic_algorithms": True, "flag.cudnn.benchmark": False}
    assert "CUBLAS_WORKSPACE_CONFIG is not set" in said(facts, Scope.HERE)
    assert "CUBLAS" not in said({**facts, "env.CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, Scope.HERE)


@pytest.mark.parametrize(("version", "wanted"), [("2.9.1+cu128", True), ("2.10.0", False), ("2.13.0+cu130", False)])
def test_newer_versions_of_torch_need_no_workspace(version: str, wanted: bool) -> None:
    """They give each stream memory of its own, which is what cuBLAS asks for."""
    for deterministic in (True, False):
        facts = {**GPU, "flag.deterministic_algorithms": deterministic, "torch.version": version}
        assert ("CUBLAS_WORKSPACE_CONFIG" in said(facts, Scope.HERE)) == wanted


def test_what_matters_here_comes_first() -> None:
    """The order is that of the two questions."""
    scopes = [o.scope for o in obstacles(GPU)]
    assert scopes == sorted(scopes, key=[Scope.HERE, Scope.ELSEWHERE].index)


def test_jax_on_a_cpu() -> None:
    """It repeats itself here; elsewhere the processor chooses the instructions and the threads, unless it is fixed."""
    assert said(JAX_CPU, Scope.HERE) == ""
    elsewhere = said(JAX_CPU, Scope.ELSEWHERE)
    assert "--xla_cpu_max_isa=AVX2" in elsewhere
    assert "taskset -c 0-7" in elsewhere
    assert "xla_gpu" not in elsewhere
    assert said({**JAX_CPU, "env.XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "env.NPROC": "4"}, Scope.ELSEWHERE) == ""


@pytest.mark.parametrize(
    ("flags", "kernels", "tuned"),
    [
        ("", True, True),
        ("--xla_gpu_exclude_nondeterministic_ops=true", False, True),
        ("--xla_gpu_deterministic_ops", False, False),
        ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", True, True),
        ("--xla_gpu_autotune_level=0", True, False),
        ("--xla_gpu_load_autotune_results_from=tuned.txt", True, False),
        ("--xla_gpu_dump_autotune_results_to=tuned.txt", True, True),
    ],
)
def test_jax_on_a_gpu(flags: str, kernels: bool, tuned: bool) -> None:
    """Which flag stops nondeterministic kernels, and which the timing of several."""
    here = said({**JAX_GPU, "env.XLA_FLAGS": flags}, Scope.HERE)
    assert ("XLA may use nondeterministic kernels" in here) == kernels
    assert ("XLA times several kernels" in here) == tuned


def test_precision_of_jax_on_a_gpu() -> None:
    """TF32 is what JAX takes there unless it is asked for more."""
    assert "TF32" in said(JAX_GPU, Scope.ELSEWHERE)
    assert "TF32" in said({**JAX_GPU, "jax.default_matmul_precision": "TF32_TF32_F32"}, Scope.ELSEWHERE)
    for settled in ({"jax.default_matmul_precision": "highest"}, {"env.NVIDIA_TF32_OVERRIDE": "0"}):
        assert "TF32" not in said({**JAX_GPU, **settled}, Scope.ELSEWHERE)


def test_flags_of_xla_in_a_file() -> None:
    """XLA_FLAGS may name a file: then no flag is known, and nothing is claimed of any."""
    assert xla_flags({"env.XLA_FLAGS": "flags.txt"}) is None
    assert xla_flags({}) == {}
    assert "XLA times" not in said({**JAX_GPU, "env.XLA_FLAGS": "flags.txt"}, Scope.HERE)
