"""Whatever a trace says of itself, with every checksum right: a verb answers or complains, and never breaks."""

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import small_trace
from tampering import Files, Record, encoded, load, records, replace_chunk, rewrite, store, tamper, with_journal

from rltrace.commands import main as command
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import STEPS
from rltrace.trace.format.schema import TABLE_CHUNK, Step

VERBS = (
    ("info", "{trace}"),
    ("info", "{trace}", "--format", "json"),
    ("ops", "{trace}"),
    ("ops", "{trace}", "--format", "json", "--steps", "1:2", "kernel=x", "module=net*"),
    ("verify", "{trace}"),
    ("series", "{trace}"),
    ("series", "{trace}", "{whole}", "--format", "json"),
    ("diff", "{whole}", "{trace}"),
    ("diff", "{trace}", "{whole}", "--format", "json"),
    ("report", "{trace}", "{whole}", "-o", "{page}", "--force", "--quiet"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("whole") / "whole.zarr")


@pytest.fixture(autouse=True)
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be reported as an unexpected error is an error of the test."""

    def again(error: Exception) -> None:
        raise error

    monkeypatch.setattr(command, "_show_unexpected", again)


def run_all(whole: Path, files: Files, folder: Path) -> list[int]:
    trace = store(files, folder / "trace.zarr")
    places = {"trace": trace, "whole": whole, "page": folder / "page.html"}
    statuses = [command.main([word.format(**places) for word in verb]) for verb in VERBS]
    assert set(statuses) <= {0, 1, 2, 3}
    return statuses


@given(seed=st.integers(0, 1 << 32), lies=st.integers(1, 4))
@settings(max_examples=14, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lie(whole: Path, tmp_path: Path, seed: int, lies: int) -> None:
    """Records and chunks that are checksummed and wrong: wrong types, absurd numbers, repeated, reordered, missing."""
    files, at_random = load(whole), random.Random(seed)
    for _ in range(lies):
        files = tamper(files, at_random)
    run_all(whole, files, tmp_path)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    """A file that holds anything at all."""
    files = load(whole)
    key = data.draw(st.sampled_from(sorted(files)))
    run_all(whole, {**files, key: data.draw(st.binary(max_size=400))}, tmp_path)


def absurd_id(files: Files) -> Files:
    """A table entry with an id of twelve digits, and a journal that has so many."""
    line = b'["ops",987654321098,"00000000000000ff","aten.mm.default"]\n'
    chunk = np.frombuffer(line.ljust(TABLE_CHUNK, b"\0"), np.uint8)
    files = replace_chunk(files, "processes/0/", "tables/c.0", chunk)
    return rewrite(files, "processes/0/", changed("tables", entries={"ops": 1 << 47}))


def absurd_end(files: Files) -> Files:
    """A step that ends at a row of fifteen digits, after a record that is lost."""
    stored = chunk_codec.decode(STEPS, files["processes/0/steps/c.0.0"]).copy()
    stored[Step.END_ROW, 1] = 1 << 47
    files = replace_chunk(files, "processes/0/", "steps/c.0.0", stored)
    return rewrite(files, "processes/0/", lambda r: {"type": "commit"} if r.get("segment") == 1 else r)


def long_files(files: Files) -> Files:
    """One chunk named by hundreds of records."""
    tables = next(r for r in records(files, "processes/0/") if r["type"] == "tables")
    more = [tables] * 300
    return with_journal(files, "processes/0/", encoded([*records(files, "processes/0/"), *more]))


@pytest.mark.parametrize("lie", [absurd_id, absurd_end, long_files])
def test_nothing_is_allocated_for_a_lie(whole: Path, tmp_path: Path, lie: Callable[[Files], Files]) -> None:
    """Memory follows the size of the files that are there, not the numbers in them."""
    run_all(whole, load(whole), tmp_path)
    tracemalloc.start()
    try:
        run_all(whole, lie(load(whole)), tmp_path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 80e6


def changed(kind: str, **fields: object) -> Callable[[Record], Record]:
    return lambda record: {**record, **fields} if record["type"] == kind else record


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ("", changed("launch", options=["--level"], created=1)),
        ("", changed("launch", created=10**20)),
        ("", changed("launch", command=["python", "\udcff.py"])),
        ("processes/0/", changed("start", name="rank0/\udc80")),
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
    """Each is reported in one line or ignored; what is not hurt is still there."""
    statuses = run_all(whole, rewrite(load(whole), base, change), tmp_path)
    assert statuses[0] == statuses[1] == 0
    assert "Traceback" not in capsys.readouterr().err
