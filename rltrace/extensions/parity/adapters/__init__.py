"""Adapters: what rltrace reads of an engine beside the arguments of its models, for the recorder."""

from __future__ import annotations

import sys

from rltrace.errors import UsageError


def check_version(library: str, *tested: str) -> None:
    """Raise UsageError unless the version of an imported library begins with one that its adapter was tested with."""
    version = str(sys.modules[library].__version__)
    if not any(f"{version}.".startswith(f"{one}.") for one in tested):
        raise UsageError(f"what is read of {library} is known for {', '.join(tested)}, not for {version}")
