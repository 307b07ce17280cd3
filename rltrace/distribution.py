"""How rltrace is installed: its version, and what installs the same one for another Python."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlparse

NAME = "rltrace-debugger"
NOT_INSTALLED = "(not installed)"


def own_version() -> str:
    """``0.1.0``; NOT_INSTALLED where rltrace runs from a checkout without being installed."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return NOT_INSTALLED


def own_requirement() -> str:
    """What ``pip install`` takes to install this rltrace: ``-e CHECKOUT``, a file or URL, or its name and version."""
    try:
        source = json.loads(distribution(NAME).read_text("direct_url.json") or "null")
    except (PackageNotFoundError, ValueError):
        return f"-e {shlex.quote(str(Path(__file__).parents[1]))}"
    if source is None:  # from an index
        return f"{NAME}=={own_version()}"
    url = urlparse(str(source["url"]))
    place = unquote(url.path) if url.scheme == "file" else str(source["url"])
    return ("-e " if source.get("dir_info", {}).get("editable") else "") + shlex.quote(place)
