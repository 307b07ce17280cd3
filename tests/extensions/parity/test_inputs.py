"""Which streams of a trace are a side: data-parallel ranks are one, and ranks with the same tokens are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rltrace.errors import UsageError
from rltrace.extensions.parity.compare import compare
from rltrace.extensions.parity.inputs import open_ranges, parse_given
from rltrace.extensions.parity.model import Parity, ParityVerdict
from rltrace.testing import In, TraceBuilder
from rltrace.testing.builder import StreamBuilder

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


def compared(a: Path, b: Path) -> Parity:
    return compare(*open_ranges(parse_given(str(a), [], "a"), parse_given(str(b), [], "b"))).parity


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_data_parallel_ranks_are_one_side(tmp_path: Path, off: float) -> None:
    """Each has some of the generator's sequences; what differs in one of them is found, with the op of that rank."""
    a = trace(tmp_path / "a.zarr", [SEQUENCES])
    parity = compared(a, trace(tmp_path / "b.zarr", [SEQUENCES[:1], SEQUENCES[1:]], off))
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
