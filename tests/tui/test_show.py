"""One trace in the interface: what it holds, its ops in order, an op and the way upstream."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from programs import Do, Machine, training
from tampering import flip_in_chunk
from tui_support import at_terminal, press, screen_text, settled

from rltrace.testing import TraceBuilder, plain_entries, random_rows
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace
from rltrace.trace.write.writer import ProcessWriter
from rltrace_tui.base import FailureScreen
from rltrace_tui.data import TraceData
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.pane import Pane
from rltrace_tui.trace_app import TraceApp

Record = Callable[..., Machine]


async def test_one_trace(record: Record) -> None:
    """The first screen shows what was recorded; ops lie folded step by step; Enter opens one and walks up, and back."""
    a = record(training())
    async with at_terminal(TraceApp(a.path)) as (pilot, app):
        text = app.overview.query_one("#trace", Pane).text
        assert f"ops      {a.trace.main.stream().rows:,}" in text and "complete" in text
        steps = app.overview.query_one("#timeline", Pane).text
        assert "ops" in steps and "losses.append" in steps
        await press(pilot, app, "2")
        assert app.ops.list.browser.is_single
        assert "step 0: 17 ops" in screen_text(app)[1]
        await press(pilot, app, "space", "g", *"25", "enter")
        line = app.ops.list.line
        assert (line.a, line.b) == (25, None)
        assert "aten.mm" in "\n".join(screen_text(app))
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpScreen) and app.screen._pair.b is None
        await press(pilot, app, "enter")
        assert app.screen._at == (20, None)
        await press(pilot, app, "backspace", "escape")
        assert app.screen is app.ops


async def test_what_needs_two_traces_says_so(record: Record) -> None:
    """Keys that make no sense for one trace are dimmed, and pressed they say why; nothing breaks."""
    async with at_terminal(TraceApp(record(training()).path)) as (pilot, app):
        await press(pilot, app, "3")
        assert any("one trace has no verdict" in n.message for n in app._notifications)
        await press(pilot, app, "2", "n")
        assert any("one trace has no differences" in n.message for n in app._notifications)
        assert app.failure is None


async def test_without_ops_or_steps(record: Record, tmp_path: Path) -> None:
    """A trace of step digests has no ops to show, and a program without an optimizer no steps: the screen says both."""
    steps = TraceBuilder(tmp_path / "steps.zarr", level="step")
    steps.end_step(parameters="w", gradients="g", generators="g", recorded=False)
    async with at_terminal(TraceApp(steps.finish())) as (pilot, app):
        await press(pilot, app, "2")
        assert app.screen is app.overview
        assert any("recorded with --level step" in n.message for n in app._notifications)
    async with at_terminal(TraceApp(record([Do("aten.randn.default", (), "w1", 1)]).path)) as (pilot, app):
        assert "made no step" in app.overview.query_one("#timeline", Pane).text
        await press(pilot, app, "2")
        assert "aten.randn" in app.ops.list.cell.text


async def test_damage(record: Record) -> None:
    """Of a trace with a changed chunk, the damage is reported and every row that cannot be read says so."""
    a = record(training())
    flip_in_chunk(a.path)
    async with at_terminal(TraceApp(a.path)) as (pilot, app):
        await press(pilot, app, "2", "space", "down")
        assert "cannot be read" in app.ops.list.cell.text
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpScreen) and not isinstance(app.screen, FailureScreen)
        assert "cannot be read" in app.screen.query_one("#details", Pane).text


async def test_a_trace_that_goes_away(record: Record, tmp_path: Path) -> None:
    """What fails in reading becomes a screen with one sentence."""
    a = record(training())
    a.path.rename(tmp_path / "elsewhere.zarr")
    async with at_terminal(TraceApp(a.path)) as (_, app):
        assert isinstance(app.screen, FailureScreen)
        assert any("no such file" in line for line in screen_text(app))


async def test_a_trace_that_is_being_written(tmp_path: Path) -> None:
    """What has been committed by then is shown, and that it is not all."""
    path = tmp_path / "a.zarr"
    create_trace(path, {"command": ["train"]})
    start_record = {"name": "rank0/main", "pid": os.getpid()}
    writer = ProcessWriter.open(path, {**start_record, "token": write_start(path, start_record)})
    writer.commit(writer.stream("rank0/main"), random_rows(np.random.default_rng(0), 0, 40), plain_entries())
    async with at_terminal(TraceApp(path)) as (pilot, app):
        text = " ".join(app.overview.query_one("#trace", Pane).text.split())
        assert "RUNNING" in screen_text(app)[0]
        assert "ops 40" in text and "running after op 40" in text
        await press(pilot, app, "2")
        assert app.ops.list.browser is not None
    writer.close("complete", {"status": 0})


async def test_the_key_of_the_ops_waits_for_the_trace(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed before there are any, it says so and shows them as soon as they are known."""
    path, may_read = record(training()).path, threading.Event()
    read = TraceData.read

    def wait(work: TraceData) -> None:
        assert may_read.wait(60)
        read(work)

    monkeypatch.setattr(TraceData, "read", wait)
    app = TraceApp(path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        assert app.screen is app.overview
        assert any("the ops are shown then" in note.message for note in app._notifications)
        may_read.set()
        await settled(pilot, app)
        assert app.screen is app.ops and app.ops.list.browser is not None
