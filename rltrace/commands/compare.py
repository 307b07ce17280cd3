"""``rltrace compare``: two programs that claim to compute the same, a generator and a trainer, row by row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltrace.commands.console import ExitCode, color_option, emit, use_color
from rltrace.commands.output import check_output, write_output
from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.parity.compare import Asked, Compared
    from rltrace.parity.opening import Given


@click.command(name="compare")
@click.argument("traces", nargs=-1, required=True, metavar="T1[:STREAM] [T2[:STREAM]]")
@click.option("--a", "only_a", multiple=True, metavar="SELECTOR", help="A's calls of modules.  [repeatable]")
@click.option("--b", "only_b", multiple=True, metavar="SELECTOR", help="B's calls of modules.  [repeatable]")
@click.option("--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Lines A-GLOB = B-GLOB.")
@click.option(
    "--rows-by",
    type=click.Choice(["tokens", "inputs", "order"]),
    help="What makes two rows the same.  [default: tokens where ids are known, else inputs]",
)
@click.option("--pad", type=int, metavar="ID", help="Token that pads, where no mask tells.  [default: found]")
@click.option("--require", "required", multiple=True, metavar="WHAT", help="bitwise, or logprob<X.  [repeatable]")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the report there.")
@click.option("--force", is_flag=True, help="Replace a report that is there.")
@color_option
def command(
    traces: tuple[str, ...],
    only_a: tuple[str, ...],
    only_b: tuple[str, ...],
    map_file: Path | None,
    rows_by: str | None,
    pad: int | None,
    required: tuple[str, ...],
    form: str,
    output: Path | None,
    force: bool,
    color: str,
) -> int:
    """Compare two programs that should compute the same, row by row: the first module whose inputs agree and whose
    outputs do not, and within it the op on each side.

    T1 is A, the generator or the reference; T2 is B, the trainer. Of one trace, A is what was called without gradient
    and B what was called with. Both are to be recorded with --rows (and --values, for distances). Rows belong together
    where they are of the same tokens so far, whatever the batch, the padding or the cache.

    Ends with 0 if all that --require asks for holds (without it: if every row is bitwise equal), 1 if not, 2 if the
    two cannot be compared, 3 if it cannot be said: too little could be matched, or A never computed rows of B.

    \b
      rltrace record --rows all --values 'module=*' -o grpo.zarr -- python grpo.py
      rltrace compare grpo.zarr
      rltrace compare generator.zarr trainer.zarr --require bitwise
    """
    from rltrace.parity.compare import compare
    from rltrace.parity.opening import open_stretches
    from rltrace.parity.require import parse_requirement

    given = _given(traces, only_a, only_b)
    requirements = [parse_requirement(text) for text in required]
    if output is not None:
        check_output(output, force)
    compared = compare(*open_stretches(*given), _asked(map_file, rows_by, pad))
    return _report(compared, given, requirements, form, output, color)


def _given(traces: tuple[str, ...], only_a: tuple[str, ...], only_b: tuple[str, ...]) -> tuple[Given, Given]:
    from rltrace.parity.opening import parse_given

    if len(traces) > 2:
        raise UsageError(f"compare takes one trace or two, not {len(traces)}")
    return parse_given(traces[0], only_a, "a"), parse_given(traces[-1], only_b, "b")


def _asked(map_file: Path | None, rows_by: str | None, pad: int | None) -> Asked:
    from rltrace.parity.compare import Asked
    from rltrace.parity.mapfile import parse_map
    from rltrace.parity.model import RowsBy

    lines = () if map_file is None else parse_map(_text_of(map_file), str(map_file))
    return Asked(None if rows_by is None else RowsBy(rows_by), pad, lines, str(map_file or ""))


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"the map {path} cannot be read: {why}") from None


def _report(
    compared: Compared, given: tuple[Given, Given], requirements: list[Any], form: str, output: Path | None, color: str
) -> int:
    from rltrace.parity.advice import advise
    from rltrace.parity.judged import agrees, judge
    from rltrace.report.compare import render_parity
    from rltrace.report.compare_json import parity_json
    from rltrace.trace.reader import open_trace

    opened = open_trace(given[0].path)
    other = opened if given[1].path == given[0].path else open_trace(given[1].path)
    parity = replace(compared.parity, advice=advise(compared.parity, opened, other))
    required = judge(requirements, parity, None)
    answer = agrees(required, parity)
    colored = use_color(color) and output is None
    if form == "json":
        text = json.dumps(parity_json(parity, required, answer), indent=2, allow_nan=False)
    else:
        text = render_parity(parity, required, color=colored)
    if output is None:
        emit(text, color=colored)
    else:
        write_output(output, text + "\n")
    if answer is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if answer else ExitCode.DIVERGED
