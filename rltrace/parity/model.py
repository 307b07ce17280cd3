"""What comparing two programs by row returns: frozen objects that every front end draws and none computes.

Owns the words, and the JSON ``rltrace.compare/1``: its keys are these fields. A is the
generator, or whatever is taken as the reference; B is the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from rltrace.diff.base.model import Pair
from rltrace.trace.read.names import Site


class ParityVerdict(StrEnum):
    BITWISE = "bitwise"
    """All rows of all modules that were matched are equal, and nothing is missing that counts."""
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    """Nothing differs so far, and too little was matched to say more."""


class RowsBy(StrEnum):
    """What makes a row of A and a row of B the same row."""

    TOKENS = "tokens"
    """The tokens of its sequence up to it."""
    INPUTS = "inputs"
    """What the program handed in for it: an observation."""
    ORDER = "order"
    """Its number, counted from the call range's beginning."""


class Reason(StrEnum):
    """Because of what a module's rows part though its inputs agree."""

    WEIGHTS = "weights"
    """The module's own numbers are others: the sides do not hold the same weights."""
    INPUTS = "inputs"
    """What the programs handed in is not the same: positions, a mask."""
    RNG = "rng"
    """An op draws random numbers: dropout that was left on."""
    OPERATOR = "operator"
    """The sides run other operators."""
    DTYPE = "dtype"
    """They compute in other dtypes."""
    ARGUMENTS = "arguments"
    """The same operator, called with other numbers: another epsilon, another scale."""
    KERNEL = "kernel"
    """The same operator, run by another kernel."""
    SHAPE = "shape"
    """The same operator and kernel, over another number of rows."""
    BESIDE = "beside"
    """As shape, and further apart than another order of sums explains: what it works on beside these rows differs."""
    COMPUTATION = "computation"
    """The same operator, kernel (as far as it is known) and shape, and other bits."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ParitySide:
    """One of the two call ranges."""

    path: str
    """Of the trace, as it was given."""
    stream: str
    what: str
    """Which calls of the stream: ``calls without gradient``, or the selector."""
    calls: int
    modules: int
    passes: int
    """Forward passes: calls that rows are known from."""
    rows: int
    """Rows of its forward passes that are known: tokens, observations."""
    unknown: int
    """Rows of which it is not known which they are: sequences whose beginning was not recorded. Padding aside."""
    missing: int
    """Known rows that the other side never computed."""
    excused: int
    """Of those, how many need no partner: a last token that was never fed back, padding."""


@dataclass(frozen=True)
class Distance:
    """How far rows lie apart, where their values were kept; each the largest, None where nothing differs measurably."""

    absolute: float | None
    """The largest difference."""
    relative: float | None
    """The largest of |a - b| / max(|a|, |b|)."""
    ulp: int | None
    """Representable numbers from one to the other, in the wider of the two dtypes."""
    measured: int
    """Rows that differ and whose values were kept on both sides."""
    share: float | None = None
    """The absolute one, by the largest number of the rows among which it was measured."""
    worst: str = ""
    """The row that lies furthest apart, in words: ``token 12 of sequence 3``."""


@dataclass(frozen=True)
class TensorResult:
    """One tensor of a module's calls, its rows compared."""

    part: str
    """``input`` or ``output``."""
    name: Pair[str]
    dtype: Pair[str]
    rows: int
    equal: int
    differing: int
    distance: Distance | None
    """None: no row differs, or no values were kept."""


@dataclass(frozen=True)
class UncomparedTensor:
    """A tensor whose rows are not compared."""

    part: str
    """``input`` or ``output``."""
    name: str
    side: str
    """"a", "b" or "both"."""
    calls: int
    why: str


@dataclass(frozen=True)
class Disagreement:
    """The same row, computed several times by one side, came out in several ways."""

    side: str
    module: str
    rows: int
    """Of how many rows that is so."""
    what: str
    """Where they stand, in words: ``call 3 (80 rows) against call 41 (1 row)``."""


@dataclass(frozen=True)
class ModuleResult:
    """A module of A and the one of B that it was matched with."""

    path: Pair[str]
    kind: Pair[str]
    """Class."""
    calls: Pair[int]
    rows: int
    """Rows of its outputs that both sides computed."""
    equal: int
    differing: int
    """Rows that differ."""
    inputs_differing: int
    """Of those, rows of which an input differs, or one of a row before it in its sequence."""
    missing_a: int
    """Rows that B alone has, those that need no partner aside."""
    missing_b: int
    tensors: tuple[TensorResult, ...]
    uncompared: tuple[UncomparedTensor, ...]
    distance: Distance | None
    """Of its outputs."""
    dtype: Pair[str] | None
    """Of its outputs, where it differs; None: the same."""

    @property
    def outputs(self) -> tuple[TensorResult, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.part == "output")


@dataclass(frozen=True)
class ParityOp:
    """One op of a module's call on one side."""

    row: int
    """Of the stream."""
    op: str
    layouts: tuple[str, ...]
    """``float32[80,64]`` of each tensor input."""
    kernel: str
    site: Site | None


@dataclass(frozen=True)
class ModuleOrigin:
    """A module whose inputs agree and whose outputs do not."""

    path: Pair[str]
    rows: int
    """Rows whose inputs agree and whose outputs do not."""
    of: int
    """Rows whose inputs agree."""
    call: Pair[int]
    """Number of the call on each side that computed the first of them."""
    row: str
    """That row, in words."""
    own: bool
    """The module's own work, what it calls aside: none of its children explains it."""
    op: Pair[ParityOp]
    """The first op that parts; None where no op is known to."""
    several: tuple[Pair[ParityOp], ...]
    """Where it is not known which of them it is: the module's ops, in order."""
    reason: Reason
    explanation: str
    """One sentence: "addmm over 4 rows against 80 rows"."""


@dataclass(frozen=True)
class Required:
    """What was asked for with ``--require``, and whether it holds."""

    text: str
    holds: bool | None
    """None: it cannot be said."""
    why: str


@dataclass(frozen=True)
class Parity:
    """Everything that comparing two call ranges by row found."""

    COMPUTED: ClassVar = ("first",)

    verdict: ParityVerdict
    why: str
    """One sentence."""
    a: ParitySide
    b: ParitySide
    rows_by: RowsBy
    how: str
    """How rows and padding were identified, in words."""
    modules: tuple[ModuleResult, ...]
    """In execution order: a module after all that it calls."""
    origins: tuple[ModuleOrigin, ...]
    """The first one first."""
    only_a: tuple[str, ...]
    """Modules that only one side called, or that have no partner."""
    only_b: tuple[str, ...]
    renamed: tuple[Pair[str], ...]
    """What B's path begins with where A's begins otherwise."""
    disagreements: tuple[Disagreement, ...]
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    """Commands to run next."""

    @property
    def first(self) -> ModuleOrigin | None:
        return self.origins[0] if self.origins else None

    @property
    def compared(self) -> tuple[ModuleResult, ...]:
        """Modules of which a row was compared."""
        return tuple(module for module in self.modules if module.rows)
