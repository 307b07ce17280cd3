"""Spaces that are seeded, or sampled from unseeded: the generators from which a program draws its actions.

Patches ``seed`` and ``sample`` of ``gymnasium.spaces.Space``, of all of its subclasses, and of Gym's. A space that the
program has not seeded seeds itself, with another seed in every run; that is recorded at its first sample, since its
generator may be created without a draw (a vector reads those of its environments). The generator's state afterwards is
evidence. In a run that wakes, a space that has a generator may have been seeded before: nothing is recorded of it.
"""

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from rltrace.digest import digest_pages
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.integrations.environments import IntegrationContext, program_frame, remember, seed_of
from rltrace.recorder.integrations.method_patching import Method, MethodDecorator
from rltrace.recorder.integrations.rng_snapshot import generator_reader
from rltrace.trace.format.schema import Kind


class Spaces:
    """Patches ``seed`` and ``sample``."""

    def __init__(self, context: IntegrationContext, *, is_late: bool) -> None:
        """``is_late``: steps have passed while ``seed`` was not patched; spaces may have been seeded in them."""
        self._context = context
        self._forms: dict[tuple[str, str], EventForm] = {}
        self._seeded: WeakIdDict[Any, bool] = WeakIdDict()
        """Spaces whose seeding has been recorded."""
        self._is_late = is_late

    @property
    def methods(self) -> dict[str, MethodDecorator]:
        return {"seed": self._decorate_seed, "sample": self._decorate_sample}

    def _decorate_seed(self, original: Method) -> Method:
        def replacement(space: Any, *args: Any, **kwargs: Any) -> Any:
            seed = args[0] if args else kwargs.get("seed")
            return self._call(original, space, args, kwargs, seed, is_seeding=seed is not None)

        return replacement

    def _decorate_sample(self, original: Method) -> Method:
        seeded, is_late = self._seeded, self._is_late

        def replacement(space: Any, *args: Any, **kwargs: Any) -> Any:
            is_seeding = space not in seeded and not (is_late and _has_generator(space))
            return self._call(original, space, args, kwargs, None, is_seeding=is_seeding)

        return replacement

    def _call(self, original: Method, space: Any, args: Any, kwargs: Any, seed: Any, *, is_seeding: bool) -> Any:
        """Call it, then record the seed; spaces inside another space are recorded with that."""
        seedings, events = self._context.seedings, self._context.events
        if seedings.depth or not is_seeding:
            return original(space, *args, **kwargs)
        seedings.depth = 1
        try:
            result = original(space, *args, **kwargs)
        finally:
            seedings.depth = 0
        try:
            for member in _members(space):
                remember(self._seeded, member, True)
            if events.stream() is not None:
                self._write(space, seed, sys._getframe(2))
        except Exception as error:
            events.fail(error)
        return result

    def _write(self, space: Any, seed: Any, frame: FrameType) -> None:
        role, owner, construction = self._context.registry.owner_of(space)
        form = self._forms.get((role, owner))
        if form is None:
            form = EventForm(Kind.SEED, role, owner, ("made", "seed"), ("state",), ("given",))
            self._forms[role, owner] = form
        self._context.events.write(
            form,
            evidence=(construction, seed_of(seed), _state(space)),
            digests=(self._context.digests.digest(seed),),
            frame=program_frame(frame),
        )


def _has_generator(space: Any) -> bool:
    return any(generator is not None for generator in _generators(space))


def _generators(space: Any) -> Iterator[Any]:
    """The generators of a space and of the spaces inside it; None for one that it does not have yet."""
    return (vars(member).get("_np_random") for member in _members(space))


def _state(space: Any) -> int:
    """Digest of the generator states of a space and of the spaces inside it; 0: none can be read."""
    generators = _generators(space)
    states = [read() for generator in generators if (read := generator_reader(generator)) is not None]
    return digest_pages(states, len(states)) if states else 0


def _members(space: Any) -> Iterator[Any]:
    """``space`` and the spaces inside it."""
    yield space
    inside = vars(space).get("spaces", ())
    for member in inside.values() if isinstance(inside, Mapping) else inside:
        yield from _members(member)
