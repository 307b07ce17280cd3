"""Texts that are pinned in files. ``UPDATE_GOLDEN=1 pytest`` writes the files anew."""

import os
from pathlib import Path


def pinned(path: Path, text: str) -> str:
    """What the file holds; with ``UPDATE_GOLDEN`` that is ``text`` from now on."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    return path.read_text()
