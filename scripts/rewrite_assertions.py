"""Compiles what pytest rewrites for its assertions, on all processors: each worker of a run would do all of it itself.

Uses what pytest keeps private. Where that has changed this fails, and the workers do it.
"""

from __future__ import annotations

from multiprocessing import Pool
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc

ROOT = Path(__file__).parents[1]
KINDS = ("tests/**/test_*.py", "tests/**/conftest.py", "rltrace/**/*.py")
"""The package too, as its plugin of pytest is in it."""


def compile_file(path: Path) -> None:
    """Write the compiled file as pytest does, unless it is there."""
    compiled = path.parent / "__pycache__" / f"{path.stem}{PYC_TAIL}"
    if _read_pyc(path, compiled) is None:
        compiled.parent.mkdir(exist_ok=True)
        source, code = _rewrite_test(path, None)
        _write_pyc(SimpleNamespace(trace=print), code, source, compiled)


if __name__ == "__main__":
    with Pool() as pool:
        pool.map(compile_file, [path for kind in KINDS for path in ROOT.glob(kind)], chunksize=8)
