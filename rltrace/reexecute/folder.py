"""The folder in which one op leaves the house: a script, its inputs, and what the script needs.

Owns which files stand in it. ``command.py``, ``rerun.py`` and ``switches.py`` are this package's own, ``digest.py`` the
digest's slow and obvious implementation (``rltrace.digest.reference``), all as they are but for where they import from:
shorter ones made for the folder would be second ones to keep right. Tensors are kept as the bytes of their storages, so
dtypes that NumPy lacks and inputs that are each other's memory come through.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from rltrace.digest import PAGE_BYTES, definition, reference
from rltrace.fingerprint.host import ACTING
from rltrace.reexecute import command, rerun, switches
from rltrace.reexecute.command import Side
from rltrace.reexecute.recorded import RecordedOp, settings_of
from rltrace.reexecute.script import script
from rltrace.trace.process import ProcessTrace
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column

SCRIPT = "repro.py"


def write_folder(
    folder: Path, op: RecordedOp, sides: Mapping[str, Side], told: Sequence[str], imports: Sequence[str] = ()
) -> None:
    """Write it; files of an earlier one are replaced. ``told``, ``imports``: as in ``script``."""
    folder.mkdir(parents=True, exist_ok=True)
    case = op.case
    arrays = {f"storage_{i}": np.asarray(data) for i, data in enumerate(case.storages)}
    arrays |= {"storages": np.array(len(case.storages)), "alignments": np.array(case.alignments, np.int64)}
    if case.generator is not None:
        arrays["generator"] = np.asarray(case.generator.state)
    np.savez_compressed(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    (folder / SCRIPT).write_text(script(op, sides, told, imports, SCRIPT), encoding="utf-8")
    (folder / "command.py").write_text(_alone(command, rerun, switches), encoding="utf-8")
    (folder / "rerun.py").write_text(_alone(rerun, switches), encoding="utf-8")
    (folder / "switches.py").write_text(inspect.getsource(switches), encoding="utf-8")
    (folder / "digest.py").write_text(digest_source(), encoding="utf-8")


def side_of(
    process: ProcessTrace,
    rows: Rows,
    results: tuple[str, ...],
    kernel: str,
    alignments: tuple[int, ...] | None = None,
) -> Side:
    """What was recorded of a row's op, and the settings that its process told of."""
    facts = process.facts
    evidence = process.tables["kernels"].payloads[rows.columns[0, Column.KERNEL]]
    threads = evidence.get("threads") if isinstance(evidence, dict) else None
    named = {name.removeprefix("env."): value for name, value in facts.items() if name.startswith("env.")}
    return Side(
        results,
        threads if isinstance(threads, int) else None,
        {name: str(value) for name, value in sorted(named.items()) if name.startswith(ACTING) and value is not None},
        _thrown({**_facts_of_flags(facts), **settings_of(process, rows)}),
        alignments,
        str(facts.get("torch.version") or ""),
        str(facts.get("host.cpu") or ""),
        kernel,
    )


def _facts_of_flags(facts: Mapping[str, object]) -> dict[str, object]:
    """What the process told of switches, for a row that says nothing of them."""
    flags = {name: facts.get(f"flag.{name}") for name in switches.SWITCHES}
    return {name: value for name, value in flags.items() if switches.fits(name, value)}


def _thrown(recorded: Mapping[str, object]) -> dict[str, object]:
    """Switches that stood otherwise than they stand here, in a process that has thrown none."""
    return {name: value for name, value in recorded.items() if not switches.is_standing(name, value)}


def _alone(module: ModuleType, *neighbours: ModuleType) -> str:
    """The source of a module that imports from neighbours, for where they lie side by side."""
    text = inspect.getsource(module)
    for neighbour in neighbours:
        line = f"from {neighbour.__name__} import "
        assert line in text
        text = text.replace(line, f"from {neighbour.__name__.rpartition('.')[2]} import ")
    return text


_TENSOR_DIGEST = '''

def tensor_digest(dtype: str, shape: tuple[int, ...], data: bytes) -> int:
    """Digest of a tensor: ``data`` are its elements in row-major order."""
    return digest(data, xxh3_64(f"{dtype}[{','.join(map(str, shape))}]".encode(), 0))
'''


def digest_source() -> str:
    """``rltrace.digest.reference`` as a file that needs nothing of rltrace."""
    line = f"from {definition.__name__} import PAGE_BYTES, SECRET\n"
    text = inspect.getsource(reference)
    assert line in text
    secret = definition.SECRET.hex()
    pieces = [secret[i : i + 96] for i in range(0, len(secret), 96)]
    constants = f"PAGE_BYTES = {PAGE_BYTES}\nSECRET = bytes.fromhex(\n"
    constants += "".join(f'    "{piece}"\n' for piece in pieces) + ")\n"
    return text.replace(line, constants) + _TENSOR_DIGEST
