"""Two CPU kernel settings as two machines: the op whose kernel differs is named, with all that shows why.

Each setting is probed for first: what it changes depends on the processor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from oracle_log import Difference

CAPABILITY = "ATEN_CPU_CAPABILITY=default"
TWO_THREADS = "OMP_NUM_THREADS=2"
STATUS = 7
"""Of the programs; where a check of links finds a fault, that of ``record`` is another."""
Needs = Callable[[str, str], None]


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


FRESH, HASHES = ("MALLOC_PERTURB_=85", "MALLOC_PERTURB_=170"), ("PYTHONHASHSEED=random",) * 2


@pytest.mark.parametrize(
    ("program", "settings", "checked"),
    [
        ("sac.py", FRESH, True),
        ("zoo.py", FRESH, False),
        ("many_ops.py", FRESH, False),
        ("dqn.py", HASHES, True),
        ("td3.py", HASHES, False),
    ],
)
def test_what_is_no_difference(cli: Any, program: str, settings: tuple[str, str], checked: bool) -> None:
    """glibc fills fresh memory with one byte or another, and sets have other orders in each run: the values are the
    same, and no write of memory was missed. Orders may differ under another hash seed: replay buffers, target networks
    and deep copies."""
    for trace, setting, *options in (("a.zarr", settings[0]), ("b.zarr", settings[1], *["--check-links"] * checked)):
        result = cli.record(trace, program, *options, setting=setting)
        assert result.returncode == STATUS, result.stderr
    status, found = cli.diff("a.zarr", "b.zarr")
    assert (status, found["verdict"]) in ((0, "identical"), (0, "identical" if settings is FRESH else "same-values"))
    assert found["a"]["ops"] > 2_500 or settings is FRESH


def test_the_critic_drifts_first(cli: Any, needs_change: Needs) -> None:
    """Equal for several updates, then one layer of the critic; the logged loss differs much later."""
    needs_change(CAPABILITY, "softplus (24,4)")
    cli.record_both("critic.py", CAPABILITY)
    status, found = cli.diff("a.zarr", "b.zarr")
    first = found["first_value"]
    assert (status, first["cause"], first["op"]) == (1, "kernel", "aten.softplus.default")
    assert first["inputs_match"] in ("read", "inferred")
    assert first["module"] == "Agent.critic"
    line = "features = nn.functional.softplus(self.body(observations))"
    assert first["site"] == cli.place("critic.py", "Critic.forward", line)
    assert (first["optimizer"]["owner"], first["optimizer"]["name"]) == ("Agent.critic", "SGD")
    assert first["step"] == 2 * first["optimizer"]["count"] > 0
    assert found["first"] == first
    assert {d["name"] for d in found["system"]} == {"cpu.capability", "env.ATEN_CPU_CAPABILITY"}
    seen = found["curves"][0]
    assert seen["name"].endswith("loss.item()") and seen["step"] > first["step"]
    assert seen["a"] != seen["b"]
    later = seen["step"] - first["step"]
    assert (
        f"Tensors diverge at step {first['step']}; the first logged scalar differs {later} steps later." in cli.report()
    )


def test_other_random_numbers_from_the_same_state(cli: Any, needs_change: Needs) -> None:
    """More than fifteen numbers are drawn by vector code: kernel and not rng, as the RNG state is the same."""
    needs_change(CAPABILITY, "normal (16,)")
    cli.record_both("noise.py", CAPABILITY)
    first = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    assert (first["cause"], first["op"], first["step"]) == ("kernel", "aten.randn.default", 3)
    assert first["site"] == cli.place("noise.py", "<module>", "noise = torch.randn(4 * (update + 1))")
    assert first["inputs_match"] == "read"
    assert "the RNG state is the same" in first["explanation"]
    assert first["kernel"]["a"] != first["kernel"]["b"]


def test_another_number_of_threads(cli: Any, needs_change: Needs) -> None:
    """Sums shared by two threads: library, instruction set and threads of both sides are named."""
    needs_change(TWO_THREADS, "batch_norm (64,8)")
    cli.record_both("normalised.py", TWO_THREADS)
    found = cli.diff("a.zarr", "b.zarr")[1]
    first = found["first_value"]
    assert (first["cause"], first["op"], first["step"]) == ("kernel", "aten.native_batch_norm.default", 0)
    assert first["module"] == "Sequential.1"
    assert first["inputs_match"] == "inferred"
    library, _, threads = first["kernel"]["a"].rpartition(", ")
    assert (threads, first["kernel"]["b"]) == ("1 thread", f"{library}, 2 threads")
    assert library.startswith("ATen ") and len(library.split()) == 2
    assert "threads 1 against 2" in first["explanation"]
    assert {d["name"] for d in found["system"]} == {"env.OMP_NUM_THREADS", "torch.threads"}


def test_a_copy_over_its_own_source(cli: Any) -> None:
    """Two threads overwrite what each other has yet to read: the copy is named, and that its memory overlaps."""
    a, b = cli.record_both("thinned.py", TWO_THREADS)
    for _ in range(4):  # on a busy machine the two may never meet
        if a == b:
            b = cli.record("b.zarr", "thinned.py", "--force", setting=TWO_THREADS).stdout
    assert a != b
    first = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    assert (first["cause"], first["op"]) == ("kernel", "aten.copy_.default")
    assert first["site"] == cli.place("thinned.py", "<module>", "frames[FRAMES:].copy_(frames[:-1:2])")
    assert first["inputs_match"] == "inferred"
    assert "source and destination overlap" in first["explanation"]
