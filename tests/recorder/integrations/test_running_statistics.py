"""Running statistics of wrappers are found, and what they were before the first call and after each change is known."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from recorded import Record, series_of
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_environments import Walk

from rltrace.recorder.integrations.running_statistics import StatisticsFinder


class Statistics:
    def __init__(self, mean: Any = 0.5, count: Any = 1) -> None:
        self.mean, self.count = mean, count


class Wrapper:
    def __init__(self, env: object = None, **own: object) -> None:
        self.env = env
        vars(self).update(own)


def test_those_of_every_wrapper_are_found_once_by_the_class_that_has_them() -> None:
    finder = StatisticsFinder()
    inner = Wrapper(rms=Statistics(), by_name={"x": Statistics(np.arange(3.0), 2)}, other={"count": 1}, text="mean")
    for wrapper in (inner, Wrapper(inner, rms=Statistics()), inner, Wrapper(Wrapper(rms=Statistics(torch.ones(2))))):
        finder.search(wrapper)
    assert {one.name: one.began for one in finder.found} == {
        "Wrapper.rms": (("count", 1.0), ("mean of float64", 0.5)),
        "Wrapper.by_name['x']": (("count", 2.0), ("mean of float64", 1.0)),
        "Wrapper.rms 2": (("count", 1.0), ("mean of float64", 0.5)),
    }


def test_numbers_are_read_anew_where_the_count_has_changed_or_the_object_was_replaced() -> None:
    wrapper, finder = Wrapper(rms=Statistics()), StatisticsFinder()
    finder.search(wrapper)
    (one,) = finder.found
    assert one.changed() == ()
    wrapper.rms = Statistics(np.full(2, 7, np.float32), 3)  # type: ignore[attr-defined]
    assert one.changed() == (("count", 3.0), ("mean of float32", 7.0))
    wrapper.rms = None  # type: ignore[attr-defined]
    assert one.changed() == ()
    del wrapper
    assert one.changed() == ()


def test_what_raises_or_has_no_weak_reference_is_passed_over() -> None:
    """Nothing is asked of an object's class, which may load a module."""
    asked = []

    class Slotted:
        __slots__ = ()

    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            raise RuntimeError(name)

    finder = StatisticsFinder()
    for wrapper in (Slotted(), Lazy(), Wrapper(Lazy()), Wrapper(own=Lazy())):
        finder.search(wrapper)
    assert finder.found == [] == asked


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: VecNormalize(DummyVecEnv([Walk])), "VecNormalize.obs_rms"),
        (lambda: gymnasium.wrappers.NormalizeObservation(Walk()), "NormalizeObservation.obs_rms"),
    ],
)
def test_those_of_libraries_are_recorded_as_attempts_end(record: Record, make: Any, name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    with record.block() as got:
        env, optimizer = make(), torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            env.reset()
            weight.sum().backward()
            optimizer.step()
        optimizer.step()
    counts = series_of(got)[f"{name}/count"]
    assert [step for step, _ in counts] == [0, 0, 1]
    assert [round(count) for _, count in counts] == [0, 1, 2]
