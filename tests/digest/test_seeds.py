"""Seeds of generators by the digests of their states."""

from __future__ import annotations

import torch

from rltrace.digest.seeds import seeds_of
from rltrace.recorder.digests.rng_state import state_digest


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
    assert seeds_of([]) == {}
