"""Small random programs in which one op is called on one of two tensors: other parts, other results, other writers.

What they compute is the truth that a comparison is checked against.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict

WRONG = frozenset({Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION, Cause.UNTRACKED_WRITE, Cause.UNKNOWN})
"""Causes that nothing in these programs is."""

ACTIONS = 24

USES: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    torch.exp,
    torch.neg,
    lambda t: t * 2.0,
    lambda t: t.sum(),
    lambda t: torch.stack([t, t + 1]),
)


class OperandProgram:
    """The program of a seed: tensors, views of them, several results of one op, writes in place, memory of NumPy; then
    one op on one of two tensors of a shape, and some ops on what it returned."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.result: list[bytes] = []
        """What each op computed from the exchanged one on."""

    def run(self, other: int) -> bool:
        """Run it; ``other``: 0 or 1, which of the two tensors; False where there are no two of one shape."""
        self._random = random.Random(self._seed)
        torch.manual_seed(self._seed)
        self._tensors: list[torch.Tensor] = [torch.rand(4, 6), torch.rand(6, 4)]
        for _ in range(ACTIONS):
            made = self._random.choice(list(self._actions()))()
            new = [t for t in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(t, torch.Tensor)]
            self._tensors = [*self._tensors[-20:], *(t for t in new if t.is_floating_point() and t.numel())]
        pairs = [(x, y) for n, x in enumerate(self._tensors) for y in self._tensors[:n] if x.shape == y.shape]
        self.result = []
        if not pairs:
            return False
        given, use = self._random.choice(pairs)[other], self._random.choice(USES)
        found = use(given)
        self._keep(found)
        for _ in range(3):
            found = self._random.choice([torch.tanh, lambda t: t + self._tensors[0].sum(), torch.abs])(found)
            self._keep(found)
        return True

    def _keep(self, tensor: torch.Tensor) -> None:
        self.result.append(tensor.detach().contiguous().numpy().tobytes())

    def _actions(self) -> Iterator[Callable[[], Any]]:
        r = self._random
        t, u = r.choice(self._tensors), r.choice(self._tensors)
        flat = t.numel()
        yield lambda: torch.rand(4, 6)
        yield lambda: torch.from_numpy(np.random.default_rng(r.randrange(3)).random((4, 6)).astype(np.float32))
        yield lambda: t.exp()
        yield lambda: t.chunk(2, -1) if t.dim() else t
        yield lambda: t.split(2) if t.dim() else t
        yield lambda: t.unbind() if t.dim() else t
        yield lambda: t.t() if t.dim() == 2 else t
        yield lambda: t.reshape(-1)[r.randrange(flat) :]
        yield lambda: t[..., None]
        yield lambda: torch.var_mean(t, dim=0) if t.dim() and t.shape[0] > 1 else t
        yield lambda: torch.aminmax(t)
        yield lambda: t.sort() if t.dim() else t
        yield lambda: torch.linalg.qr(t) if t.dim() == 2 else t
        yield lambda: torch._foreach_mul([t, u], 1.5)
        yield lambda: t.clone()
        yield lambda: t.add_(0.5) if self._is_writable(t) else t
        yield lambda: t.reshape(-1)[: flat // 2].fill_(r.random()) if t.is_contiguous() else t
        yield lambda: t.copy_(torch.rand(t.shape)) if self._is_writable(t) else t
        yield lambda: torch.mul(t, 0.5, out=torch.empty_like(t))
        yield rltrace.step

    @staticmethod
    def _is_writable(tensor: torch.Tensor) -> bool:
        """Whether no two of its elements share memory."""
        return all(stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)


def compared(seed: int, folder: Path) -> tuple[Comparison | None, bool]:
    """The comparison of the two runs of a program, and whether they computed the same; None: it has no two tensors."""
    paths, results = [], []
    for k, side in enumerate("ab"):
        program = OperandProgram(seed)
        paths.append(folder / f"{seed}{side}.zarr")
        with rltrace.record(paths[-1]):
            ran = program.run(k)
        if not ran:
            return None, True
        results.append(program.result)
    return compare(*paths), results[0] == results[1]


def fault(found: Comparison, is_equal: bool) -> str:
    """What is wrong with a comparison; "" where nothing is."""
    value = found.first_value
    if is_equal:
        if value is not None and "it was called with different tensors" in value.explanation:
            return ""  # equal numbers in another layout are another call
        return "" if found.verdict in (Verdict.IDENTICAL, Verdict.SAME_VALUES) else f"{found.verdict}: {value}"
    if found.verdict is not Verdict.DIVERGED or value is None:
        return f"{found.verdict}, and other values were computed"
    return f"{value.cause}: {value.explanation}" if value.cause in WRONG else ""
