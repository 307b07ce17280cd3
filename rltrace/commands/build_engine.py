"""``rltrace build-engine``: compile the native engine for this Python and its torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from time import monotonic

from rltrace.commands._option_types import option, quiet_option, verb
from rltrace.commands.console import emit, narrate
from rltrace.extension import extensions


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
    from rltrace.native.build import plan_build
    from rltrace.native.library import torch_folder

    force, quiet = arguments.force, arguments.quiet
    others = [import_module(one.library).build(force=force) for one in extensions() if one.library]
    built = [path for path in others if path is not None]
    if torch_folder() is None and built:
        emit("\n".join(map(str, built)))
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
    emit("\n".join(map(str, [folder, *built])))
