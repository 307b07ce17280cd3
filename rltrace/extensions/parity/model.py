"""The result of comparing two programs by row: frozen objects for all reports.

Owns the words, and the JSON ``rltrace.compare/1``: its keys are these fields. A is the reference, usually the
generator; B is the trainer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from rltrace.diff.base.model import Pair
from rltrace.trace.read.names import Site


class ParityVerdict(StrEnum):
    BITWISE = "bitwise"
    """All compared rows are equal, and no row that needs a partner is missing."""
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    """No compared row differs, but too few were compared."""


class RowsBy(StrEnum):
    """The identity of rows by which those of A and B are matched."""

    TOKENS = "tokens"
    """The tokens of its sequence up to it."""
    INPUTS = "inputs"
    """The program's input for it: an observation."""
    ORDER = "order"
    """Its number, counted from the call range's beginning."""


class Reason(StrEnum):
    """Why a module's rows diverge though its inputs agree."""

    WEIGHTS = "weights"
    """The module has different weights."""
    INPUTS = "inputs"
    """The programs' inputs differ: positions, a mask."""
    RNG = "rng"
    """An op draws random numbers, such as dropout in training mode."""
    OPERATOR = "operator"
    """Different operators."""
    DTYPE = "dtype"
    """Different dtypes."""
    ARGUMENTS = "arguments"
    """The same operator with different numbers: an epsilon, a scale."""
    KERNEL = "kernel"
    """The same operator, run by different kernels."""
    SHAPE = "shape"
    """The same operator and kernel, over different numbers of rows."""
    BESIDE = "beside"
    """As shape, with a larger distance than another order of sums explains: other inputs of the op differ."""
    COMPUTATION = "computation"
    """The same operator, kernel (as far as known) and shape, but different bits."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ParitySide:
    """One of the two call ranges."""

    path: str
    """Of the trace, as on the command line."""
    stream: str
    what: str
    """Which calls of the stream: ``calls without gradient``, or the selector."""
    calls: int
    modules: int
    passes: int
    """Forward passes."""
    rows: int
    """Identified rows of its forward passes: tokens, observations."""
    unknown: int
    """Rows that are not identified, without padding: sequences whose beginning was not recorded."""
    missing: int
    """Identified rows that the other side never computed."""
    excused: int
    """Missing rows that need no partner: a last token that was never an input, padding."""


@dataclass(frozen=True)
class Distance:
    """The largest distances between rows whose values were recorded; None where there is no finite one."""

    absolute: float | None
    """The largest difference."""
    relative: float | None
    """The largest of |a - b| / max(|a|, |b|)."""
    ulp: int | None
    """Representable numbers from one to the other, in the wider of the two dtypes."""
    measured: int
    """Rows that differ and whose values were recorded on both sides."""
    share: float | None = None
    """The absolute one, divided by the largest number of these rows."""
    worst: str = ""
    """The row with the largest distance, in words: ``token 12 of sequence 3``."""


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
    """None: no row differs, or no values were recorded."""


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
class Repeated:
    """Tokens, or observations, that one side computed several times, in two ways."""

    side: str
    how: str
    """``decoded against prefilled``; ``again``: in the same way."""
    of: int
    """Number of them."""
    rows: int
    """Those whose rows differ in the first module where any do; 0: all are equal."""
    module: str
    """That module; empty: there is none."""
    what: str
    """Where, in words: ``call 3 against call 41``."""


@dataclass(frozen=True)
class ModuleResult:
    """A module of A and its partner in B."""

    path: Pair[str]
    kind: Pair[str]
    """Class."""
    calls: Pair[int]
    rows: int
    """Rows of its outputs that both sides computed."""
    equal: int
    differing: int
    """Rows that differ."""
    tensors: tuple[TensorResult, ...]
    uncompared: tuple[UncomparedTensor, ...]
    distance: Distance | None
    """Of its outputs."""
    dtype: Pair[str] | None
    """Of its outputs; None: the same on both sides."""

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
    """Whether the module has submodules, none of which is an origin."""
    op: Pair[ParityOp]
    """The first op that diverges; None where none is known to."""
    several: tuple[Pair[ParityOp], ...]
    """The candidates in order, where the first op is not known."""
    reason: Reason
    explanation: str
    """One sentence: "addmm over 4 rows against 80 rows"."""


@dataclass(frozen=True)
class Required:
    """A requirement of ``--require``, and whether it holds."""

    text: str
    holds: bool | None
    """None: undecided."""
    why: str


@dataclass(frozen=True)
class Parity:
    """The result of comparing two call ranges by row."""

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
    repeated: tuple[Repeated, ...]
    """What a side computed in two ways, and what differs."""
    holes: tuple[str, ...]
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    """Commands to run next."""

    @property
    def first(self) -> ModuleOrigin | None:
        return self.origins[0] if self.origins else None

    @property
    def compared(self) -> tuple[ModuleResult, ...]:
        """Modules with a compared row."""
        return tuple(module for module in self.modules if module.rows)
