"""Environments being constructed: an event for each one of the program, with a digest of its arguments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from recorded import Record
from toy_environments import Doubled, Walk, events

from rltrace.trace.format.schema import Kind

MADE = (Kind.ENVIRONMENT_MADE,)
BOTH = (*MADE, Kind.ENVIRONMENT_RESET)


def test_each_environment_is_recorded_once_and_its_resets_have_its_number(record: Record) -> None:
    """Whatever wrappers are around it; the line is the program's own, below it the library's."""
    with record.block() as got:
        TimeLimit(Doubled(Walk(length=3)), 5)
        env = gymnasium.make("CartPole-v1")
        Doubled(env).reset(seed=0)
        SyncVectorEnv([Walk, Walk])
    found = events(got, BOTH)
    assert [(event.kind.name, event.owner, event.cells["made"]) for event in found] == [
        ("ENVIRONMENT_MADE", "Walk", 1),
        ("ENVIRONMENT_MADE", "CartPoleEnv", 2),
        ("ENVIRONMENT_RESET", "CartPole-v1", 2),
        ("ENVIRONMENT_MADE", "Walk", 3),
        ("ENVIRONMENT_MADE", "Walk", 4),
        ("ENVIRONMENT_MADE", "SyncVectorEnv", 5),
    ]
    assert found[0].row.line == "TimeLimit(Doubled(Walk(length=3)), 5)"
    assert found[1].row.line == 'env = gymnasium.make("CartPole-v1")'


def test_arguments_are_recorded_and_absolute_paths_are_not(record: Record) -> None:
    class Logged(Walk):
        def __init__(self, length: int, folder: str = "") -> None:
            super().__init__(length)

    def arguments(*args: Any, **kwargs: Any) -> int:
        (event,) = events(record(lambda: Logged(*args, **kwargs)), MADE)
        return int(event.compared["arguments"])

    assert arguments(5, folder="/tmp/run-1") == arguments(5, folder="/tmp/run-2") != arguments(6, folder="/tmp/run-1")
    assert arguments(length=5) != arguments(5, "logs")


def test_environments_of_an_environment_and_those_that_fail_are_none(record: Record) -> None:
    class Two(Walk):
        def __init__(self) -> None:
            self.inside = [Walk(), Walk()]
            super().__init__()

        def reset(self, **given: Any) -> Any:
            self.inside.append(Walk())
            return super().reset(**given)

    class Broken(Walk):
        def __init__(self) -> None:
            raise KeyError("its own")

    with record.block() as got:
        with pytest.raises(KeyError) as caught:
            Broken()
        assert caught.value.__context__ is None
        Two().reset(seed=0)
        Walk()
    assert [event.owner for event in events(got, MADE)] == ["Two", "Walk"]


def test_arguments_and_wrappers_are_recorded_in_words(record: Record) -> None:
    """By name, with defaults, and without what differs between unchanged runs: addresses, absolute paths, elements."""

    class Logged(Walk):
        def __init__(self, length: int, folder: str = "", hook: Any = None, start: Any = None, **more: Any) -> None:
            super().__init__(length)

    def program() -> None:
        env = Logged(5, "/tmp/run-1", hook=lambda: 0, start=np.ones(3), names=["a", "b"], same=[1.5, 1.5])
        TimeLimit(Doubled(env), 5).reset(seed=0)

    made, reset = events(record(program), BOTH)
    assert made.texts == {
        "length": "5",
        "folder": "'a path'",
        "hook": "<lambda>",
        "start": "ndarray",
        "more": "{'names': ['a', 'b'], 'same': 2 × 1.5}",
    }
    assert reset.texts == {"wrappers": "TimeLimit(max_episode_steps=5) > Doubled()"}
