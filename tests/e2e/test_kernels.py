"""Two CPU kernel settings as two machines: the op whose kernel differs is named, with all that shows why.

Each setting is probed for first: what it changes depends on the processor.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from oracle_log import Difference

TWO_THREADS = "OMP_NUM_THREADS=2"
STATUS = 7
"""Of the programs; where a check of links finds a fault, that of ``record`` is another."""


def test_other_kernels_are_named(
    cli: Any, kernel_setting: str, oracle: Callable[[str, str], Difference], as_it_is: Callable[[str], Any]
) -> None:
    """The first differing op is the one that an independent look at every op finds, and its kernel is the cause."""
    cli.record("b.zarr", "ppo.py", setting=kernel_setting)
    status, found = cli.diff(as_it_is("ppo.py").trace, "b.zarr")
    assert (status, found["verdict"]) == (1, "diverged")
    first = found["first_value"]
    right = oracle("ppo.py", kernel_setting)
    lines = cli.rltrace("ops", "b.zarr", "op=*", "--format", "json").stdout.splitlines()  # the oracle knows no events
    assert (first["op"], [json.loads(line)["row"] for line in lines].index(first["b_index"])) == (right.op, right.row)
    assert first["cause"] == "kernel"
    assert first["inputs_match"] in ("read", "inferred")
    assert first["kernel"]["a"] != first["kernel"]["b"]
    assert kernel_setting.partition("=")[0] in str(found["system"])


def test_unchanged_runs_are_identical(cli: Any, as_it_is: Callable[[str], Any]) -> None:
    """The same program twice is identical, and the whole of it was compared. No write of memory was missed."""
    one = as_it_is("ppo.py").trace
    assert cli.record("b.zarr", "ppo.py", "--check-links").returncode == STATUS
    status, found = cli.diff(one, "b.zarr")
    assert (status, found["verdict"]) == (0, "identical")
    assert found["first"] is None
    assert found["a"]["ops"] == found["b"]["ops"] > 5_000
    assert cli.rltrace("verify", one).returncode == 0


FRESH, HASHES = "MALLOC_PERTURB_=170", "PYTHONHASHSEED=random"


@pytest.mark.parametrize(
    ("program", "setting", "options"),
    [
        ("zoo.py", FRESH, ()),
        ("many_ops.py", FRESH, ()),
        ("dqn.py", HASHES, ("--check-links",)),
    ],
)
def test_what_is_no_difference(
    cli: Any, as_it_is: Callable[[str], Any], program: str, setting: str, options: tuple[str, ...]
) -> None:
    """glibc fills fresh memory with a byte, or sets have another order: the values are the same, and no write of
    memory was missed. Orders may differ under another hash seed: replay buffers, target networks and deep copies."""
    result = cli.record("b.zarr", program, *options, setting=setting)
    assert result.returncode == STATUS, result.stderr
    status, found = cli.diff(as_it_is(program).trace, "b.zarr")
    assert (status, found["verdict"]) in ((0, "identical"), (0, "identical" if setting == FRESH else "same-values"))
    assert found["a"]["ops"] > 2_500 or setting == FRESH


def test_a_copy_over_its_own_source(cli: Any) -> None:
    """Two threads overwrite what each other has yet to read: the copy is named, and that its memory overlaps."""
    a, b = cli.record_both("thinned.py", TWO_THREADS)
    for _ in range(4):  # on a busy machine the two may never meet
        if a == b:
            b = cli.record("b.zarr", "thinned.py", "--force", setting=TWO_THREADS).stdout
    assert a != b
    first = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    assert (first["cause"], first["op"]) == ("kernel", "aten.copy_.default")
    assert (first["site"]["file"], first["site"]["source"]) == ("thinned.py", "frames[FRAMES:].copy_(frames[:-1:2])")
    assert first["inputs_match"] == "inferred"
    assert "source and destination overlap" in first["explanation"]
