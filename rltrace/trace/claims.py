"""How processes that start at the same moment each get a name and a folder of their own.

Owns exclusive making: whoever makes the file or the folder first has it, the other takes the next.
"""

from __future__ import annotations

import os
from pathlib import Path

from rltrace.trace.births import FOLDER as BIRTHS
from rltrace.trace.files import write_whole
from rltrace.trace.root import PROCESSES, name_file


def make_node(folder: Path, document: bytes) -> None:
    """A zarr node: its folder and its ``zarr.json``."""
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(os.fspath(folder / "zarr.json"), document)


def claim_name(trace: Path, wanted: str) -> str:
    """The first of ``wanted``, ``wanted#2``, … that no process of the trace has, claimed by an exclusive file."""
    count = 1
    while True:
        name = wanted if count == 1 else f"{wanted}#{count}"
        try:
            with (trace / BIRTHS / name_file(name.encode())).open("xb") as file:
                file.write(name.encode())
        except FileExistsError:
            count += 1
        else:
            return name


def claim_folder(trace: Path) -> Path:
    """The first free ``processes/N``, claimed by making it."""
    number = 0
    while True:
        folder = trace / PROCESSES / str(number)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return folder
