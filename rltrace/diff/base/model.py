"""What a comparison returns: frozen objects that every front end draws and none computes.

Owns the words of the verdict, and the JSON ``rltrace.diff/1``: its keys are these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Generic, TypeVar

from rltrace.trace.read.names import Site

T = TypeVar("T")


class Verdict(StrEnum):
    IDENTICAL = "identical"
    SAME_VALUES = "same-values"
    DIVERGED = "diverged"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    OUTSIDE = "outside"
    RNG = "rng"
    ARGUMENTS = "arguments"
    CONTROL_FLOW = "control-flow"
    KERNEL = "kernel"
    SAME_KERNEL = "same-kernel"
    COMPUTATION = "computation"
    BEFORE_WINDOW = "before-window"
    ENDED = "ended"
    UNINITIALISED = "uninitialised"
    UNTRACKED_WRITE = "untracked-write"
    UNKNOWN = "unknown"


OF_COMPUTING = frozenset((Cause.KERNEL, Cause.SAME_KERNEL, Cause.COMPUTATION))
"""Causes where the inputs of an op match and its outputs differ."""


class InputsMatch(StrEnum):
    """How it is known whether the inputs of an op were equal on both sides."""

    READ = "read"  # digested at this op on both sides
    INFERRED = "inferred"  # written by a matching op of the same step and not seen to change
    DIFFER = "differ"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class OptimizerCount:
    """An attempt of an optimizer, counted for this optimizer alone."""

    ordinal: int
    """Order of creation among the optimizers of the process, from 0."""
    name: str
    """Class name."""
    count: int
    """Attempts this optimizer had made before, from 0."""
    owner: str | None = None
    """Path of the module whose parameters it has; None where that is not known."""


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The same fact on both sides; None where a side has none."""

    a: T | None
    b: T | None


@dataclass(frozen=True)
class Received:
    """The collective through which other processes sent the bytes that differ."""

    op: str
    a_index: int
    """Its row in A's stream."""
    b_index: int
    ranks: tuple[int, ...]
    """Those that participated; empty where that is not known."""
    origins: tuple[str, ...] = ()
    """Streams of other processes that differ before the collective."""


@dataclass(frozen=True)
class Sender:
    """The row of another process that wrote the bytes that differ, before they were received."""

    stream: str
    a_index: int
    b_index: int
    op: str
    step: int | None
    """A's; None for a process without steps."""

    @property
    def text(self) -> str:
        """``aten.add_.Tensor (row 73, step 2) of rank0/worker:1``."""
        step = "" if self.step is None else f", step {self.step:,}"
        return f"{self.op} (row {self.a_index:,}{step}) of {self.stream}"


@dataclass(frozen=True)
class FindingEvent:
    """The event through which differing data entered from outside torch."""

    name: str
    """``environment 3``."""
    owner: str | None
    """Kind of environment: ``Hopper-v5``; None where that is not known."""
    count: Pair[int]
    """Which of its steps, or of its resets, from 1."""
    cells: tuple[NamedDifference, ...]
    """Its fields that differ; empty where one side alone has the event."""
    first_op: Finding
    """The finding at the first op that differs because of it."""
    components: tuple[NamedDifference, ...] = ()
    """Numbers of those fields that differ, where the values of the fields were recorded (the small ones are):
    ``observation, component 2 of 4``."""


@dataclass(frozen=True)
class NotRestored:
    """State that one run had as it came to the first compared step, and the other began without."""

    kind: str
    """``generator``, ``optimizer`` (its state), ``settings`` (of it), ``scaler``, ``scheduler``, ``statistics``,
    ``environment``, ``data`` or ``tensor``."""
    name: str
    """``torch's generator``, ``Adam: exp_avg, exp_avg_sq, step``, ``environment 0``."""


@dataclass(frozen=True)
class Finding:
    """One place where two traces differ."""

    cause: Cause
    stream: str
    """``rank0/main``, ``rank0/main/thread:NAME``, ``rank0/main/pool:NAME``, ``rank0/worker:1``."""
    a_index: int | None
    """Row in A's stream; None where only B has the op."""
    b_index: int | None
    """Row in B's stream; None where only A has the op. Both are None where only step digests were compared."""
    step: int | None
    """A's step (B's where only B has the op); None for a stream without steps."""
    optimizer: OptimizerCount | None
    """The attempt that ends this step, where it was recorded."""
    environment_step: int | None
    """Environment steps until that attempt, where they were counted."""
    phase: str
    """``backward``, ``optimizer``, ``other``, …"""
    op: str | None
    """Operator and overload, or an event's name; None where only step digests were compared."""
    module: str | None
    """Path of the module whose forward or backward ran the op."""
    site: Site | None
    """Innermost user frame."""
    stack: tuple[Site, ...]
    """The whole recorded stack, innermost first."""
    kernel: Pair[str]
    """In words."""
    inputs_match: InputsMatch
    """How it is known whether the inputs were equal: ``read`` at this op on both sides, or ``inferred``, as matched
    ops of the same step wrote them."""
    outputs: tuple[Pair[str], ...]
    """Digests of what the op returned and wrote; without an op, of gradients, parameters and RNG states."""
    identical_before: int
    """Equal ops of this stream before it; without an op, equal steps."""
    explanation: str
    """One sentence."""
    repeats: bool | None = None
    """``same-kernel`` only: whether the op gave the same bits when run again; None: not tried."""
    received: Received | None = None
    """The collective that brought the difference from other processes; this stream only propagates it."""
    sender: Sender | None = None
    """The row of another process that wrote what differs; this stream received it."""
    event: FindingEvent | None = None
    """The event that brought the difference in: what an environment returned, a checkpoint."""
    output_names: tuple[str, ...] = ()
    """Names of the outputs, "" for one that has none; empty: none has one. Those of JAX programs have."""
    kernel_names: Pair[tuple[str, ...]] = Pair(None, None)
    """Whole names of what ran, in order, as they were recorded; None: not known by name."""
    settings: tuple[NamedDifference, ...] = ()
    """What torch was set to when the op ran (grad mode, TF32, …), where that was something else on the two sides."""
    b_step: int | None = None
    """B's step, in a shifted comparison."""
    not_restored: NotRestored | None = None
    """In a shifted comparison, the state that the resumed run began without; None: it is not due to such."""
    made: tuple[str, ...] = ()
    """Of outside data, how the environments and their wrappers that may have returned it were made otherwise in B."""
    unused_outside: int = 0
    """Ops before it that compute with other data from outside, on none of which its optimizer step depends."""

    @property
    def at_op(self) -> Finding:
        """The finding at the first op that differs: where an experiment can inject values."""
        return self if self.event is None else self.event.first_op

    @property
    def is_local(self) -> bool:
        """Whether no data that its process received can be its cause: its op read the same on both sides, and it ran
        another kernel, or none that differs, or an optimizer calls it with other numbers."""
        if self.inputs_match not in (InputsMatch.READ, InputsMatch.INFERRED):
            return False
        return self.cause in OF_COMPUTING or (self.cause is Cause.ARGUMENTS and self.phase == "optimizer")

    def is_independent_of(self, other: Finding) -> bool:
        """Whether it does not go back to what another process did before it, which reached this one only as data."""
        return other.cause in (Cause.OUTSIDE, Cause.RNG) and (self.is_local or self.unused_outside > 0)


@dataclass(frozen=True)
class Hunk:
    """A run of ops that only one side has, or that changed places."""

    kind: str
    """``only-a``, ``only-b`` or ``reordered``."""
    stream: str
    step: int | None
    a_start: int
    a_count: int
    b_start: int
    b_count: int
    first: str
    """The first op and its site, for people: "aten.mean.default train.py:12 (log)"."""


@dataclass(frozen=True)
class Structure:
    only_a: int
    """Ops."""
    only_b: int
    reordered: int
    """Ops."""
    hunks: tuple[Hunk, ...]
    """The first hundred runs of such ops; the counts are of all."""
    whole: bool = True
    """False: counted only up to the first difference in values, as later ones follow from it."""
    reordered_steps: int = 0
    """Steps whose digests prove that they hold the same ops in another order. Their rows were not read, so their ops
    are not counted in ``reordered``."""


@dataclass(frozen=True)
class NamedDifference:
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class SourceEdit:
    """A source file of the program that was edited between the runs, or that one of them alone loaded."""

    file: str
    only_a: tuple[Site, ...]
    """Its lines that B does not have, moved ones left out, the nearest to the finding first. ``source`` is empty where
    the text is not known, and ``function`` for a line that is in no call stack."""
    only_b: tuple[Site, ...]
    loaded_by: str = ""
    """``a`` or ``b``: that run alone loaded the file; empty: both did."""


@dataclass(frozen=True)
class Hole:
    """A part of a trace that cannot be read."""

    side: str
    """``a`` or ``b``."""
    process: str
    stream: str | None
    first: int | None
    rows: int | None
    """None: not in rows."""
    why: str


@dataclass(frozen=True)
class ProcessSummary:
    name: str
    state: str
    """``complete``, ``running``, ``killed``, ``damaged``, ``stopped`` or ``never-recorded``."""
    after_op: int
    """Ops recorded."""
    why: str | None
    """One sentence on a state other than complete."""
    windows: tuple[tuple[int, int | None], ...]
    """(first step, step after the last) of each window; None: to the end."""
    exit: str | None
    """How it ended, in words."""


@dataclass(frozen=True)
class Side:
    path: str
    """As it was given."""
    level: str
    engine: str
    """What intercepted its ops."""
    ops: int
    """Rows of all streams."""
    steps: int
    """Optimizer attempts of all processes."""
    processes: tuple[ProcessSummary, ...]


@dataclass(frozen=True)
class DriftPoint:
    """Both sides of a series at one step."""

    step: int
    a: float
    b: float


@dataclass(frozen=True)
class Drift:
    """How a series of A and the same one of B diverge."""

    kind: str
    """``item``, ``watch``, ``stacked`` or ``callback`` (of JAX), ``learning-rate``, ``effective-rate``, ``scaler`` or
    ``tensorboard``."""
    name: str
    """For ``item``, the source line that read it."""
    stream: str
    place: str
    """``train.py:12``; of a learning rate whose optimizer it is, ``critic's Adam``; else ""."""
    a_count: int
    b_count: int
    """Numbers of each side."""
    matched: int
    """How many of them belong together: the same attempt of the same optimizer, and occurrence within its step."""
    first: DriftPoint | None
    """Where they first differ at all; None: nowhere."""
    exceeds: DriftPoint | None
    """Where they are first further apart than ``threshold``; None: nowhere."""
    threshold: float
    """The tolerance, times the range of the curve in both runs."""
    growth: tuple[tuple[int, float], ...]
    """(step, distance) at the first difference, and wherever it first reaches another power of ten."""
    largest: float
    """The largest distance; infinite where one side alone is not finite."""
    whole: bool
    """False: sampled, so that each step above is the latest possible one."""


@dataclass(frozen=True)
class EventSummary:
    """Events that differ, such as what environments returned; they alone decide no verdict."""

    differing: int = 0
    """Events that differ."""
    first: str | None = None
    """The first differing one, for people."""
    whole: bool = True
    """False: counted among the rows that were read only."""
    stream: str | None = None
    """That of the first differing one."""
    row: int | None = None
    """A's row of the first differing one."""
    explanation: str | None = None
    """How it differs, and what was seeded or made otherwise before it; None: that is not known."""


@dataclass(frozen=True)
class UninitialisedCount:
    """Rows that may hold uninitialised memory; differences in them alone decide no verdict."""

    rows: int
    """Ops that may have read uninitialised memory."""
    differing: int
    """Those that differ."""
    first: str | None
    """The first differing one, for people."""
    whole: bool = True
    """False: counted among the rows that were read only."""
    unused: int = 0
    """Other ops that differ as they compute with what those returned, which the step of the optimizer did not use."""


@dataclass(frozen=True)
class Probe:
    """One step of the bisection."""

    row: int
    equal: bool


@dataclass(frozen=True)
class Search:
    probes: tuple[Probe, ...]
    chunks_read: int
    bytes_read: int


@dataclass(frozen=True)
class OtherKernel:
    """One kind of call that both sides made."""

    stream: str
    """Of A."""
    a_index: int
    """A's first such row."""
    op: str
    a: str
    b: str
    """What ran."""
    differences: tuple[str, ...]
    """In words."""
    same_bits: bool | None
    """Whether it gave the same bits on both sides, at least at that row; None: not known."""


@dataclass(frozen=True)
class Shift:
    """The steps at which the two sides of a shifted comparison begin."""

    a_step: int
    b_step: int
    explanation: str
    """One sentence: how that is known."""

    def step_of_a(self, step: int) -> int:
        """A's step that belongs to a step of B, where both sides make the same attempts."""
        return step - self.b_step + self.a_step

    def step_of_b(self, step: int) -> int:
        """B's step that belongs to a step of A."""
        return step - self.a_step + self.b_step


@dataclass(frozen=True)
class StreamGroup:
    """Streams that agree, that have the same first difference, or of which it is not known."""

    streams: tuple[str, ...]
    """Names, in the order of A; of processes where steps were compared."""
    finding: Finding | None = None
    """The first difference of the first of them; the others have it at the same step, op and call site."""
    why: str = ""
    """Why it is not known whether they agree; "": it is."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two traces."""

    SCHEMA: ClassVar = "rltrace.diff/1"
    COMPUTED: ClassVar = ("agrees",)

    verdict: Verdict
    """``identical``: every op is equal. ``same-values``: ops were added, removed or reordered, every matched op is
    equal, and nothing that both sides ran depends on what only one side ran; or nothing that was trained depends on
    what differs."""
    why: str
    """One sentence: what the verdict rests on."""
    level: str
    """``op`` or ``step``: what was compared."""
    a: Side
    b: Side
    commands: str
    """How B's command differs from A's, as in ``B adds --seed 2``; "": not at all, or not known."""
    system: tuple[NamedDifference, ...]
    """Facts of machine, process and sources that differ, the likeliest to change results first."""
    edits: tuple[SourceEdit, ...]
    """Source files of the program that differ, the one with the line nearest to the finding first."""
    first: Finding | None
    """The earliest of any cause; None as well where several streams differ and nothing orders them."""
    first_value: Finding | None
    """The earliest matched op whose values differ."""
    unordered: tuple[Finding, ...]
    """One for each stream, where streams cannot be ordered."""
    structure: Structure
    search: Search
    holes: tuple[Hole, ...]
    marked: UninitialisedCount
    events: EventSummary
    compared: Mapping[str, int]
    """By stream, the number of matched ops; ``…/pool``: all pool threads of a process together."""
    unfinished: tuple[str, ...]
    """Sides, ``a`` and ``b``, that are not complete."""
    advice: tuple[str, ...]
    """Commands to run next, ready to paste, the most useful first."""
    decisive: Finding | None = None
    """What a verdict of ``diverged`` rests on: ``first``, unless that is a harmless extra op."""
    notes: tuple[str, ...] = ()
    """Sentences that are needed to read the verdict right."""
    later: tuple[Finding, ...] = ()
    """The first finding of each stream of other processes that is known to come after ``first`` or ``unordered``."""
    drift: tuple[Drift, ...] = ()
    """The first 50 series that differ, in the order in which they exceed the threshold."""
    strict: bool = False
    """Whether an op that was added, removed or reordered counts as a difference."""
    so_far: Verdict = Verdict.UNKNOWN
    """What the verdict would be if both traces were complete as they are."""
    other_kernels: tuple[OtherKernel, ...] = ()
    """Calls that ran another kernel in B, where kernels were recorded by name on both sides."""
    unlike: bool = False
    """These look like different programs: a verdict of ``unknown``, and the findings say where one is not the other."""
    shift: Shift | None = None
    """Where one run begins at a step of the other, as a resumed run does; both were compared from there on. None: from
    their beginnings."""
    groups: tuple[StreamGroup, ...] = ()
    """The streams, if there are several, by their first difference that counts, the earliest first; then those that
    agree."""

    @property
    def shown(self) -> Finding | None:
        """The finding that the verdict rests on, or else the most informative one."""
        return self.decisive or self.first_value or self.first

    @property
    def agrees(self) -> bool | None:
        """True: the two runs computed the same; False: they did not; None: that cannot be said."""
        if self.verdict is Verdict.UNKNOWN:
            return None
        return self.verdict is Verdict.IDENTICAL or (self.verdict is Verdict.SAME_VALUES and not self.strict)
