"""Digests of RNG states: torch's default generators of CPU and devices, and Python's and NumPy's global ones.

Owns which bytes of a state are digested, and the numbers of generators in rows. Reads states, never draws and never
seeds; does not initialise a device; keeps no generator alive.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from xxhash import xxh3_64, xxh3_64_intdigest

from rltrace.digest import digest_address, digest_pages
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.trace.format.schema import GENERATOR_NUMBERS, Generator


class RngStates(NamedTuple):
    """A digest for each kind of generator, in the order of ``schema.GENERATORS``; 0 where there is none yet."""

    torch: int
    devices: int
    python: int
    numpy: int


UNTOUCHED = 1
"""In place of a digest: the generator has been neither seeded nor drawn from.

Its state is then random and unused: torch, Python and NumPy all start from a seed of the system.
"""

_TORCH = int(Generator.TORCH)


class GlobalGenerators:
    """The global generators of one process since recording began."""

    def __init__(self, first: RngStates | None = None) -> None:
        self._first = first or all_states()

    def states(self) -> RngStates:
        """Their states now; UNTOUCHED where unchanged."""
        now = all_states()
        return RngStates(*(UNTOUCHED if n == first != 0 else n for n, first in zip(now, self._first, strict=True)))


@cache
def first_states() -> RngStates:
    """The states when this process was first recorded; a second recording compares with these, too."""
    return all_states()


class RngUse:
    """The generators that ops of one process draw from."""

    def __init__(self) -> None:
        self._program_generators: dict[int, int] = {}
        """Numbers of generators that the program created, by address.

        A new one may get the address of a dead one, and with it its number.
        """

    def before_op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        """Digest of the state of the generator that an op is about to draw from, and its number (``Generator``)."""
        generator = kwargs.get("generator")
        if generator is None:  # a few ops take it by position
            generator = next((value for value in args if torch.Generator in type(value).__mro__), None)
        if generator is not None:
            if is_captured(generator.device):  # its state is set at each replay, and must not be read now
                return 0, Generator.UNKNOWN
            return state_digest(generator), self._number_of(generator)
        device = _device_of(args, kwargs)
        if device.type == "cpu":
            return state_digest(torch.default_generator), _TORCH
        generator = None if is_captured(device) else _default_of(device)
        return (0, Generator.UNKNOWN) if generator is None else (state_digest(generator), _default_number(device))

    def _number_of(self, generator: torch.Generator) -> int:
        address = generator._cdata  # type: ignore[attr-defined]
        device = generator.device
        default: Any = torch.default_generator if device.type == "cpu" else _default_of(device)
        if default is not None and default._cdata == address:
            return _default_number(device)
        number = self._program_generators.get(address)
        if number is None:
            number = Generator.OWN + len(self._program_generators)
            if number >= GENERATOR_NUMBERS:
                return Generator.UNKNOWN
            self._program_generators[address] = number
        return number


def _default_number(device: torch.device) -> int:
    """The number of a device's default generator."""
    if device.type == "cpu":
        return _TORCH
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    number = Generator.DEVICE + index
    return number if number < Generator.OWN else Generator.UNKNOWN


def generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that an op with these arguments draws from; None where its device has none."""
    passed = (value for value in (kwargs.get("generator"), *args) if torch.Generator in type(value).__mro__)
    device = _device_of(args, kwargs)
    return next(passed, None) or (torch.default_generator if device.type == "cpu" else _default_of(device))


def state_digest(generator: torch.Generator) -> int:
    """Digest of one torch generator's state, cached normals included."""
    state = generator.get_state()
    return digest_address(state.data_ptr(), state.numel(), 0)


def all_states() -> RngStates:
    """The states of every global generator of the process.

    Separate digests: Python's and NumPy's states differ in every run of a program that does not seed them, and must
    not hide the others.
    """
    with torch_function_disabled():
        return RngStates(state_digest(torch.default_generator), _of_devices(), _of_python(), _of_numpy())


def _of_devices() -> int:
    if not torch.cuda.is_initialized() or is_captured(torch.device("cuda")):
        return 0
    states = [generator.get_state().numpy().tobytes() for generator in torch.cuda.default_generators]
    if all(map(is_unused, states)):
        return UNTOUCHED
    return digest_pages([xxh3_64_intdigest(state) for state in states], 0)


def is_unused(state: bytes) -> bool:
    """Whether nothing has been drawn from a device's generator since it was created or seeded: its offset is 0.

    The state is a seed and an offset (Philox). Generators of devices are created at first use, after recording began,
    so their first state is not known.
    """
    return not any(state[PHILOX_SEED:])


PHILOX_SEED = 8
"""Bytes of the seed, before the offset."""


def _of_python() -> int:
    random = sys.modules.get("random")
    if random is None:
        return 0
    version, words, gauss = random.getstate()
    return xxh3_64_intdigest(array("Q", words).tobytes() + repr((version, gauss)).encode())


def _of_numpy() -> int:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return 0
    digest = xxh3_64()
    _add_state(digest, numpy_random.get_state(legacy=False))  # the legacy form warns for other bit generators
    return digest.intdigest()


def _add_state(digest: xxh3_64, state: Any) -> None:
    """Add NumPy's state by its words: the ``repr`` of NumPy's types differs between versions."""
    if isinstance(state, Mapping):
        for name in sorted(state):
            digest.update(name.encode())
            _add_state(digest, state[name])
    elif hasattr(state, "tobytes"):
        digest.update(state.tobytes())
    else:
        digest.update(repr(state).encode())


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
