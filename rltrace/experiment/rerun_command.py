"""How to run a recorded command again: its arguments, folder and environment variables, from its trace.

Raises where the trace lacks one of them, as with masked arguments. Runs nothing.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.command_lines import in_folder, variables_of
from rltrace.errors import UsageError
from rltrace.fingerprint.host import FILE_LISTS, is_recorded
from rltrace.masking import MASK
from rltrace.rerun.plan import compile_of, loops_of
from rltrace.trace.read.reader import Trace
from rltrace.wording import joined

MACHINE = ("host.cpu", "host.isa", "host.machine", "cuda.gpus", "cuda.driver")
"""Facts that the machine of an arm must share with that of its trace."""


@dataclass(frozen=True)
class Recipe:
    """What is needed to run a recorded command again."""

    command: tuple[str, ...]
    folder: Path
    variables: Mapping[str, str]
    """The recorded variables: they are set, and all others of the recorded kinds are unset."""
    options: tuple[str, ...] = ()
    """Options of ``rltrace record`` that change what the program runs."""

    @property
    def shown(self) -> str:
        """One line to paste: ``(cd FOLDER && NAME=value python train.py)``."""
        return self.line_with()

    def line_with(self, *before: str) -> str:
        """The same with arguments before the command: ``rltrace check --``."""
        return in_folder(os.fspath(self.folder), self.variables, shlex.join([*before, *self.command]))

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """``base`` with the recorded variables set as they were."""
        others = {name: value for name, value in base.items() if not is_recorded(name) or name in FILE_LISTS}
        return others | dict(self.variables)


def recipe_of(
    trace: Trace,
    *,
    command: Sequence[str] = (),
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    option: str = "--cmd",
) -> Recipe:
    """The recipe of ``trace``, with ``command`` and ``folder`` in place of its own, and ``variables`` added.

    Raises UsageError where something is missing or masked; ``option`` is the option that sets the command. A masked
    variable that this process has is passed on as it is.
    """
    words = tuple(command) or _command(trace, option)
    found = {**variables_of(trace), **(variables or {})}
    masked = [name for name, value in found.items() if MASK in value and name not in os.environ]
    if masked:
        raise UsageError(
            f"{trace.path} was recorded with {joined(masked)}, and holds no value of it: a path, or what looked like a "
            f"secret, was masked; give it with {option.replace('--cmd', '--env')} {masked[0]}=…"
        )
    known = {name: value for name, value in found.items() if MASK not in value}
    return Recipe(words, folder or _folder(trace), known, options_of(trace))


def options_of(trace: Trace) -> tuple[str, ...]:
    """Options of ``rltrace record`` that change what the program of a trace runs."""
    compile_, loops = compile_of(trace), loops_of(trace)
    compiled = () if compile_ is None else ("--compile", compile_)
    return (*compiled, *(("--loops", ",".join(loops)) if loops else ()))


def _command(trace: Trace, option: str) -> tuple[str, ...]:
    found = trace.launch.get("command")
    if not isinstance(found, list) or not found:
        raise UsageError(f"{trace.path} does not record its command; give it with {option} 'python train.py'")
    words = [str(word) for word in found]
    hidden = next((word for word in words if MASK in word), None)
    if hidden is not None:
        raise UsageError(
            f"the command of {trace.path} holds {hidden!r}: what looked like a secret was masked; give the command "
            f"with {option} '{shlex.join(words)}'"
        )
    return tuple(str(Path(word).expanduser()) if word.startswith("~/") else word for word in words)


def _folder(trace: Trace) -> Path:
    found = trace.launch.get("cwd")
    folder = Path(found).expanduser() if isinstance(found, str) and found else None
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"{trace.path} was recorded in {found or 'an unnamed folder'}, which does not exist here; name the "
            "program's folder with --folder"
        )
    return folder


def machine_difference(trace: Trace, facts: Mapping[str, object]) -> str | None:
    """In which way a machine (``facts``: its facts) is not the trace's; None: in none that is known."""
    recorded_facts = trace.processes[0].facts if trace.processes else {}
    for name in MACHINE:
        recorded, found = recorded_facts.get(name), facts.get(name)
        if recorded is not None and found is not None and recorded != found:
            return f"{name} is {found} here and was {recorded} where {trace.path} was recorded"
    return None
