"""The version of rltrace, also where it runs from a checkout without being installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "(not installed)"


def own_version() -> str:
    """``0.1.0``."""
    try:
        return version("rltrace-debugger")
    except PackageNotFoundError:
        return NOT_INSTALLED
