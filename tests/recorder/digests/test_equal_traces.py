"""Traces whose digests were read back later are, byte for byte, those whose digests were taken at once."""

import linecache
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from host_as_device import HostAccelerator, host_as_device
from op_programs import PROGRAMS, actor_critic, policy_update
from recorded import Record, Recorded

import rltrace


def _repeated(name: str) -> Callable[[], None]:
    """One of the programs of ops of every kind, so often that buffers fill up."""
    return lambda: [PROGRAMS[name]() for _ in range(12)]


def _update() -> None:
    """Updates of a small actor-critic, with what optimizers do, foreach and fused."""
    for options in ({"foreach": True}, {"fused": True}):
        parts = actor_critic("cpu", **options)
        for _ in range(2):
            policy_update(*parts)


def _overwritten() -> None:
    """What has just been digested is overwritten at once, over and over, through views as well."""
    values = torch.zeros(700)
    for i in range(200):
        values.add_(i)
        values[i : i + 50].mul_(2)
        (values * 2).zero_().add_(1)


def _shapes() -> None:
    """A page and a word more or less, far more, nothing at all; strides, dtypes, lazy conjugation and negation."""
    for size in (0, 1, 3, 16_383, 16_384, 16_385, 32_768, 50_001):
        torch.arange(size, dtype=torch.uint8).add_(1)
    square = torch.arange(3_600, dtype=torch.float32).reshape(60, 60).mul(0.5)
    for each in (square.t(), square[::2, 1::3], square[:, 5].expand(3, 60), square[0, 0]):
        each.clone(memory_format=torch.preserve_format)
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.int8, torch.float64):
        there = square.to(dtype)
        there.t().contiguous().t().clone(memory_format=torch.preserve_format)
        torch.stack([there, there], dim=-1)
    pair = torch.randn(5, 6, dtype=torch.complex64)
    torch.add(pair.conj(), 1)
    torch.mul(pair.imag, 2)
    pair.conj().clone(memory_format=torch.preserve_format)
    torch.eye(4).to_sparse() * 2
    torch._foreach_mul_([torch.ones(n) for n in (1, 5_000, 3, 40_000, 0, 7)], 3.0)


def _losses() -> None:
    """Workspaces among the results, whose digest is 0."""
    scores = torch.randn(20, 2, 5).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 5, (2, 4))
    loss = torch.nn.functional.ctc_loss(scores, targets, torch.full((2,), 20), torch.full((2,), 4))
    loss.backward()


def _same(here: Recorded, there: Recorded) -> None:
    """All that is in two traces of the same program, but for when and where it ran."""
    assert [s.name for s in here.process.streams] == [s.name for s in there.process.streams]
    for a, b in zip(here.process.streams, there.process.streams, strict=True):
        raw_a, raw_b = a.read(0, a.rows), b.read(0, b.rows)
        assert a.marks[-1].tolist() == b.marks[-1].tolist()
        for name in ("columns", "links", "integers", "floats", "digests"):
            assert getattr(raw_a, name).tobytes() == getattr(raw_b, name).tobytes(), name
    assert here.steps == there.steps
    tables = {name: table.payloads for name, table in here.process.tables.items()}
    assert {name: table.payloads for name, table in there.process.tables.items()} == tables


def _at_once_and_later(
    record: Record, program: Callable[[], None], accelerator: HostAccelerator | None = None, **options: object
) -> list[Recorded]:
    """From one line, whose text is part of each row's call site; once more before, for what torch makes only once."""
    traces = []

    def seeded() -> None:
        torch.manual_seed(2)
        program()

    for around in (nullcontext(), nullcontext(), host_as_device(accelerator)):
        with around:
            traces.append(record(seeded, **options))
    return traces[1:]


OTHERS = ("raising", "threads", "backwards", "numbers")


@pytest.mark.parametrize("program", [_update, _overwritten, _shapes, _losses, *map(_repeated, OTHERS)])
def test_the_same_trace(program: Callable[[], None], record: Record) -> None:
    """A program recorded as always, and with its tensors taken for a device's: nothing in the traces differs."""
    accelerator = HostAccelerator()
    _same(*_at_once_and_later(record, program, accelerator))
    assert accelerator.copies


def test_each_op_verified_reads_its_inputs_later(record: Record) -> None:
    """Every input of every op is digested, of which many are of one op."""
    _same(*_at_once_and_later(record, _overwritten, verify_inputs=True, steps=(0, None)))


def _is_with(frame: object) -> bool:
    """Whether it is at a ``with``, where its block also ends: Python handles no signal between the two."""
    code, line = frame.f_code, frame.f_lineno
    return linecache.getline(code.co_filename, line).lstrip().startswith("with ")


def test_ctrl_c_at_every_statement(tmp_path: Path) -> None:
    """What an interrupted op has put off is dropped with it: the rows after it have the digests that are theirs."""
    import sys

    def program(stop_at: int) -> int:
        """Interrupt the recorder at its n-th line inside of one op; how many lines there were."""
        seen = 0

        def trace(frame: object, event: str, _argument: object) -> object:
            nonlocal seen
            code = frame.f_code.co_filename
            if "rltrace/recorder" not in code or code.endswith("dispatch_mode.py"):
                return None
            if event == "line" and not _is_with(frame):
                seen += 1
                if seen == stop_at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        values = torch.ones(30).add_(1)
        for traced in (False, True):  # at the second op its names are known, and nothing is interned
            try:
                if traced:
                    sys.settrace(trace)
                values.mul_(3)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        for n in range(3):
            torch.full((20,), float(n)).add_(n)
        return seen

    with host_as_device():
        with rltrace.record(tmp_path / "all.zarr"):
            lines = program(0)
        assert lines > 60
        for n in range(1, lines + 1, 7):
            path = tmp_path / f"{n}.zarr"
            with rltrace.record(path):
                program(n)
            rows = Recorded(path).rows
            tail = rows[-6:]
            assert [row.name for row in tail] == ["full", "add_"] * 3, n
            wanted = Recorded(tmp_path / "all.zarr").rows[-6:]
            assert [row.outputs for row in tail] == [row.outputs for row in wanted], n
