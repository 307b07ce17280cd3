"""How tests name what an op reads: rows, origins, digests that stand for a text.

Owns the vocabulary; rows are made of it in ``rltrace.testing.streams``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.identity import portable_key
from rltrace.trace.schema import SLOT_UNKNOWN, Origin, pack_link


def digest(text: object) -> int:
    """A digest that stands for ``text``: equal for equal ones, in every trace. Numbers stand for themselves."""
    return text if isinstance(text, int) else key_of("testing", text)


def key_of(kind: str, payload: object) -> int:
    """``portable_key`` of one part; the same few come again with nearly every row."""
    written = (kind, repr(payload))  # 1, 1.0 and True are equal, and have keys of their own
    key = _keys.get(written)
    if key is None:
        if len(_keys) == MOST_KEYS:
            _keys.clear()
        key = _keys[written] = portable_key(kind, payload)
    return key


MOST_KEYS = 1 << 16
_keys: dict[tuple[str, str], int] = {}


@dataclass(frozen=True)
class In:
    """One tensor input. ``In(row)`` links to what ``row`` returned; ``digest`` says that this op read the input too."""

    row: int | None = None
    """The row that wrote it; None: see ``origin``."""
    digest: object = None
    slot: int = 0
    known: bool = False
    """``row`` read the very same view rather than wrote it."""
    origin: Origin = Origin.OUTSIDE
    sent: int = SLOT_UNKNOWN
    """From outside: with which collective before it other processes sent it, 1 the last one."""

    def link(self, at: int) -> int:
        """The link cell, as seen from row ``at``."""
        distance = int(self.origin) if self.row is None else at - self.row
        read = self.digest is not None
        if self.row is None:
            return pack_link(distance, self.sent, read=read)
        return pack_link(distance, self.slot, known=self.known, read=read)


def input_of(given: object) -> In:
    """``5`` (row 5), ``("outside", digest)``, ``("mixed", digest)``, ``"unknown"``, ``"overwritten"``, or an In."""
    if isinstance(given, In):
        return given
    if isinstance(given, int):
        return In(given)
    word, read = given if isinstance(given, tuple) else (given, None)
    return In(origin=Origin[str(word).upper()], digest=read)
