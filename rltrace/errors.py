"""The errors that rltrace raises.

The message of each says what happened, where, and what to do about it. Nothing here prints or exits.
"""


class RltraceError(Exception):
    """Base of all errors that a user can act on."""


class UsageError(RltraceError):
    """An invalid command line or argument."""


class NotATraceError(RltraceError):
    """The path is not a trace."""


class FormatVersionError(RltraceError):
    """The trace was written in another major version of the format."""


class DamagedTraceError(RltraceError):
    """Nothing of the trace can be read."""


class UnreachableError(RltraceError):
    """The object store or server of a trace gives no answer, or no files."""


class HoleError(RltraceError):
    """The requested rows are damaged, missing or unreadable."""


class SelectorError(UsageError):
    """A selector cannot be parsed; the message names the character."""


class RecordError(RltraceError):
    """Recording could not start or continue."""

    errno: int | None = None
    """Of the system call that failed; None: none did."""


class BuildError(RltraceError):
    """The native engine cannot be compiled here."""
