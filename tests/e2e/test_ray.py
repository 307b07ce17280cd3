"""Actors of a Ray cluster that was started before, and elsewhere, than the program that is recorded."""

import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrace.diff.happened_before import HappenedBefore, Instant
from rltrace.trace.read.reader import open_trace

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray")
PROGRAM = Path(__file__).parent / "programs" / "actors.py"
SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a cluster of one node; its sockets need a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        options = ["--port=0", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}"]
        node = subprocess.Popen(
            [Path(sys.executable).parent / "ray", "start", "--head", "--block", *options],
            env={**os.environ, **SETTINGS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert node.stdout is not None
        address = (re.search(r"--address='([^']+)'", line) for line in node.stdout)
        try:
            yield next(filter(None, address))[1]
        finally:
            node.terminate()
            node.communicate(timeout=1200)


def wait_for(pid: int) -> None:
    """Until that process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [], 60)
    os.close(handle)


def test_actors_that_are_given_the_environment_are_recorded(cli: Any, cluster: str) -> None:
    """Named by their class; what they compute is what they would have computed, and they end in order."""
    command = [sys.executable, PROGRAM, cluster]
    result = cli.rltrace("record", "--quiet", "-o", "a.zarr", "--", *command, **SETTINGS)
    assert result.returncode == 0, result.stderr
    weights = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    assert float(result.stdout) == torch.tensor([(w * 2.0).sum().item() for w in weights]).sum().item()
    for process in open_trace(cli.folder / "a.zarr").processes:
        wait_for(int(str(process.start_record["pid"])))
    processes = {process.name: process for process in open_trace(cli.folder / "a.zarr").processes}
    actors = ["rank0/ray:Actor", "rank0/ray:Actor#2"]
    assert sorted(processes) == ["rank0/main", *actors]
    assert {process.state for process in processes.values()} == {"complete"}
    assert [processes[name].after_op for name in actors] == [4, 4]
    assert [processes[name].facts["ray.role"] for name in sorted(processes)] == ["driver", "worker", "worker"]


KILLED = """
import ray, torch

@ray.remote
class Runner:
    def work(self, weights):
        return torch.from_numpy(weights).mul(2).numpy()

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
weights = torch.randn(4, generator=torch.Generator().manual_seed(0))
runner = Runner.remote()
print(torch.from_numpy(ray.get(runner.work.remote(weights.numpy()))).sum().item())
ray.kill(runner)
ray.shutdown()
"""


def test_an_actor_that_is_killed_has_its_rows(cli: Any) -> None:
    """They are committed before, its messages are ordered with the driver's rows, and Ray's own processes are none of
    the program's."""
    (cli.folder / "train.py").write_text(KILLED)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        command = ["record", "--quiet", "-o", "a.zarr", "--", sys.executable, "train.py"]
        result = cli.rltrace(*command, **SETTINGS, RAY_TMPDIR=folder)
    assert result.returncode == 0, result.stderr
    trace = open_trace(cli.folder / "a.zarr")
    rows = {process.name: process.after_op for process in trace.processes}
    assert list(rows) == ["rank0/main", "rank0/ray:Runner"] and all(rows.values())
    assert not trace.unrecorded
    happened = HappenedBefore(trace)
    first, last = Instant("rank0/main", 0), Instant("rank0/main", rows["rank0/main"] - 1)
    assert happened.orders(first, Instant("rank0/ray:Runner", 0))
    assert happened.orders(Instant("rank0/ray:Runner", rows["rank0/ray:Runner"] - 1), last)
    assert not happened.orders(Instant("rank0/ray:Runner", 0), first)
