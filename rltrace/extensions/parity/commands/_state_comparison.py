"""``rltrace compare --state``: its options, and the comparison of parameters, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from rltrace.commands._option_types import COUNT, color_option, form_option, is_given, option, options_of
from rltrace.commands.console import ExitCode, emit_report
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
    from rltrace.extensions.parity.report.state import state_document
    from rltrace.extensions.parity.state import SUMMANDS, StateOptions, StateVerdict, compare_states

    output = arguments.output
    if len(arguments.traces) != 2:
        raise UsageError(f"compare --state takes two traces, not {len(arguments.traces)}")
    if any(text.strip() != "bitwise" for text in arguments.required):
        raise UsageError("compare --state takes --require bitwise only; without it, what is explained is no failure")
    precision = arguments.precision or ""
    _check_precision(precision)
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


def _check_precision(precision: str) -> None:
    from rltrace.diff.metrics.distances import FLOATS

    if precision and precision not in FLOATS:
        raise UsageError(f"--precision {precision}: give one of {', '.join(FLOATS)}")


def _mapped(map_file: Path | None, a: Any, b: Any) -> Mapping[str, str]:
    from rltrace.extensions.parity.module_names import apply_map, read_map

    if map_file is None:
        return {}
    names = [
        list(dict.fromkeys(identity.name for state in side.states.values() for identity in state.tensors))
        for side in (a, b)
    ]
    return apply_map(read_map(map_file), str(map_file), *names)
