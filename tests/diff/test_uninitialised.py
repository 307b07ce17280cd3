"""Uninitialised memory: what it holds is no difference, unless training uses it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from children import in_thread
from recorded import memory_filled, recorder
from views import both, context_of, views_in

from rltrace.diff import compare
from rltrace.diff.base.bisect import Bisection
from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.diff.causes.inputs import match_inputs
from rltrace.diff.causes.uninitialised import MarkedRows, count_marked, garbage_writers
from rltrace.trace.format.schema import Kind, RowFlag
from rltrace.trace.read.reader import Trace, open_trace

KEYS = ("action", "done", "loc", "scale")


def replay(order: tuple[str, ...], swap: tuple[str, str] | None = None) -> None:
    """A memory of eight rows for each key, of which four are written and two read, key by key in ``order``.

    ``swap``: what is to be written under two keys is put under the other.
    """
    memory = {key: torch.empty(8, 1) for key in KEYS}
    data = {key: torch.full((4, 1), 1.0 + n) for n, key in enumerate(KEYS)}
    names = dict(zip(KEYS, KEYS, strict=True)) | (dict([swap, swap[::-1]]) if swap else {})
    rows, some = torch.arange(4), torch.arange(2) * 2
    new = {key: data[key].clone() for key in order}
    for key in order:
        memory[names[key]][rows] = new[key]
    drawn = {key: memory[key][:4][some] for key in order}
    for n, key in enumerate(KEYS):
        (drawn[key] * (n + 2)).sum()


def compared(folder: Path, *programs: Callable[[], None]) -> Comparison:
    record = recorder(folder)
    return compare(*(record(program).path for program in programs))


ORDERS = [
    ("action", "done", "scale", "loc"),
    ("scale", "loc", "done", "action"),
    ("loc", "action", "scale", "done"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_order_in_which_memory_is_filled_is_no_difference(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Clones, writes into the memory and what is read of it change places together."""
    found = compared(tmp_path, lambda: replay(KEYS), lambda: replay(order))
    assert found.verdict is Verdict.SAME_VALUES
    assert (found.structure.only_a, found.structure.only_b) == (0, 0)


@pytest.mark.parametrize("order", [KEYS, *ORDERS], ids="-".join)
def test_what_is_filled_in_elsewhere_is_found(tmp_path: Path, order: tuple[str, ...]) -> None:
    """The same values, written under each other's key: an op that reads them computes something else."""
    found = compared(tmp_path, lambda: replay(KEYS), lambda: replay(order, swap=("loc", "scale")))
    assert found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_who_reads_first_what_came_from_outside_is_no_difference(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Rows drawn key by key at places from outside: the first to read them has their digest, whichever key it is."""

    def program(keys: tuple[str, ...], places: list[int]) -> None:
        data = {key: torch.arange(8.0) + n for n, key in enumerate(KEYS)}
        some = torch.tensor(places)
        drawn = {key: data[key][some] for key in keys}
        for n, key in enumerate(KEYS):
            (drawn[key] * (n + 2)).sum()

    record = recorder(tmp_path)
    one, same, other = (
        record(lambda keys=keys, places=places: program(keys, places)).path
        for keys, places in ((KEYS, [2, 0]), (order, [2, 0]), (order, [0, 2]))
    )
    assert compare(one, same).verdict is Verdict.SAME_VALUES
    assert compare(one, other).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("later_rows", [False, True])
def test_marked_rows_are_counted(tmp_path: Path, later_rows: bool) -> None:
    """Those up to a row are added to those found behind it; the first of each kind is named."""
    for trace, side in both(tmp_path):
        for number in range(6):
            junk = side if number in (2, 4) else ""
            trace.op("aten.clone.default", outputs=[f"{number} {junk}"], flags=RowFlag.MARKED)
        for number in (1, 2, 3):
            seen = {"observation": f"{number} {side if number > 1 else ''}"}
            trace.event(Kind.ENVIRONMENT_STEP, "environment 0", counts={"step": number}, digests=seen)
        trace.op("aten.mm.default", outputs=["y"])
    views = views_in(tmp_path)
    later = MarkedRows(5, 1, "first op", 4) if later_rows else MarkedRows()
    found = count_marked(Bisection(*views), 10, later)
    site = "aten.clone.default at train.py:12 (train), row 2"
    assert (found.ops, found.unequal_ops, found.unequal_events) == ((9, 3, 6) if later_rows else (4, 2, 2))
    assert found.first_event is not None
    assert (found.first_op, found.first_event.op, found.first_event.index) == (site, "environment-step", 7)
    assert found.whole is not later_rows
    assert (found.marked.whole, found.events.differing) == (found.whole, found.unequal_events)
    assert count_marked(Bisection(*views), 2, later) is later


@pytest.mark.parametrize("marking", ["ab", "a", "b"])
def test_the_last_garbage_in_a_tensor_of_several_writers(tmp_path: Path, marking: str) -> None:
    """It is the last row before that a side marked, that differs and that writes what it is given, or one that is known
    to compute with such memory; not one that only returns its result, or is equal on both sides."""
    for trace, side in both(tmp_path):
        add, marked = ("aten.add_.Tensor", "aten.add.Tensor"), RowFlag.MARKED
        trace.op(add[0], inputs=["unknown"], outputs=[f"x{side}"], flags=marked if side in marking else 0)
        trace.op(add[0], inputs=["unknown"], outputs=[f"y{side}"])
        trace.op(add[1], inputs=["unknown"], outputs=[f"z{side}"], flags=marked)
        trace.op(add[0], inputs=["unknown"], outputs=["z"], flags=marked)
        trace.op(add[0], inputs=["unknown"], outputs=["z"])
        trace.op("aten.mm.default", inputs=[("mixed", f"m{side}")], outputs=[f"v{side}"])
    views = views_in(tmp_path)
    context = context_of(*views, [(row, row) for row in range(6)])
    rows = row_at(views[0], 5), row_at(views[1], 5)
    (operand,) = match_inputs(context, *rows)
    for unused, wanted in ((set(), 0), ({1}, 1), ({1, 4}, 1)):
        found = garbage_writers(context, *rows, operand, unused)
        assert found is not None and [row.index for row in found] == [wanted] * 2
    unmatched = context_of(*views, [(5, 5)])
    assert garbage_writers(unmatched, *rows, operand, {1}) is None


# --- memory that is read and dropped ----------------------------------------------------------------------------------


def linear_on_empty_memory() -> None:
    """As a library that learns shapes: forward and backward."""
    model, probe = torch.nn.Linear(4, 3), torch.empty(5, 4, requires_grad=True)
    hidden = torch.nn.functional.relu(model(probe), inplace=True)
    (hidden - torch.ones(5, 3)).pow(2).mean().backward(inputs=[probe])


def recurrent_on_empty_memory() -> None:
    torch.nn.LSTM(4, 3)(torch.empty(2, 5, 4))[0].sum(0)


def attention_on_empty_memory() -> None:
    x = torch.empty(1, 2, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten().softmax(0)


def grown_by_resize() -> None:
    grown = torch.ones(2).resize_(64)
    grown * 2 + 1


def grown_storage() -> None:
    """As FSDP frees and allocates what it gathers into."""
    x = torch.ones(64)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(256)
    x * 2 + 1


def padded() -> None:
    padded = torch.nn.functional.pad(torch.empty(3, 3), (1, 1, 2, 0), value=1.0)
    padded.sum(0) * 2


def filled_in_part() -> None:
    """A buffer of which the end stays as it was."""
    buffer = torch.empty(64)
    buffer[:8].copy_(torch.ones(8))
    buffer[8:16] = 2
    (buffer[:16] * 2 + 1).sum()
    (buffer * 2 + 1).sum()


def part_of_written_memory() -> None:
    buffer = torch.zeros(8)
    buffer[:4].add_(torch.empty(4))
    buffer[4:].mul_(torch.empty(4) + 1)
    (buffer * 2 + 1).sum()


def written_over() -> None:
    """What is copied into memory that was written, and what then computes with it."""
    memory = torch.zeros(8)
    memory.copy_(torch.empty(8))
    memory.add_(1).mul_(2)
    other = torch.zeros(8)
    other.copy_(torch.empty(8) + 1)
    other.add_(1).mul_(2)


def into_out() -> None:
    out = torch.empty(8)
    torch.add(torch.empty(8), 1, out=out)
    torch.mul(out, 2, out=out)
    out + 1


def of_several() -> None:
    several = [torch.empty(4), torch.ones(4)]
    doubled = torch._foreach_mul(several, 2.0)
    torch._foreach_add_(doubled, 1.0)
    torch.cat(doubled).sum() + torch.stack(doubled).sum()


def compared_and_selected() -> None:
    x = torch.empty(16)
    torch.where(x > 0, x, torch.zeros(16)).sort()[0] * 2
    (x.isnan().any() | x.isinf().all()).logical_not()
    x[torch.tensor([1, 3])].index_add(0, torch.tensor([0]), x[:1]) * 2


def used_twice(x: torch.Tensor) -> None:
    (x * 2 + 1).sum(0)


GARBAGE: dict[str, Callable[[], object]] = {
    "empty": lambda: used_twice(torch.empty(64)),
    "empty_like": lambda: used_twice(torch.empty_like(torch.ones(8, 8))),
    "empty_strided": lambda: used_twice(torch.empty_strided((4, 4), (1, 4))),
    "empty_permuted": lambda: used_twice(torch.empty_permuted((4, 4), (1, 0))),
    "new_empty": lambda: used_twice(torch.ones(1).new_empty(64)),
    "new_empty_strided": lambda: used_twice(torch.ones(1).new_empty_strided((4, 4), (1, 4))),
    "Tensor": lambda: used_twice(torch.Tensor(64)),
    "to_dtype": lambda: used_twice(torch.empty(64).to(torch.float64).to(torch.bfloat16)),
    "to_copy": lambda: used_twice(torch.empty(64).to("cpu", non_blocking=True, copy=True)),
    "to_copy_under_way": lambda: used_twice(torch.ops.aten._to_copy(torch.empty(64), non_blocking=True)),
    "copy": lambda: used_twice(torch.zeros(64).copy_(torch.empty(64), non_blocking=True)),
    "clone": lambda: used_twice(torch.empty(64).clone()),
    "contiguous": lambda: used_twice(torch.empty(8, 8).t().contiguous()),
    "tolist": lambda: (torch.empty(64) * 2).tolist(),
    "numpy": lambda: (torch.empty(64) * 2 + 1).numpy().sum(),
    "shared": lambda: used_twice(torch.empty(64).share_memory_()),
    **{
        program.__name__: program
        for program in (
            linear_on_empty_memory,
            recurrent_on_empty_memory,
            attention_on_empty_memory,
            grown_by_resize,
            grown_storage,
            padded,
            filled_in_part,
            part_of_written_memory,
            written_over,
            into_out,
            of_several,
            compared_and_selected,
        )
    },
}
"""Programs that compute with uninitialised memory, and drop the result."""

OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "verified inputs": {"verify_inputs": True, "steps": (0, 100)},
    "checked links": {"check_links": True},
}


def train(add: torch.Tensor | None = None) -> None:
    """A step of an optimizer, to which ``add`` contributes a gradient."""
    weight = torch.nn.Parameter(torch.ones(2))
    loss = (weight * 2).sum()
    (loss if add is None else loss + (weight * add).sum()).backward()
    torch.optim.SGD([weight], lr=0.1).step()


def in_threads(programs: dict[str, Callable[[], object]], *, ends: bool = True) -> None:
    """Each in another stream; ``ends``: before a step of an optimizer."""
    for name, program in programs.items():
        in_thread(name, lambda program=program: (program(), train() if ends else None))


def stream_of(path: Path, name: str) -> Trace:
    """The trace with this stream alone."""
    trace = open_trace(path)
    for process in trace.processes:
        process._streams = {i: s for i, s in process._streams.items() if s.name.endswith(f"thread:{name}")}
    return trace


@pytest.fixture(scope="module")
def garbage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """All of ``GARBAGE`` twice under each of ``OPTIONS``, with other bytes in all fresh memory."""
    record = recorder(tmp_path_factory.mktemp("garbage"))
    found: dict[str, list[Path]] = {}
    for name, options in OPTIONS.items():
        found[name] = []
        for byte in (0x11, 0x42):
            with memory_filled(byte):
                torch.manual_seed(0)
                found[name].append(record(lambda: in_threads(GARBAGE), **options).path)
    return found


@pytest.mark.parametrize("name", GARBAGE)
def test_memory_that_is_dropped_is_no_finding(garbage: dict[str, list[Path]], name: str) -> None:
    """What was in it differs, and so do ops that compute with it; the step of the optimizer did not use them."""
    found = compare(*(stream_of(path, name) for path in garbage["plain"]))
    assert (found.verdict, found.first) == (Verdict.IDENTICAL, None)
    assert found.marked.differing


@pytest.mark.parametrize("options", ["verified inputs", "checked links"])
def test_memory_that_is_dropped_is_no_finding_of_any_stream(garbage: dict[str, list[Path]], options: str) -> None:
    """Nor is it where inputs are verified or links are checked, in all streams at once."""
    found = compare(*garbage[options])
    assert (found.verdict, found.first) == (Verdict.IDENTICAL, None)
    assert found.marked.differing >= len(GARBAGE)


def test_memory_that_is_dropped_is_no_fault_of_a_link(garbage: dict[str, list[Path]]) -> None:
    """No recorded op was missed: the memory is uninitialised."""
    assert [open_trace(path).processes[0].link_faults for path in garbage["checked links"]] == [[], []]


# --- memory that matters ----------------------------------------------------------------------------------------------


def used(x: torch.Tensor) -> torch.Tensor:
    """What two ops compute with it."""
    return x * 2 + 1


def in_the_next_step() -> None:
    kept = used(torch.empty(64))
    train()
    kept.sum()
    train()


def in_part_in_the_next_step() -> None:
    kept = torch.zeros(8)
    kept[:4].add_(used(torch.empty(4)))
    train()
    kept.sum()
    train()


def in_a_weight() -> None:
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.add_(used(torch.empty(2, 2)))
    layer(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


MATTERS: dict[str, Callable[[], object]] = {
    "as a number": lambda: (used(torch.empty(64)).sum().item(), train()),
    "as a branch": lambda: (bool((used(torch.empty(64)) > -1e30).all()), used(torch.empty(64)).sum().item(), train()),
    "as a gradient": lambda: train(used(torch.empty(2))),
    "at the end": lambda: used(torch.empty(64)),
    "in the next step": in_the_next_step,
    "in part in the next step": in_part_in_the_next_step,
    "in a weight": in_a_weight,
}
"""Programs of which the result depends on uninitialised memory."""


@pytest.fixture(scope="module")
def matters(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[Path]]:
    """All of ``MATTERS`` twice, without and with links checked."""
    record = recorder(tmp_path_factory.mktemp("matters"))
    found: dict[bool, list[Path]] = {False: [], True: []}
    for checks, paths in found.items():
        for byte in (0x11, 0x42):
            with memory_filled(byte):
                torch.manual_seed(0)
                paths.append(record(lambda: in_threads(MATTERS, ends=False), check_links=checks).path)
    return found


@pytest.mark.parametrize("checks", [False, True], ids=["plain", "checked links"])
@pytest.mark.parametrize("name", MATTERS)
def test_memory_that_matters_is_the_finding(matters: dict[bool, list[Path]], name: str, checks: bool) -> None:
    """At the op that read it first; that it is uninitialised is known where links were checked."""
    found = compare(*(stream_of(path, name) for path in matters[checks]))
    assert found.verdict is Verdict.DIVERGED
    assert found.first.cause is (Cause.UNINITIALISED if checks else Cause.UNKNOWN)
    assert found.first.op == "aten.mul.Tensor"
    assert "computes with what it returned" in found.first.explanation
