"""``rltrace compare``: two programs that should compute the same, such as a generator and a trainer, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from rltrace.commands._option_types import (
    COUNT,
    argument,
    color_option,
    form_option,
    is_given,
    option,
    options_of,
    verb,
)
from rltrace.commands.console import ExitCode, check_output, emit_report
from rltrace.errors import UsageError

STATE = "State, of one model under two shardings"
"""The group of what --state alone takes."""


@dataclass(frozen=True, kw_only=True)
class StateArguments:
    """What ``compare --state`` takes; all but the last four are of the comparison by rows, too."""

    traces: tuple[str, ...]
    map_file: Path | None = option("--map", metavar="FILE", help="Lines A-GLOB = B-GLOB.")
    required: tuple[str, ...] = option("--require", metavar="WHAT", help="bitwise, logprob<X, …, kl<X; repeatable.")
    form: str = form_option()
    output: Path | None = option("-o", "--output", metavar="FILE", help="Write the report there.")
    force: bool = option(help="Replace an existing report.")
    color: str = color_option()
    state: bool = option(group=STATE, help="Compare parameters, gradients, optimizer state.")
    reference: str | None = option(metavar="R", group=STATE, help="A's program recorded in a higher precision.")
    summands: int | None = option(type=COUNT, metavar="N", group=STATE, help="Numbers in a sum in another order.")
    precision: str | None = option(metavar="DTYPE", group=STATE, help="Of the sums; default: the tensor's.")


def check_state_options() -> bool:
    """Whether ``--state`` is given. Raises UsageError for options that do not go together."""
    shared = {each.name for each in fields(StateArguments)}
    of_state = options_of(STATE)
    others = [one for one in click.get_current_context().command.params if one.name not in shared]
    if is_given("state"):
        if wrong := [one.opts[0] for one in others if is_given(one)]:
            rest = "compares parameters, gradients and optimizer state, not rows"
            raise UsageError(f"--state {rest}: leave out {', '.join(wrong)}")
        return True
    if wrong := [one.opts[0] for one in of_state if is_given(one)]:
        raise UsageError(f"{', '.join(wrong)} needs --state")
    return False


def compare_state(arguments: StateArguments) -> int:
    """Compare, print or write the report, and return the exit status."""
    from rltrace.diff.metrics.distances import FLOATS
    from rltrace.extensions.parity.report.state import state_document
    from rltrace.extensions.parity.state import SUMMANDS, StateOptions, StateVerdict, compare_states

    output = arguments.output
    if len(arguments.traces) != 2:
        raise UsageError(f"compare --state takes two traces, not {len(arguments.traces)}")
    if any(text.strip() != "bitwise" for text in arguments.required):
        raise UsageError("compare --state takes --require bitwise only; without it, what is explained is no failure")
    precision = arguments.precision or ""
    if precision and precision not in FLOATS:
        raise UsageError(f"--precision {precision}: give one of {', '.join(FLOATS)}")
    a, b = (_source(path) for path in arguments.traces)
    reference = None if arguments.reference is None else _source(arguments.reference)
    options = StateOptions(arguments.summands or SUMMANDS, precision, _mapped(arguments.map_file, a, b))
    found = compare_states(a, b, options, reference)
    emit_report(arguments.form, found, lambda: state_document(found), arguments.color, output)
    if found.verdict is StateVerdict.UNDECIDED:
        return ExitCode.UNDECIDED
    good = {StateVerdict.BITWISE} if arguments.required else {StateVerdict.BITWISE, StateVerdict.EXPLAINED}
    return ExitCode.IDENTICAL if found.verdict in good else ExitCode.DIVERGED


def _source(text: str) -> Any:
    from rltrace.extensions.parity.state import StateSource, read_states
    from rltrace.trace.read.reader import open_trace

    return StateSource(text, read_states(open_trace(text), text))


def _mapped(map_file: Path | None, a: Any, b: Any) -> Mapping[str, str]:
    from rltrace.extensions.parity.module_names import apply_map, read_map

    if map_file is None:
        return {}
    names = [
        list(dict.fromkeys(identity.name for state in side.states.values() for identity in state.tensors))
        for side in (a, b)
    ]
    return apply_map(read_map(map_file), str(map_file), *names)


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompareArguments(StateArguments):
    traces: tuple[str, ...] = argument(nargs=-1, required=True, metavar="T1[:STREAM] [T2[:STREAM]]")
    only_a: tuple[str, ...] = option("--a", metavar="SELECTOR", help="A's calls of modules; repeatable.")
    only_b: tuple[str, ...] = option("--b", metavar="SELECTOR", help="B's calls of modules; repeatable.")
    rows_by: str | None = option(
        type=click.Choice(["tokens", "inputs", "order"]), metavar="WHAT", help="Match by tokens, inputs or order."
    )
    pad: int | None = option(metavar="ID", help="Padding token, if no mask marks it.")
    logprobs: str | None = option(metavar="SELECTOR", help="Log-probabilities; A-SEL::B-SEL for each.")
    routing: str | None = option(metavar="SELECTOR", help="Ops that choose experts; default: topk.")


@verb(CompareArguments)
def command(arguments: CompareArguments) -> int:
    """Compare two programs that should compute the same, row by row: the first module whose inputs agree and whose
    outputs do not, and within it the op on each side.

    T1 is A, the generator; T2 is B, the trainer. Of one trace, A is the calls without gradient and B those with. Record
    both with --rows (and --values, for distances). With --state, they are one model under two shardings.

    Ends with 0 if all that --require asks for holds (without it: if every row is bitwise equal), 1 if not, 2 if the
    two cannot be compared, 3 if it is undecided: too little could be matched, or A never computed rows of B.

    \b
      rltrace record --rows all --values 'module=*' -o grpo.zarr -- python grpo.py
      rltrace compare grpo.zarr
      rltrace compare generator.zarr trainer.zarr --require bitwise
      rltrace compare single.zarr tp2.zarr --state
    """
    output = arguments.output
    if check_state_options():
        if output is not None:
            check_output(output, arguments.force)
        return compare_state(arguments)
    from rltrace.extensions.parity.compare import ParityOptions, advise, compare
    from rltrace.extensions.parity.impact.summary import effects_of
    from rltrace.extensions.parity.inputs import open_ranges, parse_given
    from rltrace.extensions.parity.model import RowsBy
    from rltrace.extensions.parity.module_names import read_map
    from rltrace.extensions.parity.report.compare import ParityReport, parity_document
    from rltrace.extensions.parity.requirements import agrees, judge, parse_requirement
    from rltrace.trace.read.reader import open_trace

    if len(arguments.traces) > 2:
        raise UsageError(f"compare takes one trace or two, not {len(arguments.traces)}")
    a = parse_given(arguments.traces[0], arguments.only_a, "a")
    b = parse_given(arguments.traces[-1], arguments.only_b, "b")
    requirements = [parse_requirement(text) for text in arguments.required]
    lines = () if arguments.map_file is None else read_map(arguments.map_file)
    rows_by = None if arguments.rows_by is None else RowsBy(arguments.rows_by)
    if output is not None:
        check_output(output, arguments.force)
    options = ParityOptions(rows_by, arguments.pad, lines, str(arguments.map_file or ""))
    compared = compare(*open_ranges(a, b), options)
    effects = effects_of(compared, arguments.logprobs, arguments.routing)
    opened = open_trace(a.path)
    other = opened if a.path == b.path else open_trace(b.path)
    parity = replace(compared.parity, advice=advise(compared.parity, opened, other))
    required = judge(requirements, parity, effects.gap)
    report = ParityReport(agrees(required, parity), required, parity, effects)
    emit_report(arguments.form, report, lambda: parity_document(report), arguments.color, output)
    if report.agrees is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if report.agrees else ExitCode.DIVERGED
