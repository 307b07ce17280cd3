"""A Triton kernel that differs is called again in other configurations, and what comes of it is said."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rltrace.live_diff.recorder import add_configurations, other_configurations, rerun
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.kernel_launches import KernelLaunch
from rltrace.recorder.core.op_info import make_plan
from rltrace.recorder.core.placement import placements
from rltrace.recorder.core.regions import RegionName
from rltrace.recorder.core.storages import Storages
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.rerun_op.live_call import LiveCall

PLAIN = {"library": "Triton", "num_warps": 8, "grid": "1", "code": "c"}


def call_of(launch: KernelLaunch, x: torch.Tensor) -> LiveCall:
    layouts = Layouts(Tables())
    return LiveCall(launch, make_plan(0, launch), (), {"x": x}, [x], [layouts.of(x)], placements([x]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "repeats", "tried"),
    [
        (PLAIN, True, []),
        ({**PLAIN, "num_warps": 4}, True, ["in A's configuration (num_warps 4)"]),
        ({**PLAIN, "code": "another"}, True, []),
        (PLAIN, False, ["at num_warps 1", "at num_warps 2", "at num_warps 4", "at num_warps 16"]),
    ],
)
def test_which_are_tried(a: Mapping[str, Any], repeats: bool, tried: list[str]) -> None:
    """A's, of the same kernel; other numbers of warps where it does not repeat itself."""
    assert list(other_configurations(a, PLAIN, repeats=repeats)) == tried


def test_a_kernel_that_repeats_itself_with_fewer_warps() -> None:
    """At eight warps it races; at four it gives A's result."""
    counter = itertools.count()

    def again(evidence: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        arguments["x"].mul_(2 if evidence["num_warps"] <= 4 else 3 + next(counter) % 2)

    launch = KernelLaunch(RegionName("triton.race", PLAIN, ()), {"x": False}, Storages(), again=again)
    call = call_of(launch, torch.ones(4))
    digests = TensorDigests(Layouts(Tables()))
    a, b = ((f"{digests.of(torch.full((4,), value)):016x}",) for value in (2.0, 3.0))
    repetition, why_not = rerun(call, a, b)
    assert repetition is not None, why_not
    assert not repetition.repeats
    text = add_configurations("it differs", call, PLAIN, repetition, (a, b))
    assert "; at num_warps 4 it gives A's result; " in text
    assert text.endswith("; at num_warps 16 it is nondeterministic")


def test_a_function_of_a_library_is_not_called_again() -> None:
    launch = KernelLaunch(RegionName("ctypes.toy.step", {}, ()), {"x": False}, Storages(), why_not_again="it has state")
    assert rerun(call_of(launch, torch.ones(4)), (), ()) == (None, "it has state")
