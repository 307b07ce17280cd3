"""``rltrace compare --contributions``: its options and its runs.

Owns the options, the plan of the runs, and the folder of their traces.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rltrace.commands.console import narrate
from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.parity.attribution_runs import AttributionPlan, Module
    from rltrace.parity.call_range import CallRange
    from rltrace.parity.compare import Compared, ParityOptions
    from rltrace.parity.impact.attribution import Contributions
    from rltrace.parity.impact.logprobs import Gap
    from rltrace.parity.impact.summary import Effects
    from rltrace.parity.inputs import TraceArgument
    from rltrace.trace.read.reader import Trace

F = TypeVar("F", bound=Callable[..., Any])
MAX_MODULES = 8
"""Modules that are tried by default."""


class CommandLast(click.Command):
    """A click command that takes the program's command after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[__name__] = tuple(args[at + 1 :]) if at < len(args) else None
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD …]"]


@dataclass(frozen=True)
class ContributionOptions:
    """The options of ``--contributions``."""

    most: int
    runs: Path | None
    share: tuple[str, ...]
    in_place: bool
    command: tuple[str, ...]
    """Empty: the recorded command of B."""


def contribution_options(command: F) -> F:
    """Add the options, whose values ``parse_contribution`` takes."""
    for option in (
        click.option("--in-place", is_flag=True, help="Run B's program in its folder, not in copies."),
        click.option(
            "--share", multiple=True, metavar="NAME", help="Link this entry of the folder instead of copying it."
        ),
        click.option("--runs", type=click.Path(path_type=Path), metavar="FOLDER", help="Keep the runs' traces there."),
        click.option("--most", type=click.IntRange(min=1), help=f"Modules to try.  [default: {MAX_MODULES}]"),
        click.option("--contributions", is_flag=True, help="Run B's program again (CMD) with A's rows injected."),
    ):
        command = option(command)
    return command


def parse_contribution(ctx: click.Context, options: dict[str, Any]) -> ContributionOptions | None:
    """None without ``--contributions``. Raises UsageError for options that have no effect without it."""
    command: tuple[str, ...] | None = ctx.meta[__name__]
    if not options["contributions"]:
        if command is not None:
            raise UsageError(
                "a command after -- is for --contributions, which runs it again: add it, or leave the command out"
            )
        if options["most"] or options["runs"] or options["share"] or options["in_place"]:
            raise UsageError("--most, --runs, --share and --in-place need --contributions")
        return None
    most = options["most"] or MAX_MODULES
    return ContributionOptions(most, options["runs"], options["share"], options["in_place"], command or ())


def contribute(
    options: ContributionOptions,
    compared: Compared,
    effects: Effects,
    traces: tuple[TraceArgument, TraceArgument],
    ranges: tuple[CallRange, CallRange],
    parity_options: ParityOptions,
    logprobs: str | None,
    routing: str | None,
) -> Contributions:
    """Make the runs. Raises UsageError if there is no gap to divide, or nothing to inject."""
    from rltrace.parity.attribution_runs import contributions
    from rltrace.parity.call_range import first_shared_step
    from rltrace.parity.impact.summary import gap_between, names_of
    from rltrace.parity.inputs import open_rerun

    gap = effects.gap
    if isinstance(gap, str):
        raise UsageError(f"--contributions divides a gap, and there is none: {gap}")
    same_trace, names = traces[0].path == traces[1].path, names_of(compared)
    step = first_shared_step(*ranges)

    def gap_of(b: CallRange) -> Gap | str:
        sides = (ranges[0], b) if step is None else (ranges[0].of_step(step), b.of_step(step))
        return gap_between(*sides, parity_options, logprobs, names)

    def measure(trace: Path) -> Gap | str:
        try:
            return gap_of(open_rerun(traces[1], trace, one_trace=same_trace))
        except UsageError as error:
            return str(error)

    with _folder(options.runs) as folder:
        map_file = Path(parity_options.map_name) if parity_options.lines else None
        base = _plan(options, compared, traces, Path(folder))
        plan = replace(base, routing=_choices(effects, routing), map_file=map_file)
        runs = 2 * len(plan.modules) + 2 * bool(plan.routing)
        narrate(f"running {' '.join(plan.command)} {runs:,} times, with rows of {len(plan.modules):,} modules injected")
        recorded = gap if step is None else gap_of(ranges[1])
        if isinstance(recorded, str):
            raise UsageError(f"--contributions divides the gap in step {step}, and there is none: {recorded}")
        return replace(contributions(plan, recorded, measure, narrate), step=step)


def _choices(effects: Effects, routing: str | None) -> str:
    """Selector of the ops that chose experts in A, if B's chose others; "" if none did, or modules are selected."""
    from rltrace.parity.impact.routing import TOPK
    from rltrace.selectors import Key, parse_selectors

    text = TOPK if routing is None else routing.partition("::")[0]
    differs = any(one.flipped or one.reordered for one in effects.routing)
    return text if differs and Key.OP in parse_selectors([text]).keys else ""


def _folder(runs: Path | None) -> AbstractContextManager[str | Path]:
    if runs is None:
        return tempfile.TemporaryDirectory(prefix="rltrace-contributions-")
    if runs.exists() and any(runs.iterdir()):
        raise UsageError(f"--runs {runs} is not empty; name a new folder")
    runs.mkdir(parents=True, exist_ok=True)
    return nullcontext(runs)


def _plan(
    options: ContributionOptions, compared: Compared, traces: tuple[TraceArgument, TraceArgument], folder: Path
) -> AttributionPlan:
    from rltrace.experiment.rerun_command import check_runs_alone, recipe_of
    from rltrace.parity.attribution_runs import AttributionPlan
    from rltrace.trace.format.location import local_folder
    from rltrace.trace.read.reader import open_trace

    trace = open_trace(traces[1].path)
    modules, left_out = _modules(compared, options.most)
    command, cwd, environment = options.command, Path.cwd(), None
    if not command:
        check_runs_alone(trace)
        recipe = recipe_of(trace, option="--contributions --")
        command, cwd, environment = recipe.command, recipe.folder, recipe.environment()
    return AttributionPlan(
        generator=local_folder(traces[0].path, "--contributions"),
        modules=modules,
        left_out=left_out,
        command=command,
        folder=cwd,
        output=folder,
        options=_recording_options(trace),
        environment=environment,
        shared=options.share,
        in_place=options.in_place,
        keep=options.runs is not None,
    )


def _modules(compared: Compared, limit: int) -> tuple[tuple[Module, ...], tuple[str, ...]]:
    """The modules to try, and the outermost differing modules that neither contain one of those nor are in one."""
    from rltrace.parity.attribution_runs import Module
    from rltrace.parity.call_range import works_itself
    from rltrace.parity.impact.attribution import choose_modules, related

    parity = compared.parity
    paths = {str(one.path.b): str(one.path.a) for one in parity.modules if one.differing}
    if not paths:
        raise UsageError("--contributions divides a gap among the modules that differ, and none does")
    first = None if parity.first is None else parity.first.path.b
    working = {path for path in paths if works_itself(compared.b.call_range, path)}
    names = choose_modules(list(paths), first, limit, working)
    for name in names:
        _check_values(compared, paths[name])
    left_out = [path for path in paths if not any(related(path, name) for name in names)]
    outer = [
        path for path in left_out if not any(related(path, other) and len(other) < len(path) for other in left_out)
    ]
    return tuple(Module(paths[name], name) for name in names), tuple(outer)


def _check_values(compared: Compared, path: str) -> None:
    from rltrace.parity.call_range import outputs_of

    call_range = compared.a.call_range
    outputs = [tensor for call in call_range.modules[path] for tensor in outputs_of(call)]
    if not any(call_range.value(tensor) is not None for tensor in outputs):
        raise UsageError(
            f"{call_range.path} holds no values of {path}, so they cannot be injected into the other program: record "
            "it with --rows all --values 'module=*'"
        )


def _recording_options(trace: Trace) -> tuple[str, ...]:
    """Options that record another run like this trace."""
    from rltrace.replay.plan import compile_of, window_of

    rows = next((p.activations.request for p in trace.processes if p.activations.request is not None), None)
    values = next((p.values.request for p in trace.processes if p.values.request is not None), None)
    _, first, end = window_of(trace)
    words: list[str] = []
    if rows is not None:
        words += [word for selector in rows.selectors for word in ("--rows", selector)]
        words += ["--rows-limit", str(rows.limit)]
        words += [] if rows.axes is None else ["--row-axes", ",".join(map(str, rows.axes))]
    if values is not None:
        words += [word for selector in values.selectors for word in ("--values", selector)]
        words += ["--values-limit", str(values.limit), *(["--values-inputs"] if values.inputs else [])]
    if first or end is not None:
        words += ["--steps", f"{first}:{'' if end is None else end}"]
    compile_ = compile_of(trace)
    return (*words, *(() if compile_ is None else ("--compile", compile_)))
