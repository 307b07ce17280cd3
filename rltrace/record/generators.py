"""Digests of generator states: torch's own, per device, and Python's and NumPy's global ones.

Owns which bytes of a state count. Reads states, never draws and never seeds; a device that was not initialised stays
so.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

import torch
from xxhash import xxh3_64, xxh3_64_intdigest

_CPU_STATE_BYTES = 5_056


def before_op(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Digest of the state of the generator that an op is about to draw from."""
    generator = kwargs.get("generator")
    if generator is None:  # a few ops take it by place
        generator = next((value for value in args if isinstance(value, torch.Generator)), None)
    if generator is None:
        device = _device_of(args, kwargs)
        generator = torch.default_generator if device.type == "cpu" else _default_of(device)
    return 0 if generator is None else state_digest(generator)


def state_digest(generator: torch.Generator) -> int:
    """Digest of one torch generator's state, cached normals included."""
    state = generator.get_state()
    return xxh3_64_intdigest(state.numpy().data)


def all_states() -> int:
    """One digest over every generator of the process: torch CPU and devices, Python's, NumPy's."""
    digest = xxh3_64()
    digest.update(torch.default_generator.get_state().numpy().data)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            digest.update(generator.get_state().numpy().data)
    random = sys.modules.get("random")
    if random is not None:
        version, words, gauss = random.getstate()
        digest.update(array("Q", words))
        digest.update(repr((version, gauss)).encode())
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)  # the legacy form warns where the algorithm is another one
        digest.update(repr(_plain(state)).encode())
    return digest.intdigest()


def _plain(state: Any) -> object:
    """NumPy's state without NumPy's types, whose ``repr`` differs between versions and shortens."""
    if isinstance(state, dict):
        return [(name, _plain(state[name])) for name in sorted(state)]
    return state.tolist() if hasattr(state, "tolist") else state


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0].device
    device = kwargs.get("device")
    return torch.device("cpu") if device is None else torch.device(device)


def _default_of(device: torch.device) -> torch.Generator | None:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index] if torch.cuda.is_initialized() else None
    module: Any = getattr(torch, device.type, None)
    generators = getattr(module, "default_generators", None)
    if generators is not None:
        return generators[device.index or 0]  # type: ignore[no-any-return]
    return getattr(module, "default_generator", None)
