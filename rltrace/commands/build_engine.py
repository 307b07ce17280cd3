"""``rltrace build-engine``: compile the native engine for this Python and its torch."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from rltrace.commands._option_types import option, quiet_option, verb
from rltrace.commands.console import emit, narrate


@dataclass(frozen=True, kw_only=True)
class BuildEngineArguments:
    force: bool = option(help="Compile it again.")
    quiet: bool = quiet_option()


@verb(BuildEngineArguments)
def command(arguments: BuildEngineArguments) -> None:
    """Compile the native engine for this Python and its torch, and print where it is.

    Takes a C++20 compiler ($CXX, else c++, g++ or clang++), about a minute and a gigabyte of memory. With it a
    program of small ops is recorded in about half the time; without it everything works, in Python. The library
    goes into the user's cache folder ($RLTRACE_CACHE, else rltrace in $XDG_CACHE_HOME or ~/.cache), and fits this
    torch and this Python only: build it again when either changes.

    Where JAX is installed, a library for its programs is compiled as well (three seconds), and its path printed last.
    """
    from rltrace.native.build import build_log_library, plan_build
    from rltrace.native.library import jaxlib_folder, torch_folder

    force, quiet = arguments.force, arguments.quiet
    if torch_folder() is None and jaxlib_folder() is not None:
        emit(str(build_log_library(force=force)))
        return
    build = plan_build()
    if build.is_built and not force:
        folder = build.folder
    else:
        if not quiet:
            narrate(f"compiling for {build.target.text} with {build.compiler}: about a minute …")
        began = monotonic()
        folder = build.compile()
        if not quiet:
            narrate(f"done in {monotonic() - began:.0f} s")
    emit(str(folder))
    log_library = build_log_library(force=force)
    if log_library is not None:
        emit(str(log_library))
