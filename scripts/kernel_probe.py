"""Finds a CPU kernel setting under which this processor computes other bits: two "machines" in one.

    python scripts/kernel_probe.py            NAME=VALUE of the first setting that changes an op of the example, or none
    python scripts/kernel_probe.py --all      every setting and the ops it changes
    python scripts/kernel_probe.py --changed SETTING …   the ops that these settings change, as JSON
    python scripts/kernel_probe.py --digests  this process's own digests, as JSON

Which setting changes what depends on the processor, so it is looked at, never assumed: each setting gets a process of
its own that runs a handful of ops on the same numbers, in the shapes of ``examples/ppo_cartpole.py`` and in those of
the smaller programs of ``tests/e2e``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from typing import Any

SETTINGS = (
    "ATEN_CPU_CAPABILITY=default",
    "MKL_CBWR=COMPATIBLE",
    "MKL_CBWR=AVX2",
    "ATEN_CPU_CAPABILITY=avx2",
    "OMP_NUM_THREADS=1",
)
"""The clearest evidence first: torch itself says which capability its own kernels were chosen for."""


def digests(programs: str) -> dict[str, str]:
    """Op and shape to a digest of what it computed here; ``programs``: "example", or "tests" for the small ones."""
    computed = _of_example() if programs == "example" else _of_tests()
    return {op: sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for op, tensor in computed.items()}


def _of_tests() -> dict[str, Any]:
    import torch

    steps = torch.arange(96) * 0.1 - 5  # exact on every processor

    def batch_norm() -> torch.Tensor:
        return torch.batch_norm(torch.arange(512.0).sqrt().view(64, 8), None, None, None, None, True, 0.1, 1e-5, False)

    torch.manual_seed(7)
    return {
        "softplus (24,4)": torch.nn.functional.softplus(steps.view(24, 4)),
        "normal (16,)": torch.randn(16),
        "batch_norm (64,8)": batch_norm(),
    }


def _of_example() -> dict[str, Any]:
    """Inputs come from NumPy, so that no setting changes them."""
    import numpy as np
    import torch
    from torch.optim._functional import adam as adam_step  # the class would load torch's compiler, a second's work

    numbers = np.random.default_rng(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.from_numpy(numbers.standard_normal(shape).astype(np.float32))

    def adam() -> torch.Tensor:
        weight, gradient = some(64, 64), some(64, 64)
        state = [torch.zeros(64, 64)], [torch.zeros(64, 64)], [], [torch.tensor(0.0)]
        rates = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
        adam_step([weight], [gradient], *state, amsgrad=False, maximize=False, **rates)
        return weight

    torch.manual_seed(0)
    return {
        "addmm (1,4)x(4,64)": torch.addmm(some(64), some(1, 4), some(4, 64)),
        "addmm (64,4)x(4,64)": torch.addmm(some(64), some(64, 4), some(4, 64)),
        "addmm (64,64)x(64,64)": torch.addmm(some(64), some(64, 64), some(64, 64)),
        "mm (64,64)x(64,64)": some(64, 64) @ some(64, 64),
        "tanh (64,64)": torch.tanh(some(64, 64)),
        "log_softmax (64,2)": torch.log_softmax(some(64, 2), -1),
        "normal (64,4)": torch.randn(64, 4),
        "qr (64,64)": torch.linalg.qr(some(64, 64))[0],
        "Adam (64,64)": adam(),
    }


def under(setting: str | None, programs: str = "example") -> dict[str, str]:
    """``digests`` of a fresh process with ``setting`` in its environment."""
    environment = dict(os.environ)
    if setting:
        name, _, value = setting.partition("=")
        environment[name] = value
    command = [sys.executable, __file__, "--digests", programs]
    found: dict[str, str] = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    return found


def changed(setting: str, plain: dict[str, str], programs: str = "example") -> list[str]:
    """The ops that compute other bits under ``setting``."""
    other = under(setting, programs)
    return [op for op in plain if other[op] != plain[op]]


def find_setting() -> tuple[str, list[str]] | None:
    """The first setting that changes an op, and the ops it changes; None where none does."""
    plain = under(None)
    return next(((setting, ops) for setting in SETTINGS if (ops := changed(setting, plain))), None)


def main() -> None:
    if "--digests" in sys.argv:
        print(json.dumps(digests(sys.argv[-1])))
    elif "--changed" in sys.argv:
        plain = under(None, "tests")
        print(json.dumps({setting: changed(setting, plain, "tests") for setting in sys.argv[2:]}))
    elif "--all" in sys.argv:
        plain = under(None)
        for setting in SETTINGS:
            print(f"{setting:<30} {', '.join(changed(setting, plain)) or 'no difference'}")
    else:
        found = find_setting()
        print(found[0] if found else "none")


if __name__ == "__main__":
    main()
