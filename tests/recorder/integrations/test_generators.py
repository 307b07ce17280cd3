"""Generators that a program makes for itself, with their seeds."""

import copy
import pickle
import random
import tempfile

import numpy as np
from recorded import Record
from toy_environments import events

from rltrace.trace.format.events import NONE
from rltrace.trace.format.schema import Kind


def test_their_seeds_are_recorded_where_the_program_gives_them(record: Record) -> None:
    """Of no generator that is copied, handed on or made by the standard library."""

    class Own(random.Random):
        pass

    def program() -> None:
        made = np.random.default_rng(3)
        np.random.default_rng(made)
        np.random.default_rng()
        copy.deepcopy(Own("x"))
        tempfile._RandomNameSequence().rng.random()  # type: ignore[attr-defined]
        np.random.default_rng(np.random.SeedSequence(3, spawn_key=(1,)))

    first, second = (events(record(program), (Kind.SEED,)) for _ in range(2))
    assert [(event.owner, event.cells["seed"]) for event in first[:3]] == [
        ("numpy.random.default_rng", 3),
        ("numpy.random.default_rng", NONE),
        ("random.Random", second[2].cells["seed"]),
    ]
    assert [event.what for event in first] == ["generator"] * 4
    assert first[0].row.line == "made = np.random.default_rng(3)"
    assert [event.compared for event in first] == [event.compared for event in second]
    states = [(one.cells["state"], other.cells["state"]) for one, other in zip(first, second, strict=True)]
    assert [one == other for one, other in states] == [True, False, True, True]
    assert states[0] != states[3]


def test_what_makes_them_is_found_as_unrecorded(record: Record) -> None:
    """By pickle, by the class and after the recording; what they draw is the same."""
    drawn = random.Random(3).random(), np.random.default_rng(3).random()
    seed, default_rng = random.Random.seed, np.random.default_rng
    with record.block():
        assert random.Random.seed is seed
        assert pickle.loads(pickle.dumps(np.random.default_rng)) is np.random.default_rng
        assert (random.Random(3).random(), np.random.default_rng(3).random()) == drawn
    assert (random.Random.seed, np.random.default_rng) == (seed, default_rng)
