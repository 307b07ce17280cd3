"""The life of a recording: everything is put back, failures of its own stay its own, forks and exits are survived."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest
import torch
from children import forked, in_thread
from recorded import PassingMode, Record, Recorded
from torch import nn
from torch.autograd import graph
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

import rltrace
from rltrace.diff import compare
from rltrace.errors import RecordError, UsageError
from rltrace.recorder import current_session
from rltrace.recorder.base.background_thread import BackgroundThread
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.session import recording
from rltrace.recorder.session.torch_patches import NAMES
from rltrace.recorder.session.window import OpWindow
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.trace.read.reader import open_trace


def recorder_threads() -> set[int]:
    """The threads of this process that a recorder has started, other tests' servers included."""

    def outermost(frame: FrameType) -> CodeType:
        while frame.f_back is not None:
            frame = frame.f_back
        return frame.f_code

    return {
        thread for thread, frame in sys._current_frames().items() if outermost(frame) is BackgroundThread._run.__code__
    }


# --- put back -------------------------------------------------------------------------------------------------------


def patched() -> dict[str, object]:
    """Everything that a recording replaces or hooks into."""
    return {
        "call": nn.Module.__call__,
        "start": threading.Thread.start,
        "thread": threading.Thread._bootstrap_inner,
        "numpy": torch.Tensor.numpy,
        "load": torch.load,
        **{name: getattr(torch, name) for name in NAMES},
        "scaler": torch.amp.GradScaler.step,
        "made": torch.amp.GradScaler.__init__,
        "updated": torch.amp.GradScaler.update,
        "program": subprocess.Popen.__init__,
        "exec": os.execv,
        "engine": graph._engine_run_backward,
        "autograd": torch.autograd._engine_run_backward,
        "before": len(torch_optimizer._global_optimizer_pre_hooks),
        "after": len(torch_optimizer._global_optimizer_post_hooks),
        "registration": len(nn.modules.module._global_module_registration_hooks),
        "mode": _get_current_dispatch_mode(),
        "threads": {t.name for t in threading.enumerate()},
    }


@pytest.mark.parametrize(
    ("level", "ending"),
    [("op", "returns"), ("op", "raises"), ("op", "exits"), ("op", "is interrupted"), ("step", "returns")],
)
def test_everything_patched_is_restored(record: Record, level: str, ending: str) -> None:
    """However the block ends; while it runs, things are patched indeed."""
    before = patched()
    during = []
    endings = {"raises": KeyError("mine"), "exits": SystemExit(3), "is interrupted": KeyboardInterrupt()}

    def program() -> None:
        during.append(patched())
        p = nn.Parameter(torch.ones(2))
        p.sum().backward()
        torch.optim.SGD([p]).step()
        if ending in endings:
            raise endings[ending]

    if ending == "returns":
        record(program, level=level)
    else:
        with pytest.raises(type(endings[ending])):
            record(program, level=level)
    assert patched() == before
    unchanged = {name for name, value in during[0].items() if value == before[name]}
    of_ops = {"call", "start", "thread", "mode", "numpy", *NAMES}
    assert unchanged == {"threads"} | (set() if level == "op" else of_ops)


def test_a_trace_is_whole_when_the_block_raised(tmp_path: Path) -> None:
    """What ran before the exception is there, and the process's state says that it ended in order."""
    with pytest.raises(KeyError, match="mine"), rltrace.record(tmp_path / "a.zarr"):
        torch.ones(3).sin()
        raise KeyError("mine")
    got = Recorded(tmp_path / "a.zarr")
    assert got.ops == ["ones", "sin"]
    assert got.process.state == "complete"


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    """The second is refused and the first goes on."""
    with rltrace.record(tmp_path / "a.zarr"):
        with pytest.raises(UsageError, match="already"), rltrace.record(tmp_path / "b.zarr"):
            pass
        torch.ones(3).sin()
    assert Recorded(tmp_path / "a.zarr").ops == ["ones", "sin"]
    assert not (tmp_path / "b.zarr").exists()


def test_sessions_are_let_go() -> None:
    """A process that records many times keeps none of the recordings alive."""
    import gc
    import tempfile
    import weakref

    with tempfile.TemporaryDirectory() as folder, rltrace.record(Path(folder) / "a.zarr"):
        torch.ones(3).sin()
        session = weakref.ref(current_session())
    gc.collect()
    assert session() is None


# --- failures of its own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [RecordError, KeyError])
def test_a_trace_that_vanishes_is_not_the_programs_trouble(tmp_path: Path, raised: type[Exception]) -> None:
    """The folder is deleted in the middle: results are right; the block says so at its end, unless it raises itself."""
    with pytest.raises(raised, match=r"a\.zarr"), rltrace.record(tmp_path / "a.zarr"):
        x = torch.ones(3)
        shutil.rmtree(tmp_path / "a.zarr")
        assert torch.equal(x.sin(), torch.ones(3).sin())
        if raised is KeyError:
            raise KeyError("a.zarr")


NEVER_LEFT = """
import torch, rltrace
block = rltrace.record("a.zarr")
block.__enter__()
torch.ones(3).sin()
"""


def test_a_program_that_never_leaves_the_block_is_finished_at_exit(tmp_path: Path) -> None:
    """An interactive session that just ends."""
    result = subprocess.run([sys.executable, "-c", NEVER_LEFT], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    got = Recorded(tmp_path / "a.zarr")
    assert got.ops == ["ones", "sin"]
    assert got.process.state == "complete"


def test_an_error_of_the_recorder_ends_the_recording_alone(tmp_path: Path) -> None:
    """Something in its own code goes wrong: the op's result is right, the program goes on, the block says so."""
    before = recorder_threads()
    with pytest.raises(RecordError, match="failed: LookupError: mine"), rltrace.record(tmp_path / "a.zarr"):
        session = current_session()
        x = torch.ones(3).sin()
        session._process.fail(LookupError("mine"))
        y = x.cos() + torch.ones(3, requires_grad=True)
        y.sum().backward()
        assert torch.equal(y, torch.ones(3).sin().cos() + 1)
    (process,) = open_trace(tmp_path / "a.zarr").processes
    assert process.state == "damaged"
    assert "LookupError" in str(process.why)
    assert session._committer.thread.thread.vanish(60)  # past the end of its work it is still there for a moment
    assert recorder_threads() <= before


def test_a_recording_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while it begins, half installed: all is put back, the program runs, and one reason is given."""
    before = patched()

    def refuse(self: OpWindow) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(OpWindow, "open", refuse)
    with pytest.raises(RecordError, match="Input/output error"), rltrace.record(tmp_path / "a.zarr"):
        assert current_session() is None
        assert patched() == before
        assert torch.ones(2).sum().item() == 2.0
    (process,) = open_trace(tmp_path / "a.zarr").processes
    assert process.state == "damaged" and process.after_op == 0
    assert not list((tmp_path / "a.zarr" / "starts").glob("*.failed"))


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    """Not after the program has run for a day."""
    (tmp_path / "file").write_text("mine")
    ran = []
    with pytest.raises((UsageError, RecordError)), rltrace.record(tmp_path / "file" / "a.zarr"):
        ran.append(1)
    assert ran == []
    assert current_session() is None


# --- forks, exits, signals --------------------------------------------------------------------------------------------


def test_a_fork_computes_on_and_is_a_process_of_its_own(tmp_path: Path) -> None:
    """``os.fork`` in the middle: the child computes the same numbers; the parent's part is whole and its own."""
    expected = torch.ones(3).tan().tolist()
    with rltrace.record(tmp_path / "a.zarr"):
        x = torch.ones(3)
        x.sin()

        def child() -> None:
            p = nn.Parameter(torch.ones(2))
            p.grad = nn.Sequential(nn.Tanh())(p).detach()  # no backward pass, which autograd's threads may rule out
            torch.optim.SGD([p]).step()
            in_thread(None, lambda: torch.ones(2).exp())
            assert x.tan().tolist() == expected

        assert forked(child) == 0
        x.cos()
    got = Recorded(tmp_path / "a.zarr")
    assert got.ops == ["ones", "sin", "cos"]
    assert got.steps == []
    assert got.process.state == "complete"
    assert got.trace.unrecorded == ()
    _, child_part = got.trace.processes
    assert child_part.name.startswith("rank0/fork:")
    assert (child_part.state, len(child_part.steps)) == ("complete", 1)
    apart = Recorded(tmp_path / "a.zarr", process=1)
    assert apart.ops[0] == "ones"
    assert apart.one("tan").inputs[0].digest == got.one("ones").outputs[0]  # from outside, as far as it goes
    assert [stream.name.rpartition("/")[2] for stream in child_part.streams[1:]] == ["thread:<lambda>"]


def test_a_forked_child_that_leaves_the_block_ends_nothing(tmp_path: Path) -> None:
    """The launch is the parent's to end; the child may even record by itself."""
    child = 0
    try:
        with rltrace.record(tmp_path / "a.zarr"):
            torch.ones(3).sin()
            child = os.fork()
        if child == 0:
            with rltrace.record(tmp_path / "b.zarr"):
                torch.ones(3).tan()
    finally:
        if child == 0:
            os._exit(0)
    os.waitpid(child, 0)
    got = Recorded(tmp_path / "a.zarr")
    assert got.ops == ["ones", "sin"]
    assert [record["type"] for record in got.trace.journal.records].count("exit") == 1
    assert Recorded(tmp_path / "b.zarr").ops == ["ones", "tan"]


def test_workers_of_a_loader_are_recorded(tmp_path: Path) -> None:
    """A DataLoader that forks while a recording is under way."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    with rltrace.record(tmp_path / "a.zarr"):
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        batches = [batch[0].sum().item() for batch in loader]
    assert batches == [6.0, 22.0]
    got = Recorded(tmp_path / "a.zarr")
    assert [row.value for row in got.named("_local_scalar_dense")][-2:] == [6.0, 22.0]
    assert "stack" not in got.ops
    workers = [Recorded(tmp_path / "a.zarr", process=number) for number in (1, 2)]
    assert [worker.process.state for worker in workers] == ["complete"] * 2
    assert all("/worker:" in worker.process.name for worker in workers)
    assert [worker.ops.count("stack") for worker in workers] == [1, 1]


def test_a_recording_may_begin_inside_of_another_mode(record: Record) -> None:
    """A mode of the program's own lies below; one that stays on top at the end is no trouble."""
    with PassingMode():
        assert record(lambda: torch.ones(3).sin()).ops == ["ones", "sin"]
    top = PassingMode()
    with record.block() as got:
        torch.ones(3).sin()
        top.__enter__()
        torch.ones(3).cos()
    assert got.ops == ["ones", "sin", "ones", "cos"]
    assert torch.equal(torch.ones(3).exp(), torch.ones(3).exp())
    top.__exit__(None, None, None)
    while _get_current_dispatch_mode() is not None:
        _get_current_dispatch_mode().__exit__(None, None, None)


def test_an_existing_trace_is_not_overwritten(tmp_path: Path) -> None:
    """Unless it is asked for."""
    for options in ({}, {"force": True}):
        with rltrace.record(tmp_path / "a.zarr", **options):
            torch.ones(3).sin()
    with pytest.raises(UsageError), rltrace.record(tmp_path / "a.zarr"):
        pass


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def train() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        (weight * 2).sum().backward()
        optimizer.step()


@pytest.mark.usefixtures("ignored")
def test_where_the_signal_is_ignored(tmp_path: Path) -> None:
    """The trace says what ended the run, and a report says it where it names the run, and nowhere else."""
    with pytest.raises(KeyboardInterrupt), recording(RecordOptions(str(tmp_path / "a.zarr"), until=1), force=False):
        train()
    (process,) = open_trace(tmp_path / "a.zarr").processes
    assert (len(process.steps), process.state, process.why) == (2, "stopped", "--until 1 ended it")
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "b.zarr")
    report = document_text(verdict_document(compare(tmp_path / "a.zarr", tmp_path / "b.zarr")))
    words = " ".join(report.split())
    assert words.count("2 optimizer steps, stopped (--until 1 ended it)") == words.count("stopped") == 2


@pytest.mark.usefixtures("ignored")
def test_on_another_thread(tmp_path: Path) -> None:
    """Handlers cannot be set there: the thread that made the step ends."""
    ended = []

    def work() -> None:
        try:
            train()
        except KeyboardInterrupt:
            ended.append(True)

    with recording(RecordOptions(str(tmp_path / "a.zarr"), until=1), force=False):
        in_thread(None, work)
    assert ended == [True]
    assert len(open_trace(tmp_path / "a.zarr").processes[0].steps) == 2
