"""How calls lie in each other, and in which order they ended, whatever of them was kept."""

from __future__ import annotations

from rltrace.extensions.parity.call_range import CallRange
from rltrace.trace.format.activation_rows import ModuleCall


def _call(number: int, parent: int | None, module: str, first: int, end: int) -> ModuleCall:
    return ModuleCall(number, parent, module, "Module", 0, "forward", False, first, end, ())


def _call_range(*calls: ModuleCall) -> CallRange:
    return CallRange("a", calls)


def test_calls_lie_in_those_they_ran_in() -> None:
    """A call's parent is the kept call around it; siblings and later outermost calls are not."""
    root, layer, leaf = _call(0, None, "M", 0, 10), _call(1, 0, "M.a", 0, 5), _call(2, 1, "M.a.b", 1, 4)
    sibling, later = _call(3, 0, "M.c", 5, 9), _call(4, None, "N", 10, 12)
    call_range = _call_range(root, layer, leaf, sibling, later)
    assert [call_range.parent(call) for call in call_range.calls] == [None, root, layer, root, None]
    assert call_range.around(leaf) == [layer, root]
    assert call_range.outermost == (root, later)
    assert call_range.inner == {0: (layer, sibling), 1: (leaf,)}
    assert [call.number for call in call_range.ended] == [2, 1, 3, 0, 4]
    assert list(call_range.modules) == ["M.a.b", "M.a", "M.c", "M", "N"]


def test_a_call_whose_parent_was_not_kept_lies_in_the_one_around_that() -> None:
    """Where a selector left the layer out, the leaf lies in the root, and one after the root's end does not."""
    root, leaf, later = _call(0, None, "M", 0, 10), _call(2, 1, "M.a.b", 1, 4), _call(9, 8, "N.x", 10, 12)
    call_range = _call_range(root, leaf, later)
    assert call_range.parent(leaf) is root
    assert call_range.parent(later) is None


def test_calls_without_ops_keep_their_order() -> None:
    """Modules that run no op end at the row at which they began, one after the other."""
    root, first, second = _call(0, None, "M", 3, 3), _call(1, 0, "M.a", 3, 3), _call(2, 0, "M.b", 3, 3)
    assert list(_call_range(root, first, second).modules) == ["M.a", "M.b", "M"]
