"""How ``rltrace ops`` writes a row: one greppable line of text, or one JSON object.

Owns the order of the fields. Fields of a text line are separated by two or more spaces and never empty (``-``), so
every line splits the same way.
"""

from typing import Any

from rltrace.json import to_json
from rltrace.query.ops import HoleLine, Line, OpLine
from rltrace.trace.format.events import Cell, Event
from rltrace.trace.read.names import Site


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
