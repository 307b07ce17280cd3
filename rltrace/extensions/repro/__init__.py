"""Ops, modules and steps run again outside of their run: a step alone, an op as a script, or under every setting."""

from typing import Final

from rltrace.extension import Extension, Verb

GROUP: Final = "Prove"
COMMANDS: Final = "rltrace.extensions.repro.commands"

EXTENSION: Final = Extension(
    {
        "rerun": Verb(GROUP, "Run the ops of a recorded step again, by themselves.", f"{COMMANDS}.rerun"),
        "explain": Verb(GROUP, "Run one op under every setting: whose bits does it give?", f"{COMMANDS}.explain"),
        "repro": Verb(GROUP, "Write one recorded op as a small script that runs it.", f"{COMMANDS}.repro"),
    },
)
