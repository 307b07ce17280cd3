"""Digests of tensors on a device, in a row that is written before they are known.

Owns the places in the stream's digests where one is yet to come: a 0 stands there, and ``later`` says of which row's
which cell, and whom to ask. The committer puts the digest in before the row leaves for the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rltrace.record.layouts import Layout
from rltrace.record.logical import is_compound
from rltrace.record.memory.storages import address_of
from rltrace.record.open_rows import Later, OpenRows
from rltrace.record.readback import Pending

Tensor = torch.Tensor


class Deferring(OpenRows):
    """Digests that come later."""

    def _digest_of(self, tensor: Tensor, layout: Layout) -> int:
        """For the cell that is appended next."""
        return self._later(tensor, layout) if layout.later else self.process.digests.with_layout(tensor, layout)

    def _later(self, tensor: Tensor, layout: Layout) -> int:
        """The digest of a tensor on a device, for the cell that is appended next; 0 where it is yet to come."""
        [pending] = self._put_off([tensor], [layout])
        return self._expect(pending, tensor, layout)

    def _put_off(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> Sequence[Pending | None]:
        """What will be the digests of tensors of one device, as they are now; None for one that cannot be put off."""
        readback, graphs = self.process.readback, self.process.graphs
        graphs.watch()
        if readback.is_shut(tensors[0].device):
            for tensor in tensors:
                graphs.wrote(address_of(tensor))
            return [readback.unread()] * len(tensors)
        found: list[Pending | None] = [None] * len(tensors)
        if not self._reads_at_once():
            plain = [i for i, tensor in enumerate(tensors) if _is_plain(tensor, layouts[i])]
            put = readback.put([tensors[i] for i in plain], [layouts[i] for i in plain]) if plain else None
            for i, pending in zip(plain, put or (), strict=False):
                found[i] = pending
        return found

    def _expect(self, pending: Pending | None, tensor: Tensor, layout: Layout) -> int:
        """Of the cell that is appended next; the digest itself where it had to be waited for."""
        if pending is None:
            return self.process.digests.with_layout(tensor, layout)
        self.later.append(Later(self.row, self._digested, pending))
        return 0

    def _reads_at_once(self) -> bool:
        """Whether someone looks at the digests of the row at hand while it is written."""
        return False

    def _no_result(self) -> None:
        """The digest appended last is of nothing that counts."""
        self.digests[-1] = 0
        self.drop_later(self.row, self._digested - 1)


def _is_plain(tensor: Tensor, layout: Layout) -> bool:
    """Whether its bytes lie in memory of its own: not of a compound tensor, of no elements, of zeros not written down,
    of a storage that was given back."""
    kind = type(tensor)
    if (kind is not Tensor and kind is not torch.nn.Parameter) or is_compound(tensor):
        return False
    try:
        return bool(layout.nbytes) and not tensor._is_zerotensor() and bool(tensor.data_ptr())
    except RuntimeError:  # a wrapper, which has no memory
        return False
