"""``rltrace doctor``: what selects kernels here, and sources of nondeterminism.

Owns the options, and the short run whose facts are reported.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    color_option,
    command_argument,
    form_option,
    option,
    verb,
)
from rltrace.commands.console import ExitCode, emit_report
from rltrace.errors import RecordError, UsageError
from rltrace.extension import extensions
from rltrace.launch.command import CommandLookup, look_up
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.extensions.doctor.checks import Fact

FIRST_OP = "import torch; torch.ones(2, device='cuda' if torch.cuda.is_available() else 'cpu') + 1"
"""Runs an op, on a GPU if there is one, because torch initialises lazily."""

FIRST_CALL = "import jax; jax.numpy.ones(2) + 1"
"""The same where torch is not installed and JAX is."""


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    trace: Location | None = option(metavar="TRACE", help="Report on the process of this trace.")
    form: str = form_option()
    color: str = color_option()
    command: tuple[str, ...] = command_argument("[-- CMD …]")


@verb(DoctorArguments, context_settings=BEFORE_COMMAND)
def command(arguments: DoctorArguments) -> int:
    """What selects kernels here (processor, libraries, threads, switches), sources of nondeterminism, and the engine.

    Reports on a new Python process with torch (with JAX where only JAX is installed), on CMD after its first optimizer
    step, or the first iteration of its loop in JAX (it is ended then; a program without one runs to its end), or on the
    process that TRACE recorded.
    """
    from rltrace.extensions.doctor.checks import obstacles
    from rltrace.extensions.doctor.report import DoctorReport, JaxRecorder, doctor_document
    from rltrace.native.library import find, torch_folder

    trace, command = arguments.trace, arguments.command
    if trace is not None and command:
        raise UsageError("--trace and a command exclude each other: a trace has its command")
    first = FIRST_CALL if find_spec("torch") is None and find_spec("jaxlib") is not None else FIRST_OP
    facts = _facts_of(trace) if trace is not None else _facts_now(command or (sys.executable, "-c", first))
    engine = jax = None
    if trace is None and "jax.platform" in facts:
        libraries = (import_module(extension.library).find() for extension in extensions() if extension.library)
        library: Path | None = next(libraries, None)
        jax = JaxRecorder(str(facts["jax.jaxlib"]), str(facts["jax.platform"]), library)
    elif trace is None:
        engine = find(torch_folder())
    found = DoctorReport(facts, obstacles(facts), engine, jax)
    emit_report(arguments.form, found, lambda: doctor_document(found), arguments.color)
    return ExitCode.IDENTICAL


def _facts_of(path: Location) -> Mapping[str, Fact]:
    from rltrace.trace.read.reader import open_trace

    trace = open_trace(path)
    if not trace.processes:
        raise UsageError(f"{path} has no process: nothing was recorded")
    types = (str, int, float, bool, type(None))
    return {name: value for name, value in trace.processes[0].facts.items() if isinstance(value, types)}


def _facts_now(command: tuple[str, ...]) -> Mapping[str, Fact]:
    """Facts of the command's first process, from a short recording."""
    from rltrace.experiment.runner import Runner, RunRequest

    found = look_up(command[0])
    if found is not CommandLookup.EXECUTABLE:
        raise UsageError(f"{command[0]} cannot be run: {found.value}")
    with tempfile.TemporaryDirectory(prefix="rltrace-") as folder, Runner() as runner:
        trace = Path(folder, "doctor.zarr")
        options = ("--level", "step", "--until", "0")
        job = RunRequest("doctor", command, Path.cwd(), None, trace, Path(folder, "output"), options)
        (ended,) = runner.run([job])
        try:
            return _facts_of(trace)
        except UsageError:
            raise RecordError(f"the command {ended.how} before it had loaded torch, or computed with JAX") from None
