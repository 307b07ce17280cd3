"""``rltrace ops``: the recorded ops, one line each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice

from rltrace.command_lines import line, runnable
from rltrace.commands._option_types import STEP, argument, form_option, option, verb
from rltrace.commands.console import emit, narrate
from rltrace.trace.format.location import Location
from rltrace.wording import counted

BATCH = 256
"""Lines in one write, as single writes are slow."""


@dataclass(frozen=True, kw_only=True)
class OpsArguments:
    trace: Location = argument()
    selectors: tuple[str, ...] = argument(nargs=-1, metavar="[SELECTOR]...")
    steps: str | None = option(metavar="A:B", help="Only ops of these optimizer steps, without B.")
    around: int | None = option(type=STEP, metavar="ROW", help="Only the ten rows before and after this one.")
    limit: int | None = option(type=STEP, metavar="N", help="Stop after N lines.")
    form: str = form_option()


@verb(OpsArguments)
def command(arguments: OpsArguments) -> None:
    """List the recorded ops of TRACE that any SELECTOR matches (none: all), one line each.

    A line holds: stream, row, step, phase, op, layouts of its inputs, module, site with its source line, digests of
    what it returned and wrote, and the logged scalar. With --format json one object a line.

    A SELECTOR is key=glob[,key=glob...]: a comma means and, several selectors mean or. Keys: op, module,
    site (path:function), phase, stream, step=A:B, nth, kernel.

    \b
      rltrace ops a.zarr 'op=*mm,phase=backward' --steps 100:101
      rltrace ops a.zarr 'site=ppo.py:train,op=_local_scalar_dense'
      rltrace ops a.zarr stream=rank0/main --around 1234
    """
    from rltrace.query.ops import HoleLine, list_ops
    from rltrace.report.ops import line_json, line_text
    from rltrace.selectors import parse_range, parse_selectors
    from rltrace.trace.read.reader import open_trace

    trace, selectors, limit = arguments.trace, arguments.selectors, arguments.limit
    steps, around = arguments.steps, arguments.around
    selector = parse_selectors(selectors)
    window = parse_range(steps) if steps is not None else None
    shown, unreadable, opened = 0, 0, open_trace(trace)
    lines = islice(list_ops(opened, selector, window, around), limit)
    while batch := list(islice(lines, BATCH)):
        emit("\n".join(line_text(line) if arguments.form == "text" else json.dumps(line_json(line)) for line in batch))
        shown += len(batch)
        unreadable += sum(line.rows for line in batch if isinstance(line, HoleLine))
    if not shown and limit != 0:
        narrate(_nothing(trace, selectors, steps, around))
    for process in opened.processes:
        if process.state == "running":
            narrate(f"{process.name} is still being recorded; these were its ops up to op {process.after_op:,}")
    if unreadable:
        narrate(f"{counted(unreadable, 'row')} could not be read", hint="".join(runnable([line("verify", trace)])))


def _nothing(trace: Location, selectors: tuple[str, ...], steps: str | None, around: int | None) -> str:
    """Why nothing is listed, with the conditions of the command line."""
    conditions = [" or ".join(selectors)] if selectors else []
    conditions += [f"--steps {steps}"] if steps is not None else []
    conditions += [f"--around {around}"] if around is not None else []
    return f"no op of {trace} matches {' and '.join(conditions)}" if conditions else f"{trace} has no ops"
