"""One op as lines of text: its inputs, call, kernel and stack, and its recorded values.

Owns layout within a width. Pure functions: no widget, no reading.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

from textual.content import Content

from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import LISTED, Bin, Distances, ElementPair
from rltrace.query.op_pair import OpPair, PairedInput
from rltrace.query.ops import OpInput
from rltrace.query.values import OpValues, ValuePair
from rltrace.report.diff import distances_text
from rltrace.trace.read.names import Site
from rltrace_tui.diff_text import Lines, labelled, pair_lines, plain

MATCHES = {
    "read": ("=", "read: hashed here on both sides, equal"),
    "inferred": ("=", "inferred: matched ops of this step wrote it"),
    "differ": ("≠", "differs"),
    "unknown": ("?", "unknown whether equal"),
    "": (" ", ""),
}

MAX_BINS = 8
"""Lines of a histogram."""

MAX_ELEMENTS = 12
"""Elements shown of each tensor, if several differ; of a single one, all that are listed."""

MAX_EQUAL = 8
"""Elements shown of a tensor that is equal on both sides."""


def input_text(entry: PairedInput) -> str:
    """``= input 0  float32[4]  from op 12  read: hashed here on both sides, equal``."""
    glyph, what = MATCHES.get(entry.match, ("?", entry.match))
    shown = entry.a or entry.b
    assert shown is not None
    if shown.origin == "overwritten":
        return f"  input {entry.place}  {shown.layout}  only written"
    sides = [side for side in (entry.a, entry.b) if side is not None]
    origins = list(dict.fromkeys(_origin_text(side, sides) for side in sides))
    digests = list(dict.fromkeys(s.digest for s in sides if s.digest))
    hashes = f"  {' | '.join(digests)}" if digests else ""
    layouts = " | ".join(dict.fromkeys(s.layout for s in sides))
    return f"{glyph} input {entry.place}  {layouts}  from {' | '.join(origins)}{hashes}  {what}".rstrip()


def _origin_text(given: OpInput, sides: Sequence[OpInput]) -> str:
    """``op 12``; with the result, and the element at which it begins, where that is not the first or differs."""
    text = given.origin if given.producer is None else f"op {given.producer:,}"
    if given.result is not None and (given.result or len({side.result for side in sides}) > 1):
        text += f" result {given.result}"
    if given.storage_offset or len({side.storage_offset for side in sides}) > 1:
        text += f" from element {given.storage_offset:,}"
    return text


def op_lines(pair: OpPair, width: int) -> Lines:
    """The op without its inputs."""
    shown = pair.shown
    is_paired = pair.a is not None and pair.b is not None
    facts = pair_lines if is_paired else _single_lines
    lines: Lines = []
    if shown.event is not None:
        lines += event_lines(pair, facts, width)
    else:
        lines += output_lines(pair, width)
        for label, values in pair.call.items():
            if (values.a or values.b) and (label != "args" or (is_paired and values.a != values.b)):
                lines += facts(label, values, width)
    lines += facts("kernel", pair.both(lambda line: line.kernel or None), width)
    lines += facts("module", pair.both(lambda line: line.module or None), width)
    lines += when_lines(pair, width)
    lines += labelled("flags", ", ".join(shown.flags), width) if shown.flags else []
    return lines + stack_lines(pair, width)


MAX_NAMED = 8
"""Outputs with names, above which those that are equal on both sides are counted only."""


def output_lines(pair: OpPair, width: int) -> Lines:
    """The digests of what it returned and wrote, each below its name, where it has one."""
    both = [None if line is None else line.outputs for line in (pair.a, pair.b)]
    count = max(len(outputs) for outputs in both if outputs is not None)
    outputs = [Pair(*(None if own is None else _nth(own, k) for own in both)) for k in range(count)]
    facts = _single_lines if None in both else pair_lines
    counts_equal = len(pair.shown.names) > MAX_NAMED and None not in both
    lines: Lines = []
    for output, name in zip(outputs, chain(pair.shown.names, repeat("")), strict=False):
        if counts_equal and output.a == output.b:
            continue
        lines += labelled("output", name, width) if name else []
        lines += facts("" if name else "output", output, width)
    equal = sum(output.a == output.b for output in outputs) if counts_equal else 0
    return lines + (labelled("outputs", f"{equal:,} of {count:,} are equal on both sides", width) if equal else [])


def event_lines(pair: OpPair, facts: Callable[[str, Pair[str], int], Lines], width: int) -> Lines:
    """The cells of an event: those that are compared, then evidence."""
    events = [None if line is None else line.event for line in (pair.a, pair.b)]
    lines = facts("of", Pair(*(None if event is None else event.what for event in events)), width)
    cells = [{} if event is None else {cell.name: (cell, event.text(cell)) for cell in event.cells} for event in events]
    every = {**cells[1], **cells[0]}
    for first, evidence in (("field", False), ("context", True)):
        label = first
        for name in [name for name, (cell, _) in every.items() if cell.is_evidence is evidence]:
            texts = Pair(*(f"{name} {side[name][1]}" if name in side else None for side in cells))
            lines += facts(label, texts, width)
            label = ""
    return lines


def when_lines(pair: OpPair, width: int) -> Lines:
    """Step and phase, of both sides if they differ."""
    when = pair.both(lambda line: f"step {line.step:,}, {line.phase}")
    if when.a and when.b and when.a != when.b:
        return pair_lines("when", when, width)
    return labelled("when", when.a or when.b or "", width)


def stack_lines(pair: OpPair, width: int) -> Lines:
    """The call stack with its source lines, innermost first; of both sides if they differ."""
    stacks = [() if line is None else line.stack for line in (pair.a, pair.b)]
    functions = [[(frame.file, frame.function) for frame in stack] for stack in stacks]
    if all(stacks) and functions[0] != functions[1]:
        return [*_frames("stack A", stacks[0], width), *_frames("stack B", stacks[1], width)]
    return _frames("stack", pair.shown.stack, width)


def _frames(label: str, stack: Sequence[Site], width: int) -> Lines:
    lines: Lines = []
    for number, frame in enumerate(stack):
        lines += labelled(label if number == 0 else "", f"{frame.file}:{frame.line} {frame.function}", width)
        lines += labelled("", "  " + " ".join(frame.source.split()), width, "$text-muted")
    return lines


def _single_lines(label: str, pair: Pair[str], width: int) -> Lines:
    """A fact of the only side that has the op."""
    text = pair.a if pair.a is not None else pair.b
    return [] if text is None else labelled(label, text, width)


# --- values ---------------------------------------------------------------------------------------------------------


def values_lines(values: OpValues, commands: Sequence[str], width: int) -> Lines:
    """Recorded values side by side, tensors that differ first; without any, the commands that record them."""
    lines: Lines = []
    differing = sum(pair.distances is not None for pair in values.pairs)
    most = MAX_ELEMENTS if differing > 1 else LISTED
    for pair in sorted(values.pairs, key=lambda pair: pair.equal):
        lines += [*_value_head(pair, width), *_value_body(pair, width, most)]
    if not values.pairs:
        missing = commands and not values.requested
        why = "Its values were not recorded." if missing else "It has no tensor with values."
        lines.append(plain(why, "$text-muted"))
    if not values.any_recorded and (values.pairs or not values.requested):
        for number, command in enumerate(commands):
            lines += labelled("to get" if number == 0 else "", command, width, "$text-accent")
    return lines


def _value_head(pair: ValuePair, width: int) -> Lines:
    layout = pair.layout.a or pair.layout.b or ""
    if pair.layout.a and pair.layout.b and pair.layout.a != pair.layout.b:
        layout = f"A {pair.layout.a}   B {pair.layout.b}"
    found = pair.distances
    if found is not None:
        return [
            Content.assemble(("≠ ", "$text-error"), (pair.what, "bold"), f"  {layout}"),
            *labelled("", distances_text(found), width),
        ]
    glyph = "=" if pair.equal else "≠"
    head = Content.assemble(f"{glyph} ", (pair.what, "bold"), f"  {layout}")
    return [head, *([plain(f"  {pair.why}", "$text-muted")] if pair.why else [])]


def _value_body(pair: ValuePair, width: int, most: int) -> Iterator[Content]:
    found = pair.distances
    if found is not None:
        yield from histogram_lines(found, width)
        yield from element_lines(found.worst[:most], found.unit, width)
    elif pair.elements:
        yield from single_value_lines(pair.elements[:MAX_EQUAL], width)


def histogram_lines(found: Distances, width: int) -> Iterator[Content]:
    """A bar for each range of distances."""
    bins = merged(found.histogram)
    if not bins:
        return
    labels = [f"{x.low:,}" if x.low == x.high else f"{x.low:,}–{x.high:,}" for x in bins]
    if len(max(labels, key=len)) > 20:
        labels = [f"{x.low:.1e}–{x.high:.1e}" for x in bins]
    column, most = max(map(len, labels)), max(x.count for x in bins)
    space = max(4, min(40, width - column - 18))
    for label, x in zip(labels, bins, strict=True):
        bar = "█" * max(round(x.count / most * space), 1 if x.count else 0)
        yield Content.assemble(f"  {label:>{column}} {found.unit:<4}", (bar, "$text-primary"), f" {x.count:,}")


def merged(bins: Sequence[Bin]) -> list[Bin]:
    """At most MAX_BINS bins: neighbours merged, empty ones at the lower end left out."""
    first = next((k for k, x in enumerate(bins) if x.count), len(bins))
    shown = bins[first:]
    size = -(-len(shown) // MAX_BINS) if shown else 1
    groups = [shown[k : k + size] for k in range(0, len(shown), size)]
    return [Bin(group[0].low, group[-1].high, sum(x.count for x in group)) for group in groups]


def element_lines(elements: Sequence[ElementPair], unit: str, width: int) -> Iterator[Content]:
    """Elements of both sides, decimal and hex, those that differ most first."""
    if not elements:
        return
    rows = [(_index(e), e.a, e.b, "–" if e.distance is None else f"{e.distance:,}", e.hex_a, e.hex_b) for e in elements]
    yield from _table(("at", "A", "B", unit or "distance", "A, bits", "B, bits"), rows, width)


def single_value_lines(elements: Sequence[ElementPair], width: int) -> Iterator[Content]:
    """Elements of a single value."""
    yield from _table(("at", "value", "bits"), [(_index(e), e.a, e.hex_a) for e in elements], width)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Content]:
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    for number, row in enumerate([head, *rows]):
        text = "  " + "  ".join(f"{cell:>{size}}" for cell, size in zip(row, widths, strict=True))
        yield plain(text[:width], "$text-muted" if number == 0 else "")


def _index(element: ElementPair) -> str:
    return f"[{','.join(map(str, element.index))}]"


def _nth(outputs: tuple[str, ...], k: int) -> str | None:
    return outputs[k] if k < len(outputs) else None
