"""The flows of the interface, as a person would press them."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from programs import Do, Machine, training
from rank_programs import reducing
from tampering import flip_in_chunk
from tui_support import at_terminal, other_kernel, press, screen_text, settled
from views import both, paths_in

from rltrace.diff.display.row_pairs import Relation
from rltrace_tui import data
from rltrace_tui.base import FailureScreen
from rltrace_tui.diff_app import DiffApp, ProbeMade, SearchDone
from rltrace_tui.help import HelpScreen
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.ops_screen import OpsScreen
from rltrace_tui.pane import Pane

Runs = tuple[Path, Path]


def pane(app: DiffApp, name: str) -> str:
    return app.overview.query_one(f"#{name}", Pane).text


async def test_a_screenshot_goes_into_the_current_folder(
    diverged: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no ~/Downloads on a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        app.action_screenshot()
        while not list(tmp_path.glob("*.svg")):
            await pilot.pause()


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ("x/a.zarr", "y/b.zarr", "A a.zarr   B b.zarr"),
        ("runs/x/t.zarr", "runs/y/t.zarr", "A x/t.zarr   B y/t.zarr"),
        ("t.zarr", "y/t.zarr", "A t.zarr   B y/t.zarr"),
    ],
)
def test_traces_of_one_name(a: str, b: str, names: str) -> None:
    """Their folders are named, too, as far as they differ."""
    assert data.DiffData(Path(a), Path(b)).names == names


async def test_search_is_watched_as_it_happens(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real probes arrive as messages before the verdict does, and the same ones the comparison returns."""
    sent: list[object] = []
    for name in ("on_probe_made", "on_search_done"):
        handler = getattr(DiffApp, name)

        def watched(self: DiffApp, message: object, handler: Any = handler) -> None:
            sent.append(message)
            handler(self, message)

        monkeypatch.setattr(DiffApp, name, watched)
    async with at_terminal(DiffApp(*diverged)) as (_, app):
        assert "same values" in pane(app, "search")
    assert isinstance(sent[-1], SearchDone)
    probes = tuple(message.probe for message in sent if isinstance(message, ProbeMade))
    assert probes and probes == app.work.comparison.search.probes


async def test_enter_shows_the_op_and_walks_upstream_and_back(diverged: Runs) -> None:
    """Enter: the op of the verdict; Enter on an input: the op that made it; Backspace: back."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpScreen)
        start = app.screen._at
        assert "aten.mm" in app.screen._pair.shown.op
        producer = app.screen._pair.inputs[0].a
        await press(pilot, app, "enter")
        assert app.screen._at[0] == producer.producer
        await press(pilot, app, "backspace")
        assert app.screen._at == start
        await press(pilot, app, "escape")
        assert app.screen is app.overview


async def test_walk_passes_over_copies(record: Callable[..., Machine]) -> None:
    """Upstream of an op that reads a clone of a clone stands the op that computed the numbers."""
    program = [
        Do("aten.randn.default", (), "w1", 1),
        Do("aten.mm.default", ("w1",), "x", 2),
        Do("aten.clone.default", ("x",), "y", 3),
        Do("aten.clone.default", ("y",), "z", 4),
        Do("aten.sum.default", ("z",), "s", 5),
    ]
    a, b = record(program), record([*program[:4], Do("aten.sum.default", ("z",), "s", 5, noise="other")])
    async with at_terminal(DiffApp(a.path, b.path)) as (pilot, app):
        await press(pilot, app, "3", "enter")
        assert isinstance(app.screen, OpScreen)
        assert app.screen._at == (1, 1)


async def test_ops_open_at_the_origin(diverged: Runs) -> None:
    """Key 2: the cursor stands on the finding, what is identical before it is one fold."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        found = app.work.shown
        line = app.ops.list.line
        assert (line.a, line.b, line.relation) == (found.a_index, found.b_index, Relation.DIFFERS)
        first = app.ops.list.browser.line(0)
        assert first.relation is None and first.piece.equal


async def test_next_origin_passes_over_receivers(record: Callable[..., Machine]) -> None:
    """n goes to the next op that differs by itself, and leaves those alone that only receive; N goes back."""
    changed = other_kernel(other_kernel(training(), "aten.mm.default", 2), "aten.rand.default", 6)
    a, b = record(training()), record(changed)
    async with at_terminal(DiffApp(a.path, b.path)) as (pilot, app):
        await press(pilot, app, "2")
        start = app.ops.list.line
        await press(pilot, app, "n")
        line = app.ops.list.line
        assert line.relation is Relation.DIFFERS and line.a != start.a
        await press(pilot, app, "N")
        assert app.ops.list.line == start


async def test_find_and_go(diverged: Runs) -> None:
    """/ goes to the next op that a selector finds, g to a row of either side or to a step."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2", "home", "slash", tuple("op=aten.add_"), "enter")
        line = app.ops.list.line
        assert line.a is not None
        first = line.a
        assert "aten.add_" in cursor_text(app)
        await press(pilot, app, "full_stop")
        assert "aten.add_" in cursor_text(app) and app.ops.list.line.a > first
        await press(pilot, app, "comma")
        assert app.ops.list.line.a == first
        await press(pilot, app, "g", tuple("b20"), "enter")
        assert app.ops.list.line.b == 20
        await press(pilot, app, "g", tuple("s2"), "enter")
        assert app.ops.list.line.a == int(app.ops.list.browser.a.steps[1][7])
        await press(pilot, app, "g", tuple("s99"), "enter")
        assert any("there is no s99" in n.message for n in app._notifications)


def cursor_text(app: DiffApp) -> str:
    oplist = app.ops.list
    return oplist.render_line(oplist.cursor - oplist.scroll_offset.y).text


async def test_cursor_moves_and_the_list_follows(diverged: Runs) -> None:
    """Arrows, pages, Home and End move the cursor, never the list alone; the line of the cursor is always in view."""
    async with at_terminal(DiffApp(*diverged), size=(80, 18)) as (pilot, app):
        await press(pilot, app, "2", "home")
        oplist = app.ops.list
        assert oplist.cursor == 0
        await press(pilot, app, "space")
        last = len(oplist.browser) - 1
        cursors = {"down": 1, "pagedown": 1 + oplist.page, "up": oplist.page, "end": last, "home": 0}
        for key, cursor in cursors.items():
            await press(pilot, app, key)
            assert oplist.cursor == cursor
            assert 0 <= cursor - oplist.scroll_offset.y < oplist.size.height


async def test_receivers_hide(diverged: Runs) -> None:
    """i leaves out what only passes a difference on, and puts it back."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        browser = app.ops.list.browser
        before = {browser.line(k).relation for k in range(len(browser))}
        await press(pilot, app, "i")
        after = {browser.line(k).relation for k in range(len(browser))}
        assert before - after == {Relation.RECEIVES} and Relation.DIFFERS in after
        await press(pilot, app, "i")
        assert {browser.line(k).relation for k in range(len(browser))} == before


async def test_copies(diverged: Runs) -> None:
    """y puts into the clipboard what is under the cursor: the report, a line, an op."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "y")
        assert app.clipboard.startswith("DIVERGED")
        await press(pilot, app, "2", "y")
        assert "≠ aten.mm" in app.clipboard
        await press(pilot, app, "enter", "y")
        assert "kernel" in app.clipboard and "AVX512" in app.clipboard and "\x1b" not in app.clipboard


async def test_help_explains_the_focused_part(diverged: Runs) -> None:
    """? says what the pane shows and which keys work; Escape closes it."""
    async with at_terminal(DiffApp(*diverged), size=(140, 40)) as (pilot, app):
        await press(pilot, app, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert any("where the two runs first differ" in line for line in screen_text(app))
        await press(pilot, app, "escape")
        assert app.screen is app.overview


async def test_the_smallest_size(diverged: Runs) -> None:
    """Every screen draws at the smallest size that is promised, and nothing is wider than the terminal."""
    size = 62, 18
    async with at_terminal(DiffApp(*diverged), size=size) as (pilot, app):
        for keys in ((), ("2",), ("enter",)):
            await press(pilot, app, *keys)
            lines = screen_text(app)
            assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
            assert any("aten.mm" in line for line in lines), lines


async def test_resize_goes_with_the_terminal(diverged: Runs) -> None:
    """A terminal that shrinks says what it needs, and shows everything again when it has grown."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await pilot.resize_terminal(40, 10)
        await settled(pilot, app)
        shown = [line.strip() for line in screen_text(app) if line.strip()]
        assert shown == ["rltrace needs 60 columns and 16 lines"]
        await pilot.resize_terminal(100, 30)
        await settled(pilot, app)
        assert any("DIVERGED" in line for line in screen_text(app))


async def test_every_theme_draws(diverged: Runs) -> None:
    """Colours are the theme's variables: each theme has them, those of the terminal's own colours included."""
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        assert any(name.startswith("ansi") for name in app.available_themes)
        for theme in app.available_themes:
            app.theme = theme
            await pilot.pause()
            assert any("▶25 ≠ aten.mm" in line for line in screen_text(app)), theme
            assert app.failure is None


async def test_identical(record: Callable[..., Machine]) -> None:
    """Two equal runs: the verdict, one fold, no op to go to."""
    a, b = record(training()), record(training())
    async with at_terminal(DiffApp(a.path, b.path)) as (pilot, app):
        assert "IDENTICAL" in pane(app, "verdict")
        await press(pilot, app, "3")
        assert app.screen is app.overview
        await press(pilot, app, "2")
        assert isinstance(app.screen, OpsScreen) and app.ops.list.browser is not None
        assert len(app.ops.list.browser) == 1
        assert "identical ops" in cursor_text(app)


async def test_damaged(record: Callable[..., Machine]) -> None:
    """A trace with a chunk that was changed: the hole is reported, the rows before it are shown, nothing breaks."""
    a, b = record(training()), record(other_kernel(training(), "aten.mm.default", 2))
    flip_in_chunk(b.path)
    async with at_terminal(DiffApp(a.path, b.path)) as (pilot, app):
        assert "UNKNOWN" in pane(app, "verdict") and "damage" in pane(app, "verdict")
        await press(pilot, app, "2", "space", "n")
        assert not isinstance(app.screen, FailureScreen) and app.failure is None


def broken(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error", "a.zarr")


async def test_failure_is_readable(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in the search becomes a screen; the application stays, and remembers it for the exit status."""
    monkeypatch.setattr("rltrace_tui.data.compare", broken)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        assert isinstance(app.screen, FailureScreen)
        assert any("Input/output error: a.zarr" in line for line in screen_text(app))
        await press(pilot, app, "escape")
        assert app.screen is app.overview
    assert isinstance(app.failure, OSError)


async def test_failure_among_the_ops_is_readable(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what is read later: a disk that went away is a screen, and Escape leads back."""
    monkeypatch.setattr("rltrace.diff.display.browser.Browser.reveal", broken)
    async with at_terminal(DiffApp(*diverged)) as (pilot, app):
        await press(pilot, app, "2")
        assert isinstance(app.screen, FailureScreen)
        await press(pilot, app, "escape", "1")
        assert app.screen is app.overview and app.work.comparison is not None


async def test_escape_stops_the_search(diverged: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escape ends a search at its next probe: no verdict, and the screen says why."""
    begun, pressed = Event(), Event()
    real = data.compare

    def slow(*given: Any, watch: Any, **how: Any) -> Any:
        def held(*probe: Any) -> None:
            begun.set()
            assert pressed.wait(30)
            watch(*probe)

        return real(*given, watch=held, **how)

    monkeypatch.setattr(data, "compare", slow)
    app = DiffApp(*diverged)
    async with app.run_test(size=(80, 24)) as pilot:
        while not begun.is_set():
            await pilot.pause()
        await pilot.press("escape")
        pressed.set()
        for worker in list(app.workers):
            while not worker.is_finished:
                await pilot.pause(0.01)
        assert "stopped" in pane(app, "verdict") and app.work.comparison is None
        await pilot.press("q")
    assert app.return_value is None


async def test_where_a_difference_began_and_who_received_it(tmp_path: Path) -> None:
    """The rank where it began has the first screen; the other one's first difference is shown as received."""
    a, b = reducing(tmp_path / "a"), reducing(tmp_path / "b", 4)
    async with at_terminal(DiffApp(a, b)) as (pilot, app):
        assert "op 16, step 4" in pane(app, "verdict")
        await press(pilot, app, "2")
        assert app.ops.list.stream.name == "rank1/main"
        await press(pilot, app, "s", "down", "enter")
        assert app.ops.list.stream.name == "rank0/main"
        await press(pilot, app, "g", tuple("19"), "enter")
        line = app.ops.list.line
        assert (line.a, line.relation) == (19, Relation.RECEIVES)
        await press(pilot, app, "enter")
        assert isinstance(app.screen, OpScreen)
    assert app.return_value is None


async def test_a_resumed_run_is_shown_from_where_it_begins(tmp_path: Path) -> None:
    """The verdict has the steps of both sides, and the list of ops begins with the first common one."""
    for trace, (name, began, first) in both(tmp_path, ("a", "p", 0), ("b", "q", 1)):
        trace.optimizer(began, state=("step",) if first else (), kept=("step",))
        if first:
            trace.op("aten.copy_.default", ("train.py", 3, "main", "load()"), [("outside", "file")], ["q"])
        for step in range(first, 3):
            output = f"out {step}" if step < 2 else f"{name}'s"
            trace.op("aten.mm.default", ("train.py", 9, "main", "step()"), [("outside", f"batch {step}")], [output])
            trace.end_step(parameters="qrs"[step], gradients=output, generators=f"generator {step}")
    async with at_terminal(DiffApp(*paths_in(tmp_path))) as (pilot, app):
        assert "step 2 (B's step 1)" in "\n".join(screen_text(app))
        await press(pilot, app, "2")
        shown = [line for line in screen_text(app) if "aten." in line]
        assert any("mm" in line for line in shown) and not any("copy_" in line for line in shown)
