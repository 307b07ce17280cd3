"""Spaces being seeded: the generators from which a program samples its actions.

Stands in for ``seed`` of ``gymnasium.spaces.Space`` and of every class below it, and of Gym's. A space that nobody has
seeded seeds itself when it is first sampled from, with another seed in every run, which is told as such. How its
generator stands after that is evidence.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from rltrace.record.boundaries.classes import Around, Method, Within
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.environments import Teller, seed_of
from rltrace.record.boundaries.makings import in_program
from rltrace.record.boundaries.register import Register
from rltrace.record.boundaries.states import own_look
from rltrace.record.events import EventForm
from rltrace.trace.schema import Kind


class Spaces:
    """What stands in for the method. ``seeding``: how deep a thread is in it."""

    def __init__(self, register: Register, contents: Contents, seeding: Within, teller: Teller) -> None:
        self._register = register
        self._contents = contents
        self._seeding = seeding
        self._teller = teller
        self._forms: dict[tuple[str, str], EventForm] = {}

    @property
    def methods(self) -> dict[str, Around]:
        return {"seed": self._around}

    def _around(self, original: Method) -> Method:
        seeding = self._seeding

        def stand_in(space: Any, *args: Any, **kwargs: Any) -> Any:
            if seeding.depth:
                return original(space, *args, **kwargs)
            seeding.depth = 1
            try:
                result = original(space, *args, **kwargs)
            finally:
                seeding.depth = 0
            try:
                if self._teller.is_told():
                    self._seeded(space, args[0] if args else kwargs.get("seed"), sys._getframe(1))
            except Exception as error:
                self._teller.fail(error)
            return result

        return stand_in

    def _seeded(self, space: Any, seed: Any, frame: FrameType) -> None:
        what, owner, made = self._register.whose(space)
        form = self._forms.get((what, owner))
        if form is None:
            form = EventForm(Kind.SEED, what, owner, ("made", "seed"), ("state",), ("given",))
            self._forms[what, owner] = form
        look = own_look(vars(space).get("_np_random"))
        self._teller.event(
            form,
            evidence=(made, seed_of(seed), 0 if look is None else look()),
            digests=(self._contents.digest(seed),),
            integers=(),
            floats=(),
            frame=in_program(frame),
        )
