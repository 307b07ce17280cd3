"""Environments and vectors of them being made, and with which arguments.

Stands in for ``__init__`` of every class of environments that has one of its own. A wrapper makes no environment; what
an environment makes for itself, in its constructor or later, is its own business. Absolute paths among the arguments
count as that: where a program writes to is another place in every run.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Final

from rltrace.record.boundaries.classes import Around, Method, Within
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.environments import IN_EVENT, IN_VECTOR, Teller
from rltrace.record.boundaries.register import Register, base_of
from rltrace.record.events import EventForm
from rltrace.trace.schema import Kind

BETWEEN: Final = ("gymnasium.", "gym.", "functools", "rltrace.record.")
"""Starts of names of modules whose frames are not where a program made or seeded something."""


class Makings:
    """What stands in for the constructors. ``making``: how deep a thread is in those."""

    def __init__(self, register: Register, contents: Contents, within: Within, making: Within, teller: Teller) -> None:
        self._register = register
        self._contents = contents
        self._within = within
        self._making = making
        self._teller = teller
        self._forms: dict[tuple[str, str], EventForm] = {}

    @property
    def of_environments(self) -> dict[str, Around]:
        return {"__init__": lambda original: self._around(original, "environment", IN_EVENT)}

    @property
    def of_vectors(self) -> dict[str, Around]:
        return {"__init__": lambda original: self._around(original, "vector environment", IN_VECTOR)}

    def _around(self, original: Method, what: str, depth: int) -> Method:
        making, within = self._making, self._within

        def stand_in(env: Any, *args: Any, **kwargs: Any) -> None:
            before = making.depth
            if before >= depth or within.depth >= IN_EVENT:
                original(env, *args, **kwargs)
                return
            making.depth = before if isinstance(env, _wrappers()) else depth
            try:
                original(env, *args, **kwargs)
            finally:
                making.depth = before
            try:
                self._made(env, what, args, kwargs, sys._getframe(1))
            except Exception as error:
                self._teller.fail(error)

        return stand_in

    def _made(self, env: Any, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        if base_of(env) is not env:
            self._register.wrapped(env)
            return
        number, owner = self._register.made(env), type(env).__name__
        if not self._teller.is_told():
            return
        form = self._forms.get((what, owner))
        if form is None:
            form = EventForm(Kind.ENVIRONMENT_MADE, what, owner, ("made",), digests=("arguments",))
            self._forms[what, owner] = form
        given = self._contents.digest([[_told(value) for value in args], {k: _told(v) for k, v in kwargs.items()}])
        self._teller.event(form, evidence=(number,), digests=(given,), integers=(), floats=(), frame=in_program(frame))


def _wrappers() -> tuple[type, ...]:
    """Classes of environments that make none, and in whose constructors the program may make one."""
    modules = [sys.modules.get(name) for name in ("gymnasium.core", "gym.core")]
    return tuple(module.Wrapper for module in modules if module is not None)


def in_program(frame: FrameType) -> FrameType:
    """The innermost frame, from this one on, that is neither the library's nor the recorder's."""
    at: FrameType | None = frame
    while at is not None:
        if not str(at.f_globals.get("__name__", "")).startswith(BETWEEN):
            return at
        at = at.f_back
    return frame


def _told(value: Any) -> Any:
    return "a path" if isinstance(value, str) and os.path.isabs(value) else value  # noqa: PTH117  never touches a disk
