"""Whatever a trace says of itself, with every checksum right: a verb answers or complains, and never breaks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import small_trace
from tampering import Files, Record, load, rewrite, store, tamper

from rltrace.commands import main as command

VERBS = (
    ("info", "{trace}"),
    ("info", "{trace}", "--format", "json"),
    ("ops", "{trace}"),
    ("ops", "{trace}", "--format", "json", "--steps", "1:2", "kernel=x", "module=net*"),
    ("verify", "{trace}"),
    ("slice", "{trace}", "--steps", "1:2", "-o", "{slice}", "--force"),
    ("diff", "{whole}", "{trace}"),
    ("diff", "{trace}", "{whole}", "--format", "json"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("whole") / "whole.zarr")


@pytest.fixture(autouse=True)
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be told as an error that nobody foresaw is an error of the test."""

    def again(error: Exception) -> None:
        raise error

    monkeypatch.setattr(command, "_show_unexpected", again)


def run_all(whole: Path, files: Files, folder: Path) -> list[int]:
    trace = store(files, folder / "trace.zarr")
    places = {"trace": trace, "whole": whole, "slice": folder / "slice.zarr"}
    statuses = [command.main([word.format(**places) for word in verb]) for verb in VERBS]
    assert set(statuses) <= {0, 1, 2, 3}
    return statuses


@given(seed=st.integers(0, 1 << 32), lies=st.integers(1, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lie(whole: Path, tmp_path: Path, seed: int, lies: int) -> None:
    """Records and chunks that are checksummed and wrong: wrong types, absurd numbers, repeated, reordered, missing."""
    files, at_random = load(whole), random.Random(seed)
    for _ in range(lies):
        files = tamper(files, at_random)
    run_all(whole, files, tmp_path)


def changed(kind: str, **fields: object) -> Callable[[Record], Record]:
    return lambda record: {**record, **fields} if record["type"] == kind else record


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ("", changed("launch", options=["--level"], created=1)),
        ("", changed("launch", created=10**20)),
        ("", changed("launch", command=["python", "\udcff.py"])),
        ("processes/0/", changed("birth", name="rank0/\udc80")),
        ("processes/0/", changed("facts", facts={"cpu.model": {"name": "x"}})),
        ("processes/0/", changed("facts", level=5)),
        ("processes/0/", changed("stream", name=["main"])),
        ("processes/0/", changed("commit", stream="0")),
        ("processes/0/", lambda r: {"type": "commit"} if r.get("segment") == 2 else r),
        ("processes/0/", changed("end", exit=3)),
    ],
)
def test_records_that_make_no_sense(
    whole: Path, tmp_path: Path, base: str, change: Callable[[Record], Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told in one line or passed over; what is not hurt is still there."""
    statuses = run_all(whole, rewrite(load(whole), base, change), tmp_path)
    assert statuses[0] == statuses[1] == 0
    assert "Traceback" not in capsys.readouterr().err
