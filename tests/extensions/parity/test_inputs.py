"""Which streams of a trace are a side: data-parallel ranks are one, and ranks with the same tokens are not."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from parity_traces import compared

from rltrace.errors import UsageError
from rltrace.extensions.parity.call_range import CallRange
from rltrace.extensions.parity.impact.logprobs import Gap, measure
from rltrace.extensions.parity.model import ParityVerdict
from rltrace.extensions.parity.requirements import Measure, Requirement, holds, parse_requirement
from rltrace.testing import In, TraceBuilder
from rltrace.testing.builder import StreamBuilder
from rltrace.trace.format.activation_rows import ModuleCall

SEQUENCES = [[7, 4, 9], [5, 6, 2]]


def forward(stream: StreamBuilder, rows: Sequence[Sequence[int]], off: float) -> None:
    """A forward pass over these sequences, to whose last layer ``off`` is added."""
    ids = np.array(rows)
    hidden = ids[..., None] + np.zeros(4, np.float32)
    with stream.call("LM", {"input_ids": ids}, "LM") as out:
        with stream.call("LM.embed", {"input": ids}, "Embedding") as embedded:
            made = stream.op("aten.embedding.default", outputs=["h"], module="LM.embed")
            embedded[""] = hidden.astype(np.float32)
        with stream.call("LM.last", {"input": hidden.astype(np.float32)}, "Last") as last:
            name = "aten.exp.default" if off else "aten.add.Tensor"
            stream.op(name, inputs=[In(made)], outputs=[f"made {off}"], module="LM.last")
            last[""] = out["logits"] = (hidden + off).astype(np.float32)


def trace(path: Path, ranks: Sequence[Sequence[Sequence[int]]], off: float = 0) -> Path:
    """``off``: in the last rank."""
    built = TraceBuilder(path)
    for number, rows in enumerate(ranks):
        stream = (built.process(f"rank{number}/main") if number else built).stream()
        forward(stream, rows, off if number == len(ranks) - 1 else 0)
    return built.finish()


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_data_parallel_ranks_are_one_side(tmp_path: Path, off: float) -> None:
    """Each has some of the generator's sequences; what differs in one of them is found, with the op of that rank."""
    a = trace(tmp_path / "a.zarr", [SEQUENCES])
    parity = compared(a, trace(tmp_path / "b.zarr", [SEQUENCES[:1], SEQUENCES[1:]], off)).parity
    assert parity.verdict is (ParityVerdict.DIFFERS if off else ParityVerdict.BITWISE)
    assert {module.rows for module in parity.modules} == {6}
    assert (parity.b.stream, parity.b.passes) == ("rank0/main and rank1/main", 2)
    found = [(one.path.b, one.rows, one.op.b and one.op.b.op) for one in parity.origins]
    assert found == ([("LM.last", 3, "aten.exp.default")] if off else [])


def test_ranks_that_were_given_the_same_tokens_are_not_united(tmp_path: Path) -> None:
    """They may hold shards of one model."""
    a, b = trace(tmp_path / "a.zarr", [SEQUENCES]), trace(tmp_path / "b.zarr", [SEQUENCES, SEQUENCES])
    with pytest.raises(UsageError, match="could be any of the streams"):
        compared(a, b)


# --- requirements -----------------------------------------------------------------------------------------------------


def gap_of(a: list[float], b: list[float]) -> Gap:
    return measure("as given", np.array(a), np.array(b), [""] * len(a), [None] * len(a))


def test_what_can_be_asked_for() -> None:
    """Bits, or a limit on the largest difference, the mean or the divergence; said back as it was asked."""
    assert parse_requirement("bitwise") == Requirement(Measure.BITWISE)
    assert parse_requirement("logprob<1e-3") == Requirement(Measure.LARGEST, 1e-3)
    assert parse_requirement(" logprob-mean < 0.5 ") == Requirement(Measure.MEAN, 0.5)
    assert str(parse_requirement("kl<0.000001")) == "kl<1e-06"


@pytest.mark.parametrize("text", ["", "bits", "logprob", "logprob<", "logprob<x", "logprob<0", "logprob>1", "kl<nan"])
def test_what_cannot_be_asked_for_is_named_with_what_can(text: str) -> None:
    """No limit is read as another, and none as no limit at all."""
    with pytest.raises(UsageError, match="give bitwise, or logprob<X"):
        parse_requirement(text)


def test_each_limit_is_held_against_its_own_number() -> None:
    """The largest difference is 0.5, the mean 0.25: one limit between them shows which is asked."""
    gap = gap_of([-1.0, -1.0], [-1.5, -1.0])
    assert holds(parse_requirement("logprob<0.3"), gap) is False
    assert holds(parse_requirement("logprob<0.51"), gap) is True
    assert holds(parse_requirement("logprob<0.5"), gap) is False
    assert holds(parse_requirement("logprob-mean<0.3"), gap) is True
    assert holds(parse_requirement(f"kl<{gap.k3 * 1.01}"), gap) is True
    assert holds(parse_requirement(f"kl<{gap.k3 * 0.99}"), gap) is False


def test_nothing_measured_meets_no_limit() -> None:
    """Undecided without a gap; an infinity on one side alone breaks every limit, however small the mean of the rest."""
    anything = parse_requirement("logprob<100")
    assert holds(anything, None) is None
    assert holds(anything, gap_of([], [])) is None
    assert holds(anything, gap_of([-1.0, -inf], [-1.0, -1.0])) is False
    assert holds(anything, gap_of([-inf], [-inf])) is None


def test_a_few_tokens_of_many_meet_no_limit() -> None:
    """Less than half of what B was trained on was compared: undecided, unless those few break it already."""
    few = replace(gap_of([-1.0, -1.0], [-1.0, -1.5]), only_b=3)
    assert holds(parse_requirement("logprob<1"), few) is None
    assert holds(parse_requirement("logprob<0.1"), few) is False
    assert holds(parse_requirement("logprob<1"), replace(few, only_b=2)) is True


# --- calls ------------------------------------------------------------------------------------------------------------


def _call(number: int, parent: int | None, module: str, first: int, end: int) -> ModuleCall:
    return ModuleCall(number, parent, module, "Module", 0, "forward", False, first, end, ())


def test_calls_lie_in_those_they_ran_in() -> None:
    """A call's parent is the kept call around it; siblings and later outermost calls are not."""
    root, layer, leaf = _call(0, None, "M", 0, 10), _call(1, 0, "M.a", 0, 5), _call(2, 1, "M.a.b", 1, 4)
    sibling, later = _call(3, 0, "M.c", 5, 9), _call(4, None, "N", 10, 12)
    call_range = CallRange("a", (root, layer, leaf, sibling, later))
    assert [call_range.parent(call) for call in call_range.calls] == [None, root, layer, root, None]
    assert call_range.around(leaf) == [layer, root]
    assert call_range.outermost == (root, later)
    assert call_range.inner == {0: (layer, sibling), 1: (leaf,)}
    assert [call.number for call in call_range.ended] == [2, 1, 3, 0, 4]
    assert list(call_range.modules) == ["M.a.b", "M.a", "M.c", "M", "N"]


def test_a_call_whose_parent_was_not_kept_lies_in_the_one_around_that() -> None:
    """Where a selector left the layer out, the leaf lies in the root, and one after the root's end does not."""
    root, leaf, later = _call(0, None, "M", 0, 10), _call(2, 1, "M.a.b", 1, 4), _call(9, 8, "N.x", 10, 12)
    call_range = CallRange("a", (root, leaf, later))
    assert call_range.parent(leaf) is root
    assert call_range.parent(later) is None


def test_calls_without_ops_keep_their_order() -> None:
    """Modules that run no op end at the row at which they began, one after the other."""
    root, first, second = _call(0, None, "M", 3, 3), _call(1, 0, "M.a", 3, 3), _call(2, 0, "M.b", 3, 3)
    assert list(CallRange("a", (root, first, second)).modules) == ["M.a", "M.b", "M"]
