"""Two call ranges compared by activation row: from calls to a verdict.

Owns the order of the work, the rule of the verdict, and what to run next. Never prints.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.command_lines import file_name, line, record
from rltrace.extensions.parity.call_range import CallRange
from rltrace.extensions.parity.distances import Counted, RowValues, count
from rltrace.extensions.parity.matching.key_choice import (
    KeyChoice,
    choose_keys,
    match_steps,
    sampling_models,
    select_models,
)
from rltrace.extensions.parity.matching.row_keying import Keying
from rltrace.extensions.parity.matching.row_pairs import KeyedTable, Missing, computed_again, missing, partners
from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.model import Parity, ParitySide, ParityVerdict, Repeated, RowsBy
from rltrace.extensions.parity.module_names import MapLine, Naming, apply_map, match_names, root_of
from rltrace.extensions.parity.module_pairs import pair_modules
from rltrace.extensions.parity.origins import origins_of
from rltrace.extensions.parity.token_keys import NO_KEY, Numbers
from rltrace.selectors import escape
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.read.reader import Trace

EVERYTHING = ("--rows", "all", "--values", "module=*")


def advise(parity: Parity, a: Trace, b: Trace) -> tuple[str, ...]:
    """``b`` is ``a`` where both stretches are of one trace."""
    return tuple(dict.fromkeys(_commands(parity, a, b)))


def _commands(parity: Parity, a: Trace, b: Trace) -> Iterator[str]:
    if parity.holes:
        yield from (line("verify", trace.path) for trace in (a, b))
    if parity.verdict is not ParityVerdict.DIFFERS:
        return
    unmeasured = [module for module in parity.compared if module.differing and module.distance is None]
    first = parity.first
    if unmeasured or (first is not None and first.several and not _has_rows_of_ops(a, b)):
        paths = (None, None) if first is None else (first.path.a, first.path.b)
        for trace, path in [(b, paths[1])] if a is b else [(a, paths[0]), (b, paths[1])]:
            yield _record(trace, path and _called(trace, path))
    if first is not None and first.path.b is not None:
        yield line("ops", b.path, f"module={escape(_called(b, first.path.b))}")


def _called(trace: Trace, path: str) -> str:
    """The module itself, or for a point the nearest module around it that the trace has."""
    calls = (process.activations.calls(s.index) for process in trace.processes for s in process.streams)
    modules = {call.module for own in calls for call in own}
    while "." in path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _has_rows_of_ops(*traces: Trace) -> bool:
    return all(
        any(process.activations.ops(stream.index) for process in trace.processes for stream in process.streams)
        for trace in traces
    )


def _record(trace: Trace, first: str | None) -> str:
    """The same program once more, with rows and values of all modules, and with rows of the first one's ops."""
    rows: tuple[str, ...] = EVERYTHING
    if first is not None:
        rows = ("--rows", "module=*", "--rows", f"op=*,module={escape(first)}", "--values", "module=*")
    return record(trace, file_name(trace, "rows"), *rows)


# --- verdict ----------------------------------------------------------------------------------------------------------


ENOUGH = 0.5
"""Share of the modules of the smaller side that must be compared for the verdict BITWISE."""


def verdict_of(
    counted: Sequence[Counted], a: CallRange, b: CallRange, never_computed: int, known: KeyChoice
) -> tuple[ParityVerdict, str]:
    """The verdict and one sentence. ``never_computed``: rows of B that A lacks and that need a partner."""
    compared = [one.result for one in counted if one.result.rows]
    differing = [result for result in compared if result.differing]
    if differing:
        return ParityVerdict.DIFFERS, f"rows of {len(differing):,} of the {len(compared):,} compared modules differ"
    widened = [result for result in compared if result.dtype is not None]
    if widened:
        return ParityVerdict.DIFFERS, f"{len(widened):,} modules have different dtypes; the numbers are the same"
    why = _undecided_reason(len(compared), a, b, never_computed, known)
    if why:
        return ParityVerdict.UNDECIDED, why
    total = sum(result.rows for result in compared)
    return ParityVerdict.BITWISE, f"all {total:,} rows of {len(compared):,} modules are bitwise equal"


def _undecided_reason(compared: int, a: CallRange, b: CallRange, never_computed: int, known: KeyChoice) -> str:
    """Why the verdict is UNDECIDED where nothing differs; empty: it is BITWISE."""
    if not known.shared:
        what = "sequence of A matches one of B: the two had other tokens, or padding without a mask (--pad)"
        return f"no {what if known.by is RowsBy.TOKENS else 'row of A matches one of B'}"
    whole = next((root for side, grids in ((a, known.a), (b, known.b)) if (root := _whole_model(side, grids))), "")
    if not compared and whole:
        return f"{whole} calls no modules, as where it is compiled: record it uncompiled (vLLM: enforce_eager=True)"
    if not compared:
        return "no module of A matches one of B by name; give the pairs with --map"
    if known.left_out:
        models = " and ".join(known.left_out)
        return f"{models} computed tokens too and has no partner; all that was compared is equal"
    if never_computed:
        return f"A never computed {never_computed:,} of the rows of B; all that both computed are equal"
    smaller = min(len(a.modules), len(b.modules))
    if compared < ENOUGH * smaller:
        return f"only {compared:,} of {smaller:,} modules could be compared; their rows are all equal"
    holes = [*a.holes, *b.holes]
    return f"parts of the traces cannot be read; everything compared is equal: {holes[0]}" if holes else ""


def _whole_model(side: CallRange, grids: Sequence[TokenGrid]) -> str:
    """A model of which no call calls a module, in words; empty: there is none."""
    calls = [grid.anchor for grid in grids if side.parent(grid.anchor) is None]
    inner = {call.module for call in calls if side.inner.get(call.number)}
    return next((f"{call.module} of {side.side.upper()}" for call in calls if call.module not in inner), "")


def side_of(call_range: CallRange, grids: Sequence[TokenGrid], lacks: Missing) -> ParitySide:
    unknown = sum(_unknown(grid) for grid in grids)
    return ParitySide(
        path=call_range.path,
        stream=call_range.stream,
        what=call_range.what,
        calls=len(call_range.calls),
        modules=len(call_range.modules),
        passes=len(grids),
        rows=sum(grid.known for grid in grids),
        unknown=unknown,
        missing=lacks.rows,
        excused=lacks.excused,
    )


def _unknown(grid: TokenGrid) -> int:
    without = grid.keys == NO_KEY
    return int(without.sum() if grid.pads is None else (without & (grid.pads == 0)).sum())


def repeated(counted: Sequence[Counted]) -> list[Repeated]:
    """What each side computed several times, by the two ways; what was computed in the same way, if it differs."""
    found: dict[tuple[str, str], Repeated] = {}
    for side in ("a", "b"):
        for one in counted:
            tables = [getattr(tensor, side) for tensor in one.paired.tensors if tensor.part is Part.OUTPUT]
            for table in tables:
                for how, (again, first) in _by_ways(table).items():
                    differ = np.flatnonzero(table.digests[again] != table.digests[first])
                    before, of = found.get((side, how)), len(np.unique(table.keys[again]))
                    if before is not None and before.rows:
                        continue
                    found[side, how] = Repeated(side, how, max(of, before.of if before else 0), 0, "", "")
                    if len(differ):
                        rows = len(np.unique(table.keys[again[differ]]))
                        path, what = str(getattr(one.paired.path, side)), _calls(table, first[differ], again[differ])
                        found[side, how] = Repeated(side, how, of, rows, path, what)
    return [one for one in found.values() if one.rows or one.how != SAME_WAY]


SAME_WAY = "again"


def _by_ways(table: KeyedTable) -> dict[str, tuple[Numbers, Numbers]]:
    """By the two ways, indices of rows that were computed again, and of the first time."""
    again, first = computed_again(table)
    found: dict[str, list[int]] = {}
    for at, (x, y) in enumerate(zip(again.tolist(), first.tolist(), strict=True)):
        (way, around), (other, beside) = _way(table, x), _way(table, y)
        pair = (way, other) if way != other else (around, beside)
        found.setdefault(SAME_WAY if pair[0] == pair[1] else " against ".join(sorted(pair)), []).append(at)
    return {how: (again[at], first[at]) for how, at in found.items()}


def _way(table: KeyedTable, row: int) -> tuple[str, str]:
    """How a row was computed: its token, and all with it."""
    _, rows = table.sources[table.source[row]]
    each, around = rows.grid.ways
    return each[rows.tokens[table.at[row]]], around


def _calls(table: KeyedTable, first: Numbers, again: Numbers) -> str:
    calls = [table.sources[table.source[rows[0]]][0].number for rows in (first, again)]
    return f"within call {calls[0]}" if calls[0] == calls[1] else f"call {calls[0]} against call {calls[1]}"


# --- compare ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParityOptions:
    """How to compare."""

    rows_by: RowsBy | None = None
    """None: by tokens where ids are recorded, else by inputs."""
    pad: int | None = None
    lines: tuple[MapLine, ...] = ()
    """Of a map file."""
    map_name: str = ""


@dataclass(frozen=True, eq=False)
class Compared:
    """The result, and the rows behind it."""

    parity: Parity
    a: Keying
    b: Keying
    ranks: Numbers
    """For each sequence of A the number of its partner in B."""
    modules: tuple[Counted, ...]


def compare(a: CallRange, b: CallRange, options: ParityOptions | None = None) -> Compared:
    """Compare two call ranges by row. Raises UsageError where the options do not fit the traces."""
    options = options or ParityOptions()
    a, b, steps = match_steps(a, b)
    known = choose_keys(a, b, options.rows_by, options.pad)
    naming = _naming(a, b, options, sampling_models(known.a) if a.path == b.path else set())
    keyed_a, keyed_b = Keying(a, known.a), Keying(b, known.b)
    ranks = partners(known.a, known.b, dict(naming.pairs))
    known = select_models(known, naming.pairs, same_trace=a.path == b.path)
    counted = count(pair_modules(keyed_a, keyed_b, naming.pairs, ranks), RowValues(a), RowValues(b))
    compared = [one.result.path for one in counted if one.result.rows]
    keyed_a.compared = _with_fused(a, {str(path.a) for path in compared})
    keyed_b.compared = _with_fused(b, {str(path.b) for path in compared})
    lacks = missing(known.a, known.b), missing(known.b, known.a)
    origins = origins_of(counted, keyed_a, keyed_b, ranks)
    notes = [*known.notes, *steps, *naming.ambiguous, *a.notes, *b.notes]
    verdict, why = verdict_of(counted, a, b, lacks[1].counted, known)
    parity = Parity(
        verdict=verdict,
        why=why,
        a=side_of(a, known.a, lacks[0]),
        b=side_of(b, known.b, lacks[1]),
        rows_by=known.by,
        how=known.how,
        modules=tuple(one.result for one in counted),
        origins=tuple(origins) if verdict is ParityVerdict.DIFFERS else (),
        only_a=_unmatched(a, {pair[0] for pair in naming.pairs}),
        only_b=_unmatched(b, {pair[1] for pair in naming.pairs}),
        renamed=naming.renamed,
        repeated=tuple(repeated(counted)),
        holes=tuple(dict.fromkeys([*a.holes, *b.holes])),
        notes=tuple(dict.fromkeys(notes)),
        advice=(),
    )
    return Compared(parity, keyed_a, keyed_b, ranks, tuple(counted))


def _naming(a: CallRange, b: CallRange, options: ParityOptions, sampling: set[str]) -> Naming:
    """``sampling``: outermost modules of A that sample, if any are known to: others have no partner."""
    paths = [path for path in a.modules if not sampling or root_of(path) in sampling], list(b.modules)
    mapped = apply_map(options.lines, options.map_name, *paths) if options.lines else None
    return match_names(*paths, mapped)


def _with_fused(call_range: CallRange, paths: set[str]) -> frozenset[str]:
    """These modules, and those that compute some of them as parts."""
    return frozenset(paths) | {
        calls[0].module for path, calls in call_range.modules.items() if call_range.own_path(path) in paths
    }


def _unmatched(call_range: CallRange, matched: set[str]) -> tuple[str, ...]:
    """Modules without a partner, but for those whose parts have one."""
    parts = {call_range.modules[path][0].module for path in matched}
    paths = ((path, call_range.own_path(path)) for path in call_range.modules)
    return tuple(own for path, own in paths if path not in matched and own not in parts)
