"""The application as screens see it, and keys that give the reason when they are disabled.

Owns no state. Screens use only this Protocol, so none of them imports the application.
"""

from pathlib import Path
from typing import Protocol, cast

from textual.actions import parse
from textual.app import App
from textual.binding import ActiveBinding
from textual.dom import DOMNode


class AppProtocol(Protocol):
    """The application."""

    def show_op(self, stream: str, a: int | None, b: int | None) -> None:
        """Show one op in full, over the current screen."""

    def show_ops_at(self, stream: str, a: int | None, b: int | None) -> None:
        """Show the list of ops, at this op."""

    def action_op(self) -> None:
        """Show the op that the verdict names, in full."""

    def fail(self, error: BaseException) -> None:
        """Show a failure on a separate screen."""

    def action_leave(self) -> None:
        """Stop a running search, or go back."""

    def export(self, path: Path) -> None:
        """Write the verdict as Markdown."""


def host(node: DOMNode) -> AppProtocol:
    return cast(AppProtocol, node.app)


class KeyGuard:
    """A screen or application whose disabled keys are dimmed, and give the reason when pressed."""

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        """Why an action is disabled; "" if it is enabled."""
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if self.reason(action, parameters) else True


def disabled_reason(active: ActiveBinding) -> str:
    """Why a key is disabled; "" if it is enabled, or the reason is unknown."""
    node = active.node
    if active.enabled or not isinstance(node, KeyGuard):
        return ""
    _, action, parameters = parse(active.binding.action)
    return node.reason(action, parameters)


def copy(app: App[object], text: str, what: str) -> None:
    """Copy to the clipboard of the user's terminal, over OSC 52."""
    app.copy_to_clipboard(text)
    app.notify(f"{what} copied")
