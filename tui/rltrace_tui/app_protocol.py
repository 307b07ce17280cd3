"""What screens may ask of the application, and the rule that a key which cannot be used says why.

Owns no state. Screens know the application by this Protocol alone, so that none of them imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from textual.actions import parse
from textual.app import App
from textual.binding import ActiveBinding
from textual.dom import DOMNode


class AppProtocol(Protocol):
    """The application."""

    def show_op(self, stream: str, a: int | None, b: int | None) -> None:
        """One op in full, over whatever is shown."""

    def show_ops_at(self, stream: str, a: int | None, b: int | None) -> None:
        """The list of ops, at one of them."""

    def show_verdict_op(self) -> None:
        """The op that the verdict names, in full."""

    def fail(self, error: BaseException) -> None:
        """Show a failure on a screen of its own."""

    def leave(self) -> None:
        """Stop what runs, or go back."""

    def export(self, path: Path) -> None:
        """Write the verdict as Markdown."""


def host(node: DOMNode) -> AppProtocol:
    return cast(AppProtocol, node.app)


class KeyGuard:
    """A screen or application whose keys are dimmed while they cannot be used, and then say why."""

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        """Why an action cannot be used now; "": it can."""
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if self.reason(action, parameters) else True


def why_not(active: ActiveBinding) -> str:
    """Why a key does nothing here; "" where nobody says."""
    node = active.node
    if active.enabled or not isinstance(node, KeyGuard):
        return ""
    _, action, parameters = parse(active.binding.action)
    return node.reason(action, parameters)


def copy(app: App[object], text: str, what: str) -> None:
    """Into the clipboard of whoever sits at the terminal, over OSC 52."""
    app.copy_to_clipboard(text)
    app.notify(f"{what} copied")
