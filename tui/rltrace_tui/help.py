"""The help screen: what the focused pane shows, and its keys."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from rltrace_tui.app_protocol import disabled_reason

GENERAL = (
    "= equal   ≠ differs, and no input is known to   ~ differs, and so does an input (propagated difference)   ? "
    "unknown   < only in A   > only in B"
)


class HelpScreen(ModalScreen[None]):
    """Explains the screen below it."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,question_mark,q", "dismiss", "Close", id="help.close", tooltip="Close this"),
    ]

    def __init__(self, explained: Screen[object]) -> None:
        super().__init__()
        self._text = _explanation(explained)
        self._keys = [
            (active.binding.key_display or _key_name(key), active.binding.tooltip or active.binding.description,
             disabled_reason(active))
            for key, active in explained.active_bindings.items()
            if active.binding.id
        ]  # fmt: skip

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(Content(self._text))
            yield Static(Content("\n").join(self._key_lines()))

    def on_mount(self) -> None:
        self.query_one("#help").border_title = "Help"

    def _key_lines(self) -> list[Content]:
        lines = [Content("")]
        for key, description, reason in self._keys:
            style = "$text-muted" if reason else ""
            more = f"  (not now: {reason})" if reason else ""
            lines.append(Content.assemble((f"{key:>10}  ", "bold $text-accent"), (f"{description}{more}", style)))
        return lines


def _explanation(screen: Screen[object]) -> str:
    focused = screen.focused
    own = str(getattr(focused, "explained", "") or getattr(screen, "explained", ""))
    return f"{own}\n\n{GENERAL}" if own else GENERAL


def _key_name(key: str) -> str:
    names = {"question_mark": "?", "slash": "/", "escape": "Esc", "space": "Space", "enter": "Enter"}
    names |= {"upper_n": "N", "left": "←", "right": "→", "up": "↑", "down": "↓", "backspace": "Backspace"}
    return names.get(key, key)
