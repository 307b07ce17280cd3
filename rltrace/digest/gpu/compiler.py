"""Compiles the kernels for one kind of GPU, in a separate process.

The recorded process imports no triton: the program's hooks, knobs and ``TRITON_`` variables do not affect these
kernels, the compiler's output is not printed, and a compiler that aborts ends only that process. Triton caches the
compiled kernels.
"""

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

TIMEOUT = 120.0
"""Seconds for compiling all kernels; half a second where Triton has them cached."""

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "rltrace_condense_one": ("i64", "i32", "i32", "i64", "i64", "i64"),
    "rltrace_condense_many": ("i64", "i64"),
}
"""Triton types of the kernels' parameters."""

PARAMETERS = {"i32": ".u32", "i64": ".u64"}
"""PTX types by Triton type."""

_ENTRY = re.compile(r"\.visible \.entry \w+\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param (\.\w+)( \.ptr)?")

_PASSED_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TRITON_CACHE_DIR", "TRITON_HOME")
"""Variables passed to the process, besides those that name other assemblers."""

_RLTRACE_FOLDER = str(Path(__file__).parents[3])

_PROGRAM = """
import sys
architecture, triton, *folders = sys.argv[1:]
sys.path += folders
from rltrace.digest.gpu.compiler import answer
answer(architecture, triton)
"""


class UnavailableError(Exception):
    """There are no kernels for this GPU; the message is the reason."""


@dataclass(frozen=True)
class Binary:
    """One kernel, compiled."""

    name: str
    """Name of the entry."""
    code: bytes
    """A cubin."""
    shared: int
    """Bytes of shared memory of a launch."""
    nulls: int
    """Number of unused pointers that the compiler has appended to the kernel's parameters."""


@dataclass(frozen=True)
class Binaries:
    """All kernels, compiled for one kind of GPU."""

    compiler: str
    """``Triton 3.7.1``."""
    kernels: Mapping[str, Binary]


@cache
def compiled(architecture: int) -> Binaries:
    """The kernels for a compute capability (90: 9.0). Raises UnavailableError. Takes seconds where none are cached."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise UnavailableError("this program has no Python interpreter to compile in")
    folders = [_folder_of(_origin_of_triton()), _RLTRACE_FOLDER, _folder_of(xxhash.__file__)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(architecture), *folders]
    variables = {
        k: v for k, v in os.environ.items() if k in _PASSED_VARIABLES or re.fullmatch(r"TRITON_PTXAS\w*_PATH", k)
    }
    try:
        completed = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
        reply = json.loads(completed.stdout or b"{}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"compiling for sm_{architecture} failed: {type(error).__name__}") from None
    if "compiler" not in reply:
        raise UnavailableError(
            f"compiling for sm_{architecture} failed: {reply.get('error') or _exit_text(completed.returncode)}"
        )
    return Binaries(
        reply["compiler"],
        {n: Binary(**{**k, "code": base64.b64decode(k["code"])}) for n, k in reply["kernels"].items()},
    )


def _exit_text(status: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name  # LLVM aborts where it does not know a GPU
    return f"status {status}"


def _folder_of(package: str) -> str:
    """The folder of a package, by the file of its ``__init__``."""
    return str(Path(package).parent.parent)


def _origin_of_triton() -> str:
    """The file that ``import triton`` would load. Imports nothing."""
    try:
        spec = importlib.util.find_spec("triton")
    except ValueError:  # a fake module without a spec
        spec = None
    if spec is None or spec.origin is None:
        raise UnavailableError("triton is not installed")
    return spec.origin


def answer(architecture: str, folder: str) -> None:
    """In the separate process: compile with the Triton in this folder, and write the result to standard output."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of compilers is discarded
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a compiler that aborts leaves no core file
    try:
        sys.path.insert(sys.path.index(_RLTRACE_FOLDER), folder)  # before another Triton beside the other packages
        import triton  # noqa: F401

        sys.path.remove(folder)
        reply = _compile_somewhere(int(architecture))
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:200]}"}
    with output:
        json.dump(reply, output)


def _compile_somewhere(architecture: int) -> dict[str, object]:
    """Compile with Triton's cache, or with a temporary one where that cannot be written."""
    try:
        return _reply(architecture)
    except OSError:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            return _reply(architecture)


def _reply(architecture: int) -> dict[str, object]:
    import triton

    compiled = compile_by_triton(architecture).items()
    kernels = {name: _as_text(_binary(kernel, SIGNATURES[name])) for name, kernel in compiled}
    return {"compiler": f"Triton {triton.__version__}", "kernels": kernels}


def _as_text(binary: Binary) -> dict[str, object]:
    return asdict(binary) | {"code": base64.b64encode(binary.code).decode()}


def compile_by_triton(architecture: int) -> dict[str, Any]:
    """Triton's compiled kernels, by name."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rltrace.digest.gpu import kernels

    target = GPUTarget("cuda", architecture, 32)
    compiled_kernels = {}
    for name, signature in SIGNATURES.items():
        function = getattr(kernels, name)
        source = ASTSource(function, dict(zip(function.arg_names, signature, strict=True)), {})
        compiled_kernels[name] = triton.compile(source, target=target, options={"num_warps": WARPS})
    return compiled_kernels


def _binary(kernel: Any, signature: tuple[str, ...]) -> Binary:
    """Checks the parameters: a launch with others than the kernel has would crash the program."""
    metadata = kernel.metadata
    entry = _ENTRY.search(kernel.asm["ptx"])
    parameters = _PARAMETER.findall(entry[1]) if entry else []
    own, extra = parameters[: len(signature)], parameters[len(signature) :]
    if [kind for kind, _ in own] != [PARAMETERS[each] for each in signature] or not all(p for _, p in extra):
        raise TypeError(f"this compiler gives a kernel other parameters: {parameters}")
    if any(getattr(metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size")):
        raise TypeError("this compiler gives a kernel extra memory")
    return Binary(metadata.name, kernel.asm["cubin"], metadata.shared, len(extra))
