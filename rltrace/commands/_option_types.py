"""How verbs declare their options: as fields of a frozen dataclass, which the verb's function is called with.

Owns the options that several verbs share, and the layout of a verb's help: groups, an option a line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from rltrace.errors import UsageError
from rltrace.recorder.base.options import GROUPS, OPTIONS, value_of
from rltrace.trace.format.location import TraceURL, local_folder, parse_location

if TYPE_CHECKING:
    from rltrace.diff.base.model import Pair

T = TypeVar("T")


# --- fields that options set ------------------------------------------------------------------------------------------


class TraceLocation(click.Path):
    """The folder or the URL of a trace."""

    def __init__(self, *, only_folder: bool = False, written: bool = False) -> None:
        """``written``: a folder for a new trace."""
        super().__init__(path_type=Path)
        self._only_folder = only_folder
        self._written = written

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        location = parse_location(os.fspath(value))
        if self._written and isinstance(location, TraceURL):
            raise UsageError(f"{location} is a URL: give a folder, and copy that there")
        if self._only_folder:
            location = local_folder(location, f"rltrace {ctx.info_name}" if ctx is not None else "this")
        return super().convert(location, param, ctx) if isinstance(location, Path) else location


TYPES = {"Path": click.Path(path_type=Path), "Location": TraceLocation(), "int": click.INT, "float": click.FLOAT}
"""By the type of a field, what reads it where the option names nothing else."""

STEP, COUNT = click.IntRange(min=0), click.IntRange(min=1)


class VerbOption(click.Option):
    """An option in a group of the help, which takes one line there."""

    def __init__(self, *args: Any, group: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def line(self) -> tuple[str, str]:
        """``-o, --output FILE`` and the help, with the default or the variable that sets it."""
        choices = f"[{'|'.join(self.type.choices)}]" if isinstance(self.type, click.Choice) else ""
        words = [", ".join(self.opts), *([] if self.is_flag else [self.metavar or choices])]
        names = "" if self.envvar is None else f"  [${self.envvar}]"
        shown = f"  [default: {self.show_default}]" if isinstance(self.show_default, str) else names
        return " ".join(words), f"{self.help or ''}{shown}".strip()


class VerbCommand(click.Command):
    """A verb, whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.params if isinstance(one, VerbOption) and not one.hidden]
        widest = max((len(one.line()[0]) for one in options), default=0)
        groups = sorted(dict.fromkeys(one.group for one in options), key=lambda name: (*GROUPS, name).index(name))
        formatter.write_paragraph()
        for group in groups:
            formatter.write(f"{group}:\n")
            with formatter.indentation():
                lines = [one.line() for one in options if one.group == group]
                formatter.write_dl([(names.ljust(widest), text) for names, text in lines], col_max=widest)


class TraceFirst(VerbCommand):
    """Takes A before the options, which click does not allow for arguments, as CMD has options too."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if arguments and not arguments[0].startswith("-"):
            arguments = ["--trace-a", *arguments]
        return super().parse_args(context, arguments)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return ["A", *super().collect_usage_pieces(context)]


def option(*flags: str, help: str = "", default: Any = None, **settings: Any) -> Any:
    """A field that an option sets, by default ``--its-name``.

    A field of type bool is set or not, and a tuple takes all that a repeated option gives. ``settings``: as of
    ``click.Option``, and ``group``, its heading in the help.
    """

    def make(name: str, kind: str) -> click.Parameter:
        names = flags or (f"--{name.replace('_', '-')}",)
        if kind == "bool":
            return VerbOption([name, *names], help=help, is_flag=True, **settings)
        if default is not None:  # given as None it would be a value, and a required option need not be given
            settings.setdefault("default", default)
            settings.setdefault("show_default", str(default))
        settings.setdefault("type", TYPES.get(_inner(kind)))
        several = kind.startswith("tuple") and "," in kind
        return VerbOption([name, *names], help=help, multiple=several, **settings)

    return field(metadata={"parameter": make})


def recorded(name: str, **settings: Any) -> Any:
    """A field that an option of a recording sets, as its table has it."""
    return field(metadata={"parameter": lambda own, _: recording_option(name, own, **settings)})


LOCATIONS = {"TRACE": TraceLocation(), "A": TraceLocation()}

_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_READERS = {"N": COUNT, "STEP": STEP, "PATH": click.Path(exists=True), "FILE": _FILE, **LOCATIONS}
"""By the word for the value of an option of a recording, what reads it; all others are texts."""

_REPEATABLE = {"SELECTOR", "TRACE", "FILE"}


def recording_option(name: str, own: str = "", **settings: Any) -> VerbOption:
    """The option of a recording of that name; ``own``: the parameter that it sets, by default that name."""
    entry = OPTIONS[name]

    def read(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        if entry.metavar in LOCATIONS:
            return given
        is_default = context.get_parameter_source(own or name) is ParameterSource.DEFAULT
        return entry.default if is_default else value_of(name, given, given_by(context, parameter))

    shape: dict[str, Any] = {"is_flag": True}
    if entry.metavar or entry.choices:
        kind = click.Choice(entry.choices) if entry.choices else _READERS.get(entry.metavar)
        shape = {"metavar": entry.metavar or None, "type": kind, "multiple": entry.metavar in _REPEATABLE}
    if entry.alone:
        shape |= {"is_flag": False, "flag_value": entry.alone}
    shape |= {"help": entry.help, "show_default": entry.shown_default or None, "envvar": entry.variable or None}
    return VerbOption([own or name, entry.flag], callback=read, **(shape | settings))


def given_by(context: click.Context, parameter: click.Parameter) -> str:
    """What set a parameter: ``--steps``, or the variable that is its default."""
    source = context.get_parameter_source(parameter.name or "")
    variable = source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, str)
    return str(parameter.envvar) if variable else parameter.opts[-1]


def is_given(option: str | click.Parameter) -> bool:
    """Whether the command line that runs has this option."""
    name = option if isinstance(option, str) else option.name or ""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def options_of(group: str) -> list[VerbOption]:
    """Those of the command line that runs, in this group of the help."""
    options = click.get_current_context().command.params
    return [one for one in options if isinstance(one, VerbOption) and one.group == group]


def argument(**settings: Any) -> Any:
    """A field that an argument sets."""

    def make(name: str, kind: str) -> click.Parameter:
        settings.setdefault("type", TYPES.get(_inner(kind)))
        if kind.endswith("| None"):
            settings.setdefault("required", False)
        return click.Argument([name], **settings)

    return field(metadata={"parameter": make})


def command_argument(metavar: str = "[--] CMD …") -> Any:
    """A field with the command that is run."""
    return argument(nargs=-1, type=click.UNPROCESSED, metavar=metavar)


def _inner(kind: str) -> str:
    """``Path`` of ``Path | None``, ``tuple[Path, ...]`` and ``Path``."""
    return kind.removesuffix(" | None").removeprefix("tuple[").removesuffix(", ...]")


NO_SETTINGS: Mapping[str, Any] = {}

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""Also of each verb by itself, as click keeps the help option that it made first."""


def verb(
    arguments: type[T],
    *more: click.Parameter,
    cls: type[VerbCommand] = VerbCommand,
    context_settings: Mapping[str, Any] = NO_SETTINGS,
    **settings: Any,
) -> Callable[[Callable[[T], int | None]], click.Command]:
    """Make a click command of a function that takes these arguments; its docstring is the help.

    ``more``: parameters that are none of its fields. ``settings``: as of ``click.Command``.
    """
    own = {each.name: each for each in fields(arguments)}  # type: ignore[arg-type]
    classes = [each for each in arguments.__mro__ if "__dataclass_fields__" in vars(each)]
    order = dict.fromkeys(name for each in classes for name in inspect.get_annotations(each))
    parameters = [own[name].metadata["parameter"](name, own[name].type) for name in order]

    def made(function: Callable[[T], int | None]) -> click.Command:
        def call(**values: Any) -> int | None:
            return function(arguments(**{name: values[name] for name in own}))

        text = inspect.cleandoc(function.__doc__ or "")
        context = {**HELP_OPTIONS, **context_settings}
        return cls(None, callback=call, params=[*parameters, *more], help=text, context_settings=context, **settings)

    return made


BEFORE_COMMAND = {"allow_interspersed_args": False}
"""Context of verbs that run a command: options after it are the command's."""


# --- options that several verbs share ---------------------------------------------------------------------------------


def quiet_option(**settings: Any) -> Any:
    return option(help="No narration; errors are still shown.", **settings)


def form_option() -> Any:
    return option("--format", type=click.Choice(["text", "json"]), default="text")


def annotated_form_option(**settings: Any) -> Any:
    choices = click.Choice(["text", "json", "github"])
    return option(
        "--format", type=choices, default="text", metavar="FORM", help="text, json or github (annotation).", **settings
    )


def brief_option(**settings: Any) -> Any:
    return option(help="At most 2 kB of JSON, with the next commands.", **settings)


def color_option(**settings: Any) -> Any:
    """``--color auto|always|never``, whose value ``use_color`` takes."""
    choices = click.Choice(["auto", "always", "never"])
    return option(type=choices, default="auto", metavar="WHEN", help="Colour: auto, always or never.", **settings)


def share_option(**settings: Any) -> Any:
    return option(metavar="NAME", help="Link this entry of the folder, do not copy it.", **settings)


def import_option() -> Any:
    return option("--import", metavar="MODULE", help="Module that registers the op, if torch does not.")


def strict_option(**settings: Any) -> Any:
    return option(help="Added, removed or reordered ops count, too.", **settings)


def tolerance_option() -> Any:
    unbounded = click.FloatRange(min=0)
    return option(type=unbounded, default=0.01, metavar="X", help="Threshold of a curve, of its range.")


def no_tui_option() -> Any:
    return option("--no-tui", help="Print the report in a terminal, too.")


@dataclass(frozen=True, kw_only=True)
class StartArguments:
    """Where resumed runs begin."""

    a_starts_at: int | None = option(type=STEP, metavar="STEP", help="A was resumed: B's step that is its first.")
    b_starts_at: int | None = option(type=STEP, metavar="STEP", help="B was resumed: A's step that is its first.")

    @property
    def starts(self) -> Pair[int] | None:
        """The argument ``starts`` of ``compare``."""
        from rltrace.diff.base.model import Pair

        given = self.a_starts_at, self.b_starts_at
        return None if given == (None, None) else Pair(*given)


@dataclass(frozen=True, kw_only=True)
class InjectingArguments:
    """What both verbs that inject into a command take: A, the options after their own, and the command."""

    a: Path | None = option("--trace-a", hidden=True, type=TraceLocation(only_folder=True))
    output: Path | None = option(
        "-o", "--output", type=TraceLocation(written=True), metavar="TRACE", help="Trace to write; default: a new name."
    )
    until: int | None = recorded("until")
    result: Path | None = option(metavar="FILE", help="Write a report on the injections as JSON.")
    force: bool = option(help="Replace a trace, once anything was recorded.")
    quiet: bool = quiet_option()
    command: tuple[str, ...] = command_argument()
