"""Two programs compared by row, as lines of text: a line for each module, and one module in full.

Owns glyphs and layout within a width. Pure functions: no widget, no reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from rltrace.diff.base.model import Pair
from rltrace.extensions.parity.model import (
    ModuleOrigin,
    ModuleResult,
    ParityOp,
    TensorResult,
)
from rltrace.extensions.parity.report.compare import distance_text
from rltrace.wording import counted, sentence
from rltrace_tui.diff_text import Lines, labelled, pair_lines, plain

NUMBERS_WIDTH = 30
"""Columns of the numbers beside a module's path."""


def _because(origin: ModuleOrigin, width: int) -> Lines:
    return labelled("cause", origin.explanation, width)


def _parts(origin: ModuleOrigin, width: int) -> Lines:
    rows = f"{origin.rows:,} of {origin.of:,} whose inputs agree; the first is {origin.row}"
    return labelled("rows", rows, width)


def origin_lines(origin: ModuleOrigin, width: int) -> Lines:
    """The module whose inputs agree and whose outputs do not: why, rows, the op on both sides."""
    lines = [*_because(origin, width), *_parts(origin, width)]
    if origin.op.a is not None or origin.op.b is not None:
        lines += pair_lines(
            "op", Pair(*(None if op is None else op_text(op) for op in (origin.op.a, origin.op.b))), width
        )
    return lines


def op_text(op: ParityOp) -> str:
    """``aten.mm.default(float32[4,64], float32[64,64])  row 578``."""
    return f"{op.op}({', '.join(op.layouts)})  row {op.row:,}"


# --- modules --------------------------------------------------------------------------------------------------------


def glyph(module: ModuleResult, origin: ModuleOrigin | None) -> str:
    """``≠`` the module diverges independently, ``~`` propagated difference, ``?`` not compared."""
    if origin is not None:
        return "≠"
    if not module.rows:
        return "?"
    return "~" if module.differing else "="


def root_of(modules: Sequence[ModuleResult]) -> str:
    """The module of B that contains all others; "" if there is none."""
    roots = {str(module.path.b).partition(".")[0] for module in modules}
    return roots.pop() if len(roots) == 1 else ""


def module_line(module: ModuleResult, origin: ModuleOrigin | None, root: str, width: int) -> str:
    """One module of the list, on one line, without the ``root`` of its path; a long path keeps its end."""
    path = str(module.path.b).removeprefix(f"{root}.")
    space = max(10, width - NUMBERS_WIDTH - 4)
    shown = path if len(path) <= space else f"…{path[len(path) - space + 1 :]}"
    return f"{glyph(module, origin)} {shown:<{space}}  {_numbers(module)}".rstrip()


def _numbers(module: ModuleResult) -> str:
    if not module.rows:
        return "not compared"
    counts = f"{module.differing:>7,} of {module.rows:>7,}"
    distance = module.distance.absolute if module.distance is not None else None
    return counts if distance is None else f"{counts}  {distance:.1e}"


def module_lines(module: ModuleResult, origin: ModuleOrigin | None, width: int) -> Lines:
    """All results of one module."""
    lines: Lines = list(pair_lines("module", module.path, width))
    lines += pair_lines("class", module.kind, width)
    lines += labelled("calls", f"A {module.calls.a:,}   B {module.calls.b:,}", width)
    lines += labelled("rows", _rows(module), width)
    if module.dtype is not None:
        lines += pair_lines("dtype", module.dtype, width)
    if origin is not None:
        lines += [plain(""), *origin_lines(origin, width)]
    elif module.differing:
        what = "its inputs differ where its outputs do: propagated difference"
        lines += labelled("cause", sentence(what), width)
    for tensor in module.tensors:
        lines += [plain(""), *_tensor_lines(tensor, width)]
    for one in module.uncompared:
        name = f"{one.part} {one.name}".rstrip()
        lines += [plain(""), plain(f"? {name}", "$text-muted"), *labelled("", sentence(one.why), width)]
    return lines


def _rows(module: ModuleResult) -> str:
    if not module.rows:
        return "no output was computed by both"
    clauses = [f"{module.rows:,} computed by both, {module.equal:,} equal, {module.differing:,} differ"]
    if module.inputs_differing:
        clauses.append(f"{module.inputs_differing:,} had inputs that differ")
    unmatched = (("A", module.missing_b), ("B", module.missing_a))
    clauses += [f"{count:,} only by {side}" for side, count in unmatched if count]
    return "; ".join(clauses)


def _tensor_lines(tensor: TensorResult, width: int) -> Lines:
    mark, style = ("≠ ", "$text-error") if tensor.differing else ("= ", "$text-success")
    name = _either(tensor.name)
    what = f"{tensor.part} {name}".rstrip()
    rows = f"  {_either(tensor.dtype)}  {tensor.differing:,} of {counted(tensor.rows, 'row')} differ"
    lines: Lines = [Content.assemble((mark, style), (what, "bold"), rows)]
    if tensor.differing:
        lines += labelled("", sentence(distance_text(tensor.distance)), width)
    return lines


def _either(pair: Pair[str]) -> str:
    names = dict.fromkeys(text for text in (pair.a, pair.b) if text)
    return " | ".join(names)


def ops_of(origin: ModuleOrigin | None) -> tuple[Pair[ParityOp], ...]:
    """The op that diverges, on both sides, or the candidates for it."""
    pairs = () if origin is None else (origin.op, *origin.several)
    return tuple(pair for pair in pairs if pair.a is not None or pair.b is not None)


def op_choice(pair: Pair[ParityOp], width: int) -> str:
    """An op of both sides, on one line."""
    sides: Sequence[ParityOp] = [op for op in (pair.a, pair.b) if op is not None]
    names = " | ".join(dict.fromkeys(op.op for op in sides))
    layouts = " | ".join(dict.fromkeys(", ".join(op.layouts) for op in sides))
    return f"{names}  {layouts}"[:width]
