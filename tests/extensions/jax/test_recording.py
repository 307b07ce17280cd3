"""JAX programs under ``rltrace record``: their bits, what is recorded, and what a comparison makes of it.

JAX is never imported here: it starts threads, after which no other test of this process could fork.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.diff.compare import CompareOptions, compare
from rltrace.diff.metrics.series import all_series
from rltrace.diff.system_facts import selects_kernels
from rltrace.digest import digest_buffer, seed_of
from rltrace.extensions.archive.verify import verify
from rltrace.extensions.regression.lock import lock_of
from rltrace.report.diff import verdict_document
from rltrace.report.info import describe, info_document
from rltrace.report.text import document_text
from rltrace.trace.format.row_hashes import row_hashes
from rltrace.trace.read.reader import Trace, open_trace

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

TRAIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np

nudge = float(os.environ.get("NUDGE", 0))  # of the environment, which a callback is, in one iteration

def observe(batch, at):
    return np.float32(batch + (nudge if at == 3 else 0))

rate, seed = (float(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (0.1, 0)

def train(key):
    weights = jax.random.normal(key, (8, 8))
    def update(state, at):
        weights, key = state
        key, own = jax.random.split(key)
        batch = jax.random.normal(own, (16, 8))
        batch = jax.pure_callback(observe, jax.ShapeDtypeStruct((16, 8), np.float32), batch, at)
        loss = lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2 + jnp.exp(-batch @ w * 0.1))
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
show("backwards", jax.jit(backwards)(x))
show("several", jax.jit(several)(x))
def long(x):  # of its iterations every second is seen
    return jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c[0] > 0), x[0], jnp.tile(x, (1001, 1)), reverse=True)

show("long", jax.jit(long)(x))
show("weak", jax.jit(weak)(x))
show("keys", jax.jit(keys)(jax.random.key(3)))
show("unrolled", jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, None), x[0], x, unroll=2))(x))
show("whole", jax.jit(whole)(x))
show("gradient", jax.jit(jax.grad(lambda x: several(x)[0].sum()))(x))
show("vmap", jax.jit(jax.vmap(backwards))(jnp.stack([x, x])))
with warnings.catch_warnings(record=True) as warned:  # of an array that is donated in vain
    warnings.simplefilter("always")
    given, in_vain = x + 1, jnp.ones(3)
    show("donated", jax.jit(lambda x, y: (backwards(x), y[:1]), donate_argnums=(0, 1))(given, in_vain))
    print(given.is_deleted(), in_vain.is_deleted(), *map(str, warned))
inner = jax.jit(several)  # a loop that a called function has, once and twice
show("called", jax.jit(lambda x: inner(x)[0] * 2)(x))
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


def run(folder: Path, *command: str, **variables: str) -> str:
    """Standard output of a command that succeeds."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "RLTRACE_LOOPS": "*", **variables}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert not ended.returncode, ended.stderr
    return ended.stdout


class Programs:
    """Programs in a folder, run plainly and recorded, each run once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._printed: dict[tuple[str, ...], str] = {}
        for name, source in (("train", TRAIN), ("shapes", SHAPES)):
            (folder / f"{name}.py").write_text(source)

    def plain(self, name: str, flags: str = "") -> str:
        return self._once(
            ("plain", name, flags), lambda: run(self.folder, sys.executable, f"{name}.py", XLA_FLAGS=flags)
        )

    def recorded(
        self,
        trace: str,
        name: str,
        *words: str,
        verb: tuple[str, ...] = ("record",),
        options: tuple[str, ...] = (),
        flags: str = "",
        nudge: str = "0",
    ) -> Trace:
        """The trace of this name; ``words``: the program's arguments, ``options`` the verb's."""
        command = sys.executable, "-m", "rltrace", *verb, "--quiet", "-o", f"{trace}.zarr", *options, "--"
        program = sys.executable, f"{name}.py", *words
        self._once(("recorded", trace), lambda: run(self.folder, *command, *program, XLA_FLAGS=flags, NUDGE=nudge))
        return open_trace(self.folder / f"{trace}.zarr")

    def printed(self, trace: str) -> str:
        """What the program printed while it was recorded."""
        return self._printed["recorded", trace]

    def _once(self, key: tuple[str, ...], action: Callable[[], str]) -> str:
        if key not in self._printed:
            self._printed[key] = action()
        return self._printed[key]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("jax"))


OTHER_ISA = "--xla_cpu_max_isa=SSE4_2"
STEP_LEVEL = ("--level", "step")
"""Where what is within an iteration says nothing: XLA then compiles a loop once, and not some five times."""


def compared(programs: Programs, name: str, *words: str, **more: object) -> Comparison:
    """The recorded training run against another one."""
    other = programs.recorded(name, "train", *words, **more)  # type: ignore[arg-type]
    return compare(programs.recorded("a", "train"), other)


def test_computes_the_same_bits_without_torch(programs: Programs) -> None:
    """A driven loop returns what the program computes unrecorded, and torch is not imported for it."""
    programs.recorded("a", "train")
    assert programs.printed("a") == programs.plain("train")
    assert programs.printed("a").split()[-1] == "False"


def test_every_shape_of_loop_keeps_bits_and_types(programs: Programs) -> None:
    """Constants, fixed and large carries, reversed loops, keys, results that follow, donated arguments, derivatives."""
    trace = programs.recorded("shapes", "shapes")
    assert programs.printed("shapes") == programs.plain("shapes")
    facts = trace.processes[0].facts
    driven = {each.partition(":")[0] for each in str(facts["jax.loops"]).split("; ")}
    assert driven >= {
        "jit.constants",
        "jit.backwards",
        "jit.several",
        "jit.keys",
        "jit.weak",
        "jit.<lambda>",
        "jit.noting",
    }
    assert "jit.several: its 5 floating-point operations are those of the uncut program" in str(facts["jax.code"])
    whole = set(str(facts["jax.boundary_only"]).split("; "))
    assert whole == {
        "jit.<lambda>: its scan is unrolled",
        "jit.whole: its loop is a while_loop",
    }


def test_what_a_loop_stacks_and_gives_to_callbacks_is_a_series(programs: Programs) -> None:
    """A number for each iteration, by its step: those that the program itself has."""
    [losses] = [one for one in all_series(programs.recorded("a", "train")) if one.kind == "stacked"]
    computed = np.frombuffer(bytes.fromhex(programs.printed("a").split()[1]), np.float32)
    assert (losses.place, losses.steps.tolist()) == ("jit.train", list(range(6)))
    np.testing.assert_array_equal(losses.values, computed.astype(np.float64))

    [noted] = [one for one in all_series(programs.recorded("shapes", "shapes")) if one.kind == "callback"]
    printed = next(line for line in programs.printed("shapes").splitlines() if line.startswith("noted "))
    assert (noted.name, noted.place) == ("total", "note")
    assert noted.values.tolist() == [float(word) for word in printed.split()[1:]]
    assert np.diff(noted.steps).tolist() == [1] * 4


def test_the_program_digests_what_the_host_does(programs: Programs) -> None:
    """Digests taken within a loop's program are those that the host takes between its iterations, row by row."""
    inside = programs.recorded("shapes", "shapes")
    outside = programs.recorded("outside", "shapes", options=("--engine", "mode"))
    assert programs.printed("outside") == programs.plain("shapes")
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


def test_digests_are_those_of_the_same_bytes_in_torch(programs: Programs) -> None:
    """An array that comes in has the project's digest, and what a function returned is linked to its row."""
    trace = programs.recorded("shapes", "shapes")
    stream = trace.processes[0].streams[0]
    rows = stream.read(0, stream.rows)
    wanted = digest_buffer(np.full(3, 2.0, np.float32).tobytes(), seed_of("float32", (3,)))
    places = [i for i in range(len(rows)) if wanted in rows.outputs(i)]
    assert places
    [link] = rows.inputs(places[0])
    assert (link.distance, link.digest) == (
        0,
        digest_buffer(np.ones(3, np.float32).tobytes(), seed_of("float32", (3,))),
    )


def test_each_iteration_is_a_step(programs: Programs) -> None:
    """The rows of a loop: what precedes it, and an iteration a step; the trace is sound, and says so in its words."""
    trace = programs.recorded("a", "train")
    process = trace.processes[0]
    assert process.state == "complete"
    assert len(process.steps) == 6
    assert verify(trace.path).sound
    text = document_text(info_document(describe(trace)))
    assert "jit.train #0  6 iterations" in text


def test_the_threads_of_xla_are_locked(programs: Programs) -> None:
    """The number that each row has as kernel evidence, as a fact that selects kernels: one for each core."""
    trace = programs.recorded("a", "train")
    threads = lock_of(trace).facts["jax.threads"]
    assert threads == trace.processes[0].facts["host.cores_allowed"]
    assert selects_kernels("jax.threads")


def unchanged(programs: Programs) -> Comparison:
    """The training run against itself at level step, with flags of a GPU that name files."""
    (programs.folder / "tuned.txt").write_text(TUNED)
    flags = "--xla_gpu_load_autotune_results_from=tuned.txt --xla_gpu_dump_autotune_results_to=none.txt"
    return compared(programs, "b", options=STEP_LEVEL, flags=flags)


def test_an_unchanged_run_is_identical(programs: Programs) -> None:
    """Two runs of one program have equal rows, of which level step records no fewer."""
    comparison = unchanged(programs)
    assert comparison.verdict is Verdict.IDENTICAL
    assert (comparison.a.level, comparison.b.level, comparison.level) == ("op", "step", "op")
    assert "jax.code" not in open_trace(comparison.b.path).processes[0].facts


def test_what_xla_chose_by_timing_is_a_fact(programs: Programs) -> None:
    """A digest of the file, without the times that it has; none of a file that was not written."""
    facts = open_trace(unchanged(programs).b.path).processes[0].facts
    chosen = TUNED.replace("run_time {\n      nanos: 31744\n    }\n    ", "")
    assert facts["jax.autotuning_loaded"] == f"{digest_buffer(chosen.encode(), 0):016x}"
    assert "jax.autotuning_dumped" not in facts


def test_another_instruction_set_is_found_in_the_iteration(programs: Programs) -> None:
    """Each side computes what it does unrecorded; the first row that differs has cause kernel, and names what."""
    programs.recorded("isa", "train", flags=OTHER_ISA)
    comparison = compare(
        programs.recorded("a", "train"), programs.recorded("isa", "train"), CompareOptions(within=False)
    )
    plain = programs.plain("train", OTHER_ISA)
    assert programs.printed("isa") == plain
    if plain == programs.plain("train"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    found = comparison.decisive
    assert found is not None
    assert (found.cause, found.op) == (Cause.KERNEL, "jit.train.iteration")
    assert "instruction set native against SSE4_2" in found.explanation
    differs = [name for name, each in zip(found.output_names, found.outputs, strict=True) if each.a != each.b]
    assert f"{differs[0]} differs" in found.explanation
    text = document_text(verdict_document(comparison))
    assert f"iteration {found.step} (jit.train's" in text
    assert "optimizer step" not in text
    assert re.search(r"kernel   A  XLA native cpu, jaxlib [^,]*, \d+ threads?\n", text)


def test_another_learning_rate_is_an_argument(programs: Programs) -> None:
    """A number of the program's text is named by its line, before anything is computed with it."""
    found = compared(programs, "rate", "0.2", "0").decisive
    assert found is not None
    assert (found.cause, found.op) == (Cause.ARGUMENTS, "jit.train.before")
    assert "rate * jax.grad(loss)(weights), key), loss(weights) #1=0.1 in A" in found.explanation


def test_another_key_is_outside_data(programs: Programs) -> None:
    """Keys are data: another seed is found where it came in."""
    found = compared(programs, "key", "0.1", "1", options=STEP_LEVEL).decisive
    assert found is not None
    assert (found.cause, found.a_index) == (Cause.OUTSIDE, 0)


def test_a_window_has_the_rows_of_its_iterations(programs: Programs) -> None:
    """Before the window nothing is a row; it begins with the carry, and the program ends after the step asked for."""
    options = ("--steps", "2:4", "--until", "4")
    trace = programs.recorded("window", "train", options=options)
    process, whole = trace.processes[0], programs.recorded("a", "train").processes[0]
    assert (process.state, len(process.steps)) == ("stopped", 5)
    rows = process.streams[0].read(0, process.streams[0].rows)
    all_rows = whole.streams[0].read(0, whole.streams[0].rows)
    loop = [i for i in range(len(all_rows)) if len(all_rows.outputs(i)) == 3][-6:]
    assert [rows.outputs(i) for i in (2, 3)] == [all_rows.outputs(loop[i]) for i in (2, 3)]
    assert [[rows.outputs(0)[0]], [rows.outputs(1)[0]]] == [[each] for each in all_rows.outputs(loop[1])[:2]]


def test_what_is_not_there_is_refused(programs: Programs) -> None:
    """An option that JAX programs do not have ends the recording with a sentence, not the program."""
    command = sys.executable, "-m", "rltrace", "record", "-o", "refused.zarr", "--rows", "all", "--"
    ended = subprocess.run(
        [*command, sys.executable, "-c", "import jax; print('ran')"],
        cwd=programs.folder,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (125, "ran\n")
    assert "--rows is not there for JAX programs" in ended.stderr


# --- injection --------------------------------------------------------------------------------------------------------

VALUES = ("--values", "all", "--values-inputs")


def replayed(programs: Programs, name: str, *words: str, inject: tuple[str, ...], nudge: str = "0") -> Comparison:
    """The training run against a program into which its values were injected."""
    a = programs.recorded("values", "train", options=VALUES)
    options = (*(word for text in inject for word in ("--inject", text)), "--result", f"{name}.json")
    return compare(
        a, programs.recorded(name, "train", *words, verb=("replay", "values.zarr"), options=options, nudge=nudge)
    )


def test_values_change_nothing_and_are_those_of_the_rows(programs: Programs) -> None:
    """With values the program computes the same, its rows are the same, and the trace has the bytes of every array."""
    trace = programs.recorded("values", "train", options=VALUES)
    assert programs.printed("values") == programs.printed("a")
    assert compare(programs.recorded("a", "train"), trace).verdict is Verdict.IDENTICAL
    process = trace.processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    assert all(digest in process.values for i in range(len(rows)) for digest in rows.outputs(i))
    assert not process.values.left_out
    assert verify(trace.path).sound


def test_a_carry_heals_what_follows(programs: Programs) -> None:
    """The one iteration whose environment gave other data is the cause: with its carry in place, B becomes A."""
    healed = replayed(programs, "healed", inject=("op=*.iteration,step=3",), nudge="1e-6")
    assert healed.verdict is Verdict.IDENTICAL
    assert programs.printed("healed") == programs.printed("values")


def test_one_array_of_the_carry(programs: Programs) -> None:
    """Of the carry only the named array is replaced: the key, which is equal anyway, heals nothing."""
    key = replayed(programs, "keyed", inject=("op=*.iteration,step=3,array=*1?",), nudge="1e-6")
    assert key.decisive is not None
    assert key.decisive.step == 3
    account = json.loads((programs.folder / "keyed.json").read_text())
    assert (account["selected"], account["injected"]) == (1, 1)


def test_outside_data_is_replaced_where_it_came_in(programs: Programs) -> None:
    """Another seed is data that comes in: with A's in its place, all else is A's."""
    healed = replayed(programs, "seeded", "0.1", "1", inject=("step=0",))
    assert programs.printed("seeded") == programs.printed("values"), healed.why


@pytest.mark.timeout(600)  # seven runs
def test_another_instruction_set_is_confirmed(programs: Programs) -> None:
    """CONFIRMED in all four arms: with A's iterations in place B is A, with B's A is B, and no other row is needed."""
    programs.recorded("a", "train")
    programs.recorded("isa", "train", flags=OTHER_ISA)
    if programs.printed("isa") == programs.printed("a"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    command = sys.executable, "-m", "rltrace", "confirm", "a.zarr", "isa.zarr"
    outcome = json.loads(run(programs.folder, *command, "--yes", "--samples", "1", "--format", "json"))
    assert (outcome["word"], outcome["by_state"]) == ("confirmed", True)
    assert [arm["state"] for arm in outcome["arms"]] == ["as-expected"] * 4
    [kind] = outcome["classes"]
    assert (kind["op"], kind["matters"], kind["first_step"]) == ("jit.train.iteration", True, 0)
    assert [kind["kernel"][side].split()[1] for side in "ab"] == ["native", "SSE4_2"]
