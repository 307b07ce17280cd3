"""What a page of ``docs/stories`` shows: the commands in its ``console`` blocks, and what comes out of each.

Owns reading the page, running what it shows, and which differences from it do not count: those of another machine
(digests, sizes, numbers, thread counts, no native engine) and where lines are wrapped. A line of ``…`` on a page stands
for any lines.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "stories"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_OF_THE_MACHINE = (
    (re.compile(r"(?<![\w.])[0-9a-f]{16}\b"), "<digest>"),
    (re.compile(r"\b[\d.,]+ (?:B|kB|MB|GB)\b"), "<size>"),
    (re.compile(r"^  hint: no native engine is built .*\n", re.MULTILINE), ""),
    (re.compile(r"\b\d+ threads?\b"), "<threads>"),
    (re.compile(r"\bATen (?:AVX512|AVX2|DEFAULT)\b"), "ATen <instruction set>"),
    (re.compile(r"[-+]?\b\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)\b"), "<number>"),
)


@dataclass(frozen=True)
class Shown:
    """One command, and what comes out of it: on a page, or now."""

    command: str
    output: str
    status: int = 0
    """Exit status; what a page shows of it is always 0."""


def shown_on(page: Path) -> list[Shown]:
    """The commands of a page in their order, each with the output under it. A command goes on after a backslash."""
    found = []
    for block in _BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
            found.append(Shown("\n".join(lines[:end]), "\n".join(lines[end:])))
    assert found, f"{page.name} shows no commands"
    return found


SHELL = re.compile(r"[^\w ./:=,+-]")
"""What a command may hold outside of quotes that a shell is needed for."""


def run(command: str, folder: Path) -> Shown:
    """What comes out of a command as a person types it: one thread, no color, this Python's rltrace first."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "NO_COLOR": "1",
    }
    words = ["bash", "-c", command]
    if SHELL.search(re.sub("'[^']*'", "", command)) is None:  # bash would only start the program
        words = shlex.split(command)
        while "=" in words[0]:
            name, _, environment[name] = words.pop(0).partition("=")
    result = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Shown(command, result.stdout, result.returncode)


def check_out_examples(folder: Path) -> None:
    """The examples as a person has them: in ``examples`` of the current folder."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def without(text: str, *headings: str) -> str:
    """A report without these sections: a heading, and what is indented under it."""
    for heading in headings:
        text = re.sub(rf"^{re.escape(heading)}\n(?:(?: .*)?\n)*", "", text, flags=re.MULTILINE)
    return text


def without_numbers(text: str) -> str:
    """A text in which each number is as good as any other: what rounding makes of them is another processor's."""
    return re.sub(r"[-+]?\d[\d,.]*(?:e[-+]\d+)?", "<n>", text)


def differs(page: str, now: str) -> str:
    """What of ``now`` is not what the page shows, for people; "" where all of it is."""
    pieces = [re.escape(_masked(piece)) for piece in re.split(r"^\s*…$", page, flags=re.MULTILINE)]
    if re.fullmatch(".*".join(pieces), _masked(now)):
        return ""
    return f"the page shows\n{page}\n\nnow it is\n{now}"


def expect(shown: Iterable[Shown], now: Iterable[Shown], read: Callable[[str], str] = str) -> None:
    """Each output is now what the page shows; ``read``: what of both is compared."""
    for one, other in zip(shown, now, strict=True):
        why = differs(read(one.output), read(other.output))
        assert not why, why


def _masked(text: str) -> str:
    """Words alone: without what another machine computes, without the lines' ends."""
    for pattern, name in _OF_THE_MACHINE:
        text = pattern.sub(name, text)
    return " ".join(text.split())
