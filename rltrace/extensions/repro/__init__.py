"""One op, or those of a module, taken out of a run: as a script, and under every setting that may change its kernel."""

from __future__ import annotations

from typing import Final

from rltrace.extension import Extension, Verb

GROUP: Final = "Prove"
COMMANDS: Final = "rltrace.extensions.repro.commands"

EXTENSION: Final = Extension(
    {
        "explain": Verb(GROUP, "Run one op under every setting: whose bits does it give?", f"{COMMANDS}.explain"),
        "repro": Verb(GROUP, "Write one recorded op as a small script that runs it.", f"{COMMANDS}.repro"),
    }
)
