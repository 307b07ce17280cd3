"""Two stretches compared by row: the whole of it, from calls to a verdict.

Owns the order of the work and the verdict. What the rows are known by, how they pair and what they come to is told
elsewhere; nothing here prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.parity.judging.origins import origins_of
from rltrace.parity.mapfile import Line, apply_map
from rltrace.parity.measuring import Rows
from rltrace.parity.model import Parity, RowsBy
from rltrace.parity.modules import pair_modules
from rltrace.parity.names import Naming, match_names
from rltrace.parity.results import Counted, count
from rltrace.parity.rows.keying import Keying
from rltrace.parity.rows.known import known_rows, of_models, same_steps
from rltrace.parity.rows.missing import missing
from rltrace.parity.rows.pairing import partners
from rltrace.parity.stretch import Stretch
from rltrace.parity.verdict import alone, assumed, disagreements, side_of, verdict_of
from rltrace.row_keys import Numbers


@dataclass(frozen=True)
class Asked:
    """How to compare."""

    rows_by: RowsBy | None = None
    """None: by tokens where ids are known, else by what the programs handed in."""
    pad: int | None = None
    lines: tuple[Line, ...] = ()
    """Of a map file."""
    map_name: str = ""


@dataclass(frozen=True, eq=False)
class Compared:
    """What was found, and what it was found from."""

    parity: Parity
    a: Keying
    b: Keying
    ranks: Numbers
    """Of each sequence of A the number of its partner in B."""
    modules: tuple[Counted, ...]


def compare(a: Stretch, b: Stretch, asked: Asked | None = None) -> Compared:
    """Compare two stretches by row. Raises UsageError where what was asked for makes no sense."""
    asked = asked or Asked()
    a, b, steps = same_steps(a, b)
    known = known_rows(a, b, asked.rows_by, asked.pad)
    keyed_a, keyed_b = Keying(a, known.a), Keying(b, known.b)
    naming = _named(a, b, asked)
    ranks = partners(known.a, known.b, dict(naming.pairs))
    known = of_models(known, naming.pairs)
    counted = count(pair_modules(keyed_a, keyed_b, naming.pairs, ranks), Rows(a), Rows(b))
    lacks = missing(known.a, known.b), missing(known.b, known.a)
    origins = origins_of(counted, keyed_a, keyed_b, ranks)
    notes = [*known.notes, *steps, *naming.ambiguous, *assumed(keyed_a, keyed_b)]
    verdict, why = verdict_of(counted, a, b, lacks[1].counted, known)
    parity = Parity(
        verdict=verdict,
        why=why,
        a=side_of(a, known.a, lacks[0]),
        b=side_of(b, known.b, lacks[1]),
        rows_by=known.by,
        how=known.how,
        modules=tuple(one.result for one in counted),
        origins=tuple(origins),
        only_a=alone(a, {pair[0] for pair in naming.pairs}),
        only_b=alone(b, {pair[1] for pair in naming.pairs}),
        renamed=naming.renamed,
        disagreements=tuple(disagreements(counted)),
        holes=tuple(dict.fromkeys([*a.holes, *b.holes])),
        notes=tuple(dict.fromkeys(notes)),
        advice=(),
    )
    return Compared(parity, keyed_a, keyed_b, ranks, tuple(counted))


def _named(a: Stretch, b: Stretch, asked: Asked) -> Naming:
    paths = list(a.modules), list(b.modules)
    mapped = apply_map(asked.lines, asked.map_name, *paths) if asked.lines else None
    return match_names(*paths, mapped)
