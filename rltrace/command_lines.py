"""Commands of rltrace, ready to paste into a shell.

Owns quoting, the folder and environment variables of a recorded program, the names of its next recordings, and how two
recorded commands differ. Does not choose which command helps. Tests parse every line that is made here with the verb's
own parser.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rltrace.extension import has_verb
from rltrace.fingerprint.host import FILE_LISTS, is_recorded
from rltrace.masking import MASK
from rltrace.trace.format.process_start import LAUNCHER

if TYPE_CHECKING:
    from rltrace.trace.read.reader import Trace


UNKNOWN: Final = ("CMD",)
"""In place of a command that was not recorded."""


def line(verb: str, *words: object) -> str:
    """``rltrace VERB …``."""
    return shlex.join(["rltrace", verb, *map(str, words)])


def in_folder(folder: str, variables: Mapping[str, str], command: str) -> str:
    """``(cd FOLDER && NAME=value COMMAND)``, after which the shell is where it was, so that the next command can be
    pasted too; ``~`` is left for the shell to expand."""
    home, slash, rest = folder.partition("/")
    quoted = home + slash + (shlex.quote(rest) if rest else "") if home == "~" else shlex.quote(folder)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    text = " ".join([*assignments, command])
    return f"(cd {quoted} && {text})" if folder else text


FROM_HERE: Final = '"$OLDPWD/"'
"""Before a path in a command of ``in_folder``: the folder that the shell is in."""


@dataclass(frozen=True)
class NextCommand:
    """A command as a program runs it."""

    argv: tuple[str, ...]
    folder: str | None = None
    """The folder to run it in; None: the current one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to add."""


def parse_line(text: str) -> NextCommand:
    """The command that ``line`` or ``in_folder`` wrote as ``text``."""
    words = shlex.split(text, comments=True)  # a comment may say on which machine
    folder = None
    if words[0] == "(cd":
        folder, words = str(Path(words[1]).expanduser()), [*words[3:-1], words[-1].removesuffix(")")]
        words = [re.sub(r"^\$OLDPWD", lambda _: str(Path.cwd()), word) for word in words]
    variables = dict(word.split("=", 1) for word in takewhile(_ASSIGNMENT.match, words))
    return NextCommand(tuple(words[len(variables) :]), folder, variables)


def runnable(texts: Iterable[str]) -> tuple[str, ...]:
    """Those of these commands whose verb is there: some verbs are of extensions."""
    return tuple(text for text in texts if has_verb(parse_line(text).argv[1]))


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def record(trace: Trace, file: str, *options: object, other: Trace | None = None) -> str:
    """Record the program of a trace again, with the variables that it had; ``other``: one that it is compared with."""
    folder = folder_of(trace)
    command = line("record", *options, "-o", file, "--", *program(trace))
    if folder:
        command = command.replace(f" -o {shlex.quote(file)} -- ", f" -o {FROM_HERE}{shlex.quote(file)} -- ", 1)
    masked = [name for name, value in variables_of(trace).items() if MASK in value and not is_recorded(name)]
    comment = f"  # and {', '.join(masked)}, which the trace does not hold" if masked else ""
    return in_folder(folder, extra_variables(trace, other), command) + comment


def record_step(
    trace: Trace, step: int, file: str, *options: object, other: Trace | None = None, earlier: int = 0
) -> str:
    """Record one step of the program of a trace, and so many before it; the program ends there."""
    steps = f"{max(step - earlier, 0)}:{step + 1}"
    return record(trace, file, "--steps", steps, "--until", step, *options, other=other)


def record_both(
    a: Trace, b: Trace, step_a: int, step_b: int, ending: str, *options: object, earlier: int = 0
) -> tuple[str, ...]:
    """Record a step of both programs, and so many before it, then compare the two recordings."""
    file_a, file_b = file_names(a, b, ending)
    return (
        record_step(a, step_a, file_a, *options, other=b, earlier=earlier),
        record_step(b, step_b, file_b, *options, other=a, earlier=earlier) + _unknown_variables(a, b),
        line("diff", file_a, file_b),
    )


def record_whole(a: Trace, b: Trace, ending: str, *options: object) -> tuple[str, ...]:
    """Record both programs from their start, then compare the two recordings."""
    file_a, file_b = file_names(a, b, ending)
    return (
        record(a, file_a, *options, other=b),
        record(b, file_b, *options, other=a) + _unknown_variables(a, b),
        line("diff", file_a, file_b),
    )


def program(trace: Trace) -> tuple[str, ...]:
    """The recorded command; UNKNOWN where there is none."""
    command = trace.launch.get("command")
    return tuple(map(str, command)) if isinstance(command, list) and command else UNKNOWN


def difference(a: tuple[str, ...], b: tuple[str, ...]) -> str:
    """How command B differs from A: ``B adds --seed 2``; "" where they are equal, or one is not known.

    An option and its value are one unit, whether they are one word or two. The interpreter's path does not count, nor
    where the processes of ``torchrun`` meet.
    """
    if UNKNOWN in (a, b):
        return ""
    units_a, units_b = ([u for u in _units(words) if not _MEETING_PLACE.fullmatch(u[0])] for words in (a, b))
    phrases = []
    for tag, start_a, stop_a, start_b, stop_b in SequenceMatcher(None, units_a, units_b, autojunk=False).get_opcodes():
        if tag != "equal":
            phrases.append((units_a[start_a:stop_a], units_b[start_b:stop_b]))
    return "; ".join(_phrase(_quoted(only_a), _quoted(only_b)) for only_a, only_b in phrases)


def _quoted(units: Sequence[tuple[str, ...]]) -> str:
    return " ".join(shlex.quote(word) for unit in units for word in unit)


def _phrase(only_a: str, only_b: str) -> str:
    if not only_a:
        return f"B adds {only_b}"
    return f"B leaves out {only_a}" if not only_b else f"{only_a} in A, {only_b} in B"


def _units(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The words of a command, each option with its value."""
    units: list[tuple[str, ...]] = [(_INTERPRETER.sub("python", words[0]),)]
    for word in words[1:]:
        takes_value = len(units[-1]) == 1 and units[-1][0].startswith("-") and "=" not in units[-1][0]
        if takes_value and (not word.startswith("-") or _NUMBER.fullmatch(word)):
            units[-1] = (*units[-1], word)
        else:
            units.append((word,))
    return units


_INTERPRETER = re.compile(r".*python[\d.]*")
_MEETING_PLACE = re.compile(r"--(master|rdzv)[-_](addr|endpoint|id|port)(=.*)?")
_NUMBER = re.compile(r"-[\d.]+(e-?\d+)?")


def folder_of(trace: Trace) -> str:
    """The folder that the program ran in; "" if it is the current one or unknown."""
    folder = trace.launch.get("cwd")
    return folder if isinstance(folder, str) and folder and Path(folder).expanduser() != Path.cwd() else ""


def file_name(trace: Trace, ending: str) -> str:
    """``a-window.zarr`` for ``a.zarr``."""
    return f"{trace.path.name.removesuffix('.zarr')}-{ending}.zarr"


def file_names(a: Trace, b: Trace, ending: str) -> tuple[str, str]:
    """``file_name`` of both traces, prefixed with the folder where the two names are equal."""
    own, other = file_name(a, ending), file_name(b, ending)
    if own == other:
        own, other = (f"{trace.path.resolve().parent.name}-{own}" for trace in (a, b))
    return (own, other) if own != other else (f"a-{own}", f"b-{other}")


def extra_variables(trace: Trace, other: Trace | None) -> dict[str, str]:
    """Recorded environment variables that the program of ``trace`` names itself, and those of PyTorch that ``other``
    does not have, or has with another value; without ``other``, this process."""
    own, others = variables_of(trace), os.environ if other is None else variables_of(other)
    is_extra = {name: others.get(name) != value for name, value in own.items()}
    return {
        name: value for name, value in own.items() if (is_extra[name] or not is_recorded(name)) and MASK not in value
    }


def _unknown_variables(a: Trace, b: Trace) -> str:
    """A comment on B's command, where neither the command nor any fact says what B was given."""
    facts = [dict(trace.processes[0].facts) if trace.processes else {} for trace in (a, b)]
    return "" if facts[0] != facts[1] or difference(program(a), program(b)) else UNKNOWN_VARIABLES


COMMENT: Final = re.compile(r"""  # (?:and|with) [^'"]*$""")
"""What a command says of variables. Text of the program that looks like it is quoted, and ends with a quote."""

UNKNOWN_VARIABLES: Final = "  # with the variables of B, if it had others: its trace holds none"


def variables_of(trace: Trace) -> dict[str, str]:
    """The recorded environment variables that the program was started with, apart from lists of files.

    Behind a launcher such as torchrun, whose sources name none, also those that the ranks' own sources name and all
    of them have alike.
    """
    facts = dict(trace.processes[0].facts) if trace.processes else {}
    if trace.processes and trace.processes[0].name.startswith(LAUNCHER):
        named: dict[str, set[object]] = {}
        for process in trace.processes[1:]:
            for name, value in process.facts.items():
                if name.startswith("env.") and not is_recorded(name.removeprefix("env.")):
                    named.setdefault(name, set()).add(value)
        facts |= {name: values.pop() for name, values in named.items() if len(values) == 1 and name not in facts}
    found = {name.removeprefix("env."): value for name, value in facts.items() if name.startswith("env.")}
    return {name: str(value) for name, value in found.items() if value is not None and name not in FILE_LISTS}
