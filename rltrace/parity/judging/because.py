"""Because of what two ops of the same name give other rows from the same ones: the sentence, and its word.

Owns the order in which explanations count: random numbers, another dtype, other arguments, another kernel,
another shape, nothing that is known.
"""

from __future__ import annotations

from math import prod

from rltrace.diff.judging.kernels import kernel_differences
from rltrace.parity.judging.ops import OwnOp
from rltrace.parity.model import Reason


def judged(own: OwnOp, other: OwnOp) -> tuple[Reason, str]:
    """Two ops of the same name."""
    if own.draws or other.draws:
        return Reason.RNG, f"{own.shown} draws random numbers"
    places = list(zip(own.inputs, other.inputs, strict=False))
    dtypes = next(((x[0], y[0]) for x, y in places if x[0] != y[0]), None)
    shapes = next(((x[1], y[1]) for x, y in places if x[1] != y[1]), None)
    over = "" if shapes is None else f" over {' against '.join(_extents(*shapes))}"
    if dtypes is not None:
        return Reason.DTYPE, f"{own.shown}{over} in {dtypes[0]} against {dtypes[1]}"
    if own.floats != other.floats or (shapes is None and own.call != other.call):
        return Reason.ARGUMENTS, f"{own.shown}{over} called with {own.call} against {other.call}"
    kernels = kernel_differences(own.evidence, other.evidence)
    if kernels:
        return Reason.KERNEL, f"{own.shown}{over}, run by another kernel: {kernels[0]}"
    if shapes is not None:
        return Reason.SHAPE, f"{own.shown}{over}"
    return (
        Reason.COMPUTATION,
        f"{own.shown} over the same shapes, by the same kernel as far as known, gave different bits",
    )


def _extents(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[str, str]:
    """``4 rows`` and ``80 rows``; whole shapes where it is not the rows alone."""
    if max(len(a), len(b)) <= 2 and a[-1:] == b[-1:]:
        return _counted(prod(a[:-1])), _counted(prod(b[:-1]))
    return f"[{','.join(map(str, a))}]", f"[{','.join(map(str, b))}]"


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"
