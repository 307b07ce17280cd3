"""Compiles the native engine's library for this Python and its torch, into the cache.

Owns the compiler and its flags. Never runs within a recorded program.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.errors import BuildError
from rltrace.json import to_json
from rltrace.native.library import (
    BUILD_RECORD,
    MODULE,
    SOURCES,
    VARIANT_VARIABLE,
    BuildRecord,
    BuildTarget,
    cache_folder,
    content_digest,
    name_of,
    read_record,
    sources_digest,
    target_of,
    torch_folder,
)

COMPILERS = "c++", "g++", "clang++"
"""Looked for in this order where $CXX is not set."""

FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")
LIBRARIES = "torch", "torch_cpu", "c10", "torch_python"
CHECKED = "-g", "-O1", "-fno-omit-frame-pointer"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "address": (*CHECKED, "-fsanitize=address"),
    "undefined": (*CHECKED, "-fsanitize=undefined"),
    "debug": (*CHECKED, "-UNDEBUG", "-D_GLIBCXX_ASSERTIONS"),
}
"""Flags by variant: with a sanitizer, or with the assertions of torch and of the library."""

_TRIAL = "#include <version>\nstatic_assert(__cplusplus >= 202002L);\n"
_SHOWN_LINES = 12
"""Of what a compiler wrote, in an error message."""


# --- compiler ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that knows C++20."""

    command: tuple[str, ...]
    version: str
    """The first line that it prints about itself."""

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"


def find_compiler() -> Compiler:
    """The one that $CXX names, else the first that is installed. Raises BuildError."""
    named = shlex.split(os.environ.get("CXX", ""))
    program = shutil.which(named[0]) if named else next(filter(None, map(shutil.which, COMPILERS)), None)
    if program is None:
        if named:
            raise BuildError(f"the compiler {named[0]}, which CXX names, does not exist: correct or unset CXX")
        listed = ", ".join(COMPILERS)
        raise BuildError(f"no C++ compiler is installed ({listed}): install g++ 11 or clang++ 14, or name one with CXX")
    command = (program, *named[1:])
    version = _output([*command, "--version"]).partition("\n")[0].strip()
    compiler = Compiler(command, version)
    tried = _run([*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], _TRIAL)
    if tried.returncode:
        raise BuildError(
            f"{compiler} cannot compile C++20: install g++ 11 or clang++ 14, or name another compiler with CXX\n"
            + _shown(tried.stderr)
        )
    return compiler


def _output(command: Sequence[str]) -> str:
    ended = _run(command)
    if ended.returncode:
        raise BuildError(f"{shlex.join(command)} ended with status {ended.returncode}\n{_shown(ended.stderr)}")
    return ended.stdout


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error


def _shown(text: str) -> str:
    """The errors that a compiler wrote, else its last lines."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    return "\n".join(f"  {line}" for line in (errors[:_SHOWN_LINES] or lines[-_SHOWN_LINES:]))


# --- build ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineBuild:
    """One library that can be built here."""

    target: BuildTarget
    compiler: Compiler
    variant: str
    sources: str
    """Digest of the sources."""
    torch: Path
    """Folder of torch."""
    headers: Path
    """Folder of Python.h."""

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags that do not name a folder."""
        names = (f"-DRLTRACE_MODULE={MODULE}", f"-DTORCH_EXTENSION_NAME={MODULE}")
        return (*FLAGS, *VARIANTS[self.variant], *names, f"-D_GLIBCXX_USE_CXX11_ABI={_library_abi(self.torch)}")

    @property
    def folder(self) -> Path:
        """Where the library and its build record are, or will be; another for anything that it depends on."""
        inputs = repr((self.target, self.compiler, self.flags, self.sources))
        return cache_folder() / f"{name_of(self.target, self.sources)}-{content_digest(inputs.encode())[:16]}"

    @property
    def is_built(self) -> bool:
        try:
            record = read_record(self.folder)
            return content_digest((self.folder / record.file).read_bytes()) == record.digest
        except (OSError, ValueError):
            return False

    def compile(self) -> Path:
        """Compile the library; its folder. Raises BuildError.

        Takes a minute and a gigabyte. The build record, which names the library, is written last and at once: who
        reads it sees a whole library, also while another process builds the same.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="building-") as name:
                library, record_file = Path(name, "library.so"), Path(name, BUILD_RECORD)
                self._compile_into(library)
                digest = content_digest(library.read_bytes())
                compiler, file = str(self.compiler), f"{MODULE}-{digest[:16]}.so"
                record = BuildRecord(self.target, compiler, self.flags, self.variant, self.sources, file, digest)
                record_file.write_text(json.dumps(to_json(record), indent=1) + "\n", encoding="utf-8")
                library.replace(self.folder / record.file)
                record_file.replace(self.folder / BUILD_RECORD)
        except OSError as error:
            raise BuildError(f"{self.folder} cannot be written: {error.strerror}") from error
        return self.folder

    def _compile_into(self, library: Path) -> None:
        include = self.torch / "include"
        folders = include, include / "torch/csrc/api/include", self.headers, self.headers / "internal"
        command = [*self.compiler.command, *self.flags]
        command += [word for folder in folders for word in ("-isystem", os.fspath(folder))]
        command += [os.fspath(SOURCES / "engine.cpp"), "-o", os.fspath(library), f"-L{self.torch / 'lib'}"]
        ended = _run([*command, *(f"-l{name}" for name in LIBRARIES)])
        if ended.returncode:
            raise BuildError(f"the engine cannot be compiled by {self.compiler}\n{_shown(ended.stderr)}")


def plan_build() -> EngineBuild:
    """What would be built for this Python. Raises BuildError, with what is missing and what to do."""
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        raise BuildError("the native engine is for CPython on Linux; elsewhere ops are recorded in Python")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("the native engine needs a Python with a global lock; ops are recorded in Python here")
    torch = torch_folder()
    target = None if torch is None else target_of(torch)
    if torch is None or target is None:
        raise BuildError(f"torch is not installed for {sys.executable}: install it, or run another Python's rltrace")
    if not (torch / "include/torch/csrc/api/include/torch/all.h").is_file():
        raise BuildError(f"{torch / 'include'} lacks torch's C++ headers: install torch from a wheel")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        raise BuildError(f"{headers / 'Python.h'} does not exist: install Python's headers (Debian: {package})")
    variant = os.environ.get(VARIANT_VARIABLE, "")
    if variant not in VARIANTS:
        raise BuildError(f"{VARIANT_VARIABLE}={variant} is not one of {', '.join(filter(None, VARIANTS))}")
    return EngineBuild(target, find_compiler(), variant, sources_digest(), torch, headers)


def _library_abi(torch: Path) -> str:
    """The ABI of the C++ library with which torch was built, 0 or 1."""
    try:
        text = (torch / "share/cmake/Torch/TorchConfig.cmake").read_text(encoding="utf-8")
    except OSError:
        return "1"
    found = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", text)
    return found[1] if found else "1"


def compile_library(what: str, words: Sequence[str], path: Path) -> None:
    """Compile a library that is none of torch's, from sources and flags, and put it at ``path`` at once.

    ``what``: the library, in an error. Raises BuildError.
    """
    compiler = find_compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as name:
            library = Path(name, path.name)
            ended = _run([*compiler.command, *FLAGS, *words, "-o", os.fspath(library)])
            if ended.returncode:
                raise BuildError(f"{what} cannot be compiled by {compiler}\n{_shown(ended.stderr)}")
            library.replace(path)
    except OSError as error:
        raise BuildError(f"{path.parent} cannot be written: {error.strerror}") from error
