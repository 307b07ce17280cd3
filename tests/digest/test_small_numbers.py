"""Numbers of one element, and seeds of generators, by their digests."""

import numpy as np
import pytest
import torch

from rltrace.digest import reference, seed_of
from rltrace.digest.small_numbers import number_of, seeds_of
from rltrace.recorder.digests.rng_state import state_digest


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(0.95, "float32"), (3e-4, "float64"), (-0.0005, "float32"), (2.0, "float32"), (17, "int64"), (True, "bool")],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_number_that_people_write_is_found(number: float, dtype: str, shape: tuple[int, ...]) -> None:
    """As it was written, of whatever shape one element has."""
    data = np.array(number, dtype).tobytes()
    assert number_of(reference.digest(data, seed_of(dtype, shape)), dtype, shape) == number


def test_of_other_numbers_nothing_is_known() -> None:
    """A number with many digits, several elements, a dtype whose numbers are not tried."""
    data = np.array(0.123456, "float32").tobytes()
    assert number_of(reference.digest(data, seed_of("float32", ())), "float32", ()) is None
    assert number_of(reference.digest(data * 2, seed_of("float32", (2,))), "float32", (2,)) is None
    assert number_of(1, "complex64", ()) is None


def test_a_small_seed_is_found_until_something_is_drawn() -> None:
    """Of generators of the program and of torch's default one; a large seed, and a drawn number, hide it."""
    digests = {}
    for seed in (0, 16, 65_535, 2**40):
        generator = torch.Generator()
        generator.manual_seed(seed)
        digests[seed] = state_digest(generator)
    torch.rand(1, generator=generator.manual_seed(3))
    drawn = state_digest(generator)
    assert seeds_of([*digests.values(), drawn]) == {digests[seed]: seed for seed in (0, 16, 65_535)}
    assert seeds_of([*digests.values(), drawn], [70_000, 2**40 + 9, 2**64]) == {
        digest: seed for seed, digest in digests.items()
    }
    assert seeds_of([]) == {}
