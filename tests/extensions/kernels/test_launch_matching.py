"""torch.profiler's events joined to rows: live on a CPU, and the way from a device's events on made-up ones.

No profile that the project recorded on a GPU stands here yet: ``scripts/capture_profile.py`` captures one where there
is a GPU, and what stands in ``data`` is joined here. Published ones are in ``test_published_profiles.py``.
"""

import gzip
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import Record
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from rltrace.extensions.kernels.profiler.kineto import events_of
from rltrace.extensions.kernels.profiler.launch_matching import BRACKET, REGION, Launch, ProfilerEvent, brackets, join

SCRIPT = Path(__file__).parents[3] / "scripts" / "capture_profile.py"
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_every_row_of_a_training_program_has_its_call(script: Any) -> None:
    """Eager ops, backward passes, foreach and fused optimizers, attention: as many calls as rows, of the same ops."""
    captured = script.capture("cpu")
    events, ops = script.events(captured), captured["ops"]
    joined = join(events, ops)
    assert joined.why == ""
    assert len(joined.launches) == len(ops) > 200
    assert not any(joined.launches), "nothing is launched on a CPU"
    assert {"aten._foreach_lerp_.Scalar", "aten._fused_adam_.default"} <= set(ops)
    assert captured["provenance"]["torch.version"] == torch.__version__


def test_profiles_that_were_captured_on_gpus(script: Any) -> None:
    """Every capture in ``data``: joined as when it was captured, each row on the device with what it launched."""
    captures = sorted(DATA.glob("*.json.gz"))
    if not captures:
        pytest.skip("no profile of a GPU has been captured yet: scripts/capture_profile.py does it, where there is one")
    for path in captures:
        assert path.stat().st_size < 300_000, path
        captured = json.loads(gzip.decompress(path.read_bytes()))
        joined = join(script.events(captured), captured["ops"])
        assert (joined.why, sorted(joined.lost)) == ("", captured["lost"]), path
        assert names(joined) == captured["launched"], path
        assert sum(map(len, joined.launches)) > len(captured["ops"]) // 2, path


def profiled(record: Record, program: Callable[[], object], **options: Any) -> tuple[list[ProfilerEvent], list[str]]:
    """Events and the main stream's operators."""
    kept: list[Any] = []

    def under_profiler() -> None:
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:  # torch 2.11 warns without
            program()
        kept.append(profiler)

    got = record(under_profiler, **options)
    return events_of(kept[0]), [row.op for row in got.rows]


def test_a_mode_of_the_programs_own_is_no_call(record: Record) -> None:
    """Whether it lies above the recorder's or below."""

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def program() -> None:
        with Passing():
            torch.ones(3) + torch.ones(3).t()
        torch.ones(2).exp()

    assert join(*profiled(record, program)).why == ""


def test_digests_of_the_recorder_are_nobodys(record: Record) -> None:
    """A strided input from before the recording is copied for its digest: by no op of the program."""
    strided = torch.randn(5, 7).t()
    events, ops = profiled(record, lambda: strided.exp())
    assert join(events, ops).why == ""
    (call,) = [bracket for bracket in brackets(events) if bracket.is_of("aten::exp")]
    assert [name for name, _ in call.ran] == ["aten::exp"]


def test_rows_that_are_not_those_of_the_profile_get_nothing(record: Record) -> None:
    """One op more or less, or another one at its place: said, and no launches are given to anybody."""
    events, ops = profiled(record, lambda: nn.Linear(3, 2)(torch.ones(4, 3)).sum())
    assert join(events, ops).why == ""
    assert "rows" in join(events, ops[1:]).why
    found = join(events, [*ops[:-1], "aten.exp.default"])
    assert (found.launches, "its row has aten.exp.default" in found.why) == ((), True)


def test_a_call_that_has_not_returned_may_have_no_event(record: Record) -> None:
    """That of the last row alone, and only where it is known not to have returned."""
    events, ops = profiled(record, lambda: nn.Linear(3, 2)(torch.ones(4, 3)).sum())
    longer = [*ops, "aten.exp.default"]
    assert "rows" in join(events, longer).why
    assert join(events, longer, unfinished=True) == join(events, ops) == join(events, ops, unfinished=True)
    assert "rows" in join(events, [*longer, "aten.exp.default"], unfinished=True).why
    assert join(events, ["aten.exp.default", *ops], unfinished=True).why != ""


def names(joined: Any) -> list[list[str]]:
    """What was launched for each row."""
    return [[launch.name for launch in launches] for launches in joined.launches]


# --- made up: what a device's events look like, by Kineto's documentation --------------------------------------------


def host(name: str, start: int, end: int, correlation: int, thread: int = 1) -> ProfilerEvent:
    return ProfilerEvent(name, start, end, thread, correlation)


def kernel(name: str, start: int, correlation: int, linked: int) -> ProfilerEvent:
    return ProfilerEvent(name, start, start + 5, 0, correlation, linked, True, (8, 1, 1), (128, 1, 1))


CALLS = [
    host("aten::addmm", 0, 100, 1),
    host(BRACKET, 10, 90, 2),
    host("rltrace", 12, 20, 3),
    host("aten::sum", 13, 19, 4),
    host("aten::addmm", 30, 60, 5),
    host("aten::copy_", 35, 40, 6),
    host("rltrace", 62, 80, 7),
    host(BRACKET, 110, 150, 8),
    host("mine::op", 120, 140, 9),
]
LAUNCHED = [
    kernel("sgemm", 300, 21, 5),
    kernel("copy", 310, 20, 6),
    kernel("digest", 320, 19, 4),
    kernel("triton_poi", 330, 22, 9),
]
OPS = ["aten.addmm.default", "mine.op.default"]


def test_a_launch_row_has_a_bracket_from_the_recorder() -> None:
    """What runs within it is its; for an op of torch it is the wrong bracket, as a mode's is for a launch row."""
    events = [host(REGION, 10, 90, 2), host("aten::copy_", 20, 30, 3), kernel("scale_kernel", 300, 20, 2)]
    assert names(join(events, ["triton.scale"])) == [["scale_kernel"]]
    assert "its row has aten.copy_.default" in join(events, ["aten.copy_.default"]).why
    assert "its row has triton.scale" in join(CALLS[-2:], ["triton.scale"]).why


def test_a_launch_is_the_op_s_that_made_it() -> None:
    """In the order of launching, whenever they ran; what the recorder launched for a digest is no row's."""
    joined = join([*CALLS, *LAUNCHED], OPS)
    assert joined == join([*LAUNCHED, *CALLS], OPS)
    assert joined.why == ""
    assert names(joined) == [["copy", "sgemm"], ["triton_poi"]]
    assert joined.launches[0][0] == Launch("copy", (8, 1, 1), (128, 1, 1))
    assert joined.strays == ()


def test_the_recorders_own_work_is_no_operator_of_a_call() -> None:
    """At any depth: neither what ran nor what was launched for a digest."""
    events = [*CALLS, host("aten::fill_", 14, 15, 30), kernel("fill", 305, 23, 30)]
    assert [[name for name, _ in call.ran] for call in brackets(events)] == [["aten::addmm"], ["mine::op"]]
    assert join(events, OPS) == join(CALLS, OPS)


def test_what_ends_later_or_begins_at_the_end_is_not_within_a_call() -> None:
    """Whatever lies between: only what is within it was run by it."""
    events = [host(BRACKET, 10, 20, 2), host("aten::mm", 12, 14, 3), host("aten::add", 16, 25, 4)]
    assert [name for call in brackets(events) for name, _ in call.ran] == ["aten::mm"]
    events[2] = host("aten::add", 20, 20, 4)
    assert [name for call in brackets(events) for name, _ in call.ran] == ["aten::mm"]


def test_of_calls_within_each_other_the_inner_one_is_the_recorders() -> None:
    """A mode above the recorder's passes the op down; a mode within a region runs for the region's row."""
    inside = [host(BRACKET, 20, 60, 2), host("aten::copy_", 30, 40, 3)]
    assert [call.start for call in brackets([host(BRACKET, 10, 90, 1), *inside])] == [20]
    assert [call.start for call in brackets([host(REGION, 10, 90, 1), *inside])] == [10]


def test_a_call_may_run_several_operators() -> None:
    """The row's is one of them, with its own launches; a row of an operator that did not run has none."""
    events = [
        host(BRACKET, 10, 90, 1),
        host("mine::first", 20, 30, 2),
        host("mine::second", 40, 50, 3),
        runtime("cudaLaunchKernel", 95, 96, 30),
        *(kernel("one", 300, 20, 2), kernel("two", 310, 21, 3), kernel("stray", 320, 22, 0)),
    ]
    joined = join(events, ["mine.second.default"])
    assert [launch.name for launch in joined.launches[0]] == ["two"] and joined.lost == frozenset()
    assert joined.strays == (("stray", "", 1),)
    assert [launch.name for call in brackets(events) for launch in call.launches] == ["one", "two"]
    assert "ran mine::first, mine::second, its row" in join(events, ["mine.third.default"]).why


def test_a_call_that_raised_has_no_row() -> None:
    """Its bracket is passed over at its place, before the first row, between two and after the last."""
    raised = [host(BRACKET, start, start + 5, 50 + start) for start in (2, 95, 160)]
    calls = [event._replace(thread=1) for event in raised]
    found = join([*CALLS[1:], *calls, *LAUNCHED], OPS, [0, 1, 2])
    assert (found.why, len(found.launches)) == ("", 2)
    assert "rows" in join([*CALLS[1:], *calls], OPS, [0, 1]).why


def test_launches_for_no_row_are_named_by_what_launched_them() -> None:
    """An op outside of any call, a call of the runtime, and one in a thread whose ops the profiler does not see."""
    outside = [host("aten::zeros", 500, 510, 60), runtime("cudaLaunchKernel", 600, 610, 61)]
    elsewhere = runtime("cudaLaunchKernel", 700, 710, 62)._replace(thread=9)
    ran = [kernel("fill", 800, 63, 60), kernel("mine", 810, 61, 0), kernel("other", 820, 62, 0)]
    joined = join([*CALLS, *outside, elsewhere, *ran], OPS)
    assert sorted(joined.strays) == [
        ("fill", "aten::zeros", 1),
        ("mine", "cudaLaunchKernel", 1),
        ("other", "cudaLaunchKernel in another thread", 1),
    ]


def test_the_autograd_engines_thread_is_the_streams() -> None:
    """A backward pass on a device has a thread of its own while the stream waits: calls of both, by time."""
    backward = [host(BRACKET, 200, 240, 31, thread=2), host("aten::mm", 210, 230, 32, thread=2)]
    joined = join([*CALLS, *backward, kernel("mm", 400, 40, 32), *LAUNCHED], [*OPS, "aten.mm.default"])
    assert [launch.name for launch in joined.launches[2]] == ["mm"]


def test_another_threads_calls_are_not_the_streams() -> None:
    """Of two threads with streams of their own, the one whose operators these are."""
    other = [host(BRACKET, 15, 25, 31, thread=2), host("aten::mm", 16, 24, 32, thread=2)]
    joined = join([*CALLS, *other, *LAUNCHED], OPS)
    assert (joined.why, len(joined.launches)) == ("", 2)
    assert len(join([*CALLS, *other], ["aten.mm.default"]).launches) == 1


def runtime(name: str, start: int, end: int, correlation: int, linked: int = 0) -> ProfilerEvent:
    return ProfilerEvent(name, start, end, 1, correlation, linked, runtime=True)


def test_ids_of_calls_are_not_those_of_ops() -> None:
    """CUPTI's and torch's are separate: a call whose id is that of an op has no part in what the op launched."""
    call = runtime("cudaLaunchKernel", 40, 41, 9, 5)  # 9 is mine::op, too
    assert names(join([*CALLS, call, kernel("sgemm", 300, 9, 5)], OPS)) == [["sgemm"], []]


def test_a_launch_that_names_no_op_is_the_one_s_around_its_call() -> None:
    """As in profiles of an older Kineto: by the time of the call, on its thread."""
    lone = [runtime("cudaLaunchKernel", 50, 55, 70), runtime("cudaLaunchKernel", 130, 131, 71)]
    ran = [kernel("sgemm", 300, 70, 0), kernel("triton", 310, 71, 0), kernel("stray", 320, 72, 0)]
    joined = join([*CALLS, *lone, *ran], OPS)
    assert [[launch.name for launch in launches] for launches in joined.launches] == [["sgemm"], ["triton"]]
    assert joined.strays == (("stray", "", 1),)


def test_a_drivers_call_within_the_runtimes_started_nothing_of_its_own() -> None:
    """It has no kernel of its own, and its row's are known all the same; without any the row's are not."""
    outer, inner = runtime("cudaLaunchKernel", 50, 58, 70, 5), runtime("cuLaunchKernel", 52, 56, 71, 5)
    for end in (56, 58):
        within = inner._replace(end=end)
        assert join([*CALLS, outer, within, kernel("sgemm", 300, 70, 5)], OPS).lost == frozenset()
    assert join([*CALLS, outer, inner._replace(end=59), kernel("sgemm", 300, 70, 5)], OPS).lost == {0}
    assert join([*CALLS, outer, inner], OPS).lost == {0}
    first = [host(BRACKET, 0, 9, 2), host("aten::mm", 0, 9, 5), runtime("cudaLaunchKernel", 0, 1, 70, 5)]
    assert join(first, ["aten.mm.default"]).lost == {0}
