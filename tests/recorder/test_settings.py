"""What torch was set to when an op ran: each row names it, whatever changed it and whenever."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from children import in_thread
from recorded import Record, Recorded

from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.settings import Settings
from rltrace.trace.format.schema import SEGMENT_ROWS


@contextmanager
def put_back(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


CHANGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad_mode": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "flush_denormal": lambda: put_back(lambda: False, torch.set_flush_denormal, True),
    "threads": lambda: put_back(torch.get_num_threads, torch.set_num_threads, 1),
    "default_dtype": lambda: put_back(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic_algorithms": lambda: put_back(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "mkldnn.enabled": lambda: put_back(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "cuda.matmul.tf32": lambda: put_back(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
}
"""By setting: what changes it."""

VALUES = {
    **dict.fromkeys(CHANGES, (False, True)),
    **dict.fromkeys(("grad_mode", "mkldnn.enabled"), (True, False)),
    "threads": (2, 1),
    "default_dtype": ("float32", "float64"),
}
"""Before and within."""


@pytest.mark.parametrize("name", CHANGES)
def test_the_op_within_ran_under_it(record: Record, name: str) -> None:
    """And the ops before and after it did not."""
    x = torch.ones(2)
    with put_back(torch.get_num_threads, torch.set_num_threads, 2), record.block() as found:
        x.neg()
        with CHANGES[name]():
            x.exp()
        x.sin()
    before, within = VALUES[name]
    assert [settings_of(found, op)[name] for op in ("neg", "exp", "sin")] == [before, within, before]


def settings_of(found: Recorded, op: str) -> dict[str, Any]:
    settings = found.one(op).settings
    assert settings
    return settings


def test_what_is_asked_only_now_and_then(record: Record) -> None:
    """A flag that is too many to be asked at each op is known from the first step after 1,024 rows on."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with record.block() as found:
        for _ in range(1_100):
            weight.detach().neg()
        with put_back(lambda: True, torch.backends.cuda.enable_flash_sdp, False):
            weight.sum().backward()
            optimizer.step()
            torch.ones(1).exp()
    assert settings_of(found, "exp")["sdp.flash"] is False
    assert found.named("neg")[0].settings["sdp.flash"] is True


def test_a_program_without_steps(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags are read again with each full segment of rows."""
    for limit in ("COMMIT_SECONDS", "IDLE_SECONDS"):  # the rows fill one segment, however slow the machine
        monkeypatch.setattr(f"rltrace.recorder.base.background_thread.{limit}", 600)
    with record.block() as got:
        x = torch.ones(1)
        with put_back(lambda: True, torch.backends.cuda.enable_flash_sdp, False):
            for _ in range(SEGMENT_ROWS + 1):
                x.neg()
            x.exp()
    assert settings_of(got, "exp")["sdp.flash"] is False


def test_each_thread_has_its_own(record: Record) -> None:
    """Grad mode is of the thread: one without gradients changes nothing for another."""
    with record.block() as found:
        in_thread("other", torch.no_grad()(torch.ones(1).exp))
        torch.ones(1).sin()
    assert settings_of(found, "sin")["grad_mode"] is True
    assert settings_of(Recorded(found.path, "rank0/main/thread:other"), "exp")["grad_mode"] is False


def test_backward_runs_without_grad_mode(record: Record) -> None:
    """Unless its graph is to be differentiated again."""
    x = torch.ones(2, requires_grad=True)
    with record.block() as found:
        torch.autograd.grad(x.exp().sum(), x)
        torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    assert found.one("cos").settings["grad_mode"] is True
    assert found.named("mul")[0].settings["grad_mode"] is False


def test_many_changes_make_few_entries() -> None:
    """A program that turns gradients on and off all the time has two sets of settings, and one guard for each."""
    tables = Tables()
    settings = Settings(tables)
    numbers = set()
    for i in range(200):
        with torch.no_grad() if i % 2 else nullcontext():
            numbers.add(settings.now(read_all=i % 10 == 0).number)
    assert len(numbers) == 2
    assert len(settings._known) == 2
    assert settings.threads[min(numbers)] == torch.get_num_threads()


def test_a_guard_that_has_gone_stale_is_not_believed() -> None:
    """What the guard does not look at may have changed under it; asked for all, nothing old is given out."""
    settings = Settings(Tables())
    first = settings.now(read_all=True)
    with put_back(lambda: True, torch.backends.cuda.enable_flash_sdp, False):
        assert settings.now(read_all=False) is first
        second = settings.now(read_all=True)
        assert settings.payloads[second.number]["sdp.flash"] is False
    assert settings.now(read_all=True).number == first.number
