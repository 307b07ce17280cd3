"""Vector environments of Gymnasium and Stable-Baselines3 in worker processes: forked, spawned and of a fork server."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.read.reader import Trace, open_trace

SUBPROC = """
import sys
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    arguments = {"start_method": "forkserver"}
    environments = make_vec_env("CartPole-v1", 1, seed=3, vec_env_cls=SubprocVecEnv, vec_env_kwargs=arguments)
    PPO("MlpPolicy", environments, n_steps=16, batch_size=16, n_epochs=1, seed=3, device="cpu").learn(16)
    environments.close()
"""


@pytest.fixture(scope="module")
def vectors(new_cli: Callable[[], Any]) -> tuple[Any, str]:
    """``vectors.py`` recorded twice, and what it prints when it is not."""
    cli = new_cli()
    plain = cli.python("vectors.py")
    for name in ("a.zarr", "b.zarr"):
        recorded = cli.record(name, "vectors.py")
        assert (recorded.returncode, recorded.stdout) == (plain.returncode, plain.stdout), recorded.stderr
    return cli, plain.stdout


def ops(trace: Trace) -> dict[str, int]:
    assert {process.state for process in trace.processes} == {"complete"}
    return {process.name: process.after_op for process in trace.processes}


def test_workers_are_named_alike(vectors: tuple[Any, str]) -> None:
    """A forked worker has a part of its own; one that never imports torch is named as what it is, and no more."""
    cli, printed = vectors
    assert "weights" in printed
    trace = open_trace(cli.folder / "a.zarr")
    forked = ["rank0/worker:1", "rank0/worker:2", "rank0/worker:5", "rank0/worker:6"]
    assert sorted(ops(trace)) == ["rank0/main", *forked]
    start_records = sorted(str(start_record.record["argv"][-1]) for start_record in trace.unrecorded)  # type: ignore[index]
    assert start_records == [f"multiprocessing.{name}" for name in ("resource_tracker", "spawn", "spawn")]


def test_two_recordings_are_identical(vectors: tuple[Any, str]) -> None:
    """The main process and the workers are equal in both."""
    cli, _ = vectors
    found = compare(cli.folder / "a.zarr", cli.folder / "b.zarr")
    assert found.verdict is Verdict.IDENTICAL
    assert found.compared == ops(open_trace(cli.folder / "b.zarr"))
    assert found.notes == ()


def test_workers_that_import_torch_are_recorded(cli: Any) -> None:
    """Each worker of a fork server imports torch anew: its environment's steps are events of its own."""
    (cli.folder / "train.py").write_text(SUBPROC)
    result = cli.rltrace("record", "--quiet", "-o", "a.zarr", "--", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    trace = open_trace(cli.folder / "a.zarr")
    assert sorted(ops(trace)) == ["rank0/main", "rank0/worker:1"]
    (stream,) = next(process for process in trace.processes if process.name == "rank0/worker:1").streams
    kinds = stream.read(0, stream.rows).column(Column.KIND).tolist()
    assert kinds.count(Kind.ENVIRONMENT_STEP) == 16
