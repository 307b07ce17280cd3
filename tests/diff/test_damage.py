"""Damaged traces: what is equal is never called different, what differs is never called equal, and nothing crashes."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory import Memory, in_memory
from tampering import Files, bases, load, records, rewrite, store
from views import both, compare_in

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.errors import RltraceError
from rltrace.json import to_json
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.format.journal import parse_journal

damages = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "remove", "zero", "swap"]), st.floats(0, 1)),
    min_size=1,
    max_size=3,
)


# --- several processes, one thing wrong at a time ---------------------------------------------------------------------


def several(path: Path, noise: str = "") -> Files:
    """A learner with a loader thread, and a worker that draws; with ``noise`` the learner diverges in step 1."""
    trace = TraceBuilder(path)
    for step in range(3):
        own = noise if step else ""
        first = trace.op("aten.mm.default", inputs=[("outside", f"o{step}{own}")], outputs=[f"h{step}{own}"])
        trace.op("aten.add.Tensor", inputs=[first], outputs=[f"s{step}{own}"])
        trace.end_step(parameters=f"p{step}{own}", gradients="g", generators="r")
        trace.commit()
    trace.stream("rank0/main/thread:loader").op("aten.randperm.default", rng="l", outputs=["l"])
    worker = trace.process("rank0/worker:1").stream()
    for draw in range(2):
        worker.op("aten.randn.default", rng=f"w{draw}", outputs=[f"w{draw}"])
        worker.commit()
    return load(trace.finish())


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    folder = tmp_path_factory.mktemp("several")
    return {name: several(folder / f"{name}.zarr", "x" * (name == "other")) for name in ("a", "same", "other")}


def under(files: Files, folder: str) -> Files:
    return {key: data for key, data in files.items() if key.startswith(f"{folder}/")}


def without(files: Files, folder: str) -> Files:
    return {key: data for key, data in files.items() if not key.startswith(f"{folder}/")}


def one_thing_wrong(files: Files, others: list[Files]) -> dict[str, Files]:
    """Each file gone or another launch's, each folder too, each journal rolled back or hurt in each of its records."""
    wrong: dict[str, Files] = {}
    for key in (key for key in files if not key.endswith("zarr.json")):
        wrong[f"{key} gone"] = {other: data for other, data in files.items() if other != key}
        wrong |= {f"{key} of {n}": {**files, key: o[key]} for n, o in enumerate(others) if key in o}
    for folder in sorted({"/".join(key.split("/")[:n]) for key in files for n in range(1, key.count("/") + 1)}):
        wrong[f"{folder} gone"] = without(files, folder)
        wrong |= {f"{folder} of {n}": {**without(files, folder), **under(o, folder)} for n, o in enumerate(others)}
    for key in (key for key in files if key.endswith("/log")):
        data = files[key]
        ends = [0, *parse_journal(data).ends]
        for start, end in pairwise(ends):
            middle = (start + end) // 2
            wrong[f"{key} cut at {start}"] = {**files, key: data[:start]}
            hurt = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
            wrong[f"{key} hurt at {middle}"] = {**files, key: hurt}
    return wrong


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", ["same", "other"])
def test_one_thing_wrong(launches: dict[str, Files], tmp_path: Path, name: str, ended: bool) -> None:
    """No lost name, stream, process or record makes two runs equal or different that are not; without the end of the
    launch, which vouches for the journals, neither."""
    files = launches[name]
    if not ended:
        files = rewrite(files, "", lambda record: record if record["type"] == "launch" else None)
    others = [launches["a"], launches["other" if name == "same" else "same"]]
    true = "identical" if name == "same" else "diverged"
    whole, spoilt = tmp_path / "whole.zarr", tmp_path / "spoilt.zarr"
    whole.mkdir()
    spoilt.mkdir()
    folders = {whole: Memory(launches["a"])}
    seen = set()
    with in_memory(folders):
        for number, (what, wrong) in enumerate(one_thing_wrong(files, others if ended else others[1:]).items()):
            folders[spoilt] = Memory(wrong)
            try:
                comparison = compare(*((whole, spoilt) if number % 2 else (spoilt, whole)))
            except RltraceError:
                continue
            assert comparison.verdict in (true, "unknown"), f"{what}: {comparison.why}"
            seen.add(str(comparison.verdict))
    assert seen == {true, "unknown"}


@pytest.mark.parametrize("name", ["same", "other"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.lists(damages, min_size=1, max_size=2), ended=st.booleans())
def test_several_things_wrong(
    launches: dict[str, Files], tmp_path: Path, name: str, damage: list[list[tuple[float, str, float]]], ended: bool
) -> None:
    """The same holds of several of them at once, on one side or on both, and there is a report."""
    sides = [launches["a"], launches[name]]
    if not ended:
        sides[1] = rewrite(sides[1], "", lambda record: record if record["type"] == "launch" else None)
    folders = {}
    for number, files in enumerate(sides):
        path = tmp_path / f"{number}.zarr"
        path.mkdir(exist_ok=True)
        folders[path] = Memory(spoilt_files(files, damage[number - 1]) if number or len(damage) > 1 else files)
    with in_memory(folders):
        try:
            comparison = compare(*folders)
        except RltraceError:
            return
    assert document_text(verdict_document(comparison)) and to_json(comparison)
    assert comparison.verdict in ("identical" if name == "same" else "diverged", "unknown"), comparison.why


def spoilt_files(files: Files, damage: list[tuple[float, str, float]]) -> Files:
    """Bits flipped, files cut, emptied, removed or replaced by others, and journals rolled back ("zero")."""
    files = dict(files)
    for which, how, where in damage:
        keys = sorted(files)
        key = keys[min(int(which * len(keys)), len(keys) - 1)]
        data = bytearray(files[key])
        at = min(int(where * len(data)), len(data) - 1)
        if how == "remove" or not data:
            del files[key]
            continue
        if how == "flip":
            data[at] ^= 1 << (at % 8)
        elif how == "swap":
            data = bytearray(files[keys[at % len(keys)]])
        elif how == "zero" and key.endswith("/log"):
            at = next(end for end in [*parse_journal(bytes(data)).ends, len(data)] if end >= at)
        files[key] = bytes(data[:at] if how in ("cut", "zero") else data)
    return files


def test_a_record_that_is_lost_leaves_it_open(launches: dict[str, Files], tmp_path: Path) -> None:
    """What a journal no longer describes may be what differs: equal so far, and the lost record is named."""
    whole = store(launches["a"], tmp_path / "whole.zarr")
    for base in bases(launches["same"]):
        for number in range(len(records(launches["same"], base))):
            data = launches["same"][f"{base}journal/log"]
            start = [0, *parse_journal(data).ends][number]
            hurt = data[: start + 20] + b"?" + data[start + 21 :]
            spoilt = store({**launches["same"], f"{base}journal/log": hurt}, tmp_path / "spoilt.zarr")
            comparison = compare(whole, spoilt)
            assert comparison.verdict is Verdict.UNKNOWN
            assert any("journal" in hole.why for hole in comparison.holes)


def test_both_sides_damaged(launches: dict[str, Files], tmp_path: Path) -> None:
    """Holes of both sides are named, each with its side; what is left decides only if it can."""
    key = "processes/0/streams/0/rows/c.{}.0"
    sides = []
    for name, gone in (("a", 0), ("other", 2)):
        files = {k: data for k, data in launches[name].items() if k != key.format(gone)}
        sides.append(store(files, tmp_path / f"{name}.zarr"))
    comparison = compare(*sides)
    assert {(hole.side, hole.first) for hole in comparison.holes} == {("a", 0), ("b", 4)}
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.first_value.a_index == 2


def test_a_process_that_left_nothing_but_its_start_record(launches: dict[str, Files], tmp_path: Path) -> None:
    """Where the launch's end is not recorded, a worker that is gone may be one that recorded nothing: no difference."""
    files = rewrite(launches["same"], "", lambda record: record if record["type"] == "launch" else None)
    name = next(key for key in files if key.endswith(".name") and files[key].endswith(b"worker:1"))
    gone = {key: data for key, data in without(files, "processes/1").items() if key != name}
    comparison = compare(store(launches["a"], tmp_path / "whole.zarr"), store(gone, tmp_path / "gone.zarr"))
    assert comparison.verdict is Verdict.UNKNOWN
    assert "rank0/worker:1 is missing" in comparison.why


def test_a_hole_before_one_that_is_known(tmp_path: Path) -> None:
    """A missing file is noticed as a trace is opened, other bytes in an earlier one only as they are read."""
    for trace, noise in both(tmp_path, "", "x"):
        for row in range(20):
            trace.op("aten.mm.default", (f"{row}.py", 1, "f", "y = x @ w"), outputs=[f"{row} {noise * (row == 2)}"])
            if row % 4 == 3:
                trace.commit()
        trace.end_step()
    rows = tmp_path / "a.zarr" / "processes/0/streams/0/rows"
    (rows / "c.3.0").unlink()
    (rows / "c.1.0").write_bytes(bytes((rows / "c.1.0").stat().st_size))
    found = compare_in(tmp_path)
    assert found.verdict is Verdict.DIVERGED and found.decisive is not None and found.decisive.a_index == 2
