"""Options of a recording: the one table of them, and how the launcher passes them to every process of the program.

Each field of ``RecordOptions`` is an option, with all that is known of it: how the command line names and reads it,
what it needs and excludes, how the trace and the narration say it. ``rltrace record``, its help, ``rltrace.record``,
the checks of both and the environment variable come from there, so a new option is one entry.

Owns the environment variables: one with the options, two by which a process is named. Imports neither torch nor click,
as every recorded process imports it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from rltrace.errors import UsageError
from rltrace.masking import home_as_tilde

VARIABLE = "RLTRACE_RECORD"
"""Variable with the options, set by the launcher and inherited by children; absent: nothing is recorded."""

DEPTH = "RLTRACE_DEPTH"
"""Variable with the number of recorded processes above a program that one of them starts."""

PARENT_RANK = "RLTRACE_PARENT_RANK"
"""Variable with the rank of the one directly above; a worker that a launcher of ranks starts has another."""

COMMIT_SECONDS: Final = 5.0
"""After which rows that are there are committed, at the latest."""

IDLE_SECONDS: Final = 0.2
"""The same where no more were written meanwhile."""

Window = tuple[int, int | None]
"""The first step, and the first one after (None: to the end)."""

ALL_STEPS: Final[Window] = (0, None)

ENGINES = "auto", "native", "mode"
"""What records ops: the native engine where its library is there, only the native engine, a dispatch mode in Python."""


# --- how a value is read ----------------------------------------------------------------------------------------------


def parse_steps(text: str, name: str = "--steps") -> Window:
    """``A:B`` as (first, end), half open; an open side is 0 or None; ``A`` is that step only. Raises UsageError."""
    first, colon, end = (word.strip() for word in text.partition(":"))
    if not colon and first.isascii() and first.isdigit():
        return int(first), int(first) + 1
    if not colon or not all(word == "" or (word.isascii() and word.isdigit()) for word in (first, end)):
        raise UsageError(f"{name} {text}: give a step, as in 100, or steps as A:B, as in 100:110 or 100:")
    window = int(first or 0), int(end) if end else None
    if window[1] is not None and window[1] <= window[0]:
        raise UsageError(f"{name} {text} is empty; B is the first step that is left out")
    return window


def parse_kernels(text: str, name: str = "--kernels") -> Window | str | None:
    """The steps of ``--kernels``; None for ``off``, and ``window`` as it is. Raises UsageError."""
    if text in ("off", "window"):
        return None if text == "off" else text
    if text == "all":
        return ALL_STEPS
    if ":" not in text:
        raise UsageError(f"{name} {text}: give off, window, all, or steps as A:B")
    return parse_steps(text, name)


def parse_processes(text: str, name: str = "--processes") -> tuple[str, ...]:
    """``*policy*,rank0/main`` as patterns of names of processes. Raises UsageError."""
    return _patterns(text, f"{name} {text}: give patterns of process names, as in rank0/* or rank0/main,*worker*")


def parse_loops(text: str, name: str = "--loops") -> tuple[str, ...]:
    """``train,evolve*`` as patterns of names of functions. Raises UsageError."""
    return _patterns(text, f"{name} {text}: give names of functions of JAX, as in train or evolve*,train")


def _patterns(text: str, message: str) -> tuple[str, ...]:
    patterns = tuple(word.strip() for word in text.split(","))
    if not all(patterns):
        raise UsageError(message)
    return patterns


def parse_axes(text: str, name: str = "--row-axes") -> tuple[int, ...]:
    """``0,1`` as numbers, ascending. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{name} {text}: give numbers of axes from 0, as in 0 or 0,1")
    return check_axes(map(int, words))


def check_axes(axes: Iterable[int]) -> tuple[int, ...]:
    """Axes along which activation rows are counted, ascending. Raises UsageError."""
    ascending = sorted(set(axes))
    if not ascending or ascending[0] < 0:
        raise UsageError("rows are counted along axes numbered from 0, as in 0,1; without any, along all but the last")
    return tuple(ascending)


def parse_size(text: str, name: str) -> int:
    """``500MB``, ``1GiB``, ``1.5 G``, ``4096`` as bytes. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)[bB]?\s*", text, re.ASCII)
    if found is None or (found[3] and not found[2]):
        raise UsageError(f"{name} {text}: give a number of bytes, as in 500MB, 1GiB or 4096")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " "))


def one_selector(text: str, name: str) -> tuple[str, ...]:
    """What a program passes where it could pass several."""
    return (text,)


def steps_text(steps: Window) -> str:
    """``A:B``, as on the command line."""
    first, end = steps
    return f"{first}:{'' if end is None else end}"


def _never(_value: Any) -> bool:
    return False


def _selects_all(selectors: tuple[str, ...]) -> bool:
    """Where a hook wants every op, passing each on from the native engine takes longer than the mode."""
    return "all" in selectors


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


# --- the table --------------------------------------------------------------------------------------------------------


WHAT, EXTENT, CHECKS, VALUES = GROUPS = (
    "What to record",
    "When, and where to",
    "Checks",
    "Values, and activation rows",
)
"""The groups in the help of ``rltrace record``, in their order."""


class Option(NamedTuple):
    """How one option of a recording is set, checked and named."""

    default: Any
    flag: str
    """As the command line has it; of what is no option of ``record``, the verb that sets it."""
    help: str = ""
    """One line."""
    group: str = ""
    """One of ``GROUPS``; empty: no option of ``record``."""
    metavar: str = ""
    """What its value is, and so how the command line reads it; empty: nothing (it is set or not), or ``choices``."""
    alone: str = ""
    """Its value where the command line gives the flag alone; empty: it needs one."""
    choices: tuple[str, ...] = ()
    shown_default: str = ""
    """The default, where the help names it."""
    variable: str = ""
    """Variable that sets it where the command line does not."""
    parse: Callable[[str, str], Any] | None = None
    """The value of a text, given with what set it; None: the text."""

    of_ops: str = ""
    """What it does with ops, as there are none at level step; empty: it may be set there."""
    needs: tuple[str, str] = ("", "")
    """The option without which it means nothing, and the error, with places for both."""
    while_asleep: bool = False
    """Whether it may be set of a run that starts asleep."""
    in_python: Callable[[Any], bool] = _never
    """Of its value, whether Python handles every op then, whatever the engine."""

    named: Callable[[Any], object] | None = None
    """How a trace names it where it is set; None: it does not, or does so in any case."""
    named_with: tuple[str, ...] = ()
    """Options that a trace names beside it."""
    narrated: str = ""
    """What the narration says where it is set, with a place for the value."""


def _option(default: Any, flag: str, help: str = "", group: str = "", metavar: str = "", **more: Any) -> Any:
    entry = Option(default=default, flag=flag, help=help, group=group, metavar=metavar, **more)
    return field(default=default, metadata={"option": entry})


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options of one recording."""

    trace: str = field(kw_only=False)
    """Absolute path of the trace; the launcher has created it."""

    level: str = _option(
        "op", "--level", "Every op, or one digest a step.", WHAT, choices=("step", "op"), shown_default="op"
    )
    processes: tuple[str, ...] = _option(
        (),
        "--processes",
        "Only these, as in rank0/*.",
        WHAT,
        "GLOBS",
        variable="RLTRACE_PROCESSES",
        parse=parse_processes,
        while_asleep=True,
        named=",".join,
        narrated=", in {}",
    )
    """Patterns (fnmatch) of the names of the processes that are recorded; empty: all."""
    engine: str = _option(
        "auto",
        "--engine",
        "auto, native (compiled) or mode (Python).",
        WHAT,
        "ENGINE",
        choices=ENGINES,
        while_asleep=True,
        named=_plain,
    )
    compile: str | None = _option(
        None,
        "--compile",
        "Run op by op what CMD compiles with torch.compile.",
        WHAT,
        choices=("eager",),
        while_asleep=True,
        named=_plain,
    )
    """"eager": compiled functions run op by op; None: as in the program."""
    sources: bool = _option(
        False, "--sources", "Text of the program's files, for edited lines.", WHAT, while_asleep=True, named=_plain
    )

    loops: tuple[str, ...] = _option(
        (),
        "--loops",
        "JAX functions with a training loop.",
        WHAT,
        "GLOBS",
        variable="RLTRACE_LOOPS",
        parse=parse_loops,
        named=_plain,
    )
    """Patterns (fnmatch) of the names of functions of JAX whose outermost scan is a training loop, whatever it
    computes."""
    read_within: tuple[str, ...] = _option(
        (), "--fusions-of", "Of JAX values within, those of TRACE; repeatable.", WHAT, "TRACE", named=_plain
    )
    """Of programs of JAX the values within to which what is read is limited, as in the fact READS_WITHIN; empty: not
    limited."""

    steps: Window | None = _option(
        None,
        "--steps",
        "Ops of steps A to B, without B.",
        EXTENT,
        "A:B",
        variable="RLTRACE_STEPS",
        parse=parse_steps,
        of_ops="selects steps whose ops are recorded",
    )
    """Steps whose ops are rows; None: all."""
    asleep: bool = _option(
        False, "--asleep", "Nothing, until rltrace arm requests steps.", EXTENT, while_asleep=True, named=_plain
    )
    until: int | None = _option(
        None,
        "--until",
        "End the program after this step.",
        EXTENT,
        "STEP",
        while_asleep=True,
        narrated=", until step {} is done",
    )
    """End the program, as Ctrl-C would, once this step is done."""

    nodes: int = _option(
        1, "--nodes", "Machines that record one run, each a part.", EXTENT, "N", while_asleep=True, named=_plain
    )
    """Machines that record one run, each with its own launcher."""

    verify_inputs: bool = _option(
        False,
        "--verify-inputs",
        "Digest every input of every op; needs --steps.",
        CHECKS,
        needs=("steps", "{} digests every input of every op in a window: give its steps with {}"),
        in_python=bool,
        narrated=", and every input",
    )
    """Digest every input of every op, also where its writer is known."""
    check_links: bool = _option(
        False,
        "--check-links",
        "Find writes of memory that no recorded op made.",
        CHECKS,
        of_ops="compares memory between ops",
        in_python=bool,
        named=_plain,
        narrated=", its links checked",
    )
    """Compare memory between its uses, to find writes that no recorded op made."""
    repeat: int = _option(
        0,
        "--repeat",
        "Call each op N times more (1): does it repeat itself?",
        CHECKS,
        "N",
        alone="1",
        of_ops="calls ops again",
        named=_plain,
        narrated=", each called {} more",
    )
    """How many times each op is called again on the inputs that it had; 0: it is not."""
    kernels: Window | None = _option(
        None,
        "--kernels",
        "Ask what ran: window (of --steps), all or A:B.",
        CHECKS,
        "STEPS",
        parse=parse_kernels,
        of_ops="is about ops",
        named=steps_text,
    )
    """Steps in which the profiler records launches on a device; None: it does not run."""

    values: tuple[str, ...] = _option(
        (),
        "--values",
        "Tensors that these ops return and write; repeatable.",
        VALUES,
        "SELECTOR",
        parse=one_selector,
        of_ops="records tensors of ops",
        in_python=_selects_all,
        named=_plain,
        named_with=("values_inputs", "values_limit"),
        narrated=", with values of {}",
    )
    """Selectors of the ops whose values are recorded; empty: none."""
    values_inputs: bool = _option(
        False, "--values-inputs", "Their inputs, too.", VALUES, needs=("values", "{} extends {}: give one")
    )
    values_limit: int = _option(
        1 << 30,
        "--values-limit",
        "Limit of values for each process.",
        VALUES,
        "SIZE",
        shown_default="1GiB",
        parse=parse_size,
    )
    """Bytes of values that each process records at most."""
    state: Window | None = _option(
        None,
        "--state",
        "Parameters, gradients, optimizer state at these.",
        VALUES,
        "A:B",
        parse=parse_steps,
        named=steps_text,
        named_with=("values_limit",),
    )
    """Steps at which parameters, gradients and optimizer state are recorded; None: at none."""
    rerunnable: tuple[str, ...] = _option(
        (),
        "--rerunnable",
        "What rltrace rerun needs for these; repeatable.",
        VALUES,
        "SELECTOR",
        parse=one_selector,
        of_ops="records the memory of ops",
        in_python=_selects_all,
        named=_plain,
        named_with=("values_limit",),
        narrated=", with what {} needs to be run again",
    )
    """Selectors of the ops that are to be run again later: what they read and did not make is recorded; empty: none."""

    rows: tuple[str, ...] = _option(
        (),
        "--rows",
        "A digest of each activation row of these; repeatable.",
        VALUES,
        "SELECTOR",
        parse=one_selector,
        of_ops="records activation rows of ops and modules",
        in_python=_selects_all,
        named=_plain,
        named_with=("row_axes", "rows_limit"),
        narrated=", with rows of {}",
    )
    """Selectors of the module calls and ops whose activation rows are recorded; empty: none."""
    row_axes: tuple[int, ...] | None = _option(
        None,
        "--row-axes",
        "Axes of rows, as in 0,1; default: all but the last.",
        VALUES,
        "AXES",
        parse=parse_axes,
        needs=("rows", "{} sets the axes along which {} counts: give one"),
    )
    """Axes along which rows are counted; None: all axes but the last."""
    rows_limit: int = _option(
        1 << 30,
        "--rows-limit",
        "Limit of rows for each process.",
        VALUES,
        "SIZE",
        shown_default="1GiB",
        parse=parse_size,
    )
    """Bytes of row digests that each process records at most."""

    parity: bool = _option(
        False,
        "--parity",
        "What rltrace compare needs, as cheaply as it can be.",
        VALUES,
        of_ops="is about modules",
        named=_plain,
    )
    """Record rows of all calls of modules, unless ``rows`` selects others, and values of logits."""

    adapters: tuple[str, ...] = _option(
        (),
        "--adapter",
        "Adapter of a library, for rows; repeatable.",
        VALUES,
        "FILE",
        needs=("rows", "{} adds facts to the rows of {}: give one"),
    )
    """Absolute paths of files that read facts of a library while rows are recorded."""

    replay: str = _option(
        "", "replay", in_python=bool, named=home_as_tilde, named_with=("inject",), narrated=", with values injected"
    )
    """Absolute path of the trace whose values are injected; empty: no replay."""
    inject: tuple[str, ...] = _option((), "replay")
    """Selectors of the ops of that trace whose values are injected."""
    kinds: str = _option("", "replay")
    """Absolute path of a list of kinds of op, to which the selectors are limited; empty: not limited."""
    only: str = _option("", "replay")
    """Absolute path of a list of rows of that trace, to which the selectors are limited; empty: not limited."""
    origins: bool = _option(False, "replay")
    """Inject values only where the op's inputs equal those in that trace."""
    lockstep: bool = _option(False, "replay")
    """Skip ops whose values no trace can hold; else selecting one is an error."""
    provider: str = _option("", "replay-rows", named=_plain)
    """What is injected of that trace, by the name of an extension's provider; empty: whole values of ops."""
    provider_options: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "option": Option(
                {}, "replay-rows", named=lambda given: {name: home_as_tilde(value) for name, value in given.items()}
            )
        },
    )
    """Options of that provider."""

    against: str = _option(
        "",
        "--against",
        "Compare with A meanwhile; A may still grow.",
        CHECKS,
        "A",
        named=home_as_tilde,
        named_with=("stop",),
        narrated=", compared with another trace",
    )
    """Where the trace is, without credentials, that the launcher compares the run with as it goes; empty: none."""
    stop: bool = _option(False, "--stop", "End CMD once it differs from A.", CHECKS)
    """End the program, as Ctrl-C would, once the launcher has found a difference, with the step that it is in then."""

    def __post_init__(self) -> None:
        if self.parity and not self.rows:
            object.__setattr__(self, "rows", ("module=*",))

    @property
    def first_step(self) -> int:
        """First step whose ops are rows."""
        return 0 if self.steps is None else self.steps[0]

    @property
    def end_step(self) -> int | None:
        """First step after them; None: to the end."""
        return None if self.steps is None else self.steps[1]

    @property
    def windowed(self) -> bool:
        return self.steps not in (None, ALL_STEPS)

    @property
    def may_stop(self) -> bool:
        """Whether the recorder may end the program."""
        return self.until is not None or self.stop

    def set_options(self) -> dict[str, Option]:
        """The entries of those that differ from their defaults, by name."""
        return {name: option for name, option in OPTIONS.items() if getattr(self, name) != option.default}

    @property
    def in_python(self) -> str:
        """The option for which Python handles every op, whatever the engine; empty: none is set."""
        options = self.set_options().items()
        return next((option.flag for name, option in options if option.in_python(getattr(self, name))), "")

    def extras(self) -> dict[str, object]:
        """Options that a trace names only where they are set."""
        extras: dict[str, object] = {}
        for name, option in self.set_options().items():
            if option.named is not None:
                extras[name] = option.named(getattr(self, name))
                extras |= {other: _plain(getattr(self, other)) for other in option.named_with}
        return extras

    def narration(self) -> str:
        """What is recorded besides the ops or steps: ``, with values of op=mm or op=sum, until step 3 is done``."""
        texts = []
        for name, option in self.set_options().items():
            if option.narrated:
                value = getattr(self, name)
                texts.append(option.narrated.format(" or ".join(value) if isinstance(value, tuple) else value))
        return "".join(texts)

    def to_environment(self, environment: MutableMapping[str, str]) -> None:
        environment[VARIABLE] = json.dumps(vars(self))

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> RecordOptions | None:
        text = environment.get(VARIABLE)
        if not text:
            return None
        values: dict[str, Any] = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        options = RecordOptions(**values)
        return options if Path(options.trace).is_dir() else None


OPTIONS: Final[Mapping[str, Option]] = {
    entry.name: entry.metadata["option"] for entry in fields(RecordOptions) if entry.metadata
}
"""The entries of the table, by the names of the fields."""


# --- what is checked --------------------------------------------------------------------------------------------------


def value_of(name: str, given: Any, shown: str) -> Any:
    """The value of an option from a text, a path or what a program passes. Raises UsageError.

    ``shown``: what set it, as errors name it.
    """
    option = OPTIONS[name]
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        return given if option.parse is None else option.parse(given, shown)
    return tuple(given) if isinstance(given, Iterable) else given


def check_options(options: RecordOptions, given: Mapping[str, str]) -> None:
    """Raise UsageError where a value is none of its option, or options do not go together.

    ``given``: what set each option that was set: ``--steps``, ``RLTRACE_STEPS``, or, by a program, ``steps``.
    """
    for name, shown in given.items():
        option, value = OPTIONS[name], getattr(options, name)
        if options.asleep and not option.while_asleep:
            raise UsageError(
                f"{given['asleep']} records nothing until the run is armed, so leave out {shown}: rltrace arm chooses"
                " steps, level and values while the program runs"
            )
        if option.choices and value not in (option.default, *option.choices):
            raise UsageError(f"{shown} {value!r} is none of {', '.join(option.choices)}")
        if option.metavar == "SELECTOR":
            from rltrace.selectors import parse_selectors

            parse_selectors(value)
    by_flags = any(name != shown for name, shown in given.items())
    no_ops = (f"{OPTIONS['level'].flag} step" if by_flags else "level step") if options.level == "step" else ""
    for name, option in options.set_options().items():
        other, error = option.needs
        if name in given and other and other not in options.set_options():
            needed = f"{OPTIONS[other].flag} {OPTIONS[other].metavar}" if by_flags else other
            raise UsageError(error.format(given[name], needed))
        if name in given and option.of_ops and no_ops:
            raise UsageError(f"{given[name]} {option.of_ops}; {no_ops} records no ops")
    if options.engine == "native" and no_ops:
        raise UsageError(f"{given['engine']} native records ops, and with {no_ops} it cannot: leave one of them out")
