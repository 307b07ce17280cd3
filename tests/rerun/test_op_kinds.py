"""Kinds of op: what makes two ops of one kind, how a replay counts those where B had other values, lists in files."""

import json
from pathlib import Path

import numpy as np
import pytest

from rltrace.errors import UsageError
from rltrace.json import from_json, to_json
from rltrace.report.replay import kind_lines
from rltrace.rerun.op_kinds import (
    GENERATOR,
    NUMBER,
    RESULT,
    OpDistance,
    OpKind,
    OpKinds,
    OtherKind,
    Tallies,
    merged,
    read_labels,
)
from rltrace.rerun.plan import read_filter
from rltrace.trace.read.names import Site, Words

TABLES = {
    "kernels": [{}, {"library": "ATen", "isa": "AVX2", "threads": 1}],
    "sites": [[], [2, 0, 1], [2]],
    "frames": [
        {"file": "train.py", "line": 4, "function": "update", "source": "loss = f(x)"},
        {"file": "train.py", "line": 9, "function": "main", "source": "update()"},
        {"file": "torch/nn/functional.py", "line": 1, "function": "f", "source": "", "internal": True},
    ],
}


def test_a_kind_is_op_kernel_and_innermost_line() -> None:
    """The same three give the same kind; frames that are not the user's do not count, and there may be none."""
    kinds = OpKinds(Words(TABLES))
    found = kinds.of("aten.mm.default", 1, 1)
    assert found.label == "aten.mm.default at train.py:4 (update), ATen AVX2, 1 thread"
    assert kinds.of("aten.mm.default", 1, 1) is found
    assert kinds.of("aten.mm.default", 2, 0).label == kinds.of("aten.mm.default", 0, 0).label == "aten.mm.default"


def test_how_far_apart() -> None:
    """The largest distance of all tensors of an op; whole numbers, generators and numbers have none in ULP."""
    apart = OpDistance()
    assert not apart
    one = np.ones(3, np.float32)
    apart.tensors(RESULT, "float32", one, np.nextafter(one, np.float32(2)))
    apart.tensors(RESULT, "float32", one, one * 2)
    apart.tensors(RESULT, "int64", np.array([1]), np.array([900]))
    assert (apart.ulp, apart.relative) == (1 << 23, 0.5)
    apart.generator()
    apart.number(1.0, 4.0)
    apart.number(True, False)
    assert (apart.ulp, apart.relative) == (1 << 23, 0.75)
    assert apart.parts == [RESULT, RESULT, RESULT, GENERATOR, NUMBER, NUMBER]


def test_nan_has_no_distance() -> None:
    """NaN on one side is a difference without a distance."""
    apart = OpDistance()
    apart.tensors(RESULT, "float32", np.array([np.nan], np.float32), np.array([1.0], np.float32))
    assert apart
    assert (apart.ulp, apart.relative) == (None, None)


def tally(row: int, ulp: int, process: str = "main") -> Tallies:
    tallies, kind = Tallies(), OpKind("aten.mm.default", "one", Site("a.py", 1, "f", ""))
    apart = OpDistance([RESULT], ulp, 0.5)
    tallies.add(kind, OpKind("aten.mm.default", "other", None), f"rank0/{process}", row, 3, apart)
    return tallies


def test_tallies_count_and_survive_json() -> None:
    """Ops of one kind are counted together, with the first and all of their rows; JSON gives the same back."""
    tallies = tally(8, 2)
    kind = OpKind("aten.mm.default", "one", Site("a.py", 1, "f", ""))
    tallies.add(kind, OpKind("aten.mm.default", "third", None), "rank0/main", 5, 4, OpDistance([NUMBER], 7, None))
    (found,) = tallies.kinds()
    assert (found.count, found.row, found.step, found.max_ulp, found.max_relative) == (2, 8, 3, 7, 0.5)
    assert (found.kernel.a, found.kernel.b) == ("one", "other")
    assert found.parts == (RESULT, NUMBER)
    assert found.rows == {"rank0/main": (5, 8)}
    assert found.kinds_b == ("aten.mm.default, other", "aten.mm.default, third")
    assert from_json(OtherKind, json.loads(json.dumps(to_json(found)))) == found


def test_kinds_of_several_processes_are_one() -> None:
    """What two processes counted of one kind is added up."""
    (found,) = merged([*tally(8, 2).kinds(), *tally(4, 9, "worker:1").kinds()])
    assert (found.count, found.row, found.max_ulp) == (2, 8, 9)
    assert found.rows == {"rank0/main": (8,), "rank0/worker:1": (4,)}


def test_lines_of_kinds() -> None:
    """The most frequent first; those that are not shown are counted."""
    kinds = [*tally(8, 2).kinds(), *Tallies().kinds()]
    lines = list(kind_lines(kinds))
    assert lines[0] == "1  aten.mm.default at a.py:1 (f)"
    assert lines[1].strip() == "A one, B other; up to 2 ULP, 0.5 relative; first at op 8 of rank0/main, step 3"
    assert list(kind_lines(kinds, 0)) == ["   and 1 more kinds"]
    (_, far) = kind_lines(tally(8, 2**52).kinds())
    assert far.strip() == "A one, B other; up to 0.5 relative; first at op 8 of rank0/main, step 3"  # of other data


def test_lists_in_files(tmp_path: Path) -> None:
    """Labels and rows are read back; what is neither is refused by name."""
    kinds, rows = tmp_path / "kinds.json", tmp_path / "rows.json"
    kinds.write_text('["a", "b"]')
    rows.write_text('{"rank0/main": [1, 5]}')
    only = read_filter(kinds, rows)
    assert only.kinds == {"a", "b"}
    assert only.includes("rank0/main", 5)
    assert not only.includes("rank0/main", 2)
    assert not only.includes("rank1/main", 5)
    assert read_filter(None, None).includes("any", 0)
    for text in ("[1]", "{", '{"x": 1}', "3"):
        kinds.write_text(text)
        with pytest.raises(UsageError, match=r"kinds\.json is no JSON"):
            read_labels(kinds)
        rows.write_text(text)
        with pytest.raises(UsageError, match=r"rows\.json is no JSON"):
            read_filter(None, rows)
    with pytest.raises(UsageError, match=r"nothing\.json cannot be read"):
        read_labels(tmp_path / "nothing.json")
