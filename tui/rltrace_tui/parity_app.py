"""``rltrace compare`` in a terminal: two programs that should compute the same, module by module.

Owns the worker of the comparison, and the result of the application.
"""

from __future__ import annotations

from textual import work
from textual.message import Message

from rltrace_tui.base import BaseApp, Failed
from rltrace_tui.modules_screen import ModulesScreen
from rltrace_tui.parity_data import NAME, Find, ParityData, ParityWork
from rltrace_tui.parity_text import ops_of


class ComparisonDone(Message):
    """The comparison is done."""


class ParityApp(BaseApp[ParityData]):
    """Returns the result; None if it was left before."""

    overview: ModulesScreen

    def __init__(self, paths: tuple[str, str], find: Find) -> None:
        self.work = ParityWork(paths, find)
        super().__init__(self.work, ModulesScreen(self.work))

    def on_mount(self) -> None:
        self.sub_title = self.work.names
        self._compare()

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _compare(self) -> None:
        try:
            self.work.search()
            self.post_message(ComparisonDone())
        except Exception as error:  # shown on a screen
            self.post_message(Failed(error))

    def on_comparison_done(self) -> None:
        self.overview.redraw()
        self.refresh_bindings()

    def fail(self, error: BaseException) -> None:
        if self.work.found is None:
            self.overview.show_state("given up")
        super().fail(error)

    # --- navigation ---------------------------------------------------------------------------------------------------

    def show_verdict_op(self) -> None:
        found = self.work.found
        pair = next(iter(ops_of(None if found is None else found.parity.first)), None)
        if pair is not None:
            self.show_op(NAME, *(None if op is None else op.row for op in (pair.a, pair.b)))

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "op":
            return self.work.no_op_reason
        if action == "replay":
            return "an experiment needs two runs of one program: rltrace diff A B"
        return super().reason(action, parameters)

    async def action_quit(self) -> None:
        self.workers.cancel_all()
        self.exit(self.work.found)
