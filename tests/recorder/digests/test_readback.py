"""Digests that are put off, against a model: whatever is overwritten, interrupted or waited for meanwhile."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from children import run_threads
from host_as_device import HostAccelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import digest_of
from torch import nn

from rltrace.digest import PAGE_BYTES, digest_buffer
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests import backend, layouts
from rltrace.recorder.digests.layouts import Layouts, logical_bytes
from rltrace.recorder.digests.readback import Pending, ReadBack
from rltrace.recorder.digests.tensor_digest import TensorDigests, digests_on_device

LAYOUTS = Layouts(Tables())


def _made(buffers: int = 2, words: int = 100) -> tuple[HostAccelerator, ReadBack]:
    accelerator = HostAccelerator()
    return accelerator, ReadBack({"cpu": accelerator}, buffers=buffers, words=words)


def _put(readback: ReadBack, *tensors: torch.Tensor) -> list[Pending]:
    return readback.defer(tensors, [LAYOUTS.of(tensor) for tensor in tensors])


def _tensor(size: int, kind: int) -> torch.Tensor:
    values = torch.randint(0, 100, (size,), dtype=torch.int16)
    return [values, values[::2], values.to(torch.complex64).conj(), values.expand(2, size).t(), values > 50][kind]


STEP = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(
            st.tuples(st.sampled_from([1, 2, 30, 4_000, 8_192, 9_000, 20_000]), st.integers(0, 4)),
            min_size=1,
            max_size=6,
        ),
        st.integers(0, 4),
    ),
    st.tuples(st.just("settle"), st.integers(0, 50), st.booleans()),
    st.tuples(st.just("capture"), st.booleans(), st.none()),
    st.tuples(st.just("fail"), st.just(0), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(1, 4))
def test_every_digest_is_of_what_stood_there_when_it_was_put_off(steps: list[tuple], buffers: int) -> None:
    """Streams take turns, tensors are overwritten at once, digests are awaited in any order: each is right, or known
    not to be known, which happens within captures and once the device has failed only."""
    accelerator, readback = _made(buffers, 2_600)
    put: list[tuple[Pending, int, bool]] = []
    for what, a, b in steps:
        if what == "put":
            accelerator.current = b
            tensors = [_tensor(*each) for each in a]
            expected = [digest_of(tensor) for tensor in tensors]
            known = not (readback.gate.is_shut or accelerator.failed)
            put += [(*each, known) for each in zip(_put(readback, *tensors), expected, strict=True)]
            for tensor in tensors:
                tensor.resolve_conj()
                (tensor if tensor.stride() != (1, 0) else tensor[:, :1]).zero_()
        elif what == "settle" and put:
            pending, expected_digest, known = put[a % len(put)]
            assert readback.settle(pending, last=b) == (pending.is_settled)
            assert pending.is_settled or readback.gate.is_shut
        elif what == "capture":
            readback.gate.shut() if a and not readback.gate.is_shut else None
            readback.gate.open() if not a and readback.gate.is_shut else None
        elif what == "fail":
            accelerator.failed = True
    if readback.gate.is_shut:
        readback.gate.open()
    for pending, expected_digest, known in put:
        assert readback.settle(pending)
        assert pending.unread or (known and pending.digest == expected_digest)
        assert not pending.unread or not known or accelerator.failed or any(step[0] == "capture" for step in steps)


def test_what_is_read_is_what_has_arrived() -> None:
    """Nothing waits when a digest is put off, and nothing is read before its event."""
    accelerator, readback = _made(8, 2_600)
    values = torch.arange(100.0)
    put = [_put(readback, values + n)[0] for n in range(300)]
    assert accelerator.waits == 0, "no buffer is needed twice"
    assert all(readback.settle(pending) for pending in put)
    assert [pending.digest for pending in put] == [digest_of(values + n) for n in range(300)]


def test_only_when_all_buffers_are_on_their_way_the_program_waits() -> None:
    """Back-pressure: for the oldest of them, once for each buffer."""
    accelerator, readback = _made()
    for _ in range(5):
        _put(readback, torch.ones(150))
    assert (len(accelerator.copies), accelerator.waits) == (4, 3)


def test_a_stream_that_torch_did_not_make_and_what_no_buffer_holds_are_not_put_off() -> None:
    """How long such a stream lives is not known."""
    accelerator, readback = _made()
    large = torch.ones(1_000, dtype=torch.float64)
    assert readback.defer([large], [LAYOUTS.of(large)]) is None
    accelerator.current = None
    assert readback.defer([large[:5]], [LAYOUTS.of(large[:5])]) is None


def test_threads_put_while_another_settles() -> None:
    """Three threads on streams of their own, each digest awaited by a fourth as soon as it was put off: all right."""
    accelerator, readback = _made(3, 600)
    put: SimpleQueue[tuple[Pending, int] | None] = SimpleQueue()
    wrong: list[int] = []

    def work(n: int) -> None:
        for i in range(200):
            tensor = torch.full((i % 90 + 1,), float(n * 1_000 + i))
            expected = digest_of(tensor)
            put.put((_put(readback, tensor)[0], expected))
            tensor.zero_()

    def settle() -> None:
        while (each := put.get()) is not None:
            pending, expected = each
            if not readback.settle(pending) or pending.unread or pending.digest != expected:
                wrong.append(expected)

    settling = threading.Thread(target=settle)
    settling.start()
    run_threads(*(threading.Thread(target=work, args=(n,)) for n in range(3)))
    put.put(None)
    settling.join()
    assert not wrong
    assert sum(words for _, words in accelerator.copies) > 600 * 10


def test_a_capture_begins_only_after_the_work_of_another_thread_is_enqueued() -> None:
    """A thread that is about to capture waits for one that is between the check and its last call to the device."""
    accelerator, readback = _made()
    copying, captured = threading.Event(), SimpleQueue[str]()

    def capture() -> None:
        readback.gate.shut()
        captured.put("began")
        readback.gate.open()

    def memory(device: torch.device, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        thread.start()
        while captured.empty() and not readback.gate.is_shut:
            copying.wait(0.001)
        assert captured.empty()
        return HostAccelerator.memory(accelerator, device, words)

    thread = threading.Thread(target=capture)
    accelerator.memory = memory  # type: ignore[method-assign]
    pending = _put(readback, torch.ones(3))
    thread.join()
    assert captured.get() == "began" and not pending[0].unread
    assert _put(readback, torch.ones(3))[0].buffer is not None


@pytest.mark.parametrize("where", ["put", "close"])
def test_ctrl_c_within_the_device_s_calls_loses_nothing_else(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception from outside in the midst of it: what was put off before and after has its digest."""
    accelerator, readback = _made()
    values = torch.ones(60)
    before = [_put(readback, values * n)[0] for n in range(3)]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((accelerator, "copy") if where == "close" else (torch.Tensor, "copy_")), interrupted)
        patch.setattr(torch, "_foreach_copy_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _put(readback, values.expand(2, 60).t() if where == "put" else values * 9)
    after = [_put(readback, values * n)[0] for n in range(3, 6)]
    assert all(readback.settle(pending) for pending in before + after)
    assert [p.digest for p in before + after] == [digest_of(values * n) for n in range(6)]


def test_a_signal_handler_in_the_midst_of_it_is_turned_away() -> None:
    """What it puts off is to be waited for, what it awaits is not to be had now; afterwards all is as it was."""
    accelerator, readback = _made()
    values = torch.ones(60)
    [before] = _put(readback, values)
    record_use, seen = accelerator.record_use, []

    def interrupted(*args: object) -> None:
        seen.append((readback.defer([values], [LAYOUTS.of(values)]), readback.settle(before)))
        record_use(*args)

    accelerator.record_use = interrupted
    put = [_put(readback, values * n)[0] for n in range(2, 6)]
    assert seen and all(each[0] is None for each in seen) and not seen[0][1]
    assert all(readback.settle(pending) for pending in (before, *put))
    assert [p.digest for p in (before, *put)] == [digest_of(values * n) for n in range(1, 6)]


def test_buffers_that_are_made_in_inference_mode_serve_afterwards() -> None:
    """And what is made in it can be put off outside."""
    _, readback = _made()
    with torch.inference_mode():
        inferred = torch.arange(40.0)
        put = [*_put(readback, inferred), *_put(readback, inferred.view(5, 8).t())]
    parameter = torch.nn.Parameter(torch.ones(7))
    put += [*_put(readback, inferred), *_put(readback, parameter, torch.ones(3))]
    assert all(readback.settle(pending) for pending in put)
    expected = [inferred, inferred.view(5, 8).t(), inferred, parameter, torch.ones(3)]
    assert [pending.digest for pending in put] == [digest_of(tensor) for tensor in expected]


def test_a_device_without_memory_for_buffers_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are waited for then; what the digests of one op need beside it costs that op's alone."""
    accelerator, asked = HostAccelerator(), []

    def none(*_: object, **__: object) -> None:
        asked.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(accelerator, "memory", none)
    readback = ReadBack({"cpu": accelerator}, buffers=2, words=100)
    values = torch.ones(5)
    assert [readback.defer([values], [LAYOUTS.of(values)]) for _ in range(3)] == [None] * 3
    assert len(asked) == 1

    _, readback = _made()
    [before] = _put(readback, values)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", none)
        [costly] = _put(readback, values)
    [after] = _put(readback, values)
    assert [readback.settle(pending) for pending in (before, costly, after)] == [True] * 3
    assert [pending.unread for pending in (before, costly, after)] == [False, True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda words: words.view(300, 700).t(),
        lambda words: words.view(1, 525, 400)[:, 3:, 1:],
        lambda words: words.view(torch.complex64).view(250, 420).t().conj(),
        lambda words: words.view(1050, 200)[::2].expand(1, 1, -1, -1),
        lambda words: words[:70_000].view(70, 1000).expand(3, 70, 1000),
        lambda words: words.view(3, 2, 35_000)[::2].transpose(0, 1)[..., 1:],
    ],
)
def test_a_large_tensor_is_condensed_slab_by_slab(make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided, conjugated or expanded one has the digest of its logical bytes, and is never copied as a whole."""
    monkeypatch.setattr(layouts, "SLAB_BYTES", 5 * PAGE_BYTES)
    copied: list[int] = []
    monkeypatch.setattr(
        backend, "logical_bytes", lambda part: copied.append(part.numel() * part.element_size()) or logical_bytes(part)
    )
    tensor = make(torch.randn(210_000))
    assert digests_on_device([tensor, torch.ones(3)], [7, 8]) == [
        digest_buffer(logical_bytes(tensor).numpy(), 7),
        digest_buffer(np.ones(3, np.float32), 8),
    ]
    assert len(copied) > 5 and max(copied) <= layouts.SLAB_BYTES


def test_several_tensors_of_all_kinds() -> None:
    """None has digest 0; sparse, strided, conjugated, empty and on no device: what each has by itself."""
    digests = TensorDigests(Layouts(Tables()))
    tensors = [
        torch.randn(5),
        None,
        torch.randn(4, 6).t(),
        torch.eye(3).to_sparse(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.empty(0),
        torch.empty(3, device="meta"),
        nn.Parameter(torch.randn(2, 2)),
    ]
    assert digests.several(tensors) == [0 if tensor is None else digests.of(tensor) for tensor in tensors]
    assert digests.several([]) == []


@pytest.mark.gpu
def test_several_tensors_of_a_gpu_are_read_back_together() -> None:
    """The digests of the same bytes on a CPU, those of other devices among them, and one wait for all."""
    digests = TensorDigests(Layouts(Tables()))
    plain = [torch.randn(n, 3) for n in (1, 70, 3_000, 90_001)]
    mixed = [tensor.cuda() if place % 3 else tensor for place, tensor in enumerate(plain)]
    assert digests.several(mixed) == [digests.of(tensor) for tensor in plain]
