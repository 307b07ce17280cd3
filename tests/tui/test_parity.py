"""Two programs in the interface: their modules, one in full, the op that diverges as both sides ran it."""

from __future__ import annotations

from pathlib import Path

import pytest
from language_model_traces import spoken_traces
from tui_support import at_terminal, press, screen_text

from rltrace.diff.base.view import StreamView
from rltrace.errors import UsageError
from rltrace.extensions.parity.compare import compare
from rltrace.extensions.parity.impact.logprobs import NoGap
from rltrace.extensions.parity.impact.summary import Effects
from rltrace.extensions.parity.inputs import open_ranges, parse_given
from rltrace.extensions.parity.report.compare import ParityReport
from rltrace.trace.read.reader import open_trace
from rltrace_tui.failure import FailureScreen
from rltrace_tui.module_screen import ModuleScreen
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.parity_app import ParityApp
from rltrace_tui.parity_data import ParityData

from .test_screens import SIZES, look

KEYS = {"parity": ("1",), "parity-module": ("enter",), "parity-op": ("enter",)}


def compared(a: Path, b: Path) -> ParityData:
    """What the command hands over."""
    found = compare(*open_ranges(parse_given(str(a), (), "a"), parse_given(str(b), (), "b")))
    views = []
    for keying in (found.a, found.b):
        recorded = keying.call_range.recorded
        views.append(StreamView(recorded.process, recorded.stream))
    report = ParityReport(None, (), found.parity, Effects(NoGap("none"), ()))
    return ParityData(report, (views[0], views[1]), (open_trace(a), open_trace(b)))


def app_on(a: Path, b: Path) -> ParityApp:
    return ParityApp(("generator.zarr", "trainer.zarr"), lambda: compared(a, b))


@SIZES
async def test_screens(tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each screen, as a terminal of that size shows it; these were read once, line by line."""
    spoken_traces(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with at_terminal(app_on(Path("generator.zarr"), Path("trainer.zarr")), size=size) as (pilot, app):
        await look(pilot, app, KEYS, size)


async def test_from_the_modules_to_the_op_and_upstream(tmp_path: Path) -> None:
    """The cursor stands on the module that diverges; Enter leads to its op on both sides, and up and back."""
    async with at_terminal(app_on(*spoken_traces(tmp_path))) as (pilot, app):
        lines = screen_text(app)
        (head,) = (line for line in lines if "≠ head" in line)
        assert "4 of" in head and any("= embed" in line for line in lines)
        assert any("~ LM " in line for line in lines) and "DIFFERS" in lines[0]
        await press(pilot, app, "enter")
        assert isinstance(app.screen, ModuleScreen)
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpScreen)
        text = "\n".join(screen_text(app))
        assert "aten.mm.default   A 4   B 2" in text and "float32[2,8] | float32[8,8]" in text
        assert "serve.py:9 sample" in text and "differs" not in text
        await press(pilot, app, "enter")
        assert app.screen._at == (3, 1)
        await press(pilot, app, "backspace", "l")
        assert any("cannot be paired" in n.message for n in app._notifications)
        await press(pilot, app, "escape", "escape", "3")
        assert isinstance(app.screen, OpScreen) and app.screen._at == (4, 2)
        await press(pilot, app, "1", "y")
        assert app.clipboard.startswith("DIFFERS")
    assert app.failure is None and app.work.found is not None


async def test_keys_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    """Of a module that only propagated difference there is no op to show; two programs have no list of ops."""
    async with at_terminal(app_on(*spoken_traces(tmp_path))) as (pilot, app):
        for key, why in (("2", "rltrace show"), ("4", "two runs of one program"), ("N", "before this one")):
            await press(pilot, app, key)
            assert any(why in n.message for n in app._notifications), key
        await press(pilot, app, "down", "enter", "enter")
        assert any("propagated difference" in n.message for n in app._notifications)
        assert "propagated difference" in "".join(screen_text(app))


async def test_two_that_are_equal(tmp_path: Path) -> None:
    """No module diverges: the verdict says so, and no op is named."""
    async with at_terminal(app_on(*spoken_traces(tmp_path, first_off=9))) as (pilot, app):
        lines = screen_text(app)
        assert "BITWISE EQUAL" in lines[0] and not any("≠ head" in line for line in lines)
        for key in ("3", "n"):
            await press(pilot, app, key)
        assert {"no module is known to be the first that diverges", "no module is known to diverge independently"} <= {
            n.message for n in app._notifications
        }


async def test_what_cannot_be_compared_becomes_a_screen() -> None:
    """A failure is shown in a sentence, and the overview says that there is no result."""

    def broken() -> ParityData:
        raise UsageError("the two share no token")

    async with at_terminal(ParityApp(("generator.zarr", "trainer.zarr"), broken)) as (pilot, app):
        assert isinstance(app.screen, FailureScreen) and "share no token" in "".join(screen_text(app))
        await press(pilot, app, "escape", "y")
        assert "GIVEN UP" in screen_text(app)[0]
        assert any("was given up" in n.message for n in app._notifications)
