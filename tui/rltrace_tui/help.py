"""What the focused part of a screen shows, and every key that works there."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from rltrace_tui.pane import Pane

GENERAL = (
    "= equal   ≠ differs, and no input is seen to   ~ differs, and so does an input (it only passes a difference on)"
    "   ? not known   < only in A   > only in B"
)


class HelpScreen(ModalScreen[None]):
    """Over the screen that it explains."""

    BINDINGS = [("escape,question_mark,q", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, explained: Screen[object]) -> None:
        super().__init__()
        self._text = _explanation(explained)
        self._keys = [
            (self_key, active.binding.description, active.binding.tooltip, active.enabled)
            for key, active in explained.active_bindings.items()
            if active.binding.id and (self_key := active.binding.key_display or _spelled(key))
        ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(Content(self._text))
            yield Static(Content("\n").join(self._key_lines()))

    def on_mount(self) -> None:
        self.query_one("#help").border_title = "Help"

    def _key_lines(self) -> list[Content]:
        lines = [Content("")]
        for key, description, tooltip, enabled in self._keys:
            words = tooltip or description
            style = "" if enabled else "$text-muted"
            more = "" if enabled else "  (not here, or not yet)"
            lines.append(Content.assemble((f"{key:>10}  ", "bold $text-accent"), (f"{words}{more}", style)))
        return lines


def _explanation(screen: Screen[object]) -> str:
    focused = screen.focused
    pane = focused if isinstance(focused, Pane) else None
    own = str(getattr(pane or focused, "explained", "") or getattr(screen, "explained", ""))
    return f"{own}\n\n{GENERAL}" if own else GENERAL


def _spelled(key: str) -> str:
    names = {"question_mark": "?", "slash": "/", "escape": "Esc", "space": "Space", "enter": "Enter"}
    names |= {"upper_n": "N", "left": "←", "right": "→", "up": "↑", "down": "↓", "backspace": "Backspace"}
    return names.get(key, key)
