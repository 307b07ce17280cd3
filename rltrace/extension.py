"""Extensions: packages beside the core that add verbs, and recorders of other libraries.

An extension is a package in ``rltrace.extensions`` with a constant ``EXTENSION``. The core finds it by listing that
folder and knows none by name; without the folder all else works. Importing the package itself imports nothing else of
it, so that finding extensions costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple

from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.recorder.base.options import RecordOptions


class Verb(NamedTuple):
    """A verb of the command line."""

    group: str
    """The heading under which ``rltrace --help`` lists it."""
    help: str
    module: str
    """The module with its click command, named ``command``."""
    runs_command: bool = False
    """Whether it runs a command, as which it ends."""


class Extension(NamedTuple):
    """What one package adds to the core."""

    verbs: Mapping[str, Verb]
    recorders: Callable[[RecordOptions], Mapping[str, str]] = lambda options: {}
    """By library whose import starts a recorder, the function that starts it with the options and the process's token:
    ``module:function``. It goes before the core's of the same library."""
    captures: Callable[[RecordOptions], str] = lambda options: ""
    """What these options request to capture besides values: a function that is given the captures of a process, the
    options and the ``CapturedProcess``, and returns the captures with its own: ``module:function``; "": nothing."""
    patches: tuple[str, ...] = ()
    """What is patched while ops are recorded: classes that are given the ``ProcessState``, with ``install`` and
    ``uninstall``: ``module:class``."""
    profiler: str = ""
    """What records the launches of kernels in the steps of ``RecordOptions.kernels``: a ``LaunchProfiler``, given the
    ``ProcessState``, the streams and the committer of a process: ``module:function``."""
    providers: Mapping[str, str] = {}
    """By the name that ``RecordOptions.provider`` has, what makes a provider of injected values for each process of a
    replay (``rltrace.rerun.hook``) with the options: ``module:function``."""
    page: str = ""
    """What draws a page of HTML of two traces and the commands that it suggests: ``module:function``."""
    after_recording: str = ""
    """What is called when a recording of ``rltrace record`` has ended, with the trace, the options, and whether to be
    quiet; it returns whether it succeeded: ``module:function``."""
    findings: str = ""
    """The module that reads what it found while a program was recorded; "": none. It has ``found_in(process)`` (a
    dataclass, whose ``described()`` gives a label, a summary and sentences; None: it did not look), ``repeats_text(op,
    sides)`` (whether an op repeats itself within a run, as far as that is known; given the name, the process and the
    innermost frame of each side) and ``differs(trace)`` (whether it ends ``rltrace record --exit-code`` with 1)."""
    library: str = ""
    """The module of a library beside the native engine: ``find()`` returns its path, and ``build(force=…)`` compiles it
    and does so; None: it is not there, or what it is for is not installed."""
    pytest_plugin: str = ""
    """The module that pytest loads as a plugin; "": none."""
    remote_traces: str = ""
    """The module that reads traces at URLs, with a ``RemoteStore`` and a ``RequestPool``."""


@cache
def extensions() -> tuple[Extension, ...]:
    """All extensions, in the order of their names."""
    try:
        package = import_module("rltrace.extensions")
    except ModuleNotFoundError:
        return ()
    names = sorted(module.name for module in iter_modules(package.__path__) if module.ispkg)
    return tuple(import_module(f"rltrace.extensions.{name}").EXTENSION for name in names)


def recorders(options: RecordOptions) -> dict[str, str]:
    """By library whose import starts a recorder under these options, the function that starts it."""
    found = {"torch": f"rltrace.{'rerun.values' if options.replay else 'recorder.session.session'}:start"}
    for extension in extensions():
        found |= extension.recorders(options)
    return found


def captures(options: RecordOptions) -> list[str]:
    """What captures what these options request besides values. Raises UsageError where that needs an extension."""
    found = [function for extension in extensions() if (function := extension.captures(options))]
    if (options.rows or options.state is not None or options.repeat) and not found:
        what = "repeated ops" if options.repeat else "activation rows" if options.rows else "parameters and gradients"
        raise UsageError(f"{what} cannot be recorded: rltrace was installed without that extension")
    return found


def profiler(options: RecordOptions) -> str:
    """What records launches of kernels; "": these options request none. Raises UsageError without an extension."""
    if options.kernels is None:
        return ""
    for extension in extensions():
        if extension.profiler:
            return extension.profiler
    raise UsageError("launches of kernels cannot be recorded: rltrace was installed without that extension")


def check_installed(options: RecordOptions) -> None:
    """Raise UsageError where options need an extension that is not installed."""
    captures(options)
    profiler(options)


def has_verb(name: str) -> bool:
    """Whether a verb of the command line is there: of the core, or of an extension that is installed."""
    is_own = find_spec(f"rltrace.commands.{name.replace('-', '_')}") is not None
    return is_own or any(name in extension.verbs for extension in extensions())


def findings() -> list[Any]:
    """The modules by which extensions read what they found."""
    return [import_module(extension.findings) for extension in extensions() if extension.findings]


def remote_traces() -> Any:
    """The module that reads traces at URLs. Raises UsageError without one."""
    for extension in extensions():
        if extension.remote_traces:
            return import_module(extension.remote_traces)
    raise UsageError("traces at URLs cannot be read: rltrace was installed without that extension")
