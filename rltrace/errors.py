"""Every error rltrace raises on purpose, in one shallow tree.

Each carries one message that says what happened, where, and what to do about it; nothing here prints or exits.
"""

from __future__ import annotations


class RltraceError(Exception):
    """Base of all errors that a user can do something about."""


class UsageError(RltraceError):
    """The command line or an argument of the library does not make sense."""


class NotATraceError(RltraceError):
    """The path is not an rltrace trace at all."""


class FormatVersionError(RltraceError):
    """The trace was written in another major version of the format."""


class DamagedTraceError(RltraceError):
    """The trace is so damaged that nothing of it can be read."""


class HoleError(RltraceError):
    """Rows were asked for that lie in a damaged, missing or unreadable part of a trace."""


class LeftOutError(HoleError):
    """Rows were asked for that a slice of a trace does not carry; nothing is damaged."""


class SelectorError(UsageError):
    """A selector cannot be parsed; the message points at the character."""


class RecordError(RltraceError):
    """Recording could not start or go on."""

    errno: int | None = None
    """What the system said, where it was the system."""
