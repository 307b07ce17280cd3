"""Extensions of the core: what they add, and that finding them loads nothing."""

import subprocess
import sys
from dataclasses import replace

import pytest

from rltrace.commands.main import GROUPS, VERBS
from rltrace.extension import extensions, recorders
from rltrace.recorder.base.options import RecordOptions

PLAIN = RecordOptions("t.zarr")
BY_ROWS = replace(PLAIN, replay="a.zarr", provider="rows")


def test_finding_them_loads_nothing_of_them() -> None:
    """Neither the libraries that they record, nor their own modules."""
    code = (
        "import sys\nfrom rltrace.extension import extensions\nassert extensions()\n"
        "names = [name for name in sys.modules if name.startswith('rltrace.extensions.')]\n"
        "print(max(name.count('.') for name in names), {'jax', 'torch', 'numpy', 'click'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "2 set()\n"


def test_their_verbs_are_in_groups_of_the_core() -> None:
    """And take no name of one of its verbs."""
    own = {name for verbs in GROUPS.values() for name in verbs}
    added = [name for extension in extensions() for name in extension.verbs]
    assert added and not own & set(added)
    assert {VERBS[name].group for name in added} <= GROUPS.keys()


@pytest.mark.parametrize(
    ("options", "torch", "jax"),
    [
        (PLAIN, "recorder.session.session:start", "extensions.jax.hook:start"),
        (replace(PLAIN, replay="a.zarr"), "rerun.values:start", "extensions.jax.arrays:start_injecting"),
        (BY_ROWS, "rerun.values:start", "extensions.jax.hook:start"),
    ],
)
def test_what_starts_a_recorder(options: RecordOptions, torch: str, jax: str) -> None:
    """Of each library, by what is asked of the recording."""
    assert recorders(options) == {"torch": f"rltrace.{torch}", "jax": f"rltrace.{jax}"}
