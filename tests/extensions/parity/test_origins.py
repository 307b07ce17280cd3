"""Within a module that diverges, which op is named: of rows whose inputs agree, the first that comes out otherwise."""

from pathlib import Path

import numpy as np
import pytest
from parity_traces import compared

from rltrace.extensions.parity.model import Reason
from rltrace.testing import In, TraceBuilder


def model(path: Path, early: float, late: float) -> Path:
    """Two sequences of one token. ``early`` is added to the first one before the module ``own``, whose op ``exp`` adds
    ``late`` to the second one.
    """
    trace = TraceBuilder(path)
    stream = trace.stream()
    ids = np.array([[7], [4]])
    hidden = np.ones((2, 1, 4), np.float32)
    with stream.call("LM", {"input_ids": ids}, "LM") as out:
        with stream.call("LM.embed", {"input": ids}, "Embedding") as embedded:
            made = stream.op("aten.embedding.default", outputs=["h"], module="LM.embed")
            embedded[""] = hidden
        with stream.call("LM.first", {"input": hidden}, "First") as first:
            made = stream.op("aten.add.Tensor", inputs=[In(made)], outputs=[f"add {early}"], module="LM.first")
            hidden = hidden + np.array([early, 0], np.float32)[:, None, None]
            first[""] = hidden
        with stream.call("LM.own", {"input": hidden}, "Own") as own:
            doubled, given = 2 * hidden, 2 * hidden + np.array([0, late], np.float32)[:, None, None]
            made = stream.op("aten.mul.Tensor", inputs=[In(made)], outputs=[f"mul {early}"], module="LM.own")
            stream.op_rows(made, {"self": hidden}, {"": doubled})
            made = stream.op("aten.exp.default", inputs=[In(made)], outputs=[f"exp {early} {late}"], module="LM.own")
            stream.op_rows(made, {"self": doubled}, {"": given})
            own[""] = given
        out["logits"] = given
    return trace.finish()


def test_rows_that_came_in_otherwise_do_not_count(tmp_path: Path) -> None:
    """``mul`` gives another first row, for it was given another; the second, whose inputs agree, parts at ``exp``."""
    a, b = model(tmp_path / "a.zarr", 0, 0), model(tmp_path / "b.zarr", 1, 1)
    first, own = compared(a, b).parity.origins
    assert (first.path.b, own.path.b) == ("LM.first", "LM.own")
    assert own.op.b.op == "aten.exp.default"
    assert (own.rows, own.of) == (1, 1)


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def attending(path: Path, tokens: int, dropout: float, off: float) -> Path:
    """One sequence of ``tokens`` tokens through one attention, of whose second token ``off`` is added."""
    trace = TraceBuilder(path)
    stream = trace.stream()
    ids = np.array([[7, 4, 9][:tokens]])
    hidden = np.ones((1, tokens, 4), np.float32)
    scalars = ["T", "T", "T", *(["f"] if dropout else []), ["scale=", "f"]]
    with stream.call("LM", {"input_ids": ids}, "LM") as out, stream.call("LM.own", {"input": hidden}, "Own") as own:
        stream.op(
            ATTENTION,
            inputs=["outside"] * 3,
            outputs=[f"o {off}"],
            module="LM.own",
            rng="g",
            scalars=scalars,
            floats=[dropout, 0.25] if dropout else [0.25],
            layouts=[("float32", (1, 1, tokens, 4), (1,), "cpu")] * 3,
        )
        given = hidden.copy()
        given[:, 1] += off
        own[""] = out["logits"] = given
    return trace.finish()


@pytest.mark.parametrize(("dropout", "reason"), [(0.0, Reason.SHAPE), (0.1, Reason.RNG)])
def test_attention_draws_where_it_drops_out(tmp_path: Path, dropout: float, reason: Reason) -> None:
    """Torch marks attention as an op that draws random numbers; without dropout that is not why two of them differ."""
    a, b = attending(tmp_path / "a.zarr", 2, dropout, 0.5), attending(tmp_path / "b.zarr", 3, dropout, 0)
    (origin,) = compared(a, b).parity.origins
    assert (origin.path.b, origin.reason) == ("LM.own", reason)
