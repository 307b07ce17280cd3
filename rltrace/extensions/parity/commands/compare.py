"""``rltrace compare``: two programs that should compute the same, such as a generator and a trainer, row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rltrace.commands._output_files import check_output, write_output
from rltrace.commands.console import ExitCode, color_option, emit, use_color
from rltrace.errors import UsageError
from rltrace.extensions.parity.commands._parity_result import ParityResult
from rltrace.extensions.parity.commands._state_comparison import check_state_options, compare_state, state_options

if TYPE_CHECKING:
    from rltrace.extensions.parity.compare import Compared, ParityOptions
    from rltrace.extensions.parity.impact.summary import Effects
    from rltrace.extensions.parity.inputs import TraceArgument
    from rltrace.extensions.parity.requirements import Requirement


@click.command(name="compare")
@click.argument("traces", nargs=-1, required=True, metavar="T1[:STREAM] [T2[:STREAM]]")
@click.option("--a", "only_a", multiple=True, metavar="SELECTOR", help="A's calls of modules.  [repeatable]")
@click.option("--b", "only_b", multiple=True, metavar="SELECTOR", help="B's calls of modules.  [repeatable]")
@click.option("--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Lines A-GLOB = B-GLOB.")
@click.option(
    "--rows-by",
    type=click.Choice(["tokens", "inputs", "order"]),
    help="What matches rows.  [default: tokens where ids are known, else inputs]",
)
@click.option("--pad", type=int, metavar="ID", help="Padding token, if no mask marks it.  [default: found]")
@click.option("--logprobs", metavar="SELECTOR", help="Log-probabilities as both computed them; A-SEL::B-SEL for each.")
@click.option("--routing", metavar="SELECTOR", help="Ops that choose experts.  [default: each topk in a model]")
@state_options
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="WHAT",
    help="bitwise, logprob<X, logprob-mean<X, kl<X.  [repeatable]",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the report there.")
@click.option("--force", is_flag=True, help="Replace an existing report.")
@color_option
@click.option("--no-tui", is_flag=True, help="Print the report even where the terminal interface would open.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    traces: tuple[str, ...],
    only_a: tuple[str, ...],
    only_b: tuple[str, ...],
    map_file: Path | None,
    rows_by: str | None,
    pad: int | None,
    logprobs: str | None,
    routing: str | None,
    required: tuple[str, ...],
    form: str,
    output: Path | None,
    force: bool,
    color: str,
    no_tui: bool,
    state: bool,
    reference: str | None,
    summands: int | None,
    precision: str | None,
) -> int:
    """Compare two programs that should compute the same, row by row: the first module whose inputs agree and whose
    outputs do not, and within it the op on each side.

    T1 is A, the generator or the reference; T2 is B, the trainer. Of one trace, A is the calls without gradient and B
    the calls with. Record both with --rows (and --values, for distances). Rows match where their tokens so far are
    the same, whatever the batch, the padding or the cache.

    Ends with 0 if all that --require asks for holds (without it: if every row is bitwise equal), 1 if not, 2 if the
    two cannot be compared, 3 if it is undecided: too little could be matched, or A never computed rows of B.

    With --state, T1 and T2 are one model under two shardings (or on other numbers of ranks), both recorded with
    --state. Whole tensors are assembled from the shards of all ranks and compared, step by step: parameters, gradients,
    optimizer state. Ends with 0 too where another order of sums can explain all differences (--require bitwise: 1).

    In a terminal, the result opens in the terminal interface, module by module; with --format, -o or --no-tui, or
    where the output is redirected, it is printed.

    \b
      rltrace record --rows all --values 'module=*' -o grpo.zarr -- python grpo.py
      rltrace compare grpo.zarr
      rltrace compare generator.zarr trainer.zarr --require bitwise
      rltrace compare single.zarr tp2.zarr --state
    """
    own_options = {"reference": reference, "summands": summands, "precision": precision}
    if check_state_options(ctx):
        if output is not None:
            check_output(output, force)
        return compare_state(traces, map_file, required, own_options, form, output, color)
    from rltrace.commands._terminal import can_open
    from rltrace.extensions.parity.commands._terminal import show_parity
    from rltrace.extensions.parity.compare import compare
    from rltrace.extensions.parity.impact.summary import effects_of
    from rltrace.extensions.parity.inputs import open_ranges
    from rltrace.extensions.parity.requirements import parse_requirement

    arguments = _trace_arguments(traces, only_a, only_b)
    requirements = [parse_requirement(text) for text in required]
    options = _parity_options(map_file, rows_by, pad)
    if output is not None:
        check_output(output, force)
    ranges = open_ranges(*arguments)

    def judge() -> ParityResult:
        compared = compare(*ranges, options)
        effects = effects_of(compared, logprobs, routing)
        return _result(compared, effects, arguments, requirements)

    has_form = ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if can_open() and not (no_tui or has_form or output is not None):
        shown = show_parity(arguments, judge)
        return ExitCode.INTERRUPTED if shown is None else shown.status
    result = judge()
    _report(result, form, output, color)
    return result.status


def _trace_arguments(
    traces: tuple[str, ...], only_a: tuple[str, ...], only_b: tuple[str, ...]
) -> tuple[TraceArgument, TraceArgument]:
    from rltrace.extensions.parity.inputs import parse_given

    if len(traces) > 2:
        raise UsageError(f"compare takes one trace or two, not {len(traces)}")
    return parse_given(traces[0], only_a, "a"), parse_given(traces[-1], only_b, "b")


def _parity_options(map_file: Path | None, rows_by: str | None, pad: int | None) -> ParityOptions:
    from rltrace.extensions.parity.compare import ParityOptions
    from rltrace.extensions.parity.model import RowsBy
    from rltrace.extensions.parity.module_names import read_map

    lines = () if map_file is None else read_map(map_file)
    return ParityOptions(None if rows_by is None else RowsBy(rows_by), pad, lines, str(map_file or ""))


def _result(
    compared: Compared,
    effects: Effects,
    traces: tuple[TraceArgument, TraceArgument],
    requirements: Sequence[Requirement],
) -> ParityResult:
    from rltrace.extensions.parity.requirements import agrees, judge
    from rltrace.extensions.parity.suggested_commands import advise
    from rltrace.trace.read.reader import open_trace

    opened = open_trace(traces[0].path)
    other = opened if traces[1].path == traces[0].path else open_trace(traces[1].path)
    parity = replace(compared.parity, advice=advise(compared.parity, opened, other))
    required = judge(requirements, parity, effects.gap)
    return ParityResult(compared, effects, parity, required, agrees(required, parity), (opened, other))


def _report(result: ParityResult, form: str, output: Path | None, color: str) -> None:
    from rltrace.extensions.parity.report.gap import effects_texts
    from rltrace.extensions.parity.report.json import parity_json
    from rltrace.extensions.parity.report.text import render_parity

    colored = use_color(color) and output is None
    if form == "json":
        document = parity_json(result.parity, result.required, result.answer, result.effects)
        text = json.dumps(document, indent=2, allow_nan=False)
    else:
        sections = effects_texts(result.effects, color=colored)
        text = render_parity(result.parity, result.required, sections, color=colored)
    if output is None:
        emit(text, color=colored)
    else:
        write_output(output, text + "\n")
