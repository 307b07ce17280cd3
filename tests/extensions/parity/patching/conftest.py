"""A rollout of a small policy, recorded once with rows and values; and its trainer, with rows of it injected."""

from pathlib import Path
from typing import Any

import mixture
import pytest
from row_replays import Generated, Replay, Replayed, replay_rows, trainer

import rltrace


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    path = tmp_path_factory.mktemp("generator") / "a.zarr"
    policy = mixture.make()
    with rltrace.record(path, rows="all", values="all"):
        rollout = mixture.sample(policy)
    return Generated(path, rollout)


@pytest.fixture
def replay(generated: Generated, tmp_path: Path) -> Replay:
    def run(
        inject: Any, *, weights: bool = False, orders: Any = ((2, 0), (1,)), policy: Any = None, a: Any = None
    ) -> Replayed:
        source = generated if a is None else Generated(a, generated.rollout)
        policy = trainer() if policy is None else policy
        return replay_rows(source, tmp_path / "c.zarr", inject, policy, orders, weights=weights)

    return run
