"""The trace format: every array, column, table, flag and journal record, by name. Version log at the end.

Owns the names and numbers that the writer, the reader and ``docs/reference/trace-format.md`` share; holds no logic
beyond packing and unpacking one link. Knows nothing of torch.

    TRACE.zarr/
      zarr.json                     a zarr v3 group; attributes {"rltrace": {"format": [major, minor]}}
      journal/log                   framed, checksummed records of the launch: "launch" first, then "exit", "ran"
      births/TOKEN.json             one for every process that started; births/KEY.name: one for every name taken
      processes/zarr.json
      processes/N/zarr.json         one group per process, N claimed by exclusive mkdir
      processes/N/journal/log       framed records of this process (see RECORD_TYPES)
      processes/N/tables/           uint8  [chunks * TABLE_CHUNK]              JSON lines of interned entries
      processes/N/steps/            uint64 [chunks * STEP_CHUNK, len(Step)]    one row per optimizer attempt
      processes/N/series/           uint64 [chunks * SAMPLE_CHUNK, len(Sample)] one row per sample; where there is one
      processes/N/streams/K/rows/   uint32 [segments * SEGMENT_ROWS, len(Column)]
      processes/N/streams/K/cells/  uint64 [segments * SEGMENT_CELLS]
      processes/N/values/           a group, where tensor values were asked for
      processes/N/values/bytes/     uint8  [chunks * VALUE_CHUNK]              the values, one after the other
      processes/N/values/index/     uint64 [chunks * INDEX_CHUNK, len(Held)]   what stands where in them
      processes/N/kept/             a group, where tensors' rows were asked for
      processes/N/kept/calls/       uint64 [chunks * CALL_CHUNK, len(Called)]  one row per call of a module
      processes/N/kept/tensors/     uint64 [chunks * KEPT_CHUNK, len(Kept)]    one row per tensor of a call or an op
      processes/N/kept/digests/     uint64 [chunks * DIGEST_CHUNK]             digests of tensors' rows

A *segment* is what one commit writes of one stream: at most SEGMENT_ROWS rows, one chunk of ``rows`` and one of
``cells``. A commit that comes early (by time, at the end) leaves the rest of its chunk as padding: KIND is 0 there, and
the journal, never ``array.shape``, says how many rows count.

The cells of a segment are four sections, one after the other, each in row order: links, integers, floats, digests. The
journal's commit record gives the length of each section; the four count columns of a row say how many cells of each are
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final

FORMAT: Final = (2, 0)
"""(major, minor). Readers refuse another major version by name and ignore fields they don't know."""

SEGMENT_ROWS: Final = 65_536
SEGMENT_CELLS: Final = 1 << 19
TABLE_CHUNK: Final = 1 << 18
STEP_CHUNK: Final = 1_024
VALUE_CHUNK: Final = 1 << 22
INDEX_CHUNK: Final = 1_024
SAMPLE_CHUNK: Final = 16_384
CALL_CHUNK: Final = 1_024
KEPT_CHUNK: Final = 4_096
DIGEST_CHUNK: Final = 65_536
MARK_ROWS: Final = 4_096
"""A prefix digest is kept at every multiple of this many rows of a stream, wherever segments end."""


class Kind(IntEnum):
    """What a row is. 0 never occurs in a visible row."""

    PADDING = 0
    OP = 1
    WINDOW = 2  # recording of ops began here; digests of parameters, buffers, optimizer state, generators follow
    ENVIRONMENT_RESET = 3
    ENVIRONMENT_STEP = 4
    ATTEMPT = 5
    CHECKPOINT = 6  # something was read from a file
    ENVIRONMENT_MADE = 7
    SEED = 8  # a generator was seeded
    VALUE = 9  # a number that the program, or a library, was seen to have


def event_name(kind: int) -> str:
    """``environment-step``; ``kind 99`` for one that a newer version of the format may have added."""
    try:
        return Kind(kind).name.lower().replace("_", "-")
    except ValueError:
        return f"kind {kind}"


class Phase(IntEnum):
    """What the program was doing. Shown and filtered on, never part of identity."""

    OTHER = 0
    INIT = 1
    ROLLOUT = 2
    EVALUATION = 3
    FORWARD = 4
    BACKWARD = 5
    OPTIMIZER = 6


class Column(IntEnum):
    """Columns of ``rows`` (uint32)."""

    KIND = 0  # Kind
    OP = 1  # id in table "ops"
    STRUCTURE = 2  # id in table "structures"
    SITE = 3  # id in table "sites"
    MODULE = 4  # id in table "modules"
    SCALARS = 5  # id in table "scalars": the skeleton of the arguments; numbers stand in the cells
    STEP = 6  # optimizer attempts this process had finished, see Step
    PHASE = 7  # Phase
    KERNEL = 8  # id in table "kernels"
    SETTINGS = 9  # id in table "settings"; like KERNEL, evidence that is in no hash
    FLAGS = 10  # RowFlag
    LINKS = 11  # how many tensor inputs
    INTEGERS = 12  # how many integer cells
    FLOATS = 13  # how many float cells
    DIGESTS = 14  # how many digest cells


class RowFlag(IntFlag):
    """Bits of Column.FLAGS."""

    MARKED = 1  # may hold bytes that no op wrote: a difference in its digests alone is no verdict
    RNG = 2  # the digest cell after the input reads is a generator's state before the op
    VIEW = 4  # only makes a view: no digest of its own
    ALLOCATION = 8  # returns uninitialised memory: no digest
    VALUE_BOOL = 16  # the last integer cell is the Python number the op returned (_local_scalar_dense)
    VALUE_INTEGER = 32  # the same, an int
    VALUE_FLOAT = 64  # the last float cell is the Python number the op returned
    VALUE_COMPLEX = 128  # the last two float cells are it
    UNORDERED_OUTPUT = 256  # reserved: output digests taken when a collective completed
    OVERLAPPING = 512  # writes memory that another of its inputs looks at: what comes out depends on its inner order


class Generator(IntEnum):
    """From which generator a row with ``RNG`` drew: a number in bits 10 to 15 of its flags, one for each of a process.

    Evidence like the kernel, in no hash: what numbers a program's own generators get depends on which draws first.
    """

    NOT_SAID = 0
    TORCH = 1  # torch's own, on the CPU
    DEVICE = 2  # the one of a device by itself: 2 plus the device's index
    OWN = 16  # from here on, the program's own; one that is gone may leave its number to another


# Of a row that is no op, the same bits say how many of its first digest cells are evidence: in no hash either.


GENERATOR_SHIFT: Final = 10
GENERATOR_NUMBERS: Final = 64

VALUE_FLAGS: Final = RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER | RowFlag.VALUE_FLOAT | RowFlag.VALUE_COMPLEX

# --- links: one int64 cell per tensor argument, in the order of the row's structure ---------------------------------
#
#   bit 0        READ: this row digested the input; the digest stands in the digest cells, reads first, in input order
#   bit 1        KNOWN: the target row did not write the bytes, it read the very same view and nothing wrote since
#   bits 2..11   which output (READ off: of the target row; for KNOWN: which input) carries the bytes; 1023 = not said
#   bits 12..    signed: distance in rows back to the target row (> 0), or one of the Origin values below

SLOT_UNKNOWN: Final = 1023


class Origin(IntEnum):
    """Values of a link's distance that are no distance."""

    OUTSIDE = 0  # no recorded op produced it
    MIXED = -1  # several ops wrote the bytes
    UNKNOWN = -2  # not tracked (no storage, or written by another stream)
    OVERWRITTEN = -3  # the op only writes it: not an input at all, its old bytes don't matter


def pack_link(distance: int, slot: int = SLOT_UNKNOWN, *, known: bool = False, read: bool = False) -> int:
    """One link cell. ``distance`` is rows back to the target, or an Origin."""
    return (distance << 12) | (min(slot, SLOT_UNKNOWN) << 2) | (known << 1) | int(read)


# --- tables ---------------------------------------------------------------------------------------------------------
#
# One JSON line per entry: [table, id, "16 hex digits of the portable key", payload]. Ids count from 0 per table; id 0
# of "modules" is "", of "kernels" and "settings" {}, of "scalars" [], of "structures" [], of "sites" [].

TABLES: Final = (
    "ops",  # "aten.addmm.default"
    "layouts",  # [dtype, shape, strides, device], e.g. ["float32", [64, 4], [4, 1], "cpu"]
    "structures",  # [layout id, …] of the tensor inputs, in argument order
    "frames",  # {"file", "path", "line", "function", "source", "internal"}; internal: inside torch, not in identity
    "sites",  # [frame id, …], innermost first
    "modules",  # "ActorCriticPolicy.mlp_extractor.policy_net.0"
    "scalars",  # skeleton of the arguments: "T" tensor, "i" integer cell, "f" float cell, others as JSON; of an event
    # what it happened to, then ["name=", letter] for each cell: "e" evidence, "d" digest, "i", "f"
    "kernels",  # {"library", "isa", "threads", …} on CPU; {"names": […]} on CUDA
    "settings",  # {"threads", "grad_mode", "inference_mode", "flush_denormal", "cudnn.benchmark", …}: the op ran under
    "optimizers",  # {"ordinal", "class"} by which it is known, and "owner": the module whose parameters it has
    "series",  # {"kind", "name"}, kind one of SERIES_KINDS; "thread" where the thread that took it has no stream
    "names",  # text: where a tensor of a module's call stood in it ("input_ids", "past.0.1"), the module's class
)

FIRST_ENTRIES: Final[Mapping[str, object]] = {
    "modules": "",
    "kernels": {},
    "settings": {},
    "scalars": [],
    "structures": [],
    "sites": [],
}
"""Payload of the entry with id 0, of the tables that have one from the start."""


class Step(IntEnum):
    """Columns of ``steps`` (uint64): one row per finished optimizer attempt, in the order of their ending."""

    STEP = 0  # number of the step that this attempt ends (0 ends with the first attempt)
    STREAM = 1  # stream whose thread made the attempt
    OPTIMIZER = 2  # id in table "optimizers"
    COUNT = 3  # how many attempts this optimizer had made before
    SKIPPED = 4  # 0 no, 1 yes (by a GradScaler), 2 not known
    BACKWARDS = 5  # backward passes within the step
    ENVIRONMENT_STEPS = 6  # so far
    END_ROW = 7  # rows of that stream up to the end of the step
    STRUCTURE = 8  # digest of the step's rows alone, not chained (0 without RECORDED)
    VALUES = 9
    PREFIX_STRUCTURE = 10  # chained over all rows of the stream so far
    PREFIX_VALUES = 11
    PARAMETERS = 12  # digest over the optimizer's parameters after the attempt (0 without DIGESTED)
    GRADIENTS = 13  # their gradients before the attempt
    TORCH_GENERATOR = 14  # digests of generators' states after the attempt: torch's on the CPU,
    DEVICE_GENERATORS = 15  # torch's on all devices together,
    PYTHON_GENERATOR = 16  # module random's,
    NUMPY_GENERATOR = 17  # numpy.random's own; each 0 where the process has none yet
    FLAGS = 18  # StepFlag
    ANY_ORDER = 19  # digest of the step's rows in any order that computes the same; 0: none was taken


GENERATORS: Final = (Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS, Step.PYTHON_GENERATOR, Step.NUMPY_GENERATOR)


class StepFlag(IntFlag):
    RECORDED = 1  # every op of the step is a row
    DIGESTED = 2  # PARAMETERS to NUMPY_GENERATOR are there


# --- series ---------------------------------------------------------------------------------------------------------


class Sample(IntEnum):
    """Columns of ``series`` (uint64): one row for each number of a series, in the order in which they were taken.

    Beside the ops, in no digest of them: what a program logs must not decide whether two runs computed the same.
    """

    SERIES = 0  # id in table "series"
    STREAM = 1  # stream whose thread took it
    STEP = 2  # of an optimizer's or a scaler's: the step that the attempt ended; else the step at that time
    ROW = 3  # rows that the stream had then
    VALUE = 4  # float64, as bits


SERIES_KINDS: Final = (
    "watch",  # rltrace.watch(name, value)
    "learning-rate",  # "optimizer:0/group:0/lr", at the first attempt and whenever it has changed
    "scaler",  # "scaler:0/scale", "/growth", "/found_inf" at each update, "/skipped:0" at each attempt of optimizer 0
)

# --- values ---------------------------------------------------------------------------------------------------------


class Held(IntEnum):
    """Columns of ``values/index`` (uint64): a row for each value, and one for each input that was asked for."""

    KIND = 0  # ValueKind
    DIGEST = 1  # its address: the digest of dtype, shape and bytes
    STREAM = 2  # K of the stream, and
    ROW = 3  # number of the row where it was met first
    PLACE = 4  # which input, or which output, it was of that row
    LAYOUT = 5  # id in table "layouts", for dtype and shape; its strides and device are those it was met with
    OFFSET = 6  # of the value in ``values/bytes``
    LENGTH = 7  # of its logical bytes


class ValueKind(IntEnum):
    """What a row of ``values/index`` tells of. 0 never occurs in a visible row."""

    PADDING = 0
    OUTPUT = 1  # what an op returned or wrote; its bytes are here
    GENERATOR = 2  # the state of a generator before an op, digested under seed 0; its bytes are here; no layout
    INPUT = 3  # what an op read; its bytes are here
    SAME_INPUT = 4  # input PLACE of ROW is the value of this digest, whose bytes stand in another row; no layout
    LYING = 5  # how tensor PLACE of ROW lies in memory, where that is not as an allocator would have it; no bytes
    WITH_ROWS = 6  # a tensor whose rows were kept; ROW: rows that the stream had then; its bytes are here


LYING_ALIGNMENT: Final = 64
"""What addresses of ``ValueKind.LYING`` are taken modulo: how torch aligns memory of the CPU."""


class LyingBit(IntFlag):
    """What of a tensor's bytes is not what its storage holds; above them in Held.LAYOUT stands the alignment."""

    CONJUGATED = 1
    NEGATED = 2


LYING_SHIFT: Final = 8


LIMIT: Final = "the limit was reached"
"""Why a value was left out, where it was for that."""

# --- rows of tensors --------------------------------------------------------------------------------------------------


class Called(IntEnum):
    """Columns of ``kept/calls`` (uint64): one row per call of an ``nn.Module``, in the order of their ending."""

    FLAGS = 0  # CallFlag
    STREAM = 1  # K of the stream whose thread made it
    NUMBER = 2  # of the calls of the stream, in the order of their beginning
    PARENT = 3  # 1 plus the number of the call it was made in; 0: in none
    MODULE = 4  # id in table "modules"
    CLASS = 5  # id in table "names"
    STEP = 6  # optimizer attempts finished when it began
    PHASE = 7  # Phase
    FIRST_ROW = 8  # rows that the stream had when it began,
    END_ROW = 9  # and when it ended
    TENSORS = 10  # how many rows of ``kept/tensors`` are its own


class CallFlag(IntFlag):
    CALL = 1  # always; a row of padding has 0
    GRAD = 2  # gradients were recorded
    RAISED = 4  # it ended with an exception: there are no outputs


class Kept(IntEnum):
    """Columns of ``kept/tensors`` (uint64): one row per tensor; those of one call, or op, follow each other."""

    OWNER = 0  # Owner
    STREAM = 1  # K of the stream
    NUMBER = 2  # of the call, or the op's row
    TENSORS = 3  # how many tensors that call or op has here
    PART = 4  # 0 an input, 1 an output
    NAME = 5  # id in table "names"
    LAYOUT = 6  # id in table "layouts", for dtype and shape
    AXES = 7  # along which rows are counted, a bit each
    WHOLE = 8  # digest of the tensor
    OFFSET = 9  # of its rows' digests in ``kept/digests``; tensors with equal WHOLE and AXES may share them
    COUNT = 10  # of its rows


class Owner(IntEnum):
    """Whose tensor a row of ``kept/tensors`` tells of. 0 never occurs in a visible row."""

    PADDING = 0
    CALL = 1
    OP = 2


# --- journal records ------------------------------------------------------------------------------------------------
#
# Frame: b"RLJ1" | uint32 length | payload (JSON, UTF-8) | uint64 XXH3 over the previous frame's digest and the payload.
# Every payload has "type". Of a process, in this order, "birth" always first:

RECORD_TYPES: Final = {
    "birth": "name, argv, executable, pid, parent, time",
    "facts": "level, engine, facts: {name: value} of the machine and the process (see rltrace.fingerprint)",
    "stream": "stream, name",
    "tables": "chunk: number of the first, entries: {table: entries so far}, files: [[key, length, digest], …]",
    "commit": "stream, segment, first, rows, sections: [links, integers, floats, digests],"
    " marks: [[row, structure, values, marked], …], end: [structure, values, marked], files: those of rows and cells;"
    " in a slice [] where the rows were left out",
    "steps": "first, steps, and either chunk and files, or rows: base64 of a chunk of just these, until one is full",
    "series": "first, samples, and either chunk and files, or rows: as of steps",
    "keeps": "selectors, inputs, limit in bytes: which values were asked for",
    "values": "first, count, chunk, files: rows of values/index; bytes_chunk, bytes_files: chunks of values/bytes;"
    " left_out: [{why, stream, first, last, values, bytes}, …]; in a slice null for each file left out of bytes_files",
    "keeps_rows": "selectors, axes: [axis, …] or null for all but the last, limit in bytes: which tensors' rows were"
    " asked for",
    "kept": "calls, tensors, digests: of each array count, chunk, files, in a slice null for each file of digests that"
    " was left out; left_out: as of values",
    "launched": "stream, first, rows, ids: base64 of what was launched for these rows, as ids in table kernels (0: no"
    " more than is known already); unknown: [[why, stream, first, rows], …]; strays: [[name, by what, times], …] of"
    " what was launched for no row",
    "replay": "asked, done, missed, other: what became of the injections of this process, where the run is a replay",
    "replay_rows": "modules: what became of the rows that were meant for this process, in a replay by rows",
    "against": "tally, first: how this process compared with another trace, where it was held against one",
    "window": "stream, first_step, end_step or null, row",
    "state": "tensors: how many, digest: over those of parameters, buffers and optimizer state as the process ends",
    "end": "state: complete | stopped | damaged (the recorder failed), exit: what is known of the process's ending,"
    " generators: digests of their states then, as in Step, parameters: [[ordinal of an optimizer, digest], …] then",
}

# --- version log ----------------------------------------------------------------------------------------------------
#
# 1.0  before the first release
# 2.0  column SETTINGS and table "settings": what torch was set to when an op ran
