"""Traces of two small language models that should compute the same: one goes token by token, one takes all at once.

Owns the two programs. The generator's head is off by one ULP from the third token on; all else is equal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.testing import In, StreamBuilder, TraceBuilder

Floats = NDArray[np.float32]
TOKENS = np.array([[7, 3, 5, 2], [4, 4, 6, 1]])
HIDDEN = 8
FIRST_OFF = 2
"""The first token of which the generator's head gives something else; beyond the last one: the two are equal."""


def spoken_traces(folder: Path, first_off: int = FIRST_OFF) -> tuple[Path, Path]:
    """A: a prompt of two tokens, then token by token. B: whole sequences."""
    generator = _trace(folder / "generator.zarr", [(0, 2), (2, 3), (3, 4)], first_off)
    return generator, _trace(folder / "trainer.zarr", [(0, 4)], None)


def _trace(path: Path, passes: list[tuple[int, int]], first_off: int | None) -> Path:
    trace = TraceBuilder(path)
    stream = trace.stream()
    table = np.random.default_rng(1).standard_normal((8, HIDDEN)).astype(np.float32)
    drawn = stream.op("aten.randn.default", outputs=["table"], rng="g")
    for begin, end in passes:
        _forward(stream, drawn, table, (begin, end), first_off)
    return trace.finish()


def _forward(stream: StreamBuilder, drawn: int, table: Floats, tokens: tuple[int, int], first_off: int | None) -> None:
    (begin, end), is_trainer = tokens, first_off is None
    ids = np.ascontiguousarray(TOKENS[:, begin:end])
    positions = np.broadcast_to(np.arange(begin, end), ids.shape).copy()
    how = {"phase": "forward", "grad": is_trainer, "values": True}
    site = (
        ("train.py", 21, "update", "logits = policy(ids)") if is_trainer else ("serve.py", 9, "sample", "policy(ids)")
    )
    hidden = table[ids]
    logits = (hidden[:, :, None] * table).sum(-1)  # each token by itself, whatever the batch
    if first_off is not None:
        late = logits[:, max(0, first_off - begin) :, 3]
        late[:] = np.nextafter(late, np.float32(np.inf))
    kernel = {"library": "ATen", "threads": 1}
    with stream.call("LM", {"input_ids": ids, "position_ids": positions}, "LM", **how) as out:
        with stream.call("LM.embed", {"input": ids}, "Embedding", **how) as embedded:
            at = {"module": "LM.embed", "site": site, "kernel": kernel}
            made = stream.op("aten.embedding.default", inputs=[In(drawn)], outputs=[f"h{begin}"], **at)
            embedded[""] = hidden
        with stream.call("LM.head", {"input": hidden}, "Linear", **how) as given:
            layouts = [("float32", shape, (HIDDEN, 1), "cpu") for shape in ((ids.size, HIDDEN), (HIDDEN, HIDDEN))]
            at |= {"module": "LM.head", "layouts": layouts}
            stream.op("aten.mm.default", inputs=[In(made), In(drawn)], outputs=[f"l{begin}"], **at)
            given[""] = logits
        out["logits"] = logits
