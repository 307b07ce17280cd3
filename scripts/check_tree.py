"""Fails when a tracked file is large or names a path of somebody's machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LARGEST = 200 * 1024
"""Bytes. A repository of text stays small; traces and pictures are made, not kept."""

MACHINE_PATH = re.compile(rb"(?<![\w.~/])/(?:(?:home|Users|work)/[\w.-]+|root/\.[\w.-]+|opt/(?:pypi|wheels))")
EXAMPLES = (b"/home/me/", b"/home/someone/", b"/home/other/")
"""Invented homes that documentation and tests may speak of."""


def tracked() -> list[Path]:
    """Every file that git tracks and that is still there, relative to the root of the repository."""
    names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")
    return [path for path in map(Path, filter(None, names)) if path.is_file()]


def problems(path: Path) -> list[str]:
    """What is wrong with one tracked file, a line each."""
    content = path.read_bytes()
    found = []
    if len(content) > LARGEST:
        found.append(f"{path}: {len(content):,} bytes, more than {LARGEST:,}")
    for number, line in enumerate(content.splitlines(), 1):
        match = MACHINE_PATH.search(line)
        if (
            match
            and not any(example in line for example in EXAMPLES)
            and path != Path(__file__).relative_to(Path.cwd())
        ):
            found.append(f"{path}:{number}: names the machine path {match[0].decode(errors='replace')}")
    return found


def main() -> int:
    found = [problem for path in tracked() for problem in problems(path)]
    print("\n".join(found) or "tracked files: small, and none names a machine path")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
