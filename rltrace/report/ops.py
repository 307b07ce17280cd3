"""How ``rltrace ops`` writes a row: one greppable line of text, or one JSON object.

Owns the order of the fields. Fields of a text line stand two or more spaces apart and are never empty (``-``), so a
line splits the same way whatever the op was.
"""

from __future__ import annotations

import math

from rltrace.query.ops import HoleLine, Line, OpInput, OpLine, Value
from rltrace.trace.format.events import COUNT, FLOAT, INTEGER, Cell, Event
from rltrace.trace.read.names import Site


def line_text(line: Line) -> str:
    """stream, row, step, phase, op, shapes, module, site, outputs, value."""
    if isinstance(line, HoleLine):
        return f"{line.stream}  {line.first:>7}  {'HOLE' if line.damaged else 'LEFT OUT'}  {line.why}"
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


def line_json(line: Line) -> dict[str, object]:
    """The same, with every input's origin, the whole stack, the generator and the kernel."""
    if isinstance(line, HoleLine):
        return {
            "stream": line.stream,
            "hole": {"first": line.first, "rows": line.rows, "why": line.why, "damaged": line.damaged},
        }
    return {
        "stream": line.stream,
        "row": line.row,
        "kind": line.kind,
        "step": line.step,
        "phase": line.phase,
        "op": line.op,
        "inputs": [_input_json(tensor) for tensor in line.inputs],
        "module": line.module,
        "site": _site_json(line.site) if line.site else None,
        "stack": [_site_json(frame) for frame in line.stack],
        "outputs": list(line.outputs),
        "rng": line.rng,
        "value": value_json(line.value),
        "kernel": line.kernel,
        "flags": list(line.flags),
    } | ({} if line.event is None else {"event": event_json(line.event)})


def event_json(event: Event) -> dict[str, object]:
    """What it happened to, the cells that are compared, and evidence; digests as 16 hex digits."""
    told: dict[str, dict[str, object]] = {"told": {}, "evidence": {}}
    for cell in event.cells:
        number = cell.letter in (COUNT, INTEGER, FLOAT)
        told["evidence" if cell.is_evidence else "told"][cell.name] = value_json(cell.value) if number else cell.text
    return {"what": event.what, **told}


def value_json(value: Value) -> object:
    """A recorded number as JSON has it: what is no finite number becomes text, a complex one a list of two."""
    if isinstance(value, complex):
        return [value_json(value.real), value_json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _results(line: OpLine) -> str:
    if line.event is not None:
        return "-> " + (" ".join(map(cell_text, line.event.cells)) or "-")
    parts = [*line.outputs]
    if line.rng:
        parts.append(f"rng={line.rng}")
    if line.value is not None:
        parts.append(f"value={line.value!r}")
    parts += [f"({flag})" for flag in line.flags]
    return "-> " + (" ".join(parts) or "-")


def cell_text(cell: Cell) -> str:
    """``reward=1.0``; what is evidence alone in brackets."""
    text = f"{cell.name.replace(' ', '-')}={cell.text}"
    return f"[{text}]" if cell.is_evidence else text


def _site_text(site: Site | None) -> str:
    return f"{site.file}:{site.line} {site.function}: {' '.join(site.source.split())}" if site else "-"


def _input_json(tensor: OpInput) -> dict[str, object]:
    return {
        "layout": tensor.layout,
        "origin": tensor.origin,
        "producer": tensor.producer,
        "digest": tensor.digest,
    }


def _site_json(site: Site) -> dict[str, object]:
    return {"file": site.file, "line": site.line, "function": site.function, "source": site.source}
