"""``rltrace compare --state``: its options, and the comparison of parameters, gradients and optimizer state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from rltrace.commands._output_files import write_output
from rltrace.commands.console import ExitCode, emit, use_color
from rltrace.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

OWN = ("reference", "summands", "precision")
SHARED = ("state", "map_file", "required", "form", "output", "force", "color", "no_tui", "traces")


def state_options(function: F) -> F:
    """The options of ``--state``, as ``state``, ``reference``, ``summands`` and ``precision``."""
    for option in (
        click.option("--precision", metavar="DTYPE", help="With --state: dtype of the sums.  [default: the tensor's]"),
        click.option(
            "--summands",
            type=click.IntRange(min=1),
            metavar="N",
            help="With --state: numbers in a sum whose order may differ.  [default: 65536]",
        ),
        click.option("--reference", metavar="R", help="With --state: A's program recorded in a higher precision."),
        click.option(
            "--state", is_flag=True, help="Compare parameters, gradients and optimizer state as whole tensors."
        ),
    ):
        function = option(function)
    return function


def check_state_options(ctx: click.Context) -> bool:
    """Whether ``--state`` is given. Raises UsageError for options that do not go together."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if "state" in given:
        wrong = [name for name in given if name not in (*OWN, *SHARED)]
        rest = "compares parameters, gradients and optimizer state, not rows"
    else:
        wrong, rest = [name for name in given if name in OWN], ""
    names = {option.name: option.opts[0] for option in ctx.command.params}
    if wrong and rest:
        raise UsageError(f"--state {rest}: leave out {', '.join(names[name] for name in wrong)}")
    if wrong:
        raise UsageError(f"{', '.join(names[name] for name in wrong)} needs --state")
    return "state" in given


def compare_state(
    traces: Sequence[str],
    map_file: Path | None,
    required: Sequence[str],
    own: Mapping[str, Any],
    form: str,
    output: Path | None,
    color: str,
) -> int:
    """Compare, print or write the report, and return the exit status."""
    from rltrace.extensions.parity.report.state import render_state
    from rltrace.extensions.parity.state import SUMMANDS, StateOptions, StateVerdict, compare_states
    from rltrace.json import to_json

    if len(traces) != 2:
        raise UsageError(f"compare --state takes two traces, not {len(traces)}")
    if any(text.strip() != "bitwise" for text in required):
        raise UsageError("compare --state takes --require bitwise only; without it, what is explained is no failure")
    precision = own["precision"] or ""
    _check_precision(precision)
    a, b = (_source(path) for path in traces)
    reference = None if own["reference"] is None else _source(own["reference"])
    options = StateOptions(own["summands"] or SUMMANDS, precision, _mapped(map_file, a, b))
    found = compare_states(a, b, options, reference)
    colored = use_color(color) and output is None
    text = (
        json.dumps(to_json(found), indent=2, allow_nan=False) if form == "json" else render_state(found, color=colored)
    )
    if output is None:
        emit(text, color=colored)
    else:
        write_output(output, text + "\n")
    if found.verdict is StateVerdict.UNDECIDED:
        return ExitCode.UNDECIDED
    good = {StateVerdict.BITWISE} if required else {StateVerdict.BITWISE, StateVerdict.EXPLAINED}
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
