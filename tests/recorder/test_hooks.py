"""Hooks of the op recorder: when each is called, and that neither they nor their failures change the program."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from rltrace.errors import RecordError
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures, MakeHook
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.hooks import FixedCells, OpHook, Run
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.session.session import recording
from rltrace.trace.format.schema import Column
from rltrace.trace.read.reader import open_trace


class Extension:
    """Adds hooks to a recording."""

    def __init__(self, *hooks: MakeHook) -> None:
        self.hooks = hooks

    def join(self, captures: Captures, process: ProcessState) -> Captures:
        return captures._replace(hooks=(*self.hooks, *captures.hooks))

    def records(self) -> list[dict[str, Any]]:
        return []


class Log(OpHook[str]):
    """Writes down when it is called."""

    def __init__(self, name: str, log: list[str], stream: OpRecorder) -> None:
        self.name, self.log, self.stream = name, log, stream

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.log.append(f"{self.name} begins at {self.stream.row}")
        return str(func)

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        [digest] = self.stream.digests[-1:]
        assert digest == self.stream.process.digests.of(out)
        self.log.append(f"{self.name} finishes {self.op} at {self.stream.row}")

    def end(self) -> None:
        assert self.op is None
        self.log.append(f"{self.name} ends at {self.stream.row}")


def run(path: Path, *hooks: MakeHook) -> torch.Tensor:
    """Two ops with these hooks; what the second one returns."""
    base = torch.ones(2)
    with recording(RecordOptions(str(path)), force=False, attach=lambda _: Extension(*hooks)):
        return (base + 1) * 2


def test_the_order_of_the_calls(tmp_path: Path) -> None:
    """Hooks are called in their order at every moment, the row is finished in between, and none holds the op then."""
    log: list[str] = []
    run(tmp_path / "t", lambda stream: Log("a", log, stream), lambda stream: Log("b", log, stream))
    assert log[:6] == [
        "a begins at 0",
        "b begins at 0",
        "a finishes aten.add.Tensor at 0",
        "b finishes aten.add.Tensor at 0",
        "a ends at 1",
        "b ends at 1",
    ]
    assert [entry.partition(" at ")[2] for entry in log[6:]] == ["1"] * 4 + ["2"] * 2


class Doubled(OpHook[None]):
    """Returns twice what the op does."""

    def __init__(self, stream: OpRecorder) -> None:
        self.sites: list[int] = []
        self.stream = stream

    def replacement(self, func: OpOverload) -> Run:
        return self.run

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.sites.append(self.stream.site)
        return func(*args, **kwargs) * 2


def test_what_runs_in_an_ops_place(tmp_path: Path) -> None:
    """The program gets what the replacement returns, the row has its digest, and the call site is known by then."""
    made: list[Doubled] = []

    def make(stream: OpRecorder) -> Doubled:
        made.append(Doubled(stream))
        return made[-1]

    out = run(tmp_path / "t", make, lambda stream: Log("a", [], stream))
    assert out.tolist() == [16.0, 16.0]
    rows = open_trace(tmp_path / "t").processes[0].streams[0].read(0, 2)
    assert rows.column(Column.SITE).tolist() == made[0].sites


class Failing(OpHook[None]):
    def __init__(self, stream: OpRecorder, moment: str) -> None:
        setattr(self, moment, self._fail)

    def _fail(self, *_: Any) -> None:
        raise ValueError("not the program's")


@pytest.mark.parametrize("moment", ["begin", "replacement", "finish"])
def test_a_hook_that_fails(tmp_path: Path, moment: str) -> None:
    """The recording ends with its error, and the program computes what it would have computed."""
    found: list[torch.Tensor] = []
    with (
        pytest.raises(RecordError, match="not the program's"),
        recording(
            RecordOptions(str(tmp_path / "t")),
            force=False,
            attach=lambda _: Extension(lambda stream: Failing(stream, moment)),
        ),
    ):
        found.append(torch.ones(2) + 1)
    assert found[0].tolist() == [2.0, 2.0]
