"""Whether a program still computes the same: in several runs, as in its lock, and in tests whose runs have to agree."""

from typing import Final

from rltrace.extension import Extension, Verb

EXTENSION: Final = Extension(
    {
        "check": Verb(
            "Compare",
            "Run a command several times, and group the runs that agree.",
            "rltrace.extensions.regression.check_command",
        ),
        "lock": Verb(
            "Compare",
            "Write a run's step digests to commit; compare later runs.",
            "rltrace.extensions.regression.lock_command",
        ),
    },
    pytest_plugin="rltrace.extensions.regression.pytest_plugin",
)
