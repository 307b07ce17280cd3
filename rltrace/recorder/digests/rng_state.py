"""Digests of RNG states: torch's default generators of CPU and devices, and Python's and NumPy's global ones.

Owns which bytes of a state are digested, and the numbers of generators in rows. Reads states, never draws and never
seeds; does not initialise a device; keeps no generator of the program alive.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from ctypes import c_char, c_uint64, sizeof
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

import torch
from xxhash import xxh3_64, xxh3_64_intdigest

from rltrace.digest import digest_address, digest_pages
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import data_address
from rltrace.trace.format.schema import GENERATOR_NUMBERS, UNTOUCHED, Generator


class RngStates(NamedTuple):
    """A digest for each kind of generator, in the order of ``schema.GENERATORS``; 0 where there is none yet."""

    torch: int
    devices: int
    python: int
    numpy: int


StateReader = Callable[[], int]
"""Returns the digest of a generator's current state."""

_TORCH = int(Generator.TORCH)


class GlobalGenerators:
    """The global generators of one process since recording began."""

    def __init__(self, first: FirstStates | None = None, library: Any = None) -> None:
        """``library``: of the native engine, to read torch's generator with."""
        self._first = first or FirstStates()
        self._of_torch: StateReader = _of_torch if library is None else library.default_generator_digest

    def states(self) -> RngStates:
        """Their states now; UNTOUCHED where unchanged."""
        with torch_function_disabled():
            now = self._of_torch(), _of_devices(), _of_python(), _of_numpy()
        both = zip(now, self._first.states, strict=False)
        return RngStates(*(UNTOUCHED if state == first != 0 else state for state, first in both))


class FirstStates:
    """The states when this process was first recorded; a second recording compares with these, too."""

    def __init__(self) -> None:
        self.states = all_states()

    def imported_numpy(self) -> None:
        """NumPy's generators are imported now, or were before recording began."""
        if not self.states.numpy:
            self.states = self.states._replace(numpy=_of_numpy())

    def forked(self) -> None:
        """This process is a child, in which Python has seeded ``random`` anew."""
        self.states = self.states._replace(python=_of_python())


@cache
def first_states() -> FirstStates:
    """Those of this process."""
    return FirstStates()


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
            return self.of(generator)
        device = _device_of(args, kwargs)
        if device.type == "cpu":
            return state_digest(torch.default_generator), _TORCH
        generator = None if is_captured(device) else _default_of(device)
        return (0, Generator.UNKNOWN) if generator is None else (state_digest(generator), _default_number(device))

    def of(self, generator: torch.Generator) -> tuple[int, int]:
        """Digest of the state of a generator, and its number."""
        if is_captured(generator.device):  # its state is set at each replay, and must not be read now
            return 0, Generator.UNKNOWN
        return state_digest(generator), self._number_of(generator)

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
    return digest_address(data_address(state), state.numel(), 0)


def all_states() -> RngStates:
    """The states of every global generator of the process.

    Separate digests: Python's and NumPy's states differ in every run of a program that does not seed them, and must
    not hide the others.
    """
    with torch_function_disabled():
        return RngStates(_of_torch(), _of_devices(), _of_python(), _of_numpy())


def _of_torch() -> int:
    return state_digest(torch.default_generator)


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
    return 0 if random is None else _python_reader(random)()


def _of_numpy() -> int:
    numpy_random = sys.modules.get("numpy.random")
    return 0 if numpy_random is None else _numpy_reader(numpy_random)()


def digest_of_state(state: Any) -> int:
    """Digest of a NumPy generator's state, by its words: the ``repr`` of NumPy's types differs between versions."""
    digest = xxh3_64()
    _add_state(digest, state)
    return digest.intdigest()


def _add_state(digest: xxh3_64, state: Any) -> None:
    if isinstance(state, Mapping):
        for name in sorted(state):
            digest.update(name.encode())
            _add_state(digest, state[name])
    elif hasattr(state, "tobytes"):
        digest.update(state.tobytes())
    else:
        digest.update(repr(state).encode())


# --- Mersenne Twisters ------------------------------------------------------------------------------------------------
#
# ``random.getstate()`` and ``numpy.random.get_state()`` make Python objects of 624 words (17 and 28 µs, measured, and
# twice that between a program's other work). Where the memory of a Mersenne Twister is laid out as in CPython and
# NumPy, which is checked against their own answers, its bytes are read in place, to the same digest.


WORDS: Final = 624
SIZE: Final = 4 * WORDS + 4
"""Bytes of a Mersenne Twister: its words and its position."""
_TWISTER: Final = Struct(f"={WORDS + 1}I")
_POSITION: Final = Struct("=i")
_NORMAL: Final = Struct("@i4xd")
"""In NumPy's ``aug_bitgen_t``, after its pointer: whether a second normal number was drawn, and that number."""


def python_memory(module: Any) -> Any:
    """The position and the words of CPython's ``random``, after the object's header; None where it has another form."""
    generator: Any = getattr(module, "_inst", None)
    header = object.__basicsize__
    if type(generator) is not module.Random or type(generator).__basicsize__ < header + SIZE:
        return None
    memory = (c_char * SIZE).from_address(id(generator) + header)
    words = generator.getstate()[1]
    return memory if bytes(memory) == array("I", [words[-1], *words[:-1]]).tobytes() else None


def numpy_memory(module: Any) -> Any:
    """The words and the position of NumPy's legacy generator; None where it has another form."""
    generator = module.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    memory = (c_char * SIZE).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    expected = state["key"].astype("uint32").tobytes() + array("i", [state["pos"]]).tobytes()
    return memory if bytes(memory) == expected else None


@cache
def _python_reader(module: Any) -> StateReader:
    def read() -> int:
        version, words, gauss = module.getstate()
        return xxh3_64_intdigest(array("Q", words).tobytes() + repr((version, gauss)).encode())

    memory = python_memory(module)
    if memory is None:
        return read
    generator, known = module._inst, (b"", "", 0)

    def read_memory() -> int:
        nonlocal known
        if module._inst is not generator:  # the module was loaded again
            return read()
        state, gauss = memory.raw, repr(generator.gauss_next)
        if state != known[0] or gauss != known[1]:
            position, *words = _TWISTER.unpack(state)
            data = array("Q", [*words, position]).tobytes() + f"({generator.VERSION}, {gauss})".encode()
            known = state, gauss, xxh3_64_intdigest(data)
        return known[2]

    return read_memory if read_memory() == read() else read


@cache
def _numpy_reader(module: Any) -> StateReader:
    def read() -> int:
        return digest_of_state(module.get_state(legacy=False))  # the legacy form warns for other bit generators

    legacy: Any = module.mtrand._rand
    generator, memory, normal = legacy._bit_generator, numpy_memory(module), _pending_normal(legacy)
    if memory is None or normal is None:
        return read
    known = b"", b"", 0

    def read_memory() -> int:
        nonlocal known
        if legacy._bit_generator is not generator:  # set_bit_generator has replaced it
            return read()
        state, pending = memory.raw, normal.raw
        if state != known[0] or pending != known[1]:
            has, gauss = _NORMAL.unpack(pending)
            (position,) = _POSITION.unpack_from(state, 4 * WORDS)
            head = f"bit_generator'MT19937'gauss{gauss!r}has_gauss{has}statekey".encode()
            known = state, pending, xxh3_64_intdigest(b"%b%bpos%d" % (head, state[: 4 * WORDS], position))
        return known[2]

    return read_memory if read_memory() == read() else read


def _pending_normal(legacy: Any) -> Any:
    """Memory of the normal number that NumPy's legacy generator will return next; None where it cannot be found.

    It follows a pointer, within the object, to the place of the bit generator's address.
    """
    for generator in (type(legacy)(0), legacy):  # of the first one the number is known
        words = (c_uint64 * (type(generator).__basicsize__ // 8)).from_address(id(generator))
        at = generator._bit_generator.ctypes.state_address
        found = [
            number
            for number, word in enumerate(words)
            if 0 <= (place := word - id(generator)) < sizeof(words) and not place % 8 and words[place // 8] == at
        ]
        if len(found) != 1 or 8 * (found[0] + 1) + _NORMAL.size > sizeof(words):
            return None
        memory = (c_char * _NORMAL.size).from_address(id(generator) + 8 * (found[0] + 1))
        if generator is not legacy:
            generator.standard_normal()
        state = generator.get_state(legacy=False)
        if _NORMAL.unpack(memory) != (state["has_gauss"], state["gauss"]):
            return None
    return memory


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
