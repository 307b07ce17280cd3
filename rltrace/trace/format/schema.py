"""The trace format: every array, column, table, flag and journal record, by name. Version log at the end.

Owns the names and numbers that the writer, the reader and ``docs/reference/trace-format.md`` share; holds no logic
beyond packing and unpacking one link. Knows nothing of torch.

    TRACE.zarr/
      zarr.json                     a zarr v3 group; attributes {"rltrace": {"format": [major, minor]}}
      journal/log                   framed, checksummed records of the launch (see LAUNCH_RECORD_TYPES)
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
      processes/N/values/index/     uint64 [chunks * INDEX_CHUNK, len(ValueIndex)]   what stands where in them
      processes/N/activations/      a group, where tensors' rows were asked for
      processes/N/activations/calls/    uint64 [chunks * CALL_CHUNK, len(ModuleCallColumn)]  one per call of a module
      processes/N/activations/tensors/  uint64 [chunks * KEPT_CHUNK, len(ActivationColumn)]  one per tensor
      processes/N/activations/digests/  uint64 [chunks * DIGEST_CHUNK]                 digests of activation rows

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
    OP = 1  # an op
    WINDOW = 2  # recording of ops begins here: digests of parameters, buffers, optimizer state and RNG states
    ENVIRONMENT_RESET = 3  # an environment, or a vector of them, was reset
    ENVIRONMENT_STEP = 4  # one step of it
    ATTEMPT = 5  # reserved
    CHECKPOINT = 6  # something was read from a file
    ENVIRONMENT_MADE = 7  # an environment, or a vector of them, was constructed
    SEED = 8  # a space was seeded
    VALUE = 9  # reserved


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
    STRUCTURE = 2  # id in table "structures": layouts of the tensor inputs
    SITE = 3  # id in table "sites": the call stack
    MODULE = 4  # id in table "modules"
    SCALARS = 5  # id in table "scalars": the skeleton of the arguments; numbers are in the cells
    STEP = 6  # optimizer attempts that the process had finished
    PHASE = 7  # Phase
    KERNEL = 8  # id in table "kernels": what ran the op
    SETTINGS = 9  # id in table "settings": what torch was set to; 0 for an event
    FLAGS = 10  # RowFlag
    LINKS = 11  # number of link cells, one for each tensor input
    INTEGERS = 12  # number of integer cells
    FLOATS = 13  # number of float cells
    DIGESTS = 14  # number of digest cells


class RowFlag(IntFlag):
    """Bits of Column.FLAGS."""

    MARKED = 1  # may hold bytes that no op wrote, or is an event that reports data from outside: a difference in its
    # digests alone (of an event: in its cells) is no verdict
    RNG = 2  # the digest cell after those of the reads is an RNG state before the op
    VIEW = 4  # only makes a view: no digest
    ALLOCATION = 8  # returns uninitialised memory: no digest
    VALUE_BOOL = 16  # the last integer cell is the Python number that the op returned
    VALUE_INTEGER = 32  # the same, an int
    VALUE_FLOAT = 64  # the last float cell is it
    VALUE_COMPLEX = 128  # the last two float cells are it
    UNORDERED_OUTPUT = 256  # reserved
    OVERLAPPING = 512  # writes memory that another of its inputs shares, as t[1:].copy_(t[:-1]) would: the result
    # depends on the order in which the kernel goes through memory


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
    "frames",  # {"file", "path", "line", "function", "source", "internal"}; internal: inside torch, in no key
    "sites",  # [frame id, …], innermost first
    "modules",  # module path, "ActorCriticPolicy.mlp_extractor.policy_net.0"
    "scalars",  # skeleton of the arguments: "T" a tensor, "i" an integer cell, "f" a float cell, all else as JSON; a
    # process group is {"group": name, "rank": own, "ranks": [members]}, a reduction {"reduce": "SUM"}; of an event
    # what it happened to, then ["name=", letter] for each cell
    "kernels",  # {"library", "isa", "threads", …} on a CPU; on a device {"device": "cuda"}, and where a profiler was
    # active "names" (whole names of the launches, in order) and "launches" ([grid, block] of each)
    "settings",  # {"threads", "grad_mode", "inference_mode", "flush_denormal", …} and torch's flags by name
    # ("deterministic_algorithms", "mkldnn.enabled", "cuda.matmul.tf32", …)
    "optimizers",  # {"ordinal", "class"}, which are its key, and "owner": path of the module whose parameters it has
    "series",  # {"kind", "name"}, and "thread" where the thread that took it has no stream
    "names",  # text: an argument's name and the path into it ("input_ids", "past.0.1", "mat1"), or a module's class
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

    STEP = 0  # number of the step that the attempt ends; 0 ends with the first attempt
    STREAM = 1  # K of the stream whose thread made the attempt
    OPTIMIZER = 2  # id in table "optimizers"
    COUNT = 3  # how many attempts this optimizer had made before
    SKIPPED = 4  # 0 no, 1 yes (by a GradScaler), 2 not known
    BACKWARDS = 5  # backward passes within the step
    ENVIRONMENT_STEPS = 6  # environment steps so far
    END_ROW = 7  # rows of that stream up to the end of the step
    STRUCTURE = 8  # digest of the step's rows alone, not chained (0 without RECORDED)
    VALUES = 9  # the same of what they computed
    PREFIX_STRUCTURE = 10  # chained over all rows of the stream so far
    PREFIX_VALUES = 11  # the same of what they computed
    PARAMETERS = 12  # digest over the optimizer's parameters after the attempt (0 without DIGESTED)
    GRADIENTS = 13  # their gradients before the attempt
    TORCH_GENERATOR = 14  # digest of the RNG state after the attempt of torch on the CPU; 1: as recording found it
    DEVICE_GENERATORS = 15  # of torch on all devices together; 0 where none is in use, 1 where no draw followed a seed
    PYTHON_GENERATOR = 16  # of module random; 1 as in column 14
    NUMPY_GENERATOR = 17  # of numpy.random; 0 where it is not imported, 1 as in column 14
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
    STREAM = 1  # K of the stream whose thread took it; 0 where that thread has none
    STEP = 2  # of learning rates and scalers the step that the attempt ended; else the step at that time
    ROW = 3  # rows that the stream had then
    VALUE = 4  # float64, as bits


SERIES_KINDS: Final = (
    "watch",  # rltrace.watch(name, value)
    "learning-rate",  # "optimizer:0/group:0/lr", at the first attempt and whenever it has changed
    "scaler",  # "scaler:0/scale", "/growth", "/found_inf" at each update, "/skipped:0" at each attempt of optimizer 0
)

# --- values ---------------------------------------------------------------------------------------------------------


class ValueIndex(IntEnum):
    """Columns of ``values/index`` (uint64): a row for each value, and one for each input that was asked for."""

    KIND = 0  # ValueKind
    DIGEST = 1  # of the value; of kind 2 of the state's bytes, under seed 0
    STREAM = 2  # K of the stream
    ROW = 3  # where the value occurred first; kind 4: the row that read it; kind 6: rows that the stream had then
    PLACE = 4  # which input or output of that row it was, from 0
    LAYOUT = 5  # id in table "layouts", of which dtype and shape hold; 0 for kinds 2 and 4
    OFFSET = 6  # in ``values/bytes``; 0 for kind 4, and for a value without elements
    LENGTH = 7  # of its logical bytes


class ValueKind(IntEnum):
    """What a row of ``values/index`` tells of. 0 never occurs in a visible row."""

    PADDING = 0
    OUTPUT = 1  # what an op returned or wrote; its bytes are here
    GENERATOR = 2  # an RNG state before an op; its bytes are here
    INPUT = 3  # what an op read; its bytes are here
    SAME_INPUT = 4  # what an op read; another row of this index holds its bytes
    LYING = 5  # memory layout of a tensor of an op, where it is not what an allocator gives; no bytes
    WITH_ROWS = 6  # a tensor whose activation rows were recorded; its bytes are here


LYING_ALIGNMENT: Final = 64
"""What addresses of ``ValueKind.LYING`` are taken modulo: how torch aligns memory of the CPU."""


class PlacementBit(IntFlag):
    """What of a tensor's bytes is not what its storage holds; above them in Held.LAYOUT stands the alignment."""

    CONJUGATED = 1
    NEGATED = 2


LYING_SHIFT: Final = 8


LIMIT: Final = "the limit was reached"
"""Why a value was left out, where it was for that."""

# --- rows of tensors --------------------------------------------------------------------------------------------------


class ModuleCallColumn(IntEnum):
    """Columns of ``activations/calls`` (uint64): one row per call of an ``nn.Module``, in the order of their ending."""

    FLAGS = 0  # CallFlag
    STREAM = 1  # K of the stream whose thread made it
    NUMBER = 2  # of the calls of the stream, in the order in which they began; calls that were not recorded count
    PARENT = 3  # 1 plus the number of the call it was made in; 0: in none
    MODULE = 4  # id in table "modules"
    CLASS = 5  # id in table "names": the module's class
    STEP = 6  # optimizer attempts finished when it began
    PHASE = 7  # Phase
    FIRST_ROW = 8  # rows that the stream had when it began
    END_ROW = 9  # rows that it had when it ended
    TENSORS = 10  # how many rows of ``activations/tensors`` are its own


class CallFlag(IntFlag):
    CALL = 1  # always; a row of padding has 0
    GRAD = 2  # gradients were recorded
    RAISED = 4  # it ended with an exception: there are no outputs


class ActivationColumn(IntEnum):
    """Columns of ``activations/tensors`` (uint64): one row per tensor; those of one call, or op, follow each other."""

    OWNER = 0  # Owner
    STREAM = 1  # K of the stream
    NUMBER = 2  # number of the call, or row of the op
    TENSORS = 3  # how many tensors that call or op has here
    PART = 4  # 0 an input, 1 an output
    NAME = 5  # id in table "names": an argument's name and the path into it; of a result the path alone
    LAYOUT = 6  # id in table "layouts", for dtype and shape
    AXES = 7  # along which activation rows are counted, a bit each
    WHOLE = 8  # digest of the whole tensor, by which its value is found where that was recorded
    OFFSET = 9  # of its rows' digests in ``activations/digests``; tensors with equal WHOLE and AXES may share them
    COUNT = 10  # number of its rows, in row-major order along those axes


class TensorOwner(IntEnum):
    """Whose tensor a row of ``activations/tensors`` tells of. 0 never occurs in a visible row."""

    PADDING = 0
    CALL = 1
    OP = 2


# --- journal records ------------------------------------------------------------------------------------------------
#
# Frame: b"RLJ1" | uint32 length | payload (JSON, UTF-8) | uint64 XXH3 over the previous frame's digest and the payload.
# Every payload has "type". Of a process "birth" always comes first, of a launch "launch".

LAUNCH_RECORD_TYPES: Final = {
    "launch": "format, created, and what the launcher knows: command, cwd, host, options, …",
    "slice": "first_step, end_step: this trace carries full rows of these steps only",
    "journals": "before exit; heads: [[process, size, digest], …], where the last frame of each process's journal ends"
    " and its digest (0 where there is none yet)",
    "exit": "time, and how the command ended",
    "library_reports": "after exit, any number of times: what libraries reported for process number process."
    " libraries: {name: what it says of itself}; said: [[names, lines], …]; calls: [[key of a call, id in table kernels"
    " that its rows were written with, stream, first row, rows, entry of said], …]; unknown: [[why,"
    " kinds of call], …]. Of two records the"
    " later counts for a call that both name",
}
"""The launch's journal: type to fields."""

RECORD_TYPES: Final = {
    "birth": "name, wanted, token, launch (digest of the first frame of the launch's journal), pid, parent, host, boot,"
    " started, time, argv, …",
    "facts": "level, engine, facts: {name: value} of the machine and the process; of several with one name the later"
    " counts",
    "stream": "stream, name",
    "window": "stream, first_step, end_step (null: to the end), row at which recording of ops began",
    "tables": "chunk: number of the first, entries: {table: entries so far}, files",
    "commit": "stream, segment (number of the chunk), first, rows, sections: cells of each kind, marks: [[row,"
    " structure, values, marked], …], end: [structure, values, marked], files: those of rows and cells; in a slice []"
    " where the rows were left out",
    "steps": "first, steps (number of them), and either chunk and files, or rows: base64 of a chunk of just these",
    "series": "first, samples (number of them), and either chunk and files, or rows, as of steps",
    "value_request": "before the first of values: selectors, inputs (whether inputs were asked for), limit in bytes",
    "values": "before the commit of its rows: count rows of values/index, from chunk chunk on, in files; chunks of"
    " values/bytes from bytes_chunk on in bytes_files, in a slice null for each that was left out; left_out: [{why,"
    " stream, first, last, values, bytes}, …]",
    "activation_request": "before the first of activations: selectors, axes (null: all but the last), limit in bytes",
    "activations": "before the commit of its rows: calls, tensors, digests: of each of the three arrays count rows,"
    " from chunk chunk on, in files, in a slice null for each file of digests that was left out;"
    " left_out: as of values",
    "launches": "after the commit of its rows: stream, first, rows, ids: base64 of a chunk of uint32, for each row the"
    " id in table kernels of what it launched (0: no more is known than its row says); unknown: [[why, stream, first,"
    " rows], …]; strays: [[name, what launched it, times], …] of what was launched for no row",
    "replay": "in a process of a replay: selected, injected, propagated, missed, other: its injections",
    "patching": "in a process of a replay of activation rows: modules, the counts for each module and op",
    "against": "in a live comparison: counts (ops matched, on one side only, marked, not compared), first: the first op"
    " that differed, or null",
    "state": "tensors: number of them, digest: over parameters, buffers and optimizer state as the process ends",
    "provisional_end": "state and exit as of end: how the process ends unless commit or steps follow; written before an"
    " exec and before its parent terminates it. state null takes the one before back",
    "end": "state: complete, stopped or damaged (the recorder failed), exit: what is known of the process's ending,"
    " generators: RNG digests as in columns 14 to 17 of steps, parameters: [[ordinal of an optimizer, digest], …]",
}
"""A process's journal: type to fields."""

# --- version log ----------------------------------------------------------------------------------------------------
#
# 1.0  before the first release
# 2.0  column SETTINGS and table "settings": what torch was set to when an op ran
