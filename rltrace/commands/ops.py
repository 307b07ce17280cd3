"""``rltrace ops``: the recorded ops, one greppable line of text or one JSON object each.

Owns the order of the fields. Fields of a text line are separated by two or more spaces and never empty (``-``), so
every line splits the same way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rltrace.command_lines import line, runnable
from rltrace.commands._option_types import STEP, argument, form_option, option, verb
from rltrace.commands.console import emit, narrate
from rltrace.json import to_json
from rltrace.query.ops import HoleLine, Line, OpLine
from rltrace.trace.format.events import Cell, Event
from rltrace.trace.format.location import Location
from rltrace.trace.read.names import Site
from rltrace.wording import counted


def line_text(line: Line) -> str:
    """stream, row, step, phase, op, shapes, module, site, outputs, value."""
    if isinstance(line, HoleLine):
        return f"{line.stream}  {line.first:>7}  HOLE  {line.why}"
    fields = [
        line.stream,
        f"{line.row:>7}",
        f"step {line.step}",
        f"{line.phase:<9}",
        f"{line.op:<28}",
        " ".join(tensor.layout for tensor in line.inputs) or (line.event.what if line.event else "") or "-",
        line.module or "-",
        _site_text(line.site),
        _results(line),
    ]
    return "  ".join(fields).rstrip()


def line_json(line: Line) -> dict[str, Any]:
    """The same as an object, with every input's origin, the whole stack, the RNG state and the kernel."""
    return {"hole": to_json(line)} if isinstance(line, HoleLine) else {**to_json(line)}


def _results(line: OpLine) -> str:
    if line.event is not None:
        return "-> " + (" ".join(cell_text(line.event, cell) for cell in line.event.cells) or "-")
    results = [*line.outputs]
    if line.rng:
        results.append(f"rng={line.rng}")
    if line.value is not None:
        results.append(f"value={line.value!r}")
    results += [f"({flag})" for flag in line.flags]
    return "-> " + (" ".join(results) or "-")


def cell_text(event: Event, cell: Cell) -> str:
    """``reward=1.0``; ``[seed=1]`` for a cell that is evidence only; ``action=4ad7287e1def852a(0.5,1.0)``."""
    value = event.text(cell)
    numbers = "" if value == cell.text else f"({value.replace(' ', '')})"
    text = f"{cell.name.replace(' ', '-')}={cell.text}{numbers}"
    return f"[{text}]" if cell.is_evidence else text


def _site_text(site: Site | None) -> str:
    return f"{site.file}:{site.line} {site.function}: {' '.join(site.source.split())}" if site else "-"


# --- verb -------------------------------------------------------------------------------------------------------------


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
    from rltrace.commands.ops import line_json, line_text
    from rltrace.query.ops import HoleLine, list_ops
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
