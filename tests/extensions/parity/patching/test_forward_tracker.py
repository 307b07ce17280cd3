"""Which forward pass calls of a running program belong to, by earlier calls only."""

from __future__ import annotations

import numpy as np

from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.patching.forward_tracker import ForwardPass, ForwardTracker, TrackedCall
from rltrace.trace.format.activation_rows import ModuleCall

ANCHOR = ModuleCall(0, None, "M.embed", "Embedding", 0, "forward", False, 0, 0, ())


class Program:
    """Calls of modules, one after the other; each of ``M.embed`` begins a forward pass."""

    def __init__(self) -> None:
        self.tracker = ForwardTracker({"M.embed"})
        self._passes = 0

    def begin(self, path: str) -> TrackedCall:
        call = TrackedCall(path, path)
        self.tracker.begin(call, lambda: self._new() if path == "M.embed" else None)
        return call

    def run(self, path: str) -> TrackedCall:
        call = self.begin(path)
        self.tracker.end(call)
        return call

    def _new(self) -> ForwardPass:
        grid = TokenGrid.of_keys(ANCHOR, (1,), np.ones(1, np.uint64))
        self._passes += 1
        return ForwardPass(self._passes - 1, grid, grid.sequences)


def place(call: TrackedCall) -> tuple[int, int] | None:
    """(forward pass, occurrence of the module in it)."""
    if call.traversal is None or call.nth is None:
        return None
    return call.traversal.forward_pass.number, call.nth


def test_calls_belong_to_the_last_forward_pass_of_their_model() -> None:
    """The call around the embedding too; a call of another model, or before any tokens, to none."""
    program = Program()
    assert place(program.run("M.head")) is None
    for number in range(2):
        outer = program.begin("M")
        early = program.run("M.rotary")
        inner = [program.run(path) for path in ("M.embed", "M.layer", "M.layer")]
        program.tracker.end(outer)
        assert [place(call) for call in (outer, *inner)] == [(number, 0), (number, 0), (number, 0), (number, 1)]
        assert place(early) is None
        assert place(program.run("N")) is None
    assert place(program.run("M.head")) == (1, 0)


def test_a_call_with_two_forward_passes_belongs_to_neither() -> None:
    """The first is only known to be one of several when the second begins."""
    program = Program()
    outer = program.begin("M")
    program.run("M.embed")
    assert place(outer) == (0, 0)
    program.run("M.embed")
    assert place(outer) is None


def test_a_call_that_may_begin_a_forward_pass_belongs_to_none_until_it_does() -> None:
    """Modules that a forward pass began in before: called with embeddings, what they compute is unknown."""
    program = Program()
    outer = program.begin("M")
    program.run("M.embed")
    program.tracker.end(outer)
    outer = program.begin("M")
    assert place(program.run("M.layer")) is None
    program.tracker.end(outer)
    assert place(outer) is None
