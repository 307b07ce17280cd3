"""The compiled library of the native engine, where there is one."""

from __future__ import annotations

import os
from typing import Any


def load() -> Any:
    """The library; None where there is none."""
    if os.environ.get("RLTRACE_ENGINE") == "mode":
        return None
    try:
        import rltrace_engine  # type: ignore[import-not-found]
    except ImportError:
        return None
    return rltrace_engine
