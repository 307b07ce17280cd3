"""The start of the recorder in a program that runs again with values injected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

from rltrace.extension import extensions
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session import session as sessions
from rltrace.recorder.session.session import Session
from rltrace.rerun.hook import Injections, Provider

MakeProvider = Callable[[str], Provider | None]
"""Makes the provider of the process of that name; None: there is nothing for it."""


def attach_by(makers: Sequence[MakeProvider]) -> Callable[[str], Injections | None]:
    """What makes the injections of a process; None: it is recorded without."""

    def attach(name: str) -> Injections | None:
        providers = [provider for make in makers if (provider := make(name)) is not None]
        return Injections(providers) if providers else None

    return attach


def start(options: RecordOptions, token: str) -> Session:
    """Start to record this process; called once, by the bootstrap."""
    known = {"": "rltrace.rerun.values:values_provider"}
    for extension in extensions():
        known |= extension.providers
    return sessions.start(options, token, attach_by([resolve_name(known[options.provider])(options)]))
