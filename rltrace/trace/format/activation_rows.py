"""Rows of tensors that were kept beside the whole tensor's digest: what a module's call, or an op, read and gave, row
by row.

Owns what they are called when they are passed around. A *tensor row* is what stays comparable when batch and sequence
differ in shape: a tensor ``[4, 20, H]`` has 80 rows of ``[H]``, twenty tensors ``[1, 1, H]`` have twenty. (A *row*
alone is a row of a stream: an op.) No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Part(IntEnum):
    """Where a tensor stood in a call."""

    INPUT = 0
    OUTPUT = 1


@dataclass(frozen=True, eq=False)
class ActivationRows:
    """The rows of one tensor."""

    part: Part
    name: str
    """Where it stood: an argument's name with what leads into it (``input_ids``, ``past.0.1``), or for a result what
    leads into it (``logits``, ``0``; "" where the result is the tensor itself)."""
    dtype: str
    """Torch's name without ``torch.``."""
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Along which rows are counted, ascending; the others make up a row."""
    digests: NDArray[np.uint64]
    """One a row, shaped as the lengths of ``axes``: the digest of a tensor of this dtype whose shape is that of the
    other axes, so that equal rows of tensors of other shapes have equal digests."""
    whole: int
    """Digest of the whole tensor: ``process.values.get(whole)`` gives its value where it was kept."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of one ``nn.Module`` whose rows were kept."""

    number: int
    """Of the calls of the stream, in the order in which they began; those that were not kept count too."""
    parent: int | None
    """Number of the call it ran in; None: it is an outermost one."""
    module: str
    """Module path."""
    kind: str
    """The module's class."""
    step: int
    phase: str
    grad: bool
    """Whether gradients were recorded."""
    first_row: int
    """Row of the stream that came next when it began, and when it ended: its ops are those from here …"""
    end_row: int
    """… up to, not with, this one."""
    tensors: tuple[ActivationRows, ...]
    """Inputs, then outputs, each in the order in which they stand."""
    raised: bool = False
    """It ended with an exception: there are no outputs."""


@dataclass(frozen=True, eq=False)
class OpRows:
    """One op whose rows were kept."""

    row: int
    """Of the stream."""
    tensors: tuple[ActivationRows, ...]
    """Inputs (named by the operator's schema), then outputs."""
