"""The rows of a real program, beside a recorder too simple to be wrong."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"


def test_rows_are_what_ran(cli: Any, as_it_is: Callable[[str], Any]) -> None:
    """Every op is a row, in order; two ops have equal digests just where independent hashes of their bits are equal."""
    cli.python("oracle.py", "oracle.log", PROGRAMS / "zoo.py")
    seen = [line.split() for line in (cli.folder / "oracle.log").read_text().splitlines()]
    lines = cli.rltrace("ops", as_it_is("zoo.py").trace, "op=*", "--format", "json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["op"] for row in rows] == [name for name, _ in seen]

    digests, hashes = defaultdict(set), defaultdict(set)
    for row, (name, bits) in zip(rows, seen, strict=True):
        if row["outputs"]:
            layouts = tuple(tensor["layout"] for tensor in row["inputs"])
            digests[name, layouts, bits].add(tuple(row["outputs"]))
            hashes[name, layouts, *row["outputs"]].add(bits)
    assert sum(bool(row["outputs"]) for row in rows) > len(rows) / 3
    assert all(len(found) == 1 for found in digests.values())
    assert all(len(found) == 1 for found in hashes.values())
