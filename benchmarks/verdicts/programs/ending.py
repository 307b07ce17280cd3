"""How every program of the matrix ends: it prints what it computed, so that recorded and unrecorded runs compare."""

import random
from collections.abc import Iterable
from hashlib import sha256

import numpy as np
import torch


def end(weights: Iterable[torch.Tensor]) -> None:
    """Print a digest of the weights, and one of every generator's state."""
    bits = sha256()
    for weight in weights:
        bits.update(weight.detach().contiguous().numpy().tobytes())
    print("weights", bits.hexdigest())
    states = sha256(torch.get_rng_state().numpy().tobytes())
    states.update(repr((random.getstate(), np.random.get_state())).encode())
    print("generators", states.hexdigest())
