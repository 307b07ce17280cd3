"""Events: rows that are no ops, for what happens between the ops.

Owns the form of such a row. A form is created once (what happened, to which object, the names of its cells) and
written often, with a value for each cell::

    SCALED = EventForm(Kind.VALUE, "GradScaler 0", floats=("scale",), integers=("growth_tracker",))
    ...
    session.events.write(SCALED, integers=(tracker,), floats=(scale,))

An event records data from outside torch, which matters only where an op reads it. So two runs whose events differ only
in their cells do not diverge (``RowFlag.MARKED``): the difference is counted and listed, and it is the origin of ops
that differ because of it. An event on one side only is compared like an op on one side only. *Evidence* is not
compared and is in no hash: it differs between unchanged runs (the state of an unseeded generator), or an extra event
shifts it (a count), or it is the value of a field whose digest is compared. Values are passed after the evidence of the
form, which does not name them: what a value is says its header, so that no identity rests on its shape.
"""

from dataclasses import dataclass

from rltrace.trace.format.schema import Kind


@dataclass(frozen=True, eq=False, slots=True)
class EventForm:
    """The common fields of events of one form. Two forms are never equal: create each once.

    All fields are identity: events of two runs that differ in one of them are different events. So none may hold an
    address, a process id or a count that depends on timing.
    """

    kind: Kind
    what: str
    """The object it happened to: ``environment 3``."""
    owner: str = ""
    """Content of the row's module column."""
    counts: tuple[str, ...] = ()
    """Names of integers from 0 to 2**64 that are evidence; with ``evidence`` at most 63."""
    evidence: tuple[str, ...] = ()
    """Names of digests that are evidence."""
    digests: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    """Names of integers between -2**63 and 2**63."""
    floats: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """Facts in words by name, which are no identity: two forms that differ in them alone are of matched events."""

    def skeleton(self) -> list[object]:
        """Its entry in table "scalars"."""
        cells = {"n": self.counts, "e": self.evidence, "d": self.digests, "i": self.integers, "f": self.floats}
        return [self.what, *([f"{name}=", letter] for letter, names in cells.items() for name in names)]
