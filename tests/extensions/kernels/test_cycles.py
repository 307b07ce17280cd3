"""The profiler beside a recording, live on a CPU: real profiles in cycles, with a device made up beside them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from device_profiles import KERNELS, by_name, pretend
from recorded import Record, Recorded
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from rltrace.extensions.kernels.profiler import cycles, kineto
from rltrace.extensions.kernels.profiler.launch_matching import ProfilerEvent
from rltrace.recorder.core.regions import BRACKET as REGION
from rltrace.trace.kernels.evidence import launches

ALL = (0, None)

ADDMM = (*KERNELS["aten::addmm"], *KERNELS["aten::copy_"])
"""What a row of it launches: on a CPU it copies its bias first, within itself."""


def updates(count: int, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam, **options: Any) -> None:
    """Of a small network, some of whose ops raise."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    made = optimizer(net.parameters(), **options)
    for _ in range(count):
        with pytest.raises(RuntimeError):
            torch.ones(3) @ torch.ones(4)
        loss = net(torch.ones(32, 8)).pow(2).mean()
        made.zero_grad()
        loss.backward()
        made.step()


def named(got: Recorded, op: str) -> list[tuple[str, ...]]:
    """The kernels of every row of an operator."""
    return [tuple(row.kernel.get("names", ())) for row in got.rows if row.op == op]


@pytest.mark.parametrize("rows", [1, 150, 1 << 20], ids=["many", "some", "one"])
def test_every_row_has_its_kernels(
    record: Record, monkeypatch: pytest.MonkeyPatch, rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """However long cycles are: forward, backward, optimizers, with ops between that raise and have no row. Of Kineto's
    lines at start and stop none reaches the program's output."""
    pretend(monkeypatch, rows=rows)
    got = record(lambda: (updates(2), updates(1, foreach=True), updates(1, fused=True)), kernels=ALL)
    assert capfd.readouterr() == ("", "")
    recorded = got.process.launches
    assert (recorded.unknown, recorded.strays) == ([], {})
    assert recorded.rows == len(got.rows)
    assert (len(recorded.parts(0)) == 1) == (rows == 1 << 20)
    for op in ("aten.addmm.default", "aten.mm.default", "aten._foreach_lerp_.Scalar", "aten._fused_adam_.default"):
        wanted = ADDMM if "addmm" in op else KERNELS["::".join(op.split(".")[:2])]
        assert set(named(got, op)) == {wanted}, op
    copies = [row for row in got.rows if row.op == "aten.addmm.default"]
    assert launches(copies[0].kernel) is not None


def test_nothing_is_begun_where_the_program_uses_no_device(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is written: a CPU program's trace is what it is without."""
    monkeypatch.setattr(kineto, "start", lambda kinds: pytest.fail("begun"))
    assert not record(lambda: updates(2), kernels=ALL).process.launches


def test_what_was_launched_for_no_row_is_counted(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was launched straight from Python, a graph's replay; what the recorder launched is no row's."""
    pretend(monkeypatch)
    real = kineto.events_of

    def events_of(result: Any) -> list[ProfilerEvent]:
        events = real(result)
        thread = events[0].thread
        lone = [
            ProfilerEvent("cudaGraphLaunch", 1, 2, thread, 900_001, runtime=True),
            ProfilerEvent("gemm", 5, 6, 0, 900_001, 0, True),
            ProfilerEvent("gemm", 6, 7, 0, 900_001, 0, True),
            ProfilerEvent("cuLaunchKernel", 3, 4, thread + 1, 900_002, runtime=True),
            ProfilerEvent("mine", 8, 9, 0, 900_002, 0, True),
        ]
        return [*events, *lone]

    monkeypatch.setattr(kineto, "events_of", events_of)
    strided = torch.ones(5, 7).t()
    got = record(lambda: strided.tanh(), kernels=ALL)
    wanted = {("gemm", "cudaGraphLaunch"): 2, ("mine", "cuLaunchKernel in another thread"): 1}
    assert got.process.launches.strays == wanted
    assert named(got, "aten.tanh.default") == [KERNELS["aten::tanh"]]


def test_a_launch_that_was_not_seen_on_the_device_is_not_taken_for_none(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ops that are captured into a CUDA graph: their rows keep what they have, and the trace says why."""
    pretend(monkeypatch)
    real = kineto.events_of
    tanh = KERNELS["aten::tanh"][0]
    monkeypatch.setattr(kineto, "events_of", lambda result: [e for e in real(result) if e.name != tanh])
    got = record(lambda: (torch.ones(5) * torch.ones(5)).tanh(), kernels=ALL)
    assert named(got, "aten.mul.Tensor") == [KERNELS["aten::mul"]]
    assert named(got, "aten.tanh.default") == [()]
    assert [(why, rows) for why, _, _, rows in got.process.launches.unknown] == [(cycles.NOT_SEEN, 1)]


def test_a_profiler_that_sees_nothing_of_the_device_is_not_taken_for_none_launched(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nsys has CUPTI's place: the rows ran on a device, and nothing at all was launched."""
    pretend(monkeypatch, kernels=None)
    monkeypatch.setattr("rltrace.extensions.kernels.profiler.cycles.LaunchRecorder._is_blind", lambda *_: True)
    got = record(lambda: torch.ones(5).tanh(), kernels=ALL)
    assert {entry.why for entry in got.process.launches.unknown} == {cycles.BLIND}


@pytest.mark.parametrize("fails", ["start", "stop", "join"])
def test_a_failure_of_the_profiler_costs_the_names_and_nothing_else(
    record: Record, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The rows are all there; the reason stands in the trace."""
    pretend(monkeypatch, rows=50)
    plain = record(lambda: updates(3))

    def broken(*_: Any, **__: Any) -> Any:
        if fails == "stop":
            kineto._disable()
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr(cycles if fails == "join" else kineto, fails, broken)
    got = record(lambda: updates(3), kernels=ALL)
    assert got.process.state == "complete"
    assert [row.op for row in got.rows] == [row.op for row in plain.rows]
    assert all("MULTIPLE_SUBSCRIBERS" in entry.why for entry in got.process.launches.unknown)
    assert sum(entry.rows for entry in got.process.launches.unknown) == len(got.rows)


def test_a_device_that_failed_does_not_leave_the_profiler_on(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for it raises; the session is ended all the same, and the program may run a profiler of its own."""
    pretend(monkeypatch, rows=50)

    def failed(kind: str) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(kineto, "_wait_for", failed)
    got = record(lambda: updates(3), kernels=ALL)
    assert got.process.state == "complete" and not torch._C._autograd._profiler_enabled()
    assert all("device-side assert" in entry.why for entry in got.process.launches.unknown)


class EventOf211:
    """An event as torch 2.11 hands it out: without the kind of activity."""

    def __init__(self, name: str, correlation: int, linked: int = 0) -> None:
        self.name = lambda: name
        self.correlation_id = lambda: correlation
        self.linked_correlation_id = lambda: linked
        self.device_type = lambda: torch._C._autograd.DeviceType.CPU
        self.start_ns, self.end_ns, self.device_resource_id = (lambda: 10), (lambda: 20), (lambda: 0)


def test_the_profilers_own_overhead_is_no_op_on_torch_2_11() -> None:
    """There its events have no kind: they are known by having no id, since torch's begin at 1."""
    assert kineto._other(EventOf211("Lazy Function Loading", 0), "") is None
    op = kineto._other(EventOf211("aten::mm", 7), "")
    call = kineto._other(EventOf211("cuLaunchKernelEx", 9, linked=7), "")
    assert (op.name, op.runtime, op.linked) == ("aten::mm", False, 0)
    assert (call.name, call.runtime, call.linked) == ("cuLaunchKernelEx", True, 7)


def test_rows_of_other_threads_are_counted(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler does not see them: they keep what they have, with the reason."""
    pretend(monkeypatch)
    with record.block(kernels=ALL) as got:
        thread = Thread(target=lambda: torch.ones(5).tanh(), name="loader")
        thread.start()
        thread.join()
        torch.ones(5).tanh()
    assert named(got, "aten.tanh.default") == [KERNELS["aten::tanh"]]
    other = got.process.streams[1]
    assert [tuple(entry) for entry in got.process.launches.unknown] == [(cycles.OTHER_THREADS, 1, 0, other.rows)]


def test_only_the_steps_that_were_asked_for(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--kernels 1:3``: rows of other steps have no names, and the profiler is off there."""
    pretend(monkeypatch)
    got = record(lambda: updates(5), kernels=(1, 3))
    assert {row.step for row in got.rows if row.kernel.get("names")} == {1, 2}
    assert not torch._C._autograd._profiler_enabled()


# --- moments ----------------------------------------------------------------------------------------------------------


def test_cycles_end_between_ops_alone(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a function of autograd's, a checkpointed block or a backward pass: a scope would outlive its session."""
    pretend(monkeypatch, rows=1)
    real = kineto.stop
    still_open: list[str] = []

    def stop(kinds: Any) -> Any:
        found = real(kinds)
        still_open.extend(found[1])
        return found

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return inner(x * 2)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return inner(grad)

    inner, outer = nn.Linear(4, 4), nn.Linear(4, 4)

    monkeypatch.setattr(kineto, "stop", stop)
    with record.block(kernels=ALL) as got:
        optimizer = torch.optim.SGD([*inner.parameters(), *outer.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.ones(2, 4, requires_grad=True)
            Twice.apply(outer(x)).sum().backward()
            torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=True).sum().backward()
            with torch.profiler.record_function("of the program's own"):
                optimizer.step()
                optimizer.zero_grad()
    assert still_open == []
    assert len(got.process.launches.parts(0)) > 6
    assert got.process.launches.unknown == []
    assert {names[:3] for names in named(got, "aten.addmm.default")} == {ADDMM}


@pytest.mark.skipif(
    torch.__version__ < (2, 12), reason="the profiler of this torch reports no scope that is still open"
)
def test_a_scope_that_stays_open_ends_the_cycles(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write into memory of its session as it ends: no other one is begun, and the trace says why."""
    pretend(monkeypatch, rows=25)
    with record.block(kernels=ALL) as got:
        with torch._C._profiler._RecordFunctionFast("mine"):
            updates(3)
        updates(1)
    assert {entry.why for entry in got.process.launches.unknown} == {cycles.STILL_OPEN.format("mine")}
    assert named(got, "aten.addmm.default")[0] == ADDMM, "before that it is known"


@pytest.mark.parametrize("reports_open", [True, False])
def test_a_stretch_without_a_moment_is_cut_off(
    record: Record, monkeypatch: pytest.MonkeyPatch, reports_open: bool
) -> None:
    """Four times as many rows as it should have is the most it gets; what comes up to the next moment is not known.

    That holds where the profiler reports no event that is still open, as before torch 2.12.
    """
    pretend(monkeypatch, rows=100, longest=4)
    plain = kineto.events_of

    def without_open_ones(result: Any) -> list[ProfilerEvent]:
        events = plain(result)
        end = max(event.end for event in events if event.name == kineto.END)
        return [event for event in events if event.device or event.end <= end]

    if not reports_open:
        monkeypatch.setattr(kineto, "events_of", without_open_ones)
    x = torch.ones(3)
    with record.block(kernels=ALL) as got:
        for _ in range(1_000):
            x.tanh()
        nn.Linear(3, 3)(x)
        for _ in range(20):
            x.tanh()
    recorded = got.process.launches
    assert {entry.why for entry in recorded.unknown} == {cycles.NO_MOMENT}
    names = named(got, "aten.tanh.default")
    assert (names[0], names[900], names[-1]) == (KERNELS["aten::tanh"], (), KERNELS["aten::tanh"])
    assert recorded.rows + sum(entry.rows for entry in recorded.unknown) == len(got.rows)


def test_a_fork_ends_the_cycle(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has nothing of the profiler; the parent goes on with the next cycle."""
    pretend(monkeypatch)
    status: list[int] = []
    with record.block(kernels=ALL) as got:
        updates(1)
        child = os.fork()
        if child == 0:
            os._exit(int(torch._C._autograd._profiler_enabled()))
        status.append(os.waitpid(child, 0)[1])
        updates(1)
    assert status == [0]
    assert {entry.why for entry in got.process.launches.unknown} == {"the process was being forked"}
    assert named(got, "aten.addmm.default")[-1] == ADDMM


PLAIN: dict[str, Any] = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
"""One kernel is compiled, without vectors: else Inductor compiles and tries one program for each instruction set."""


@pytest.mark.usefixtures("inductor")
def test_a_region_of_torch_compile_has_its_kernels(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is launched while it runs is the region's, with its own names for them."""
    pretend(monkeypatch, kernels=lambda event: ("triton_poi_fused_mul_0",) if event.name == REGION else by_name(event))
    x = torch.ones(64)
    fused = torch.compile(lambda x: (x * 2 + 1).tanh(), options=PLAIN)
    fused(x)
    torch._inductor.cpu_vec_isa.valid_vec_isa_list.cache_clear()
    got = record(lambda: (fused(x), x.tanh()), kernels=ALL)
    assert named(got, "inductor.compiled_graph") == [("triton_poi_fused_mul_0",)]
    assert named(got, "aten.tanh.default") == [KERNELS["aten::tanh"]]
    assert got.process.launches.unknown == []


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import pytest, torch, rltrace
from device_profiles import pretend
pretend(pytest.MonkeyPatch(), rows=100)
with rltrace.record(sys.argv[2], kernels=(0, None)):
    net = torch.nn.Linear(8, 8)
    for _ in range(101):
        net(torch.ones(4, 8)).tanh()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_costs_the_names_of_one_cycle_and_no_row_of_those_before(tmp_path: Path) -> None:
    """In the middle of a cycle: all cycles before it are there, with their names."""
    trace = tmp_path / "a.zarr"
    support = str(Path(__file__).parents[2] / "support")
    ended = subprocess.run([sys.executable, "-c", KILLED, support, str(trace)], check=False)
    assert ended.returncode == -signal.SIGKILL
    got = Recorded(trace)
    assert got.process.state == "killed"
    assert len(got.process.launches.parts(0)) >= 3
    assert len(got.rows) >= got.process.launches.rows > 300
    assert got.rows[got.process.launches.rows - 1].index < len(got.rows)
    assert set(named(got, "aten.tanh.default")[:90]) == {KERNELS["aten::tanh"]}


# --- profilers of the program's own -----------------------------------------------------------------------------------


def own_profile() -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).tanh()
    return [event.name for event in profiler.events()]


def own_schedule() -> list[str]:
    found: list[str] = []

    def ready(profiler: Any) -> None:
        found.extend(event.name for event in profiler.events())

    plan = schedule(wait=1, warmup=1, active=1, repeat=2)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(6):
            torch.ones(3).tanh()
            profiler.step()
    return found


def own_nvtx() -> list[str]:
    with torch.autograd.profiler.emit_itt(enabled=torch.profiler.itt.is_available()):
        torch.ones(3).tanh()
    return []


def own_legacy() -> list[str]:
    with torch.autograd.profiler_legacy.profile() as profiler:
        torch.ones(3).tanh()
    return [event.name for event in profiler.function_events]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("own", [own_profile, own_schedule, own_nvtx, own_legacy])
def test_the_programs_own_profiler_sees_what_it_sees_without(
    record: Record, monkeypatch: pytest.MonkeyPatch, own: Callable[[], list[str]]
) -> None:
    """The recorder's steps aside before, says so, and goes on after; theirs has the same events as without it."""
    pretend(monkeypatch)
    kept: list[list[str]] = []

    def program() -> None:
        updates(1)
        kept.append(own())
        updates(1)

    record(program)
    got = record(program, kernels=ALL)
    assert kept[0] == kept[1]
    assert {entry.why for entry in got.process.launches.unknown} == {cycles.OTHER_PROFILER}
    names = named(got, "aten.addmm.default")
    assert (names[0], names[-1]) == (ADDMM, ADDMM)


def test_a_profiler_that_ran_before_the_recording(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun beside it."""
    pretend(monkeypatch)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        got = record(lambda: updates(2), kernels=ALL)
    assert {entry.why for entry in got.process.launches.unknown} == {cycles.OTHER_PROFILER}
    assert any(event.name == "aten::addmm" for event in profiler.events())


def test_an_observer_of_the_execution_is_not_in_the_way(
    record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``ExecutionTraceObserver`` is no session of the profiler's: both see everything."""
    pretend(monkeypatch, rows=1)
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "et.json"))
    with record.block(kernels=ALL) as got:
        observer.start()
        updates(2)
        observer.stop()
        observer.unregister_callback()
    assert '"aten::addmm"' in Path(tmp_path, "et.json").read_text()
    assert set(named(got, "aten.addmm.default")) == {ADDMM}
