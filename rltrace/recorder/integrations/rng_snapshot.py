"""How the generators of Python and NumPy, and an environment's own, stand at an event: evidence, so it must be cheap.

Owns the quick look at a state: ``random.getstate()`` and ``numpy.random.get_state()`` make Python objects of 624 words
(16 and 44 µs, measured), an event happens every few dozen ops. Where the memory of a Mersenne Twister is laid out as
CPython and NumPy lay it out, which is checked against what they say themselves, its bytes are hashed in place. Reads
states, never draws, and holds no generator.
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

Look = Callable[[], int]


class GeneratorStates:
    """The global generators of this process that no torch op draws from; UNTOUCHED as long as nobody has."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[Look, int | None] | None] = {}
        """By module: how to look at its generator, and how that stood as recording began, if it was there; None: it
        cannot be looked at."""
        self._began = False

    def python(self) -> int:
        return self._look("random", _python_look)

    def numpy(self) -> int:
        return self._look("numpy.random", _numpy_look)

    def begin(self) -> None:
        """What the generators hold now nobody has put there, as far as is known."""
        self.python()
        self.numpy()
        self._began = True

    def _look(self, name: str, make: Callable[[Any], Look | None]) -> int:
        try:
            known = self._looks[name]
        except KeyError:
            module = sys.modules.get(name)
            if module is None:
                return 0
            look = make(module)
            known = self._looks[name] = None if look is None else (look, None if self._began else look())
        if known is None:
            return 0
        now = known[0]()
        return UNTOUCHED if now == known[1] else now


def own_look(generator: Any) -> Look | None:
    """How to look at an environment's ``np_random``; None where its state cannot be read. Keeps the generator alive."""
    bits = getattr(generator, "bit_generator", None)
    if bits is None or not hasattr(bits, "state"):
        return None
    return _pcg_look(bits) or (lambda: _digest(bits.state))


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


def _python_look(module: Any) -> Look | None:
    """CPython's ``random``: behind the object's head stand an int, the position, and the words."""
    generator: Any = module._inst
    head = object.__basicsize__
    if type(generator) is not module.Random or type(generator).__basicsize__ < head + SIZE:
        return None
    memory = (c_char * SIZE).from_address(id(generator) + head)
    words = generator.getstate()[1]
    return _checked(generator, memory, array("I", [words[-1], *words[:-1]]).tobytes())


def _numpy_look(module: Any) -> Look | None:
    """NumPy's Mersenne Twister: the words, then the position."""
    generator: Any = module.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return None
    memory = (c_char * SIZE).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    said = state["key"].astype("uint32").tobytes() + array("i", [state["pos"]]).tobytes()
    look, legacy = _checked(generator, memory, said), module.mtrand._rand
    if look is None:
        return None
    return lambda: look() if legacy._bit_generator is generator else 0  # set_bit_generator puts another in its place


def _pcg_look(bits: Any) -> Look | None:
    """NumPy's default: a pointer to state and increment of 16 bytes each, an int and the half of a word left over."""
    state = bits.state
    if type(bits).__name__ != "PCG64":
        return None
    numbers, at = state["state"], bits.ctypes.state_address
    memory = (c_char * 32).from_address(c_void_p.from_address(at).value or at)
    rest = (c_char * 8).from_address(at + sizeof(c_void_p))
    said = b"".join(int(numbers[name]).to_bytes(16, sys.byteorder) for name in ("state", "inc"))
    if bytes(memory) != said or bytes(rest) != array("I", [state["has_uint32"], state["uinteger"]]).tobytes():
        return None

    def look(_alive: Any = bits) -> int:
        return xxh3_64_intdigest(memory, xxh3_64_intdigest(rest))

    return look


def _checked(owner: Any, memory: Any, said: bytes) -> Look | None:
    """A look at ``memory`` of ``owner``, if that holds what the generator itself says it does."""

    def look(_alive: Any = owner) -> int:
        return xxh3_64_intdigest(memory)

    return look if bytes(memory) == said else None
