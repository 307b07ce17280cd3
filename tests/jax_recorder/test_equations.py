"""``record --level equation``: rows of the equations of a JAX program, and what is said of their bits.

JAX is never imported here: it starts threads, after which no other test of this process could fork. What the rows hold
is compared with plain calls of ``jax.numpy`` in another process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.digest import digest_buffer, seed_of
from rltrace.errors import UsageError
from rltrace.report.diff_text import render_comparison
from rltrace.report.info import describe, info_text
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Column, Phase, Step
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.tools.verify import verify

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

LEVEL = "--level", "equation"
VALUES = "--values", "op=mul"

FORMS = """
import os, sys
import jax, jax.numpy as jnp, numpy as np

x = jnp.asarray(np.linspace(-0.9, 1, 6, dtype=np.float32).reshape(2, 3))
factor = float(os.environ.get("FACTOR", 1.5))
calls = []

def note(value):
    calls.append(("note", float(value)))

def ask(value):
    calls.append(("ask", float(value)))
    return np.float32(value * 2)

@jax.custom_vjp
def clipped(v):
    return jnp.sin(v)

clipped.defvjp(lambda v: (clipped(v), v), lambda v, g: (jnp.clip(g, -0.5, 0.5) * jnp.cos(v),))

def layer(v):
    with jax.named_scope("Dense_0"):
        return jnp.tanh(v * factor)

inner = jax.jit(lambda v: jax.scipy.special.erfinv(v * 0.5))

def loss(v):
    v = clipped(jax.checkpoint(layer)(v)) + inner(v)
    v = jax.lax.cond(v.sum() > 0, lambda u: u * 2, lambda u: u / 3, v)
    v = jax.lax.platform_dependent(v, cpu=lambda u: u + 1, default=lambda u: u - 1)
    def body(c, row):
        jax.debug.callback(note, c.sum())
        c = c * 0.9 + row
        return c, (c.sum(), row > 0)
    c, (sums, signs) = jax.lax.scan(body, v[0], jnp.concatenate([v, v]), reverse=True)
    return c.sum() + sums.sum(), signs

def whole(v, n):
    (value, signs), g = jax.value_and_grad(loss, has_aux=True)(v)
    w = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.abs(c[1] * 0.5)), (0, g))
    asked = jax.experimental.io_callback(ask, jax.ShapeDtypeStruct((), np.float32), value, ordered=True)
    jax.debug.print("value {}", value.astype(jnp.int32), ordered=True)
    jax.pure_callback(ask, jax.ShapeDtypeStruct((), np.float32), value)  # nothing uses it, so it is never called
    return value, g, signs, w, asked, n, 3.0, jax.random.split(jax.random.key(n), 2), jnp.argsort(v[0])

results = jax.jit(whole)(x, 3)
each = jax.jit(jax.vmap(lambda v: jax.lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1.25, v)))(x)
keys = jax.jit(lambda k: jax.lax.scan(lambda k, _: (jax.random.split(k)[0], k), k, None, 3))(jax.random.key(1))
given, kept = x * 2, x * 3
added = jax.jit(lambda a, b: (a + b, b), donate_argnums=(0, 1))(given, kept)

def refuse(value):
    calls.append(("refuse", float(value)))
    raise ValueError("refused")

try:
    scalar = jax.ShapeDtypeStruct((), np.float32)
    jax.block_until_ready(jax.jit(lambda v: jax.pure_callback(refuse, scalar, v) + 1)(3.0))
except Exception as error:
    print("refused" in str(error))
jax.effects_barrier()
for result in jax.tree.leaves((results, each, keys, added)):
    if jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        result = jax.random.key_data(result)
    print(result.dtype, result.shape, result.weak_type, *np.asarray(result).ravel().tolist())
print(given.is_deleted(), kept.is_deleted(), *(name for name, _ in calls), *(value for _, value in calls))
"""

EAGER = """
import jax, jax.numpy as jnp, numpy as np

x = jnp.asarray(np.linspace(-0.9, 1, 6, dtype=np.float32).reshape(2, 3))
product = x * 1.5
angle = jnp.tanh(product)
quantile = jax.lax.erf_inv(x * 0.5)
total = jnp.sin(angle) + quantile
chosen = total * 2 if total.sum() > 0 else total / 3
rows, c = jnp.concatenate([chosen + 1, chosen + 1]), (chosen + 1)[0]
for row in rows[::-1]:
    c = c * 0.9 + row
for name, array in dict(product=product, angle=angle, quantile=quantile, total=total, chosen=chosen, carry=c).items():
    print(name, np.asarray(array).tobytes().hex())
"""


def run(folder: Path, *command: str, **variables: str) -> str:
    """Standard output of a command that succeeds."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "RLTRACE_LOOPS": "*", **variables}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert not ended.returncode, ended.stderr
    return ended.stdout


class Forms:
    """The program with its forms, run plainly and recorded, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: dict[str, str] = {}
        (folder / "forms.py").write_text(FORMS)

    def plain(self) -> str:
        if "plain" not in self.printed:
            self.printed["plain"] = run(self.folder, sys.executable, "forms.py")
        return self.printed["plain"]

    def recorded(self, name: str, *options: str, **variables: str) -> Trace:
        trace = f"{name}.zarr"
        if name not in self.printed:
            command = sys.executable, "-m", "rltrace", "record", "--quiet", "-o", trace, *LEVEL, *options
            self.printed[name] = run(self.folder, *command, "--", sys.executable, "forms.py", **variables)
        return open_trace(self.folder / trace)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("equations"))


def test_returns_what_the_program_does_but_for_roundings(forms: Forms) -> None:
    """Types, shapes, callbacks, their order and what is donated are those of the unrecorded run; numbers are close."""
    trace = forms.recorded("a")
    words, wanted = forms.printed["a"].split(), forms.plain().split()
    assert len(words) == len(wanted)
    for word, other in zip(words, wanted, strict=True):
        try:
            np.testing.assert_allclose(float(word), float(other), rtol=1e-5)
        except ValueError:
            assert word == other
    assert words.count("note") == 4
    assert words.count("ask") == words.count("refuse") == 1
    assert trace.processes[0].state == "complete"
    assert verify(trace.path).sound


def test_rows_are_the_equations_in_their_order(forms: Forms) -> None:
    """A row has the digest of what plain jax.numpy computes, of calls, branches, rules and iterations alike."""
    stream = forms.recorded("a").processes[0].streams[0]
    rows = stream.read(0, stream.rows)
    written = [digest for i in range(len(rows)) for digest in rows.outputs(i)]
    places = []
    for line in run(forms.folder, sys.executable, "-c", EAGER).splitlines():
        name, content = line.split()
        shape = (3,) if name == "carry" else (2, 3)
        digest = digest_buffer(bytes.fromhex(content), seed_of("float32", shape))
        assert digest in written, name
        places.append(written.index(digest))
    assert places[:5] == sorted(places[:5])


def test_rows_say_where_they_are_from(forms: Forms) -> None:
    """Primitive, module, phase and line of an equation, with the lines of the calls that it is in."""
    trace = forms.recorded("a")
    process = trace.processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    tables = process.tables

    def cells(i: int) -> tuple[str, str, Phase, list[int]]:
        column = rows.columns[i]
        names = (tables[t].payloads[column[c]] for t, c in (("ops", Column.OP), ("modules", Column.MODULE)))
        return (*names, Phase(column[Column.PHASE]), tables["sites"].payloads[column[Column.SITE]])

    found = [cells(i) for i in range(len(rows))]
    layers = [(op, phase) for op, module, phase, _ in found if module == "Dense_0"]
    assert layers[:2] == [("mul", Phase.FORWARD), ("tanh", Phase.FORWARD)]
    assert ("mul", Phase.BACKWARD) in layers
    ops = Counter(op for op, *_ in found)
    assert ops["debug_callback"] == 4
    assert ops["while"] == 1  # of the vmapped one, whose elements end at different iterations
    assert not ops.keys() & {"scan", "cond", "jit", "custom_vjp_call", "remat2", "checkpoint"}
    [site] = {tuple(site) for op, _, _, site in found if op == "erf_inv"}
    lines = [tables["frames"].payloads[frame]["source"] for frame in site]
    assert lines[0].startswith("inner = jax.jit(lambda v: jax.scipy.special.erfinv")
    assert lines[1].startswith("v = clipped(jax.checkpoint(layer)(v)) + inner(v)")
    assert lines[-1] == "results = jax.jit(whole)(x, 3)"


def test_iterations_are_steps(forms: Forms) -> None:
    """An iteration of the outermost scan is a step; a window has rows of its steps, from the program's own carry."""
    whole = forms.recorded("a")
    assert whole.processes[0].step_count == 7
    calls = forms.recorded("calls", "--level", "op", "--until", "1")
    windowed = forms.recorded("window", "--steps", "1:3", "--until", "3")
    process = windowed.processes[0]
    assert (process.state, process.step_count) == ("stopped", 4)
    rows = process.streams[0].read(0, process.streams[0].rows)
    steps = rows.columns[:, Column.STEP]
    assert set(steps.tolist()) == {1, 2}
    own = calls.processes[0].steps[0, Step.PARAMETERS]
    assert process.steps[0, Step.PARAMETERS] == own
    if own == whole.processes[0].steps[0, Step.PARAMETERS]:
        pytest.skip("this processor computes the same bits by equations, so that the carry may be either's")


def test_an_unchanged_run_is_identical_and_labelled(forms: Forms) -> None:
    """Two runs of one program have equal rows, with values too; comparison and trace say that these are other bits."""
    a, b = forms.recorded("a"), forms.recorded("values", *VALUES)
    comparison = compare(a, b)
    assert comparison.verdict is Verdict.IDENTICAL
    text = render_comparison(comparison, color=False)
    assert "level    equation" in text
    assert "bits of another program" in text
    assert "recorded  level equation" in info_text(describe(a))
    assert "bits      these are the bits of another program" in info_text(describe(a))


def test_another_number_is_named_by_its_equation(forms: Forms) -> None:
    """A number of the program's text is an argument of the one equation that computes with it, with its line."""
    found = compare(forms.recorded("a"), forms.recorded("factor", "--until", "0", FACTOR="1.25")).decisive
    assert found is not None
    assert (found.cause, found.op, found.module) == (Cause.ARGUMENTS, "mul", "Dense_0")
    assert "return jnp.tanh(v * factor) #1=1.5 in A, 1.25 in B" in found.explanation


def test_another_instruction_set_is_named_by_its_equation(forms: Forms) -> None:
    """What another instruction set computes otherwise is a kernel of one equation, which no fusion hides."""
    other = forms.recorded("isa", "--until", "0", XLA_FLAGS="--xla_cpu_max_isa=SSE4_2")
    found = compare(forms.recorded("a"), other).decisive
    if found is None:
        pytest.skip("this processor computes the same bits under SSE4.2")
    assert found.cause is Cause.KERNEL
    assert found.op in ("tanh", "sin", "erf_inv", "exp")
    assert found.site is not None
    assert "instruction set native against SSE4_2" in found.explanation


def test_other_levels_are_not_compared(tmp_path: Path) -> None:
    """With a recording of calls and iterations nothing is compared, and the error says what to record."""
    a, b = (TraceBuilder(tmp_path / f"{level}.zarr", level=level).finish() for level in ("equation", "op"))
    with pytest.raises(UsageError, match=r"rltrace record --level equation -o op-equation\.zarr"):
        compare(a, b)


def test_values_are_injected_at_an_equation(forms: Forms) -> None:
    """With A's product in its place, a program with another number is A, as far as it runs."""
    a = forms.recorded("values", *VALUES)
    command = sys.executable, "-m", "rltrace", "replay", "values.zarr", "--quiet", "-o", "healed.zarr"
    program = "--inject", "op=mul,module=Dense_0,phase=forward,step=0", "--until", "0", "--", sys.executable, "forms.py"
    run(forms.folder, *command, *program, FACTOR="1.25")
    written = []
    for trace in (a, open_trace(forms.folder / "healed.zarr")):
        stream = trace.processes[0].streams[0]
        rows = stream.read(0, stream.rows)
        written.append([rows.outputs(i) for i in range(len(rows))])
    whole, healed = written
    assert len(healed) > 10
    assert healed == whole[: len(healed)]


def test_torch_is_refused(tmp_path: Path) -> None:
    """The recording of a torch program ends with a sentence, the program does not."""
    command = sys.executable, "-m", "rltrace", "record", "-o", "torch.zarr", "--level", "equation", "--"
    program = sys.executable, "-c", "import torch; print('ran')"
    ended = subprocess.run([*command, *program], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (125, "ran\n")
    assert "--level equation is for programs that compute with JAX" in ended.stderr
