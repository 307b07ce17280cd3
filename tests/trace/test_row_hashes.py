"""Prefix digests depend on what rows are, and on nothing else."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.testing import plain_entries, random_rows
from rltrace.trace.format.row_hashes import Chains, chain_digests, row_hashes
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import TABLES, Column, RowFlag
from rltrace.trace.format.tables import KeyTables


def tables() -> KeyTables:
    """Tables of distinct keys."""
    made = KeyTables()
    made.extend(plain_entries())
    return made


def hashes_of(rows: Rows) -> tuple[list[int], list[int], list[int]]:
    """The three hashes as lists."""
    structure, values, marked, _ = row_hashes(rows, tables())
    return structure.tolist(), values.tolist(), marked.tolist()


def one_row(**cells: list[float]) -> Rows:
    """A single row with the given cells."""
    columns = np.zeros((1, len(Column)), np.uint32)
    columns[0, Column.KIND] = 1
    for column, name in ((Column.INTEGERS, "integers"), (Column.FLOATS, "floats"), (Column.DIGESTS, "digests")):
        columns[0, column] = len(cells.get(name, []))
    return Rows(
        0,
        columns,
        np.zeros(0, np.int64),
        np.array(cells.get("integers", []), np.int64),
        np.array(cells.get("floats", []), np.float64),
        np.array(cells.get("digests", []), np.uint64),
    )


@given(st.integers(0, 2**32), st.lists(st.integers(0, 300), max_size=6))
@settings(max_examples=40)
def test_cuts_never_matter(seed: int, cuts: list[int]) -> None:
    """A chain's digest at any row is the same wherever the rows before it were cut."""
    rows = random_rows(np.random.default_rng(seed), 0, 300)
    at = sorted({*cuts, 300})
    whole = chain_digests(row_hashes(rows, tables()), at)
    chains, parts = Chains(), []
    for start, stop in zip([0, *at], at, strict=False):
        chains.load(rows.cut(start, stop), tables(), [])
        chains.advance_to(stop)
        parts.append(chains.digests())
    assert parts == whole


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_ids_never_matter(seed: int) -> None:
    """Interning in another order changes no hash: keys count, not ids."""
    generator = np.random.default_rng(seed)
    rows = random_rows(generator, 0, 50)
    order = generator.permutation(8)
    renamed = rows.columns.copy()
    shuffled = KeyTables()
    for name in TABLES:
        for number in order.tolist():
            shuffled[name].append(int(tables()[name].keys[number]))
    for column in (Column.OP, Column.STRUCTURE, Column.SITE, Column.MODULE, Column.SCALARS):
        renamed[:, column] = np.argsort(order)[rows.columns[:, column]]
    for a, b in zip(row_hashes(rows, tables()), row_hashes(replace(rows, columns=renamed), shuffled), strict=True):
        assert np.array_equal(a, b)


MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """SplitMix64's finaliser, as docs/reference/trace-format.md writes it."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def salt(section: int, place: int) -> int:
    return mix(mix(place) ^ (section << 32))


def slow_hashes(rows: Rows, i: int) -> tuple[int, int, int]:
    """The three hashes of one row, straight from the definition."""
    row = rows.columns[i].tolist()
    known = tables()
    structure = mix(row[Column.KIND] ^ salt(0, 0))
    for column, name in ((1, "ops"), (2, "structures"), (3, "sites"), (4, "modules"), (5, "scalars")):
        structure += mix(int(known[name].keys[row[column]]) ^ salt(column, 0))

    def cells(values: np.ndarray, offsets: np.ndarray, section: int) -> int:
        own = values.view(np.uint64)[offsets[i] : offsets[i + 1]].tolist()
        return sum(mix(cell ^ salt(section, place)) for place, cell in enumerate(own))

    values = cells(rows.integers, rows.integer_offsets, 101) + cells(rows.floats, rows.float_offsets, 102)
    digests = cells(rows.digests, rows.digest_offsets, 103)
    if row[Column.FLAGS] & RowFlag.MARKED:
        return mix(structure & MASK), mix(values & MASK), mix(digests & MASK)
    return mix(structure & MASK), mix((values + digests) & MASK), 0


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_hashes_are_those_of_the_definition(seed: int) -> None:
    """The vectorised hashes equal a slow reading of the definition, row by row."""
    rows = random_rows(np.random.default_rng(seed), 0, 12)
    assert list(zip(*hashes_of(rows), strict=True)) == [slow_hashes(rows, i) for i in range(12)]


def test_definition_is_frozen() -> None:
    """Digests of a known row are part of format 1: a change here is a new major version."""
    rows = one_row(integers=[1, -1], floats=[0.5], digests=[0xDEADBEEF])
    assert chain_digests(row_hashes(rows, tables()), [0, 1]) == FROZEN


def test_an_empty_step_has_the_digest_of_nothing() -> None:
    """A step digest is of its own rows alone."""
    chains = Chains()
    empty = chains.end_step()
    chains.load(one_row(), tables(), [])
    chains.advance_to(1)
    assert chains.end_step() != empty
    assert chains.end_step() == empty


FROZEN = [
    (3244421341483603138, 3244421341483603138, 3244421341483603138),
    (16388383160675364905, 3385837892854381559, 14374147212387527897),
]
