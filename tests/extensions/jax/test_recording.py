"""JAX programs under ``rltrace record``: their bits, what is recorded, and what a comparison makes of it."""

import json
import sys

import numpy as np
import pytest
from jax_programs import OTHER_ISA, JaxPrograms

from rltrace.commands.main import main
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.diff.compare import compare
from rltrace.diff.metrics.series import all_series
from rltrace.diff.system_facts import selects_kernels
from rltrace.digest import digest_buffer, seed_of
from rltrace.extensions.archive.verify import verify
from rltrace.extensions.regression.lock import lock_of
from rltrace.report.info import describe, info_document
from rltrace.report.text import document_text
from rltrace.trace.format.row_hashes import row_hashes
from rltrace.trace.read.reader import Trace, open_trace

TRAIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np

nudge = float(os.environ.get("NUDGE", 0))  # of the environment, which a callback is, in one iteration

def observe(batch, at):
    return np.float32(batch + (nudge if at == 3 else 0))

rate, seed = (float(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (0.1, 0)

def train(key):
    weights = jax.random.uniform(key, (8, 8))
    def update(state, at):
        weights, key = state
        key, own = jax.random.split(key)
        batch = jax.random.uniform(own, (16, 8))
        batch = jax.pure_callback(observe, jax.ShapeDtypeStruct((16, 8), np.float32), batch, at)
        loss = lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2)
        return (weights - rate * jax.grad(loss)(weights), key), loss(weights)
    return jax.lax.scan(update, (weights, key), jnp.arange(6))

(weights, _), losses = jax.jit(train)(jax.random.PRNGKey(seed))
print(np.asarray(weights).tobytes().hex(), np.asarray(losses).tobytes().hex(), "torch" in sys.modules)
"""

SHAPES = """
import warnings
import jax, jax.numpy as jnp, numpy as np

x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))

def constants(x):  # a constant of the loop, which XLA folds; a carry that no iteration changes; results that follow
    scale = jnp.full((4,), 3.0)
    (total, fixed), ys = jax.lax.scan(lambda c, row: ((c[0] / c[1] + row / scale, c[1]), c[0].sum()), (x[0], scale), x)
    return jnp.sin(total) + fixed, ys * 2, x

def backwards(x):
    return jax.lax.scan(lambda c, row: (c * 0.5 + row, (c, row.sum() > 0)), jnp.zeros(4), x, reverse=True)

def several(x):  # two loops, of which the larger one is driven, and a stacked output that is weakly typed
    small, _ = jax.lax.scan(lambda c, _: (c + 1.0, None), 0.0, None, 2)
    return jax.lax.scan(lambda c, row: (jnp.tanh(c + row), 1.0), x[1] * small, jnp.concatenate([x, x]))

def weak(x):  # a carry that begins with numbers of Python
    return jax.lax.scan(lambda c, row: ((c[0] * 0.5 + row.sum(), c[1] + 1.0), c[0]), (0.0, 1.0), x)

def keys(key):
    return jax.lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.uniform(k, (2,))), key, None, 3)

def whole(x):
    return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 1.5, c[1] + 1), (x, 0))

def show(name, results):
    for result in jax.tree.leaves(results):
        if jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
            result = jax.random.key_data(result)
        print(name, result.dtype, result.weak_type, np.asarray(result).tobytes().hex())

show("constants", jax.jit(constants)(x))
show("several", jax.jit(several)(x))
def long(x):  # of its iterations every second is seen
    return jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c[0] > 0), x[0], jnp.tile(x, (1001, 1)), reverse=True)

show("long", jax.jit(long)(x))
show("weak", jax.jit(weak)(x))
show("keys", jax.jit(keys)(jax.random.key(3)))
show("unrolled", jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, None), x[0], x, unroll=2))(x))
show("whole", jax.jit(whole)(x))
show("gradient", jax.jit(jax.grad(lambda x: several(x)[0].sum()))(x))
with warnings.catch_warnings(record=True) as warned:  # of an array that is donated in vain
    warnings.simplefilter("always")
    given, in_vain = x + 1, jnp.ones(3)
    show("donated", jax.jit(lambda x, y: (backwards(x), y[:1]), donate_argnums=(0, 1))(given, in_vain))
    print(given.is_deleted(), in_vain.is_deleted(), *map(str, warned))
inner = jax.jit(several)  # a loop that a called function has
show("twice", jax.jit(lambda x: (inner(x), inner(x * 2), x))(x))
noted = []

def note(total):
    noted.append(float(total))

def noting(x):
    def body(c, row):
        jax.debug.callback(note, c.sum())
        return jnp.tanh(c + row), None
    return jax.lax.scan(body, x[0], x)

show("noting", jax.jit(noting)(x))
jax.effects_barrier()
print("noted", *noted)
double = jax.jit(lambda x: x * 2)
show("outside", [double(np.ones(3, np.float32)), double(double(x))])
large = jnp.ones((600, 600))  # of the carry's arrays that are written in place
show("in place", jax.jit(lambda y: jax.lax.scan(lambda c, _: (c * 1.01, c[0, 0]), y, None, 3))(large))
print(large.is_deleted(), float(large.sum()))
"""

SMALL = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def train(state):
    return jax.lax.scan(lambda state, _: (jnp.sin(state * 1.1 + 0.3), None), state, None, 3)[0]

print(train(np.linspace(-1, 1, 64, dtype=np.float32)).tolist())
"""

TUNED = """version: 3
results {
  result {
    run_time {
      nanos: 31744
    }
    triton {
      block_m: 32
    }
  }
}
"""
"""As XLA writes it on a GPU."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JaxPrograms:
    sources = {"train": TRAIN, "shapes": SHAPES, "small": SMALL}
    return JaxPrograms(tmp_path_factory.mktemp("jax"), sources, RLTRACE_LOOPS="*")


def trained(programs: JaxPrograms, name: str = "a", *words: str, **variables: str) -> Trace:
    """The training run, without what is within an iteration: XLA compiles a loop once then, and not some five times."""
    return programs.recorded(name, "train", *words, options=("--level", "step"), **variables)


def compared(programs: JaxPrograms, name: str, *words: str, **variables: str) -> Comparison:
    """The recorded training run against another one."""
    return compare(trained(programs), trained(programs, name, *words, **variables))


def test_computes_the_same_bits_without_torch(programs: JaxPrograms) -> None:
    """A driven loop returns what the program computes unrecorded, and torch is not imported for it."""
    trained(programs)
    assert programs.printed["a"] == programs.plain("train")
    assert programs.printed["a"].split()[-1] == "False"


def test_every_shape_of_loop_keeps_bits_and_types(programs: JaxPrograms) -> None:
    """Constants, fixed and large carries, reversed loops, keys, results that follow, donated arguments, derivatives."""
    trace = programs.recorded("shapes", "shapes")
    assert programs.printed["shapes"] == programs.plain("shapes")
    facts = trace.processes[0].facts
    driven = {each.partition(":")[0] for each in str(facts["jax.loops"]).split("; ")}
    assert driven >= {f"jit.{name}" for name in ("constants", "several", "keys", "weak", "<lambda>", "noting")}
    assert "jit.several: its 5 floating-point operations are those of the uncut program" in str(facts["jax.code"])
    whole = set(str(facts["jax.boundary_only"]).split("; "))
    assert whole == {"jit.<lambda>: its scan is unrolled", "jit.whole: its loop is a while_loop"}


def test_what_a_loop_stacks_and_gives_to_callbacks_is_a_series(programs: JaxPrograms) -> None:
    """A number for each iteration, by its step: those that the program itself has."""
    [losses] = [one for one in all_series(trained(programs)) if one.kind == "stacked"]
    computed = np.frombuffer(bytes.fromhex(programs.printed["a"].split()[1]), np.float32)
    assert (losses.place, losses.steps.tolist()) == ("jit.train", list(range(6)))
    np.testing.assert_array_equal(losses.values, computed.astype(np.float64))

    [noted] = [one for one in all_series(programs.recorded("shapes", "shapes")) if one.kind == "callback"]
    printed = next(line for line in programs.printed["shapes"].splitlines() if line.startswith("noted "))
    assert (noted.name, noted.place) == ("total", "note")
    assert noted.values.tolist() == [float(word) for word in printed.split()[1:]]
    assert np.diff(noted.steps).tolist() == [1] * 4


def test_the_program_digests_what_the_host_does(programs: JaxPrograms) -> None:
    """Digests taken within a loop's program are those that the host takes between its iterations, row by row."""
    inside = programs.recorded("shapes", "shapes")
    outside = programs.recorded("outside", "shapes", options=("--engine", "mode"))
    assert programs.printed["outside"] == programs.plain("shapes")
    assert "jit.long: 5,005 iterations, digested by the host" in str(outside.processes[0].facts["jax.loops"])
    if "digested within the program" not in str(inside.processes[0].facts["jax.loops"]):
        pytest.skip("no compiler has built the library")
    streams = [trace.processes[0].streams[0] for trace in (inside, outside)]
    rows, others = (stream.read(0, stream.rows) for stream in streams)
    assert len(rows) > 2_500
    for cells in ("links", "floats", "digests"):
        np.testing.assert_array_equal(getattr(rows, cells), getattr(others, cells))
    hashes, of_others = (row_hashes(found, t.processes[0].tables) for found, t in ((rows, inside), (others, outside)))
    np.testing.assert_array_equal(hashes.structure, of_others.structure)
    assert compare(inside, outside).verdict is Verdict.IDENTICAL


def test_digests_are_those_of_the_same_bytes_in_torch(programs: JaxPrograms) -> None:
    """An array that comes in has the project's digest, and what a function returned is linked to its row."""
    stream = programs.recorded("shapes", "shapes").processes[0].streams[0]
    rows = stream.read(0, stream.rows)
    wanted = digest_buffer(np.full(3, 2.0, np.float32).tobytes(), seed_of("float32", (3,)))
    places = [i for i in range(len(rows)) if wanted in rows.outputs(i)]
    assert places
    [link] = rows.inputs(places[0])
    read = digest_buffer(np.ones(3, np.float32).tobytes(), seed_of("float32", (3,)))
    assert (link.distance, link.digest) == (0, read)


def test_each_iteration_is_a_step(programs: JaxPrograms) -> None:
    """The rows of a loop: what precedes it, and an iteration a step; the trace is sound, and says so in its words."""
    trace = trained(programs)
    process = trace.processes[0]
    assert process.state == "complete"
    assert len(process.steps) == 6
    assert verify(trace.path).sound
    assert "jit.train #0  6 iterations" in document_text(info_document(describe(trace)))


def test_the_threads_of_xla_are_locked(programs: JaxPrograms) -> None:
    """The number that each row has as kernel evidence, as a fact that selects kernels: one for each core."""
    trace = trained(programs)
    assert lock_of(trace).facts["jax.threads"] == trace.processes[0].facts["host.cores_allowed"]
    assert selects_kernels("jax.threads")


def test_an_unchanged_run_is_identical(programs: JaxPrograms) -> None:
    """Two runs of one program have equal rows, of which level step records no fewer."""
    comparison = compare(trained(programs), programs.recorded("ops", "train"))
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.a.level, comparison.b.level, comparison.level) == ("step", "op", "op")
    assert any("on one side only" in note for note in comparison.notes)
    assert "jax.code" not in open_trace(comparison.a.path).processes[0].facts


def test_what_xla_chose_by_timing_is_a_fact(programs: JaxPrograms) -> None:
    """A digest of the file, without the times that it has; none of a file that was not written."""
    (programs.folder / "tuned.txt").write_text(TUNED)
    flags = "--xla_gpu_load_autotune_results_from=tuned.txt --xla_gpu_dump_autotune_results_to=none.txt"
    trace = programs.recorded("tuned", "small", options=("--level", "step"), XLA_FLAGS=flags)
    facts = trace.processes[0].facts
    chosen = TUNED.replace("run_time {\n      nanos: 31744\n    }\n    ", "")
    assert facts["jax.autotuning_loaded"] == f"{digest_buffer(chosen.encode(), 0):016x}"
    assert "jax.autotuning_dumped" not in facts


def test_another_learning_rate_is_an_argument(programs: JaxPrograms) -> None:
    """A number of the program's text is named by its line, before anything is computed with it."""
    found = compared(programs, "rate", "0.2", "0").decisive
    assert (found.cause, found.op) == (Cause.ARGUMENTS, "jit.train.before")
    assert "rate * jax.grad(loss)(weights), key), loss(weights) #1=0.1 in A" in found.explanation


def test_another_key_is_outside_data(programs: JaxPrograms) -> None:
    """Keys are data: another seed is found where it came in."""
    found = compared(programs, "key", "0.1", "1").decisive
    assert (found.cause, found.a_index) == (Cause.OUTSIDE, 0)


def test_a_window_has_the_rows_of_its_iterations(programs: JaxPrograms) -> None:
    """Before the window nothing is a row; it begins with the carry, and the program ends after the step asked for."""
    options = ("--steps", "2:4", "--until", "4")
    trace = programs.recorded("window", "train", options=options)
    process, whole = trace.processes[0], trained(programs).processes[0]
    assert (process.state, len(process.steps)) == ("stopped", 5)
    rows = process.streams[0].read(0, process.streams[0].rows)
    all_rows = whole.streams[0].read(0, whole.streams[0].rows)
    loop = [i for i in range(len(all_rows)) if len(all_rows.outputs(i)) == 3][-6:]
    assert [rows.outputs(i) for i in (2, 3)] == [all_rows.outputs(loop[i]) for i in (2, 3)]
    assert [[rows.outputs(0)[0]], [rows.outputs(1)[0]]] == [[each] for each in all_rows.outputs(loop[1])[:2]]


def test_what_is_not_there_is_refused(programs: JaxPrograms) -> None:
    """An option that JAX programs do not have ends the recording with a sentence, not the program."""
    command = sys.executable, "-m", "rltrace", "record", "-o", "refused.zarr", "--rows", "all", "--"
    program = sys.executable, "-c", "import jax; print('ran')"
    ended = programs.start(*command, *program)
    assert (ended.returncode, ended.stdout) == (125, "ran\n")
    assert "--rows is not there for JAX programs" in ended.stderr


# --- injection --------------------------------------------------------------------------------------------------------

VALUES = ("--values", "all", "--values-inputs")


def replayed(programs: JaxPrograms, name: str, *words: str, inject: str, **variables: str) -> Comparison:
    """The training run against a program into which its values were injected."""
    a = programs.recorded("values", "train", options=VALUES)
    options = "--inject", inject, "--result", f"{name}.json"
    verb = "replay", "values.zarr"
    return compare(a, programs.recorded(name, "train", *words, verb=verb, options=options, **variables))


def test_values_change_nothing_and_are_those_of_the_rows(programs: JaxPrograms) -> None:
    """With values the program computes the same, its rows are the same, and the trace has the bytes of every array."""
    trace = programs.recorded("values", "train", options=VALUES)
    assert programs.printed["values"] == programs.plain("train")
    assert compare(trained(programs), trace).verdict is Verdict.IDENTICAL
    process = trace.processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    assert all(digest in process.values for i in range(len(rows)) for digest in rows.outputs(i))
    assert not process.values.left_out
    assert verify(trace.path).sound


def test_a_carry_heals_what_follows(programs: JaxPrograms) -> None:
    """The one iteration whose environment gave other data is the cause: with its carry in place, B becomes A."""
    healed = replayed(programs, "healed", inject="op=*.iteration,step=3", NUDGE="1e-6")
    assert healed.verdict is Verdict.IDENTICAL
    assert programs.printed["healed"] == programs.printed["values"]


def test_one_array_of_the_carry(programs: JaxPrograms) -> None:
    """Of the carry only the named array is replaced: the key, which is equal anyway, heals nothing."""
    key = replayed(programs, "keyed", inject="op=*.iteration,step=3,array=*1?", NUDGE="1e-6")
    assert key.decisive.step == 3
    account = json.loads((programs.folder / "keyed.json").read_text())
    assert (account["selected"], account["injected"]) == (1, 1)


def test_outside_data_is_replaced_where_it_came_in(programs: JaxPrograms) -> None:
    """Another seed is data that comes in: with A's in its place, all else is A's."""
    healed = replayed(programs, "seeded", "0.1", "1", inject="step=0")
    assert programs.printed["seeded"] == programs.printed["values"], healed.why


def test_another_instruction_set_is_confirmed(
    programs: JaxPrograms, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CONFIRMED in all four arms: with A's iterations in place B is A, with B's A is B, and no other row is needed."""
    programs.recorded("small_a", "small", options=("--level", "step"))
    programs.recorded("small_b", "small", options=("--level", "step"), XLA_FLAGS=OTHER_ISA)
    if programs.printed["small_a"] == programs.printed["small_b"]:
        pytest.skip("this processor computes the same bits under SSE4.2")
    monkeypatch.chdir(programs.folder)
    assert main(["confirm", "small_a.zarr", "small_b.zarr", "--yes", "--samples", "1", "--format", "json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["word"], outcome["by_state"]) == ("confirmed", True)
    assert [arm["state"] for arm in outcome["arms"]] == ["as-expected"] * 4
    [kind] = outcome["classes"]
    assert (kind["op"], kind["matters"], kind["first_step"]) == ("jit.train.iteration", True, 0)
    assert [kind["kernel"][side].split()[1] == "SSE4_2" for side in "ab"] == [False, True]
