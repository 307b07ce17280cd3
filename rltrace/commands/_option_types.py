"""Options that several verbs share, and parsers of their values: windows of steps, axes, sizes, where runs begin."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rltrace.errors import UsageError
from rltrace.recorder.base.options import check_axes
from rltrace.selectors import parse_selectors
from rltrace.trace.format.location import TraceURL, local_folder, parse_location

if TYPE_CHECKING:
    from rltrace.diff.base.model import Pair
    from rltrace.experiment.ray_cluster import RayCluster


class TraceFirst(click.Command):
    """Takes A before the options, which click does not allow for arguments, as CMD has options too."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if arguments and not arguments[0].startswith("-"):
            arguments = ["--trace-a", *arguments]
        return super().parse_args(context, arguments)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return ["A", *super().collect_usage_pieces(context)]


F = TypeVar("F", bound=Callable[..., Any])


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
            raise UsageError(f"{location} is a URL: give a folder, which rltrace push uploads")
        if self._only_folder:
            location = local_folder(location, f"rltrace {ctx.info_name}" if ctx is not None else "this")
        return super().convert(location, param, ctx) if isinstance(location, Path) else location


on_option = click.option(
    "--on",
    "place",
    metavar="ray",
    help="Work on a Ray cluster: ray (RAY_ADDRESS, or that of this machine) or ray://HOST:PORT.",
)


def cluster_options(command: F) -> F:
    """Add ``--on``, ``--cpus`` and ``--gpus``, whose values ``on_cluster`` takes."""
    for name, default in (("gpus", 0.0), ("cpus", 1.0)):
        command = click.option(
            f"--{name}",
            type=click.FloatRange(min=0),
            default=default,
            show_default=True,
            help=f"With --on: {name.upper()[:-1]}s that each needs, which may be a fraction.",
        )(command)
    return on_option(command)


@contextmanager
def on_cluster(
    place: str | None, cpus: float, gpus: float, at_once: int | None, report: Callable[[str], None]
) -> Iterator[RayCluster | None]:
    """The cluster that ``--on`` names; None: it was not given. Raises UsageError where it cannot be used."""
    if place is None:
        yield None
        return
    if place != "ray" and not place.startswith("ray://"):
        raise UsageError(f"--on {place}: give ray, or ray://HOST:PORT")
    from rltrace.experiment.ray_cluster import RayCluster, Resources

    with RayCluster(place, Resources(cpus, gpus), at_once, report) as cluster:
        yield cluster


def start_options(command: F) -> F:
    """Add ``--a-starts-at`` and ``--b-starts-at``, whose values ``starts_of`` takes."""
    for side, other in (("b", "A"), ("a", "B")):
        command = click.option(
            f"--{side}-starts-at",
            type=click.IntRange(min=0),
            metavar="STEP",
            help=f"{side.upper()} was resumed: {other}'s step that is its first; 0: compare from both beginnings.",
        )(command)
    return command


def starts_of(a: int | None, b: int | None) -> Pair[int] | None:
    """The argument ``starts`` of ``compare``."""
    from rltrace.diff.base.model import Pair

    return None if a is None and b is None else Pair(a, b)


def parse_steps(text: str, option: str = "--steps") -> tuple[int, int | None]:
    """``A:B`` as (first, end), half open; an open side is 0 or None; ``A`` is that step only. Raises UsageError."""
    first, colon, end = (word.strip() for word in text.partition(":"))
    if not colon and first.isascii() and first.isdigit():
        return int(first), int(first) + 1
    if not colon or not all(word == "" or (word.isascii() and word.isdigit()) for word in (first, end)):
        raise UsageError(f"{option} {text}: give A:B with step numbers from 0, as in 100:110, 100:, :10 or 100")
    window = int(first or 0), int(end) if end else None
    if window[1] is not None and window[1] <= window[0]:
        raise UsageError(f"{option} {text} is empty; the second number is the first step that is left out")
    return window


def parse_processes(text: str, option: str = "--processes") -> tuple[str, ...]:
    """``*policy*,rank0/main`` as patterns of names of processes. Raises UsageError."""
    return _patterns(text, f"{option} {text}: give patterns of process names, as in rank0/* or rank0/main,*worker*")


def parse_loops(text: str) -> tuple[str, ...]:
    """``train,evolve*`` as patterns of names of functions. Raises UsageError."""
    return _patterns(text, f"--loops {text}: give names of functions of JAX, as in train or evolve*,train")


def _patterns(text: str, message: str) -> tuple[str, ...]:
    patterns = tuple(word.strip() for word in text.split(","))
    if not all(patterns):
        raise UsageError(message)
    return patterns


def given_by(context: click.Context, option: str, variable: str) -> str:
    """What set an option's value, for messages: ``--steps``, or the variable that is its default."""
    source = context.get_parameter_source(option)
    return variable if source is click.core.ParameterSource.ENVIRONMENT else f"--{option}"


def parse_axes(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers, ascending. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--row-axes {text}: give numbers of axes from 0, as in 0 or 0,1")
    return check_axes(map(int, words))


def parse_size(option: str, text: str) -> int:
    """``500MB``, ``1GiB``, ``1.5 G``, ``4096`` as bytes. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)[bB]?\s*", text, re.ASCII)
    if found is None or (found[3] and not found[2]):
        raise UsageError(f"{option} {text}: give a number of bytes, as in 500MB, 1GiB or 4096")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " "))


def injecting_options(command: F) -> F:
    """Add what both verbs that inject into a command take after their own options, and the command."""
    parameters = (
        click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="End the program after this step."),
        click.option(
            "--result",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write a report on the injections as JSON.",
        ),
        click.option("--force", is_flag=True, help="Replace an existing trace."),
        click.option("--quiet", is_flag=True, help="No narration; errors are still shown."),
        click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD …"),
    )
    for parameter in reversed(parameters):
        command = parameter(command)
    return command


level_option = click.option(
    "--level",
    type=click.Choice(["step", "op"]),
    default="op",
    show_default=True,
    help="Every op, or one digest a step.",
)

values_option = click.option(
    "--values",
    multiple=True,
    metavar="SELECTOR",
    help="Record the tensors that these ops return and write; repeatable.",
)

values_inputs_option = click.option("--values-inputs", is_flag=True, help="Record their inputs, too.")

values_limit_option = click.option(
    "--values-limit", metavar="SIZE", default="1GiB", show_default=True, help="Limit of values for each process."
)


def check_values(values: Sequence[str], inputs: bool, level: str) -> None:
    """Raise UsageError for selectors of values that cannot be recorded so, before anything is written."""
    if values:
        parse_selectors(values)
        if level == "step":
            raise UsageError("--values records tensors of ops; --level step records no ops")
    elif inputs:
        raise UsageError("--values-inputs extends --values SELECTOR: give one")
