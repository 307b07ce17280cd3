"""What boundary events and phases cost on top of recording every op.

    python benchmarks/boundaries_cost.py [--steps 2048] [--rounds 9]

Stable-Baselines3 PPO on CartPole with one thread, recorded with and without them by turns within one process. Times are
processor seconds of the whole process, the committer's thread included, and minima over the rounds: on a shared machine
the least disturbed run of each arm. Then a step of the environment alone, as the program makes it: right after a
forward pass of the policy, when nothing of it is in the processor's caches; medians, the least over the rounds. Prints
Markdown.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import folder_size, lowest, machine, parse_options, table

import rltrace
from rltrace.recorder.core.process_state import Phases
from rltrace.recorder.integrations.install import Integrations
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.read.reader import open_trace

WITH, WITHOUT = "with boundaries and phases", "without"


def learn(steps: int) -> None:
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=512).learn(steps)


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Nothing stands in for environments, and phases are not looked for."""

    def nothing(*_: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for holder, name in ((Integrations, "install"), (Phases, "module_called"), (Phases, "backward_begins")):
            stack.enter_context(mock.patch.object(holder, name, nothing))
        yield


def seconds(steps: int, path: Path, *, off: bool) -> float:
    with without() if off else contextlib.nullcontext():
        begin = time.process_time()
        with rltrace.record(path, force=True):
            learn(steps)
        return time.process_time() - begin


def step_alone(count: int) -> float:
    """Median seconds that a step of the environment takes after the policy's forward pass. Named as what SB3 calls."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", n_steps=64)
    environment: Any = model.get_env()

    def collect_rollouts() -> list[float]:
        seen, found = environment.reset(), []
        for _ in range(count):
            with torch.no_grad():
                actions = model.policy(torch.as_tensor(seen))[0].numpy()
            begin = time.perf_counter()
            seen, *_ = environment.step(actions)
            found.append(time.perf_counter() - begin)
        return found

    return statistics.median(collect_rollouts())


def steps_alone(rounds: int, path: Path) -> dict[str, float]:
    """Least median, in seconds, of each way to run."""

    def median(arm: str) -> float:
        with contextlib.nullcontext() if arm == "native" else rltrace.record(path, level=arm, force=True):
            return step_alone(1500)

    return lowest({arm: partial(median, arm) for arm in ("native", "step", "op")}, rounds)


def rows(path: Path) -> tuple[int, int]:
    """(all rows, events)."""
    (stream,) = open_trace(path).processes[0].streams
    kinds = stream.read(0, stream.rows).column(Column.KIND)
    return len(kinds), int((kinds != Kind.OP).sum())


def main() -> None:
    asked = parse_options(__doc__, steps=2048, rounds=9)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = {WITHOUT: Path(folder) / "off.zarr", WITH: Path(folder) / "on.zarr"}
        seconds(512, paths[WITH], off=False)
        arms = {arm: partial(seconds, asked.steps, path, off=arm == WITHOUT) for arm, path in paths.items()}
        least = lowest(arms, asked.rounds)
        lines = []
        for arm, path in paths.items():
            (count, events), (size, _) = rows(path), folder_size(path)
            ratio = least[arm] / least[WITHOUT]
            lines.append([arm, f"{least[arm]:.2f}", f"{ratio:.3f}", f"{count:,}", f"{events:,}", f"{size / count:.2f}"])
        alone = steps_alone(asked.rounds, Path(folder) / "alone.zarr")
    print(table(["arm", "processor s, least", "ratio", "rows", "events", "bytes a row"], lines))
    added = (least[WITH] - least[WITHOUT]) / max(events, 1) * 1e6
    print()
    told = [[arm, f"{1e6 * s:.1f}", f"+{1e6 * (s - alone['native']):.1f}"] for arm, s in alone.items()]
    print(table(["a step of the environment", "µs, median", "added"], told))
    print(f"\n{added:.1f} µs an event. {asked.rounds} rounds. {machine()}")


if __name__ == "__main__":
    main()
