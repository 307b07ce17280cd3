"""Inputs that begin elsewhere: MKL's dot product adds up otherwise where an address is no multiple of 16 bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import rltrace
from rltrace.diff.base.model import Cause
from rltrace.diff.compare import compare
from rltrace.extensions.repro.commands.explain import _differing_side
from rltrace.extensions.repro.commands.repro import find, prepare
from rltrace.extensions.repro.explain import explain
from rltrace.extensions.repro.folder import SCRIPT, write_folder
from rltrace.extensions.repro.kernel_settings import OF, KernelSetting

NUMBERS = 1_000


def program(past: int) -> None:
    """A dot product of memory that torch did not allocate, so many bytes past a multiple of 64."""
    room = np.zeros(4 * NUMBERS + 128, np.uint8)
    start = (past - room.ctypes.data) % 64
    x = torch.from_numpy(room[start : start + 4 * NUMBERS].view(np.float32))
    x.copy_(((torch.arange(NUMBERS) * 7919 % 1009).float() - 500) / 170)
    x.dot((torch.arange(NUMBERS) * 31 % 997).float() / 97)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """A's input is aligned as an allocator aligns it, B's begins 4 bytes later."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, past in (("a.zarr", 0), ("b.zarr", 4)):
            with rltrace.record(tmp_path / name, values="op=dot", values_inputs=True):
                program(past)
    finally:
        torch.set_num_threads(before)
    return tmp_path / "a.zarr", tmp_path / "b.zarr"


def test_inputs_of_another_alignment_are_reported_and_tried(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """diff names them where it finds no other kernel; under the settings of B the op gives B's bits."""
    a, b = traces
    compared = compare(a, b)
    if compared.decisive is None:
        pytest.skip("on this processor a dot product comes to the same wherever its inputs lie")
    first = compared.decisive
    assert (first.op, first.cause) == ("aten.dot.default", Cause.SAME_KERNEL)
    sentence = "input 0 (float32[1000]) is aligned to 64 bytes in A, to 4 in B, and kernels choose their loops"
    assert sentence in first.explanation
    assert f"rltrace explain {a} {b}" in compared.advice
    repro = prepare(*find(a, None, b), (), "explain")
    sides = repro.sides
    assert (sides["a"].alignments, sides["b"].alignments, _differing_side(sides)) == ((0, 0), (4, 0), "b")
    write_folder(tmp_path / "op", repro)
    here, as_b = explain(tmp_path / "op" / SCRIPT, [KernelSetting(), KernelSetting(OF, "b")], 2)
    assert (here.trouble, as_b.trouble) == ("", "")
    assert "a" in here.gives and "b" in as_b.gives and "a" not in as_b.gives
