"""Runs of an experiment as tasks of a Ray cluster of two nodes: what comes back is what a run here leaves."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.errors import RecordError, UsageError
from rltrace.experiment import ray_cluster
from rltrace.experiment.ray_cluster import RayCluster, Resources, carried, put, unpack
from rltrace.trace.read.reader import open_trace

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray")
PROGRAM = Path(__file__).parents[1] / "e2e" / "programs" / "loses_worker.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes of one processor each; its sockets need a short path."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for name, value in {
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }.items():
            patch.setenv(name, value)
        (Path(folder) / "ray").mkdir()  # where the address is noted
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
        nodes = Cluster(initialize_head=True, head_node_args={**options, "temp_dir": folder})
        nodes.add_node(**options)
        patch.setenv("RAY_ADDRESS", nodes.address)
        try:
            yield nodes.address
        finally:
            nodes.shutdown()


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@needs_ray
def test_a_lost_worker_is_replaced(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run is made again, and the result says so; the program it ran ends with it. Folder, variables, output and
    traces are as those of runs here.
    """
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    Path("data.txt").write_text("data")
    Path("secret.txt").write_text("here only")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PROBE", "here only")
    command = [sys.executable, str(PROGRAM), str(tmp_path / "lost")]
    options = ["-n", "2", "--no-control", "--quiet", "--on", "ray", "-o", "../out", "--format", "json"]
    status = main(["check", *options, "--", *command])
    printed = capsys.readouterr()
    assert status == 1, printed.err
    found = json.loads(printed.out)
    assert found["groups"] == [[1], [2]]
    assert found["tree"]["finding"]["cause"] == "arguments"
    assert [run["lost"] for run in found["runs"]] == [[], ["its worker process was killed or crashed"]]
    assert [run["status"] for run in found["runs"]] == [0, 0]
    for number in (1, 2):
        assert (tmp_path / "out" / f"run-{number}.out").read_text() == f"{number} data 2 None\n"
        assert open_trace(tmp_path / "out" / f"run-{number}.zarr").launch["cwd"] == str(tmp_path / "folder")
    assert not is_running(int((tmp_path / "lost").read_text()))


def fails(kind: str) -> None:
    """A task: raises."""
    raise RecordError(kind) if kind else ZeroDivisionError("division by zero")


@needs_ray
def test_what_a_task_raises_is_raised_here(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, without pages of traceback; a worker that lacks the code of the task is named as that."""
    (tmp_path / "only_here.py").write_text("def task(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with RayCluster("ray", Resources()) as connected:
        with pytest.raises(RecordError, match=r"^it printed nothing$"):
            list(connected.call(fails, [("it printed nothing",)]))
        with pytest.raises(RecordError, match=r"^a task of the cluster failed: ZeroDivisionError: division by zero$"):
            list(connected.call(fails, [("",)]))
        with pytest.raises(UsageError, match=r"\(No module named 'only_here'\): install the same version there"):
            list(connected.call(importlib.import_module("only_here").task, [()]))


@needs_ray
def test_files_travel_in_pieces(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece has a limited size; modes and links of a folder stay, and links out of a trace are refused."""
    monkeypatch.setattr(ray_cluster, "CHUNK", 4096)
    folder = tmp_path / "folder"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "big").write_bytes(bytes(range(256)) * 100)
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)
    with RayCluster("ray", Resources()):
        objects = put([folder])
        assert len(objects) > 6
        unpack(objects, tmp_path / "trace", trusted=False)
        (folder / "venv").symlink_to("/opt/venv")
        objects = put([folder])
        unpack(objects, tmp_path / "copy", trusted=True)
        with pytest.raises(Exception, match="absolute path"):
            unpack(objects, tmp_path / "other", trusted=False)
    copy = tmp_path / "copy" / "folder"
    assert (copy / "package" / "big").read_bytes() == (folder / "package" / "big").read_bytes()
    assert os.access(copy / "run.sh", os.X_OK) and (copy / "venv").readlink() == Path("/opt/venv")


def test_variables_that_select_results_go_along() -> None:
    """And those that were set for the run; what else is set here, and which devices Ray gives, does not."""
    own = {"HOME": "~", "TOKEN": "secret", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1"}
    assert carried(own, own) == {"OMP_NUM_THREADS": "2"}
    assert carried({**own, "SEED": "1", "TOKEN": "other"}, own) == {
        "OMP_NUM_THREADS": "2",
        "SEED": "1",
        "TOKEN": "other",
    }


@needs_ray
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "rey"], "give ray, or ray://HOST:PORT"),
        (["--on", "ray://127.0.0.1:1"], "no Ray cluster answers at ray://127.0.0.1:1 (Connection refused): start one"),
        (["--on", "ray", "--in-place"], "--in-place runs in this machine's folder"),
        (["--on", "ray", "--against", "a.lock"], "leave out --on"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    """Each is trouble, said in a sentence, before anything runs and before a folder is made."""
    monkeypatch.chdir(tmp_path)
    assert main(["check", *options, "--", "true"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
