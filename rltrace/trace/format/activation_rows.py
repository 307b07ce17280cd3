"""Recorded activation rows: digests of the inputs and outputs of a module's call, or of an op, row by row.

An activation row stays comparable when batch and sequence differ in shape: a tensor ``[4, 20, H]`` has 80 rows of
``[H]``, twenty tensors ``[1, 1, H]`` have twenty. No torch.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

SLOT = "rltrace:slot"
"""Name among the inputs of an outermost call: [tokens], the slot of the KV cache that each token of the batch fills. An
empty one: the batch is a warm-up, and holds no token of a sequence."""
PREVIOUS_SLOT = "rltrace:previous_slot"
"""The same of its predecessor, or ``BEGINS``."""
BEGINS = -1
SAMPLED = "rltrace:sampled"
"""The same: [tokens], 1 for a token that was sampled, 0 for one of a prompt."""
FACTS = (SLOT, PREVIOUS_SLOT, SAMPLED)
"""What an adapter of an engine declares: no argument of the program."""
POINT = "rltrace:point:"
"""What the names of declared points begin with: tensors that stand for an input or output of a module of the
checkpoint. The rest is the module's name in the checkpoint ("": the called one itself), and after a ``/`` that of the
tensor, if it has one. One that ends with ``NAMED`` has no tensor: the called module is this one of the checkpoint. One
that ends with ``SHARD``, a rank and a number of ranks, such as ``@0:2``, is the rank's part along the last axis."""
NAMED = "/="
SHARD = "@"


class Part(IntEnum):
    """Whether a tensor was an input or an output of a call."""

    INPUT = 0
    OUTPUT = 1


@dataclass(frozen=True, eq=False)
class ActivationRows:
    """The activation rows of one tensor."""

    part: Part
    name: str
    """Path of an input (``input_ids``, ``past.0.1``) or an output (``logits``, ``0``; "": the output is the tensor)."""
    dtype: str
    """Torch's name without ``torch.``."""
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Axes along which rows are counted, ascending; a row has the other axes."""
    digests: NDArray[np.uint64]
    """Digest of each row as a separate tensor, in an array shaped as the lengths of ``axes``. Equal rows of tensors of
    different shapes have equal digests."""
    whole: int
    """Digest of the whole tensor: ``process.values.get(whole)`` returns its value where that was recorded."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of an ``nn.Module`` with recorded activation rows."""

    number: int
    """Index among the calls of the stream, in the order of their start; calls that were not recorded count."""
    parent: int | None
    """Number of the calling module's call; None: outermost."""
    module: str
    """Module path."""
    kind: str
    """The module's class."""
    step: int
    phase: str
    grad: bool
    """Whether gradients were recorded."""
    first_row: int
    """Its ops are the rows ``first_row`` to ``end_row`` (exclusive) of the stream."""
    end_row: int
    tensors: tuple[ActivationRows, ...]
    """Inputs, then outputs, in order."""
    raised: bool = False
    """It raised an exception: there are no outputs."""


@dataclass(frozen=True, eq=False)
class OpRows:
    """One op with recorded activation rows."""

    row: int
    tensors: tuple[ActivationRows, ...]
    """Inputs, named by the operator's schema, then outputs."""
