"""The difference between two rows that are the same op, cell by cell.

Row hashes only select the pairs to compare; this comparison decides. A digest that only one side took (a first use in
a step, the start of a window) is no difference; only facts that both sides recorded can differ.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.sequences import grouped
from rltrace.diff.base.view import COMPUTATION, EACH_BY_ITSELF, RowRange, StreamView
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import LINES, VALUE_FLAGS, WRITES, Column, Kind, Origin, RowFlag
from rltrace.trace.read.names import layout_text

MARKED, RETURNED = int(RowFlag.MARKED), int(VALUE_FLAGS)
RETURNED_INTEGER = int(RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER)
"""Plain numbers, since every pair is tested and IntFlag arithmetic is slow."""


@dataclass(frozen=True)
class Difference:
    """The respects in which a pair differs."""

    rng: bool = False
    """RNG state before the op."""
    reads: tuple[int, ...] = ()
    """Inputs, by place, whose bytes were read on both sides and differ."""
    arguments: bool = False
    """Numbers among the arguments."""
    structure: bool = False
    """Op, shapes, dtypes, devices, or the skeleton of the arguments."""
    value: bool = False
    """The Python number that the op returned."""
    outputs: bool = False
    marked: bool = False
    """A side may hold uninitialised memory: its digests are ignored above."""
    permuted: bool = False
    """The op treats each tensor of its lists by itself, and got and wrote the same in another order, which is no
    difference."""

    @property
    def found(self) -> bool:
        """Whether any difference counts."""
        return bool(self.rng or self.reads or self.arguments or self.structure or self.value or self.outputs)


def difference(a: RowRange, i: int, b: RowRange, j: int) -> Difference:
    """Compare row ``i`` of ``a`` with row ``j`` of ``b`` (places within the ranges)."""
    rows_a, rows_b = a.rows, b.rows
    structure = not same_computation(a, i, b, j)
    numbers_a, value_a = _numbers(rows_a, i)
    numbers_b, value_b = _numbers(rows_b, j)
    marked = rows_a.has(i, MARKED) or rows_b.has(j, MARKED)
    event = int(rows_a.columns[i, Column.KIND]) != Kind.OP
    if event and marked:
        return Difference(structure=structure, marked=bool(numbers_a != numbers_b or marked_differs(a, i, b, j)))
    if not marked and not event and numbers_a == numbers_b and is_permuted(a, i, b, j):
        return Difference(permuted=True)
    return Difference(
        rng=not marked and rng_differs(rows_a, i, rows_b, j),
        reads=() if marked or event else unequal_reads(list(rows_a.inputs(i)), list(rows_b.inputs(j))),
        arguments=numbers_a != numbers_b,
        structure=structure,
        value=value_a != value_b,
        outputs=not marked and (_event_differs(a, i, b, j) if event else rows_a.outputs(i) != rows_b.outputs(j)),
        marked=marked and (value_a != value_b or marked_differs(a, i, b, j)),
    )


def is_permuted(a: RowRange, i: int, b: RowRange, j: int) -> bool:
    """Whether two rows are one call of an op that treats each tensor by itself, with its tensors in another order.

    What the op got and wrote for each has to be known, and the same as a multiset. Which tensors of the program these
    are is not: where another one got what this one should have, what reads it differs.
    """
    names = a.view.op(a.rows, i), b.view.op(b.rows, j)
    if not names[0].startswith(EACH_BY_ITSELF) or names[0] != names[1]:
        return False
    if a.view.skeleton(a.rows, i) != b.view.skeleton(b.rows, j):
        return False
    calls = elements_of(a.view, a.rows, i), elements_of(b.view, b.rows, j)
    if not calls[0] or not calls[1] or calls[0] == calls[1]:
        return False
    return Counter(calls[0]) == Counter(calls[1])


Element = tuple[object, ...]
"""What an op got and wrote for one tensor of its lists."""


def elements_of(view: StreamView, rows: Rows, i: int) -> list[Element]:
    """The elements of a call of lists of one length; empty where its arguments are other."""
    words = view.skeleton(rows, i)
    words = [word[1] if _is_named(word) else word for word in words]
    lists = [word for word in words if isinstance(word, list)]
    counts = {len(word) for word in lists}
    if len(counts) != 1 or counts == {0} or "T" in words or any(item != "T" for word in lists for item in word):
        return []
    count, links, outputs = counts.pop(), list(rows.inputs(i)), rows.outputs(i)
    if len(outputs) % count or len(links) % count:
        return []
    layouts = [str(layout) for layout in view.tensors(rows, i)]
    read = [None if link.distance == Origin.OVERWRITTEN else link.digest for link in links]
    return [(tuple(layouts[k::count]), tuple(read[k::count]), tuple(outputs[k::count])) for k in range(count)]


def same_computation(a: RowRange, i: int, b: RowRange, j: int) -> bool:
    """Whether kind, op, tensor structure and argument skeleton are the same."""
    if a.rows.columns[i, Column.KIND] != b.rows.columns[j, Column.KIND]:
        return False
    return all(
        a.view.keys(t, a.rows.columns[i : i + 1, c])[0] == b.view.keys(t, b.rows.columns[j : j + 1, c])[0]
        for t, c in COMPUTATION
    )


def marked_differs(a: RowRange, i: int, b: RowRange, j: int) -> bool:
    """Whether any digest of the rows differs, those of uninitialised memory included."""
    return compared_digests(a.rows, i) != compared_digests(b.rows, j)


def _event_differs(a: RowRange, i: int, b: RowRange, j: int) -> bool:
    """Whether the digests of an event differ.

    RNG states at the start of a window are ignored: an unseeded, unused generator (Python's, say) differs in every run.
    Where an op draws, the RNG state before it decides.
    """
    return marked_differs(a, i, b, j) and not is_generator_event(a, i)


def is_generator_event(stretch: RowRange, i: int) -> bool:
    """Whether a row holds an RNG state at the start of a window."""
    if stretch.rows.columns[i, Column.KIND] != Kind.WINDOW:
        return False
    skeleton = stretch.view.skeleton(stretch.rows, i)
    return bool(skeleton) and str(skeleton[0]).startswith("generator")


def rng_differs(a: Rows, i: int, b: Rows, j: int) -> bool:
    state_a, state_b = a.rng(i), b.rng(j)
    return state_a is not None and state_b is not None and state_a != state_b


def unequal_reads(a: list[Link], b: list[Link]) -> tuple[int, ...]:
    """Places of inputs that were digested on both sides and differ."""
    return tuple(
        k
        for k, (x, y) in enumerate(zip(a, b, strict=False))
        if x.digest is not None
        and y.digest is not None
        and x.digest != y.digest
        and Origin.OVERWRITTEN not in (x.distance, y.distance)
    )


def candidates(a: RowRange, at_a: NDArray[np.int64], b: RowRange, at_b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pairs (places within the ranges) may differ in what they compute, by their hashes."""
    values = a.hashes.values[at_a] != b.hashes.values[at_b]
    unequal: NDArray[np.bool_] = values | (a.computation[at_a] != b.computation[at_b])
    return unequal


def compared_digests(rows: Rows, i: int) -> list[int]:
    """The digests of a row that a comparison uses, without those that are evidence only."""
    start = int(rows.digest_offsets[i]) + (0 if rows.evidence is None else int(rows.evidence[i]))
    digests: list[int] = rows.digests[start : rows.digest_offsets[i + 1]].tolist()
    return digests


Numbers = tuple[bytes, bytes]


def _numbers(rows: Rows, i: int) -> tuple[Numbers, tuple[Numbers, int]]:
    """(integers and floats among the arguments; those of the returned number and its kind), by their bits."""
    flags = int(rows.columns[i, Column.FLAGS]) & RETURNED
    integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]]
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]]
    whole = len(integers) - bool(flags & RETURNED_INTEGER)
    real = len(floats) - (2 if flags & RowFlag.VALUE_COMPLEX.value else bool(flags & RowFlag.VALUE_FLOAT.value))
    arguments = integers[:whole].tobytes(), floats[:real].tobytes()
    return arguments, ((integers[whole:].tobytes(), floats[real:].tobytes()), flags)


# --- calls ------------------------------------------------------------------------------------------------------------
#
# The call of an op as text: its tensors, its numbers, the skeleton of all other arguments.


def skeleton_text(row: RowAt) -> str:
    return " ".join(map(str, _words(row)))


def arguments_text(a: RowAt, b: RowAt, difference: Difference) -> str:
    if not difference.structure:
        by_name = _by_name(a, b, "numbers more")
        if by_name:
            return by_name
        return f"it was called with different numbers: {numbers_text(a)} in A, {numbers_text(b)} in B"
    lines = _lines_text(a, b)
    if lines:
        return f"it is another program: {lines}"
    for what, describe in (("tensors", _layouts), ("arguments", call_text), ("op", lambda row: row.op)):
        if describe(a) != describe(b):
            by_name = _by_name(a, b, "more") if what == "arguments" and a.op == b.op else ""
            if by_name:
                return by_name
            if what == "arguments" and max(len(_arguments(a)), len(_arguments(b))) > MAX_ARGUMENTS:
                return f"it was called with different arguments: {_words_only(a, b)} in A, {_words_only(b, a)} in B"
            return f"it was called with different {what}: {describe(a) or 'none'} in A, {describe(b) or 'none'} in B"
    return "it was called with different arguments"


def _by_name(a: RowAt, b: RowAt, rest: str) -> str:
    """``it was called with training=False in A, True in B``; "" where an argument that differs has no name.

    ``rest``: what follows the number of those that are not shown.
    """
    found = _named_differences(a, b)
    more = [f"{len(found) - MAX_NAMED} {rest}"] if len(found) > MAX_NAMED else []
    return f"it was called with {', and '.join(found[:MAX_NAMED] + more)}" if found else ""


MAX_NAMED = 4
"""Arguments that differ, or lines, that one sentence names."""

MAX_ARGUMENTS = 32
"""Arguments of a call that are shown as a whole; of one with more, those that only one side has."""


def _words_only(row: RowAt, other: RowAt) -> str:
    """The arguments that the other side's call does not have."""
    only = list((Counter(_arguments(row)) - Counter(_arguments(other))).elements())
    return _first(only) or "none of these"


def written_text(a: RowAt, b: RowAt) -> str:
    """``params['kernel'], params['bias'] and 9 more differ``, of a row whose outputs have names; "" of any other."""
    names = a.view.words.written(int(a.rows.columns[a.place, Column.SCALARS]))
    pairs = zip(names, a.rows.outputs(a.place), b.rows.outputs(b.place), strict=False)
    differing = [name for name, x, y in pairs if name and x != y]
    if not differing:
        return ""
    more = f" and {len(differing) - 2} more" if len(differing) > 2 else ""
    return f"{', '.join(differing[:2])}{more} {'differs' if len(differing) == 1 else 'differ'}"


def _lines_text(a: RowAt, b: RowAt) -> str:
    """``x = f(y) in A, x = g(y) in B``: the lines of one program only, or else those of other operations or shapes; ""
    where none is known.
    """
    lines = [dict(row.view.words.lines(int(row.rows.columns[row.place, Column.SCALARS]))) for row in (a, b)]
    if not all(lines):
        return ""
    pairs = zip(lines, reversed(lines), "AB", strict=True)
    texts = [f"{only} in {side}" for own, other, side in pairs if (only := _first([x for x in own if x not in other]))]
    others = _first([line for line, made in lines[0].items() if lines[1].get(line, made) != made])
    return ", ".join(texts) or (f"other operations or shapes come from {others}" if others else "")


def _first(texts: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def call_text(row: RowAt) -> str:
    """The arguments in order; ``T`` is a tensor. Torch omits arguments that equal their defaults."""
    return f"({', '.join(_arguments(row))})"


def _arguments(row: RowAt) -> list[str]:
    rows, i = row.rows, row.place
    numbers = {
        "i": iter(rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()),
        "f": iter(rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()),
    }
    return [_argument(word, numbers) for word in _words(row)]


def _words(row: RowAt) -> list[object]:
    """The skeleton of the arguments, without what it says of a program of JAX and what that writes."""
    words = row.view.skeleton(row.rows, row.place)
    return [word for word in words if not (isinstance(word, dict) and word.keys() & {LINES, WRITES})]


def _named_differences(a: RowAt, b: RowAt) -> list[str]:
    """``BLOCK=64 in A, 32 in B`` for each argument that differs; none where one of them has no name.

    Numbers of one line of JAX's that differ alike are one.
    """
    on_a, on_b = _named_arguments(a), _named_arguments(b)
    pairs: Iterable[tuple[str, str, str]] = ((name, x, y) for (name, x), (_, y) in zip(on_a, on_b, strict=False))
    if [name for name, _ in on_a] != [name for name, _ in on_b]:  # torch omits arguments that equal their defaults
        by_name = dict(on_a), dict(on_b)
        names = dict.fromkeys(name for name, _ in (*on_a, *on_b))
        pairs = ((name, by_name[0].get(name, DEFAULT), by_name[1].get(name, DEFAULT)) for name in names)
    differing = [(name, x, y) for name, x, y in pairs if x != y]
    if not all(name for name, _, _ in differing):
        return []
    times = grouped(((_PLACE.sub("", name), x, y), name) for name, x, y in differing)
    counts = [(names[0], x, y, f" ({len(names)} times)" * (len(names) > 1)) for (_, x, y), names in times.items()]
    return [f"{name}={x} in A, {y} in B{count}" for name, x, y, count in counts]


DEFAULT = "its default"

_PLACE = re.compile(r" #\d+$")
"""Which number of a line of JAX's it is."""


def _named_arguments(row: RowAt) -> list[tuple[str, str]]:
    """(name, text) of each argument; "" where the name is not known."""
    by_place = row.view.words.arguments(int(row.rows.columns[row.place, Column.OP]))
    named = []
    for place, (word, text) in enumerate(zip(_words(row), _arguments(row), strict=True)):
        if _is_named(word):
            name, text = str(word[0])[:-1], text.removeprefix(str(word[0]))
        else:
            name = by_place[place] if place < len(by_place) else ""
        named.append((name, text))
    return named


def _is_named(word: object) -> TypeGuard[list[object]]:
    """Whether a word of a skeleton is ``[name=, word]``, as an argument that was passed by name has it."""
    return isinstance(word, list) and len(word) == 2 and str(word[0]).endswith("=")


def _argument(word: object, numbers: Mapping[str, Iterator[object]]) -> str:
    match word:
        case [str(name), item] if name.endswith("="):
            return f"{name}{_argument(item, numbers)}"
        case list():
            return f"[{', '.join(_argument(item, numbers) for item in word)}]"
        case dict():
            return ", ".join(map(str, word.values()))
        case "c":
            return f"{next(numbers['f'], '?')}+{next(numbers['f'], '?')}j"
        case "i" | "f":
            return str(next(numbers[str(word)], "?"))
    return str(word)


def input_text(row: RowAt, place: int, other: RowAt | None = None) -> str:
    """``input 1 (float32[64,4])``; tensors only, counted from 0. ``other``: B's row, where it may have another layout
    than ``row``, then A's."""
    sides = [_layouts_of(each, strides=False) for each in (row, other or row)]
    if any(place >= len(layouts) for layouts in sides):
        return f"input {place}"
    a, b = (layouts[place] for layouts in sides)
    return f"input {place} ({a})" if a == b else f"input {place} ({a} in A, {b} in B)"


def numbers_text(row: RowAt) -> str:
    rows, i = row.rows, row.place
    integers = rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()
    numbers = [*map(str, integers), *map(repr, floats)]
    return ", ".join(numbers[:8]) + (" …" if len(numbers) > 8 else "")


def _layouts(row: RowAt) -> str:
    return ", ".join(_layouts_of(row))


def _layouts_of(row: RowAt, strides: bool = True) -> list[str]:
    return [layout_text(layout, strides=strides) for layout in row.view.tensors(row.rows, row.place)]
