"""Digests of the generator states of Python, NumPy and environments: evidence of every event, so they must be cheap.

Owns how a state is read: an event happens every few dozen ops, so the memory of a generator is hashed in place where it
can be found (``rng_state.py``). Never draws.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from ctypes import c_char, c_uint32, c_void_p, sizeof
from typing import Any

from xxhash import xxh3_64_intdigest

from rltrace.recorder.digests.rng_state import WORDS, StateReader, digest_of_state, numpy_memory, python_memory
from rltrace.trace.format.events import POSITION_BITS
from rltrace.trace.format.schema import UNTOUCHED


class GeneratorStates:
    """The global generators of this process that no torch op draws from; UNTOUCHED until their state changes."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[StateReader, int | None] | None] = {}
        """By module: the reader of its generator, and its digest as recording began or the module was imported (None:
        not known); None: its state cannot be read."""
        self._began = False

    def states(self) -> tuple[int, int]:
        """Digests of the states of Python's and of NumPy's generator."""
        return self._digest("random", _python_reader), self._digest("numpy.random", _numpy_reader)

    def begin(self) -> None:
        """The current states count as untouched."""
        self.states()
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

    def imported_numpy(self, module: Any) -> None:
        """NumPy's generators have just been imported, or were before recording began: their state is untouched."""
        if "numpy.random" not in self._readers:
            read = _numpy_reader(module)
            self._readers["numpy.random"] = None if read is None else (read, read())


def generator_reader(generator: Any) -> StateReader | None:
    """The reader of an environment's ``np_random``; None where its state cannot be read. Keeps the generator alive."""
    bits = getattr(generator, "bit_generator", None)
    if bits is None or not hasattr(bits, "state"):
        return None
    return _pcg_reader(bits) or (lambda: digest_of_state(bits.state))


def _python_reader(module: Any) -> StateReader | None:
    memory, generator = python_memory(module), module._inst
    return None if memory is None else _twister_reader(memory, sizeof(c_uint32), 0, generator)


def _numpy_reader(module: Any) -> StateReader | None:
    memory, legacy = numpy_memory(module), module.mtrand._rand
    if memory is None:
        return None
    generator = legacy._bit_generator
    read_memory = _twister_reader(memory, 0, 4 * WORDS, generator)

    def read() -> int:
        return read_memory() if legacy._bit_generator is generator else 0  # set_bit_generator replaces it

    return read


def _twister_reader(memory: Any, words: int, position: int, alive: Any) -> StateReader:
    """A reader of a Mersenne Twister, with its position in the last bits; ``words``, ``position``: where they begin."""
    made, drawn = (c_char * (4 * WORDS)).from_buffer(memory, words), c_uint32.from_buffer(memory, position)
    used_up, next_made = b"", 0

    def read(_alive: Any = alive) -> int:
        nonlocal used_up, next_made
        if drawn.value < WORDS:
            return _state(made, drawn.value)
        if made.raw != used_up:  # as after a seed: the next draw makes other words first
            used_up, next_made = made.raw, _state(_next_words(made.raw), 0)
        return next_made

    return read


def _state(words: Any, position: int) -> int:
    return xxh3_64_intdigest(words) >> POSITION_BITS << POSITION_BITS | position


def _next_words(words: bytes) -> array[int]:
    """The words that a Mersenne Twister makes after these."""
    import random  # by a program that has none, no generator is read

    twister = random.Random.__new__(random.Random)
    twister.setstate((random.Random.VERSION, (*array("I", words), WORDS), None))
    twister.getrandbits(1)
    return array("I", twister.getstate()[1][:-1])


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
