"""Random valid rows, for property tests of anything that stores or reads rows."""

import numpy as np

from rltrace.portable_keys import portable_key
from rltrace.trace.format.rows import Rows, TableEntry
from rltrace.trace.format.schema import TABLES, Column, Kind, RowFlag


def random_rows(generator: np.random.Generator, first: int, count: int, entries: int = 8) -> Rows:
    """Rows with ids below ``entries`` and cells that match their counts."""
    columns = np.zeros((count, len(Column)), np.uint32)
    columns[:, Column.KIND] = Kind.OP
    for column in (
        Column.OP,
        Column.STRUCTURE,
        Column.SITE,
        Column.MODULE,
        Column.SCALARS,
        Column.KERNEL,
        Column.SETTINGS,
    ):
        columns[:, column] = generator.integers(0, entries, count)
    columns[:, Column.STEP] = np.sort(generator.integers(0, 5, count)) + first
    columns[:, Column.FLAGS] = generator.integers(0, 2, count) * RowFlag.MARKED
    for column in (Column.LINKS, Column.INTEGERS, Column.FLOATS, Column.DIGESTS):
        columns[:, column] = generator.integers(0, 4, count)
    _, integers, floats, digests = columns[:, Column.LINKS :].sum(axis=0)
    return Rows(
        first,
        columns,
        generator.integers(-3, np.repeat(first + np.arange(count), columns[:, Column.LINKS]) + 1) << 12,
        generator.integers(-(1 << 40), 1 << 40, integers),
        generator.standard_normal(floats),
        generator.integers(0, 1 << 64, digests, dtype=np.uint64),
    )


def plain_entries(entries: int = 8) -> list[TableEntry]:
    """``entries`` entries for every table, enough for ``random_rows``."""
    return [
        TableEntry(table, i, portable_key(table, i), _plain_payload(table, i))
        for table in TABLES
        for i in range(entries)
    ]


def _plain_payload(table: str, i: int) -> object:
    match table:
        case "structures" | "sites" | "scalars":
            return []
        case "schemas":
            return {"op": i, "arguments": ["self"]}
        case "layouts":
            return ["float32", [i], [1], "cpu"]
        case "frames":
            return {"file": "train.py", "path": "/src/train.py", "line": i, "function": "train", "source": f"entry {i}"}
        case "kernels":
            return {"library": "ATen", "threads": i}
        case "settings":
            return {"grad_mode": bool(i % 2), "threads": i}
        case "optimizers":
            return {"ordinal": i, "class": "Adam"}
        case "series":
            return {"kind": "watch", "name": f"series {i}"}
        case _:
            return f"{table}{i}"
