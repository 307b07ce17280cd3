"""Events: rows that are no ops, for what happens around the ops, at its place among them.

Owns the form of such a row. A form is made once (what happened, to whom, the names of its cells) and written often,
with a value for each cell. Anything in ``rltrace.recorder`` writes an event so::

    SCALED = EventForm(Kind.VALUE, "GradScaler 0", floats=("scale",), integers=("growth_tracker",))
    ...
    session.events.write(SCALED, integers=(tracker,), floats=(scale,))

An event records what came in from outside torch, and that matters only where an op reads it. So two runs whose events
differ in their cells alone do not diverge (``RowFlag.MARKED``): the difference is counted and listed, and it is the
origin of what differs because of it. An event that only one run has is compared like an op that only one run has.
*Evidence* is not compared at all, and is in no hash: what differs between unchanged runs, such as the state of a
generator that nobody has seeded, or what an extra event in one of two runs shifts, such as a count.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.trace.format.schema import Kind


@dataclass(frozen=True, eq=False, slots=True)
class EventForm:
    """What events of one form have in common. Two forms are never equal: make each once and keep it.

    All of it is identity: two runs whose events differ in any of these had different things happen to them. So none of
    it may hold an address, a process id or a count of what timing decides.
    """

    kind: Kind
    what: str
    """What it happened to, in words: ``environment 3``."""
    owner: str = ""
    """What stands in the row's module column: whose it is."""
    counts: tuple[str, ...] = ()
    """Names of whole numbers from 0 to 2**64 that are evidence; with ``evidence`` at most 63."""
    evidence: tuple[str, ...] = ()
    """Of digests that are."""
    digests: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    """Of whole numbers between -2**63 and 2**63."""
    floats: tuple[str, ...] = ()

    def skeleton(self) -> list[object]:
        """Its entry in table "scalars"."""
        cells = {"n": self.counts, "e": self.evidence, "d": self.digests, "i": self.integers, "f": self.floats}
        return [self.what, *([f"{name}=", letter] for letter, names in cells.items() for name in names)]
