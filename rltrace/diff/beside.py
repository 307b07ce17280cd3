"""Streams beside which TorchScript ran ops that are no rows: a difference in what follows decides nothing.

``torch.jit.fork`` runs a function's ops on threads of its own, and what waits for one of them may go on there, too.
Which ops are rows is then timing's to say, and so is which of two gradients is added first. Owns the fact that tells
of such streams (``rltrace.record.beside`` writes it), and what of a stream's result is believed because of it.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.diff.model import Finding
from rltrace.diff.streams import StreamResult
from rltrace.diff.unrecorded import THREADS_BESIDE
from rltrace.diff.view import StreamView


def believed(result: StreamResult) -> StreamResult:
    """``result``, left open where its difference lies behind ops that ran beside the stream."""
    decisive = result.decisive
    if decisive is None or not (_is_behind(result.a, decisive.a_index) or _is_behind(result.b, decisive.b_index)):
        return result
    return replace(result, first=result.first or decisive, value=None, harmful=None, undecided=_why(result, decisive))


def _why(result: StreamResult, decisive: Finding) -> str:
    rows = (first_beside(result.a), first_beside(result.b))
    first = min(row for row in rows if row is not None)
    return (
        f"TorchScript ran ops on separate threads beside {result.a.name} from row {first:,} on (torch.jit.fork): "
        f"which ops are rows depends on timing, so the difference after {decisive.identical_before:,} equal ops may "
        "be due to timing only"
    )


def _is_behind(view: StreamView, row: int | None) -> bool:
    first = first_beside(view)
    return first is not None and row is not None and row >= first


def first_beside(view: StreamView) -> int | None:
    """The row that a stream was at when the first op ran beside it; None: none did."""
    told = str(view.process.facts.get(THREADS_BESIDE) or "")  # STREAM from row N, several with commas between
    parts = (part.rpartition(" from row ") for part in told.split(", "))
    return next((int(row) for name, _, row in parts if name == view.name and row.isdecimal()), None)
