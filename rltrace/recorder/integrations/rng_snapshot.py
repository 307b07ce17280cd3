"""Digests of the generator states of Python, NumPy and environments: evidence of every event, so they must be cheap.

Owns how a state is read: ``random.getstate()`` and ``numpy.random.get_state()`` make Python objects of 624 words (16
and 44 µs, measured), and an event happens every few dozen ops. Where the memory of a Mersenne Twister is laid out as in
CPython and NumPy, which is checked against their own answers, its bytes are hashed in place. Never draws.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from ctypes import c_char, c_void_p, sizeof
from typing import Any, Final

from xxhash import xxh3_64, xxh3_64_intdigest

from rltrace.recorder.digests.rng_state import UNTOUCHED

WORDS: Final = 624
SIZE: Final = 4 * WORDS + 4
"""Bytes of a Mersenne Twister: its words and its position."""

StateReader = Callable[[], int]
"""Returns the digest of a generator's current state."""


class GeneratorStates:
    """The global generators of this process that no torch op draws from; UNTOUCHED until their state changes."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[StateReader, int | None] | None] = {}
        """By module: the reader of its generator, and the digest as recording began, None where the module was not
        imported then; None: its state cannot be read."""
        self._began = False

    def python(self) -> int:
        return self._digest("random", _python_reader)

    def numpy(self) -> int:
        return self._digest("numpy.random", _numpy_reader)

    def begin(self) -> None:
        """The current states count as untouched."""
        self.python()
        self.numpy()
        self._began = True

    def _digest(self, name: str, make_reader: Callable[[Any], StateReader | None]) -> int:
        try:
            known = self._readers[name]
        except KeyError:
            module = sys.modules.get(name)
            if module is None:
                return 0
            read = make_reader(module)
            known = self._readers[name] = None if read is None else (read, None if self._began else read())
        if known is None:
            return 0
        now = known[0]()
        return UNTOUCHED if now == known[1] else now


def generator_reader(generator: Any) -> StateReader | None:
    """The reader of an environment's ``np_random``; None where its state cannot be read. Keeps the generator alive."""
    bits = getattr(generator, "bit_generator", None)
    if bits is None or not hasattr(bits, "state"):
        return None
    return _pcg_reader(bits) or (lambda: _digest(bits.state))


def _digest(state: Any) -> int:
    digest = xxh3_64()
    _add(digest, state)
    return digest.intdigest()


def _add(digest: xxh3_64, state: Any) -> None:
    if isinstance(state, Mapping):
        for name in sorted(state):
            _add(digest, state[name])
    elif hasattr(state, "tobytes"):
        digest.update(state.tobytes())
    else:
        digest.update(repr(state).encode())


def _python_reader(module: Any) -> StateReader | None:
    """CPython's ``random``: after the object's header an int, the position, and the words."""
    generator: Any = module._inst
    header = object.__basicsize__
    if type(generator) is not module.Random or type(generator).__basicsize__ < header + SIZE:
        return None
    memory = (c_char * SIZE).from_address(id(generator) + header)
    words = generator.getstate()[1]
    return _checked_reader(generator, memory, array("I", [words[-1], *words[:-1]]).tobytes())


def _numpy_reader(module: Any) -> StateReader | None:
    """NumPy's Mersenne Twister: the words, then the position."""
    generator: Any = module.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    memory = (c_char * SIZE).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    expected = state["key"].astype("uint32").tobytes() + array("i", [state["pos"]]).tobytes()
    read, legacy = _checked_reader(generator, memory, expected), module.mtrand._rand
    if read is None:
        return None
    return lambda: read() if legacy._bit_generator is generator else 0  # set_bit_generator replaces it


def _pcg_reader(bits: Any) -> StateReader | None:
    """NumPy's default: a pointer to state and increment of 16 bytes each, an int and the unused half of a word."""
    state = bits.state
    if type(bits).__name__ != "PCG64":
        return None
    numbers, address = state["state"], bits.ctypes.state_address
    memory = (c_char * 32).from_address(c_void_p.from_address(address).value or address)
    rest = (c_char * 8).from_address(address + sizeof(c_void_p))
    expected = b"".join(int(numbers[name]).to_bytes(16, sys.byteorder) for name in ("state", "inc"))
    if bytes(memory) != expected or bytes(rest) != array("I", [state["has_uint32"], state["uinteger"]]).tobytes():
        return None

    def read(_alive: Any = bits) -> int:
        return xxh3_64_intdigest(memory, xxh3_64_intdigest(rest))

    return read


def _checked_reader(owner: Any, memory: Any, expected: bytes) -> StateReader | None:
    """A reader of ``memory`` of ``owner``, if that holds the state that the generator itself returns."""

    def read(_alive: Any = owner) -> int:
        return xxh3_64_intdigest(memory)

    return read if bytes(memory) == expected else None
