"""The kernels made into code for one kind of GPU, by a process of their own.

Owns that process and what crosses from it. Whoever asks imports no triton: the program's hooks, knobs and ``TRITON_``
variables have no say in kernels that are not its own, what a compiler prints stays in that process, and one that aborts
there ends nothing else. What Triton has compiled once it finds again in its own cache.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from rltrace.digest.gpu import WARPS

PATIENCE = 120.0
"""Seconds for compiling all kernels; where Triton has them already it takes half of one."""

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "rltrace_condense_one": ("i64", "i32", "i32", "i64", "i64", "i64"),
    "rltrace_condense_many": ("i64", "i64"),
}
"""Parameters of the kernels, in Triton's words."""

PARAMETERS = {"i32": ".u32", "i64": ".u64"}
"""The same in PTX."""

_ENTRY = re.compile(r"\.visible \.entry \w+\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param (\.\w+)( \.ptr)?")

_KEPT = ("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TRITON_CACHE_DIR", "TRITON_HOME")
"""Variables that the process gets, and those with which a program names other assemblers."""

_OWN_FOLDER = str(Path(__file__).parents[3])

_PROGRAM = """
import sys
architecture, triton, *folders = sys.argv[1:]
sys.path += folders
from rltrace.digest.gpu.compile import answer
answer(architecture, triton)
"""


class UnavailableError(Exception):
    """There are no kernels for this GPU, for the reason that the message gives."""


@dataclass(frozen=True)
class Binary:
    """One kernel, compiled."""

    name: str
    """Of the entry."""
    code: bytes
    """A cubin."""
    shared: int
    """Bytes of shared memory that a launch is given."""
    nulls: int
    """Pointers that the compiler has put behind the kernel's own parameters, for memory that it needs none of."""


@dataclass(frozen=True)
class Binaries:
    """All kernels, compiled for one kind of GPU."""

    compiler: str
    """``Triton 3.7.1``."""
    kernels: Mapping[str, Binary]


@cache
def compiled(architecture: int) -> Binaries:
    """The kernels for a compute capability (90: 9.0). Raises UnavailableError. Takes seconds where Triton has none."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise UnavailableError("this program has no Python interpreter to compile in")
    folders = [_folder_of(_origin_of_triton()), _OWN_FOLDER, _folder_of(xxhash.__file__)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(architecture), *folders]
    variables = {k: v for k, v in os.environ.items() if k in _KEPT or re.fullmatch(r"TRITON_PTXAS\w*_PATH", k)}
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
        told = json.loads(done.stdout or b"{}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"compiling for sm_{architecture} failed: {type(error).__name__}") from None
    if "compiler" not in told:
        raise UnavailableError(
            f"compiling for sm_{architecture} failed: {told.get('error') or _ending(done.returncode)}"
        )
    return Binaries(told["compiler"], {name: _from_text(kernel) for name, kernel in told["kernels"].items()})


def _ending(status: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name  # LLVM aborts where it does not know a GPU
    return f"status {status}"


def _folder_of(package: str) -> str:
    """Where a package lies, of whose ``__init__`` this is the file."""
    return str(Path(package).parent.parent)


def _origin_of_triton() -> str:
    """What would be imported; nothing is."""
    try:
        found = importlib.util.find_spec("triton")
    except ValueError:  # a stand-in for it
        found = None
    if found is None or found.origin is None:
        raise UnavailableError("triton is not installed")
    return found.origin


def answer(architecture: str, folder: str) -> None:
    """In the process of its own: compile with the Triton in this folder, write to standard output what came of it."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print goes where nobody reads it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # and one that aborts leaves nothing behind
    try:
        sys.path.insert(sys.path.index(_OWN_FOLDER), folder)  # another one may lie beside what else is needed
        import triton  # noqa: F401

        sys.path.remove(folder)
        told = _compile_somewhere(int(architecture))
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:200]}"}
    with output:
        json.dump(told, output)


def _compile_somewhere(architecture: int) -> dict[str, object]:
    """With Triton's own cache; where it cannot be written, with one that is gone afterwards."""
    try:
        return _told(architecture)
    except OSError:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            return _told(architecture)


def _told(architecture: int) -> dict[str, object]:
    import triton

    kernels = {name: _as_text(kernel) for name, kernel in compile_all(architecture).items()}
    return {"compiler": f"Triton {triton.__version__}", "kernels": kernels}


def _as_text(binary: Binary) -> dict[str, object]:
    return asdict(binary) | {"code": base64.b64encode(binary.code).decode()}


def _from_text(told: Mapping[str, Any]) -> Binary:
    return Binary(**{**told, "code": base64.b64decode(told["code"])})


def compile_all(architecture: int) -> dict[str, Binary]:
    """Compile in this process. Needs no GPU."""
    return {name: _binary(kernel, SIGNATURES[name]) for name, kernel in by_triton(architecture).items()}


def by_triton(architecture: int) -> dict[str, Any]:
    """What Triton makes of each kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rltrace.digest.gpu import kernels

    target = GPUTarget("cuda", architecture, 32)
    made = {}
    for name, signature in SIGNATURES.items():
        function = getattr(kernels, name)
        source = ASTSource(function, dict(zip(function.arg_names, signature, strict=True)), {})
        made[name] = triton.compile(source, target=target, options={"num_warps": WARPS})
    return made


def _binary(kernel: Any, signature: tuple[str, ...]) -> Binary:
    """What a launch needs. One with other parameters than the kernel has would end the program: they are looked at."""
    metadata = kernel.metadata
    entry = _ENTRY.search(kernel.asm["ptx"])
    parameters = _PARAMETER.findall(entry[1]) if entry else []
    own, more = parameters[: len(signature)], parameters[len(signature) :]
    if [kind for kind, _ in own] != [PARAMETERS[each] for each in signature] or not all(pointer for _, pointer in more):
        raise TypeError(f"this compiler gives a kernel other parameters: {parameters}")
    if any(getattr(metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size")):
        raise TypeError("this compiler gives a kernel extra memory")
    return Binary(metadata.name, kernel.asm["cubin"], metadata.shared, len(more))
