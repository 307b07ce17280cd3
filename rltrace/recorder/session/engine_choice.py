"""Which engine records the ops of this process: the native one where its library is there, else the mode in Python.

Owns the choice, the numbers that the library must share with the recorder, and the facts that name the choice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rltrace.errors import UsageError
from rltrace.fingerprint import Facts
from rltrace.masking import masked_text
from rltrace.native.library import LoadedLibrary, load
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.core.row_buffer import OUTSIDE, OUTSIDE_READ, OVERWRITTEN, PHASE_BITS, UNKNOWN, phase_bits
from rltrace.trace.format.schema import GENERATOR_SHIFT, SLOT_UNKNOWN, LinkNote, Phase, RowFlag

CONSTANTS = {
    **{name: int(RowFlag[name]) for name in ("MARKED", "RNG", "VIEW")},
    **{name: int(RowFlag[name]) for name in ("VALUE_BOOL", "VALUE_INTEGER", "VALUE_FLOAT", "VALUE_COMPLEX")},
    "PHASE": PHASE_BITS,
    "BACKWARD": phase_bits(Phase.BACKWARD),
    "TORCH_GENERATOR": 1 << GENERATOR_SHIFT,
    "SLOT_UNKNOWN": SLOT_UNKNOWN,
    "STORAGE_OFFSET": int(LinkNote.STORAGE_OFFSET),
    "OUTSIDE": OUTSIDE,
    "OUTSIDE_READ": OUTSIDE_READ,
    "UNKNOWN": UNKNOWN,
    "OVERWRITTEN": OVERWRITTEN,
}
"""Numbers of rows and cells that the library writes, too."""

DEVICE_FILES = "/dev/nvidiactl", "/dev/kfd"
"""One of them exists where there is a GPU. Not torch's own question: that starts a driver, which no fork survives."""

SHOWN_HANDED = 3
"""Reasons in the fact that lists the most frequent."""


def choose_library(options: RecordOptions, *, attached: bool = False) -> LoadedLibrary:
    """The native engine's library, or why ops are recorded in Python. Raises UsageError where it is required.

    ``attached``: hooks may be added, which see every op.
    """
    why_not = _why_python(options, attached=attached)
    loaded = LoadedLibrary(why_not=why_not) if why_not else load(Path(torch.__file__).parent, CONSTANTS)
    if loaded.module is None and options.engine == "native" and options.level == "op":
        raise UsageError(f"the native engine is required: {loaded.why_not}")
    return loaded


def _why_python(options: RecordOptions, *, attached: bool) -> str:
    """Why the library is not even looked for; empty: it is."""
    if options.engine == "mode":
        return "--engine mode"
    if options.in_python or attached:
        return f"{options.in_python or 'an attachment'} needs Python at every op"
    if options.engine == "auto" and any(map(os.path.exists, DEVICE_FILES)):
        return "this machine has a GPU, on which it has not been tried; --engine native tries it"
    return ""


def choice_facts(options: RecordOptions, loaded: LoadedLibrary) -> Facts:
    """Facts of the engine; none where no ops are recorded: the library then only reads parameters and generators."""
    if options.level != "op":
        return {}
    if loaded.module is not None:
        return {"engine.native": True}
    why_not = masked_text(loaded.why_not)
    return {"engine.native": False, "engine.native.why_not": why_not} if why_not else {}


def handed_facts(natives: Sequence[Any]) -> Facts:
    """Facts of the ops of all streams, from their recorders in the library: how many, and how many Python recorded."""
    if not natives:
        return {}
    ops, handed = 0, Counter[tuple[str, str]]()
    for native in natives:
        ops += native.ops
        handed.update(native.handed)
    facts: Facts = {"engine.native.ops": ops, "engine.native.handed": handed.total()}
    parts = sum((Counter[str](native.parts) for native in natives), Counter[str]())
    if parts:  # the library was built with clocks, for a benchmark
        facts["engine.native.parts"] = json.dumps(parts)
    if handed:
        most = handed.most_common(SHOWN_HANDED)
        facts["engine.native.handed.most"] = "; ".join(f"{op}, {why}: {count}" for (op, why), count in most)
    return facts
