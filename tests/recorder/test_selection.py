"""What a selector finds while rows are written: the same as in the finished trace."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from selector_examples import ENTRIES, PAYLOADS, SELECTORS

from rltrace.recorder.capture.selection import StreamSelector
from rltrace.recorder.core.row_buffer import PHASE_SHIFT
from rltrace.selectors import Selector, parse_selectors
from rltrace.testing.random import random_rows
from rltrace.trace.format.schema import Column, Phase
from rltrace.trace.read.names import Words
from rltrace.trace.read.selector_mask import RowMask


def wanted(selector: Selector) -> tuple[StreamSelector, Any]:
    """The selector for a stream of a process at a step, in which the kernel of a row follows from its structure."""
    process = SimpleNamespace(
        tables=SimpleNamespace(words=Words(PAYLOADS)),
        step=-1,
        settings=SimpleNamespace(threads=[1]),
        calls=SimpleNamespace(structure_devices=range(ENTRIES)),
        kernels=SimpleNamespace(of=lambda name, threads, device: device),
    )
    stream: Any = SimpleNamespace(process=process, name="rank0/main", settings=SimpleNamespace(number=0))
    return StreamSelector(selector, stream), process


@given(SELECTORS, st.integers(0, 1 << 30), st.integers(0, 40))
def test_rows_are_found_as_in_the_trace(texts: list[str], seed: int, count: int) -> None:
    """Row by row what the finished columns say; what may not be found before the op runs, or around it, is not."""
    selector, generator = parse_selectors(texts), np.random.default_rng(seed)
    rows = random_rows(generator, 0, count, ENTRIES)
    rows.columns[:, Column.PHASE] = generator.integers(0, len(Phase), count)
    rows.columns[:, Column.KERNEL] = rows.columns[:, Column.STRUCTURE]
    mask = RowMask(selector, "rank0/main", Words(PAYLOADS)).compute(rows)
    here, process = wanted(selector)
    for found, cells in zip(mask.tolist(), rows.columns.tolist(), strict=True):
        op, structure, site, module = (cells[c] for c in (Column.OP, Column.STRUCTURE, Column.SITE, Column.MODULE))
        phase, process.step = Phase(cells[Column.PHASE]), cells[Column.STEP]
        name = PAYLOADS["ops"][op]
        may = here.may_find(op, name)
        assert found == (may and here.finds(op, name, structure, site, module, phase << PHASE_SHIFT))
        assert not found or here.may_find_in(module, phase)
