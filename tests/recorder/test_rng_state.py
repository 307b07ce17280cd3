"""Which generator a row drew from, and in which states all of them were left."""

import random
import sys
from array import array
from collections.abc import Callable

import numpy as np
import pytest
import torch
from recorded import Record, Recorded

from rltrace.recorder.digests import rng_state
from rltrace.recorder.digests.rng_state import all_states
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates
from rltrace.trace.format.events import words_further
from rltrace.trace.format.schema import UNTOUCHED, Generator, Step


def numbers(got: Recorded) -> list[tuple[str, int]]:
    """(op, number of its generator) of every row that drew."""
    found = got.raw.generators.tolist()
    return [(row.name, found[row.index]) for row in got.rows if row.rng is not None]


def test_every_generator_has_a_number(record: Record) -> None:
    """torch's own has one whether it is named or not, and each of the program's own has another, by first draw."""
    with record.block() as got:
        first, second = torch.Generator(), torch.Generator()
        torch.rand(3)
        torch.rand(3, generator=torch.default_generator)
        torch.rand(3, generator=second)
        torch.empty(3).normal_(generator=first)
        torch.randperm(3, generator=second)
        torch.nn.functional.dropout(torch.ones(3))
    assert numbers(got) == [
        ("rand", Generator.TORCH),
        ("rand", Generator.TORCH),
        ("rand", Generator.OWN),
        ("normal_", Generator.OWN + 1),
        ("randperm", Generator.OWN),
        ("bernoulli_", Generator.TORCH),
    ]
    drew_nothing = [row.index for row in got.rows if row.rng is None]
    assert not got.raw.generators[drew_nothing].any()


def test_more_generators_than_there_are_numbers(record: Record) -> None:
    """Past the last number it is not said which one it was, and never a wrong one."""
    kept = [torch.Generator() for _ in range(60)]
    got = record(lambda: [torch.rand(1, generator=g) for g in kept])
    found = [number for _, number in numbers(got)]
    assert found[:48] == list(range(Generator.OWN, 64)) and set(found[48:]) == {Generator.UNKNOWN}


def test_the_end_has_the_states(record: Record) -> None:
    """What an attempt records of the generators is recorded at the end, too: of later draws as well."""

    def program(draws: int) -> None:
        torch.manual_seed(3)
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        for _ in range(draws):
            torch.rand(1)

    none, one, same = (record(lambda n=n: program(n)) for n in (0, 1, 0))
    states = [got.process.generators for got in (none, one, same)]
    assert states[0][0] == none.steps[0][Step.TORCH_GENERATOR] == states[2][0] != states[1][0]
    assert UNTOUCHED not in (states[0][0], states[2][0])  # the second one began where the first one's program ended


def test_states_in_memory_have_the_digests_of_what_python_and_numpy_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a program does with the global generators: draw, draw one of two normals, seed, replace."""
    another = random.Random(5)

    def returned() -> tuple[int, int]:
        version, words, gauss = random.getstate()
        python = array("Q", words).tobytes() + repr((version, gauss)).encode()
        return rng_state.xxh3_64_intdigest(python), rng_state.digest_of_state(np.random.get_state(legacy=False))

    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    acts: list[Callable[[], object]] = [
        lambda: random.seed(3),
        lambda: np.random.seed(3),
        random.random,
        *[lambda: random.gauss(0.0, 1.0)] * 3,
        *[np.random.standard_normal] * 3,
        lambda: np.random.permutation(2_000),
        lambda: random.setstate(python),
        lambda: np.random.set_state(numpy),
        lambda: np.random.set_bit_generator(np.random.PCG64(3)),
        np.random.standard_normal,
        lambda: (
            monkeypatch.setattr(random, "_inst", another),
            monkeypatch.setattr(random, "getstate", another.getstate),
        ),
        another.random,
    ]
    bits = np.random.get_bit_generator()
    try:
        for act in acts:
            act()
            assert (all_states().python, all_states().numpy) == returned()
    finally:
        np.random.set_bit_generator(bits)
        np.random.set_state(numpy)
        random.setstate(python)


def test_memory_of_another_form_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a generator's memory is not as expected, its state is digested as Python and NumPy return it."""
    expected = all_states()
    for find in ("python_memory", "_pending_normal"):
        monkeypatch.setattr(rng_state, find, lambda _: None)
    for reader in (rng_state._python_reader, rng_state._numpy_reader):
        reader.cache_clear()
    assert all_states() == expected
    for reader in (rng_state._python_reader, rng_state._numpy_reader):
        reader.cache_clear()


def test_how_many_words_were_drawn_is_in_the_states_of_events() -> None:
    """Between two states of which the same 624 words are drawn; those that a seed leaves count as used up."""
    states = GeneratorStates()
    states.begin()
    random.seed(3)
    np.random.seed(3)
    seeded = states.states()
    random.random()  # each takes two words
    np.random.rand(310)
    drawn = states.states()
    assert [words_further(*pair) for pair in zip(seeded, drawn, strict=True)] == [2, 620]
    np.random.rand(2)  # the other words are made at the next draw
    used_up = states.states()[1]
    np.random.rand()
    assert (words_further(used_up, states.states()[1]), words_further(drawn[1], used_up)) == (2, None)


def test_numpy_imported_after_recording_began_is_untouched_until_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is then one of the system's, in another run another, and means nothing."""
    states = GeneratorStates()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "numpy.random")
        states.begin()
        assert states.states()[1] == 0
    states.imported_numpy(np.random)
    assert states.states()[1] == UNTOUCHED
    np.random.rand()
    assert states.states()[1] not in (0, UNTOUCHED)
