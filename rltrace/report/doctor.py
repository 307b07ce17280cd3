"""Text of ``rltrace doctor``: what selects the kernels of a process, and sources of nondeterminism.

Owns the wording and the JSON, ``rltrace.doctor/1`` (docs/reference/json.md). Never prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.command_lines import line
from rltrace.fingerprint.reproducibility_checks import Fact, Obstacle, Scope
from rltrace.native.library import FoundLibrary
from rltrace.report.diff_text import wrapped
from rltrace.report.style import Style

SCHEMA = "rltrace.doctor/1"

Facts = Mapping[str, Fact]


@dataclass(frozen=True)
class JaxRecorder:
    """What records programs of JAX here."""

    jaxlib: str
    """Its version."""
    platform: str
    """``cpu`` or ``gpu``, say."""
    library: Path | None
    """With it loops on a CPU digest their carry themselves; None: it is not built."""


LABELS = {
    "processor": ("host.cpu", "host.isa"),
    "cores": ("host.cores_allowed", "host.cores"),
    "GPU": ("cuda.devices", "cuda.gpus"),
    "driver": ("cuda.driver",),
    "torch": ("torch.version",),
    "CUDA": ("torch.cuda",),
    "cuDNN": ("cuda.cudnn",),
    "cuBLAS": ("cuda.cublas",),
    "MKL": ("torch.mkl",),
    "oneDNN": ("torch.onednn",),
    "ATen": ("cpu.capability",),
    "threads": ("torch.threads",),
    "JAX": ("jax.version",),
    "jaxlib": ("jax.jaxlib",),
    "platform": ("jax.platform",),
    "devices": ("jax.devices",),
}
"""Labels and their facts, of which the first that is known is shown."""

JAX_SETTINGS = ("default_matmul_precision", "default_prng_impl", "enable_x64", "threefry_partitionable")
"""Settings of JAX that are shown, each the fact ``jax.NAME``."""

TITLES = {
    Scope.HERE: "Sources of nondeterminism between runs on this machine",
    Scope.ELSEWHERE: "Sources of differences on another machine",
}


def render_doctor(
    facts: Facts, obstacles: Sequence[Obstacle], recorder: FoundLibrary | JaxRecorder | None = None, *, color: bool
) -> str:
    """The report, without a newline at the end. ``recorder``: what records such a program here; None: left out."""
    style = Style(color)
    lists = (_obstacles(scope, obstacles, style) for scope in Scope)
    recording = _jax_recorder(recorder, style) if isinstance(recorder, JaxRecorder) else _engine(recorder, style)
    sections = (_kernel_selection(facts, style), _flags(facts), *lists, recording)
    return "\n\n".join(text for section in sections if (text := "\n".join(section)))


def _kernel_selection(facts: Facts, style: Style) -> Iterator[str]:
    yield style.bold("Kernel selection on this machine")
    for name, keys in LABELS.items():
        value = next((facts[key] for key in keys if facts.get(key) is not None), None)
        if value is not None:
            yield from wrapped(str(value), " " * 13, f"  {name:<11}")


def _flags(facts: Facts) -> Iterator[str]:
    """Flags that are on and variables that are set; flags of GPUs only if there is one."""
    gpu = any(facts.get(key) for key in LABELS["GPU"])
    variables = [f"{key.removeprefix('env.')}={value}" for key, value in facts.items() if key.startswith("env.")]
    enabled = [key.removeprefix("flag.") for key, value in facts.items() if key.startswith("flag.") and value is True]
    switches = [name for name in enabled if gpu or not name.startswith(("cuda.", "cudnn."))]
    if variables:
        yield from wrapped(" ".join(variables), " " * 13, "  variables  ")
    if switches:
        yield from wrapped(", ".join(switches), " " * 13, "  on         ")
    settings = [f"{name}={facts[f'jax.{name}']}" for name in JAX_SETTINGS if f"jax.{name}" in facts]
    if settings:
        yield from wrapped(" ".join(settings), " " * 13, "  settings   ")


def _obstacles(scope: Scope, obstacles: Sequence[Obstacle], style: Style) -> Iterator[str]:
    shown = [obstacle for obstacle in obstacles if obstacle.scope is scope]
    yield style.bold(TITLES[scope]) if shown else f"{TITLES[scope]}: none known"
    for obstacle in shown:
        yield from wrapped(obstacle.what, "    ", "  ")
        yield from wrapped(f"{obstacle.why}.", " " * 6)
        yield from wrapped(obstacle.how, " " * 12, "      set   ")
        if obstacle.cost:
            yield from wrapped(obstacle.cost, " " * 12, "      cost  ")


def _engine(engine: FoundLibrary | None, style: Style) -> Iterator[str]:
    if engine is None:
        return
    yield style.bold("Recording on this machine")
    if engine.record is None:
        yield from wrapped(f"dispatch mode in Python: {engine.why_not}", " " * 13, "  engine     ")
        yield from wrapped(f"{line('build-engine')} compiles the native one", " " * 13)
    else:
        built = f"native, built for {engine.record.target.text} by {engine.record.compiler}"
        yield from wrapped(built, " " * 13, "  engine     ")


def _jax_recorder(recorder: JaxRecorder, style: Style) -> Iterator[str]:
    yield style.bold("Recording on this machine")
    if recorder.platform != "cpu":
        yield from wrapped(
            f"digested by the host: no library is used on a {recorder.platform}", " " * 13, "  loops      "
        )
    elif recorder.library is None:
        why = f"digested by the host: no library is built for jaxlib {recorder.jaxlib}"
        yield from wrapped(why, " " * 13, "  loops      ")
        yield from wrapped(f"{line('build-engine')} compiles it", " " * 13)
    else:
        built = f"digested within their programs, by a library for jaxlib {recorder.jaxlib}"
        yield from wrapped(built, " " * 13, "  loops      ")
