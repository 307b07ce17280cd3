"""What rows settle of which the sequel cannot be read: before a hole, and where an unfinished trace breaks off."""

from pathlib import Path

import pytest
from programs import Do, in_parts

from rltrace.diff import compare
from rltrace.diff.align import window as window_module
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.trace.read.reader import open_trace


def without_chunk(path: Path, number: int) -> Path:
    """Spoil one chunk of rows."""
    segment = open_trace(path).processes[0].streams[0].segments[number]
    (path / "processes" / "0" / segment.files[0].key).write_bytes(b"?")
    return path


SETUP = [Do("aten.randn.default", (), f"w{k}", k + 1) for k in range(3)]


def observed(what: str) -> list[Do]:
    """A round of a loop: an observation, and what is made of it in a variable of its own."""
    return [
        Do("outside", (), "o", noise=what),
        Do("aten.mm.default", ("o", "w0"), "x", 10),
        Do("aten.tanh.default", ("x",), "x", 11),
        Do("aten.mean.default", ("x",), "x", 12),
    ]


def rounds(*what: str) -> list[Do]:
    return [do for one in what for do in observed(one)]


def end() -> list[Do]:
    """What follows the loop: it uses nothing of it."""
    return [Do("aten.mul.Tensor", ("w1", "w2"), "g", 20 + k) for k in range(4)] + [Do("step")]


def before_hole(folder: Path, a: list[list[Do]], b: list[list[Do]], hole: int = 1) -> Comparison:
    """Compared where the part with this number cannot be read of A, nor any later one of B."""
    spoilt_a = without_chunk(in_parts(folder / "a.zarr", a), hole)
    spoilt_b = in_parts(folder / "b.zarr", b)
    for number in range(hole, len(b)):
        without_chunk(spoilt_b, number)
    return compare(spoilt_a, spoilt_b)


@pytest.mark.parametrize(
    ("a", "b", "cut_a", "cut_b"),
    [("123", "1x23", 8, 8), ("1234", "1x234", 12, 16)],
    ids=["what follows the round is in the hole", "what follows the round can be read"],
)
def test_a_round_more(tmp_path: Path, a: str, b: str, cut_a: int, cut_b: int) -> None:
    """B runs a round more than A before a hole: no other value is named, as A goes on with what follows the round."""
    one, other = rounds(*a), rounds(*b)
    parts = [[[*SETUP, *do[:cut]], [*do[cut:], *end()]] for do, cut in ((one, cut_a), (other, cut_b))]
    found = before_hole(tmp_path, *parts)
    assert found.verdict is Verdict.UNKNOWN and found.first_value is None and found.decisive is None
    assert found.first is None or cut_a != cut_b


def named(*parameters: str) -> list[Do]:
    """A loop over some parameters at one place of the code, in this order."""
    return [Do("aten.norm.Scalar", (name,), f"n {name}", 30) for name in parameters]


def test_rows_that_may_have_changed_places(tmp_path: Path) -> None:
    """A loop over a set in another order, cut short by a hole: what one side did there the other does later."""
    tail = [Do("aten.mean.default", ("w0",), "m", 40)]
    a, b = named("w0", "w1", "w2"), named("w2", "w0", "w1")
    found = before_hole(tmp_path, [[*SETUP, *a[:2]], [a[2], *tail]], [[*SETUP, *b[:2]], [b[2], *tail]])
    assert found.verdict is Verdict.UNKNOWN and found.decisive is None


def test_a_step_in_another_order_with_a_hole(tmp_path: Path) -> None:
    """Digests prove that both sides ran the same ops in the step, so the hole in it hides nothing."""
    a, b = named("w0", "w1", "w2"), named("w2", "w0", "w1")
    rest = [*rounds("1"), *end()]
    parts = [[[*SETUP, order[0]], [*order[1:], *end()], rest] for order in (a, b)]
    spoilt = without_chunk(in_parts(tmp_path / "a.zarr", parts[0]), 1), in_parts(tmp_path / "b.zarr", parts[1])
    found = compare(*spoilt)
    assert found.decisive is None and found.structure.reordered_steps == 1
    assert "cannot be read" not in found.why


@pytest.mark.parametrize("state", ["killed", "running", "stopped"])
def test_cut_short_in_a_round_more(tmp_path: Path, state: str) -> None:
    """B is cut short after a round that A has not, and its rows after the round are what A goes on with."""
    a = [*SETUP, *rounds("1", "2", "3", "4"), *end()]
    b = [*SETUP, *rounds("1", "extra", "2", "3")]
    found = compare(in_parts(tmp_path / "a.zarr", [a]), in_parts(tmp_path / "b.zarr", [b], state))
    assert found.verdict is Verdict.UNKNOWN and found.decisive is None
    assert f"equal so far, but B is {state}" in found.why


@pytest.mark.parametrize("state", ["killed", "running", "stopped"])
def test_cut_short_right_after_a_difference(tmp_path: Path, state: str) -> None:
    """The last row of a trace that is not finished differs: it is named, and no run has ended."""
    a = [*SETUP, *rounds("1", "2", "3", "4"), *end()]
    b = [*SETUP, *rounds("1", "2"), *observed("other")[:2]]
    found = compare(in_parts(tmp_path / "a.zarr", [a]), in_parts(tmp_path / "b.zarr", [b], state))
    assert found.decisive.cause is Cause.OUTSIDE
    assert found.decisive.a_index == found.decisive.b_index == 9


@pytest.mark.parametrize("window", [1 << 16, 8])
@pytest.mark.parametrize("state", ["complete", "killed", "running", "stopped"])
@pytest.mark.parametrize("rows", [4, 64])
def test_the_beginning_of_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, state: str, window: int
) -> None:
    """B has the first ops of A, and no step has ended: a run that is over has ended, any other is equal so far."""
    monkeypatch.setattr(window_module, "WINDOW_ROWS", window)
    program = [*SETUP, *rounds(*map(str, range(30)))]
    whole = in_parts(tmp_path / "a.zarr", [program])
    short = in_parts(tmp_path / "b.zarr", [program[: rows + rows // 3]], state)
    found = compare(whole, short)
    if state == "complete":
        assert found.verdict is Verdict.DIVERGED and found.first is not None and found.first.cause is Cause.ENDED
    else:
        assert found.verdict is Verdict.UNKNOWN and f"equal so far, but B is {state}" in found.why


def test_the_beginning_of_another_program(tmp_path: Path) -> None:
    """A few ops that another program begins with as well, and nothing of what it does then: not the same values."""
    long, short = [*SETUP, *rounds(*map(str, range(30)))], SETUP
    found = compare(in_parts(tmp_path / "a.zarr", [long]), in_parts(tmp_path / "b.zarr", [short]))
    assert found.verdict is Verdict.UNKNOWN and "different programs" in found.why
