"""Keys of the list and of every screen: filters, questions and their mistakes, files, reasons, and going about."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from programs import Do, Machine, training
from tui_support import at_terminal, other_kernel, press, screen_text, settled

from rltrace.diff.display.row_pairs import Relation
from rltrace.testing import TraceBuilder
from rltrace_tui.diff_app import DiffApp
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.option_list import Choices, Picker
from rltrace_tui.prompt import Prompt, mistake_text
from rltrace_tui.row_cache import RowCache
from rltrace_tui.trace_app import TraceApp

Runs = tuple[Path, Path]
Record = Callable[..., Machine]


def messages(app: DiffApp | TraceApp) -> str:
    return " | ".join(n.message for n in app._notifications)


async def test_filter_by_selector_and_phase(diverged: Runs) -> None:
    """w leaves only what a selector finds, on both sides, and says so; n and / stay within it; empty shows all."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        browser = app.ops.list.browser
        before = len(browser)
        await press(pilot, app, "w", tuple("mm"), "enter")
        lines = [browser.line(k) for k in range(len(browser))]
        rows = [line for line in lines if line.relation is not None]
        assert rows and {browser.a.op(*browser.a.row(x.a or 0)) for x in rows} == {"aten.mm.default"}
        assert "only op=*mm*" in screen_text(app)[0]
        await press(pilot, app, "home", "n")
        assert app.ops.list.line.relation is Relation.DIFFERS
        await press(pilot, app, "slash", tuple("op=aten.add_"), "enter")
        assert "no further op=aten.add_" in messages(app)
        await press(pilot, app, "g", tuple("26"), "enter")
        assert "hidden here" in messages(app)
        await press(pilot, app, "w", ("backspace",) * 12, "enter")
        assert len(browser) == before
        await press(pilot, app, "p")
        assert isinstance(app.screen, Picker)
        await press(pilot, app, "down", "down", "enter")
        assert "only phase=init" in screen_text(app)[0]
        assert all(browser.line(k).relation is None for k in range(len(browser)))


async def test_a_mistake_is_shown_under_its_character(diverged: Runs) -> None:
    """A selector that cannot be read is not taken: the caret stands under the character, and it can be mended."""
    async with at_terminal(DiffApp(*diverged), size=(100, 30)) as (pilot, app):
        await press(pilot, app, "2", "slash", tuple("op=mm,modul=x"), "enter")
        lines = screen_text(app)
        at = next(k for k, line in enumerate(lines) if "op=mm,modul=x" in line)
        assert lines[at + 1].index("^") == lines[at].index("modul")
        assert "there is no key 'modul'" in lines[at + 2]
        await press(pilot, app, ("backspace",) * 8, "enter")
        assert app.ops.query_one(Prompt).has_class("-shown") is False
        assert "aten.mm" in app.ops.list.cell.text
        await press(pilot, app, "g", tuple("x9"), "enter")
        assert "a row (184213, b184214) or a step" in " ".join(screen_text(app))
        await press(pilot, app, "escape")
        assert app.screen.focused is app.ops.list


def test_error_under_the_answer() -> None:
    """The caret comes first, then what is wrong; a mistake without a place is shown as it is."""
    assert mistake_text("no key\n  op=mm\n   ^") == " ^\nno key"
    assert mistake_text("a row is wanted") == "a row is wanted"


async def test_export_keeps_what_is_there(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """e writes the verdict as Markdown to the file that is named, and never over another file."""
    folder = diverged[0].parent
    monkeypatch.chdir(folder)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "e", "enter")
        text = (folder / "a-b.md").read_text()
        assert "aten.mm.default" in text and "written: a-b.md" in messages(app)
        await press(pilot, app, "e", "enter")
        assert "it exists already" in messages(app) and (folder / "a-b.md").read_text() == text
        await press(pilot, app, "e", *"/", *"x", "enter")
        assert app.failure is None


async def test_dimmed_keys_say_why(record: Record) -> None:
    """Two equal runs: no op to inspect, no curve to pick, no other stream; each key says so and does nothing."""
    a, b = record(training(1)), record(training(1))
    async with at_terminal(DiffApp(a.path, b.path), size=(140, 60)) as (pilot, app):
        await press(pilot, app, "enter", "right_square_bracket", "2", "s", "full_stop")
        assert "the verdict names no op" in messages(app) and "there is only one curve" in messages(app)
        assert "there is only one stream of ops" in messages(app) and "there is no search yet" in messages(app)
        await press(pilot, app, "question_mark")
        assert any("not now: there is only one stream" in line for line in screen_text(app))


async def test_streams_are_picked_from_a_list(tmp_path: Path) -> None:
    """s lists the streams with their sizes; each has a filter of its own."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    for name in ("rank0/main", "rank0/main/thread:loader"):
        stream = trace.stream(name)
        for k in range(3):
            stream.op("aten.mm.default", outputs=[f"{name}{k}"])
    async with at_terminal(TraceApp(trace.finish())) as (pilot, app):
        await press(pilot, app, "2", "w", tuple("relu"), "enter", "s")
        assert any("thread:loader   3 ops" in line for line in screen_text(app))
        await press(pilot, app, "down", "enter")
        assert app.ops.list.stream.name.endswith("loader")
        assert "only" not in screen_text(app)[0] and len(app.ops.list.stream.browser) == 3


async def test_an_op_among_its_neighbours_before_the_list_was_seen(diverged: Runs) -> None:
    """l from the op of the verdict, before the list was ever open: the list opens there."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "3")
        assert isinstance(app.screen, OpScreen)
        await press(pilot, app, "l")
        shown = app.work.shown
        assert app.screen is app.ops and shown is not None
        assert app.ops.list.line.a == shown.a_index
        await press(pilot, app, "1", "2")
        assert app.screen is app.ops and app.failure is None


async def test_drawing_reads_nothing(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have not been read yet are drawn as placeholders at once, as themselves when a worker has read them."""
    read, looked = Event(), Event()
    real = RowCache.fill

    def held(self: RowCache, *given: Any, **how: Any) -> None:
        looked.set()
        assert read.wait(30)
        real(self, *given, **how)

    monkeypatch.setattr(RowCache, "fill", held)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await pilot.press("2")
        while not looked.is_set():
            await pilot.pause(0.005)
        await pilot.pause()
        drawn = [line for line in screen_text(app) if "≠" in line]
        assert drawn and "…" in drawn[0] and "aten.mm" not in drawn[0]
        read.set()
        await settled(pilot, app)
        assert any("aten.mm" in line for line in screen_text(app) if "≠" in line)


async def test_the_op_under_the_cursor_is_previewed_where_there_is_room(diverged: Runs) -> None:
    """On a wide, high terminal a panel follows the cursor; on a small one it is not there and reads nothing."""
    async with at_terminal(DiffApp(*diverged), size=(140, 40)) as (pilot, app):
        await press(pilot, app, "2")
        preview = app.ops.query_one("#preview")
        while "AVX512" not in str(getattr(preview, "text", "")):
            await pilot.pause(0.02)
        assert "aten.mm" in str(preview.border_title)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        assert not app.ops.query_one("#preview").display


async def test_every_key_has_an_id_and_says_what_it_does(diverged: Runs) -> None:
    """On every screen, each binding of ours has an id, by which a keymap can move it, and a tooltip."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        for key in ("1", "2", "3", "question_mark"):
            await press(pilot, app, key)
            nodes = [app, app.screen, *app.screen.query("OpList"), *app.screen.query("Prompt")]
            own = [kind for node in nodes for kind in type(node).__mro__ if "rltrace" in kind.__module__]
            for binding in (each for kind in own for each in kind.__dict__.get("BINDINGS", [])):
                assert binding.id and binding.tooltip, binding


READ = Do("aten._local_scalar_dense.default", ("e",), "", 26, source="errors.append(e.item())")


async def test_curves_are_chosen_from_a_list(record: Record) -> None:
    """c lists every place that read a number, and the one that is chosen is drawn; ] goes to the next."""
    more = [x for do in training() for x in ([do, READ] if do.name == "aten.mean.default" else [do])]
    a, b = record(more), record(other_kernel(more, "aten.mm.default", 2))
    async with at_terminal(DiffApp(a.path, b.path)) as (pilot, app):
        await press(pilot, app, "c")
        assert isinstance(app.screen, Picker)
        await press(pilot, app, "down", "enter")
        assert any("2/2" in line for line in screen_text(app))
        await press(pilot, app, "right_square_bracket")
        assert any("1/2  diverges at step 1" in line for line in screen_text(app))


async def test_paging_where_nothing_is_laid_out(diverged: Runs) -> None:
    """Inputs that are laid out while the terminal is too small to show them: page keys do no harm."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "3")
        assert isinstance(app.screen, OpScreen)
        await pilot.resize_terminal(50, 10)
        inputs = app.screen.query_one("#inputs", Choices)
        for turn in (inputs.action_page_down, inputs.action_page_up):
            app.screen._draw_inputs()
            turn()
        await pilot.resize_terminal(80, 24)
        await press(pilot, app, "pagedown", "enter")
        assert app.is_running and app.failure is None
