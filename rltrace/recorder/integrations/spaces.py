"""Spaces being seeded, or sampled from though nobody has: the generators from which a program draws its actions.

Stands in for ``seed`` and ``sample`` of ``gymnasium.spaces.Space`` and of every class below it, and of Gym's. A space
that nobody has seeded seeds itself, with another seed in every run; that is told when it is first sampled from, as
its generator also comes about where nothing is drawn (a vector looks at those of its environments). How the generator
stands after that is evidence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from rltrace.digest import digest_pages
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.integrations.environments import EnvironmentRegistry, Teller, in_program, remember, seed_of
from rltrace.recorder.integrations.method_patching import Around, CallDepth, Method
from rltrace.recorder.integrations.rng_snapshot import own_look
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.trace.format.schema import Kind


class Spaces:
    """What stands in for the method. ``seeding``: how deep a thread is in it."""

    def __init__(
        self, register: EnvironmentRegistry, contents: ValueDigests, seeding: CallDepth, teller: Teller
    ) -> None:
        self._register = register
        self._contents = contents
        self._seeding = seeding
        self._teller = teller
        self._forms: dict[tuple[str, str], EventForm] = {}
        self._known: WeakIdDict[Any, bool] = WeakIdDict()
        """Spaces of which it has been told how they were seeded."""

    @property
    def methods(self) -> dict[str, Around]:
        return {"seed": self._around_seed, "sample": self._around_sample}

    def _around_seed(self, original: Method) -> Method:
        def stand_in(space: Any, *args: Any, **kwargs: Any) -> Any:
            seed = args[0] if args else kwargs.get("seed")
            return self._told(original, space, args, kwargs, seed, is_told=seed is not None)

        return stand_in

    def _around_sample(self, original: Method) -> Method:
        known = self._known

        def stand_in(space: Any, *args: Any, **kwargs: Any) -> Any:
            return self._told(original, space, args, kwargs, None, is_told=space not in known)

        return stand_in

    def _told(self, original: Method, space: Any, args: Any, kwargs: Any, seed: Any, *, is_told: bool) -> Any:
        """Call it; then tell of the seed, if it is that of no part of a space."""
        seeding = self._seeding
        if seeding.depth or not is_told:
            return original(space, *args, **kwargs)
        seeding.depth = 1
        try:
            result = original(space, *args, **kwargs)
        finally:
            seeding.depth = 0
        try:
            for part in _parts(space):
                remember(self._known, part, True)
            if self._teller.is_told():
                self._tell(space, seed, sys._getframe(2))
        except Exception as error:
            self._teller.fail(error)
        return result

    def _tell(self, space: Any, seed: Any, frame: FrameType) -> None:
        what, owner, made = self._register.whose(space)
        form = self._forms.get((what, owner))
        if form is None:
            form = EventForm(Kind.SEED, what, owner, ("made", "seed"), ("state",), ("given",))
            self._forms[what, owner] = form
        self._teller.event(
            form,
            evidence=(made, seed_of(seed), _state(space)),
            digests=(self._contents.digest(seed),),
            integers=(),
            floats=(),
            frame=in_program(frame),
        )


def _state(space: Any) -> int:
    """Digest of the states of its generators, those of its parts included; 0: none can be read."""
    looks = [look() for part in _parts(space) if (look := own_look(vars(part).get("_np_random"))) is not None]
    return digest_pages(looks, len(looks)) if looks else 0


def _parts(space: Any) -> Iterator[Any]:
    yield space
    inside = vars(space).get("spaces", ())
    for part in inside.values() if isinstance(inside, Mapping) else inside:
        yield from _parts(part)
