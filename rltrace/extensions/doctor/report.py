"""What selects the kernels of a process, and sources of nondeterminism: what is printed as JSON, and its document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rltrace.command_lines import line
from rltrace.extensions.doctor.checks import Facts as KnownFacts
from rltrace.extensions.doctor.checks import Obstacle, Scope
from rltrace.native.library import FoundLibrary
from rltrace.report.document import ALL, Document, Fact, Section
from rltrace.wording import sentences


@dataclass(frozen=True)
class JaxRecorder:
    """What records programs of JAX here."""

    jaxlib: str
    """Its version."""
    platform: str
    """``cpu`` or ``gpu``, say."""
    library: Path | None
    """With it loops on a CPU digest their carry themselves; None: it is not built."""


@dataclass(frozen=True)
class DoctorReport:
    """A process, and what may make its bits differ."""

    SCHEMA: ClassVar = "rltrace.doctor/1"

    facts: KnownFacts
    obstacles: tuple[Obstacle, ...]
    engine: FoundLibrary | None = None
    """None: of a trace, or of a program of JAX."""
    jax: JaxRecorder | None = None
    """None: of a trace, or of a program of torch."""


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


def doctor_document(found: DoctorReport) -> Document:
    """What selects kernels, what may differ between runs, and what records here."""
    sections = (
        Section("kernels", "Kernel selection on this machine", facts=tuple(_kernel_selection(found.facts))),
        *(_obstacles(scope, found.obstacles) for scope in Scope),
        Section("recording", "Recording on this machine", facts=tuple(_recording(found))),
    )
    return Document(sections=tuple(filter(None, sections)))


def _kernel_selection(known: KnownFacts) -> Iterator[Fact]:
    """Facts, variables that are set and flags that are on; flags of GPUs only if there is one."""
    for name, keys in LABELS.items():
        value = next((known[key] for key in keys if known.get(key) is not None), None)
        if value is not None:
            yield Fact(name, str(value))
    has_gpu = any(known.get(key) for key in LABELS["GPU"])
    variables = [f"{key.removeprefix('env.')}={value}" for key, value in known.items() if key.startswith("env.")]
    enabled = [key.removeprefix("flag.") for key, value in known.items() if key.startswith("flag.") and value is True]
    switches = [name for name in enabled if has_gpu or not name.startswith(("cuda.", "cudnn."))]
    settings = [f"{name}={known[f'jax.{name}']}" for name in JAX_SETTINGS if f"jax.{name}" in known]
    texts = {"variables": " ".join(variables), "on": ", ".join(switches), "settings": " ".join(settings)}
    yield from (Fact(label, text) for label, text in texts.items() if text)


def _obstacles(scope: Scope, obstacles: Sequence[Obstacle]) -> Section:
    parts = []
    for one in (obstacle for obstacle in obstacles if obstacle.scope is scope):
        facts = (Fact("set", one.how), Fact("cost", one.cost))
        parts.append(Section("", one.what, sentences(one.why), facts if one.cost else facts[:1]))
    return Section(scope, TITLES[scope], () if parts else ("None known.",), parts=tuple(parts), limit=ALL)


def _recording(found: DoctorReport) -> Iterator[Fact]:
    """The engine, or what digests loops of JAX, and how to get what is missing."""
    command, missing = line("build-engine"), False
    if found.engine is not None:
        built, missing = found.engine.record, found.engine.record is None
        text = f"dispatch mode in Python: {found.engine.why_not}"
        yield Fact("engine", f"native, built for {built.target.text} by {built.compiler}" if built else text)
    elif found.jax is not None:
        missing = found.jax.platform == "cpu" and found.jax.library is None
        yield Fact("loops", _loops(found.jax))
    if missing:
        yield Fact("", f"{command} compiles {'it' if found.engine is None else 'the native one'}")


def _loops(recorder: JaxRecorder) -> str:
    if recorder.platform != "cpu":
        return f"digested by the host: no library is used on a {recorder.platform}"
    if recorder.library is None:
        return f"digested by the host: no library is built for jaxlib {recorder.jaxlib}"
    return f"digested within their programs, by a library for jaxlib {recorder.jaxlib}"
