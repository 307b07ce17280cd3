"""Libraries of the native engine: which are found, which are refused unloaded, and which after they were tried."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines import CONTENT, cached, fitting_record, write_library

from rltrace.digest import digest_buffer
from rltrace.native import library
from rltrace.native.library import (
    BUILD_RECORD,
    BuildTarget,
    content_digest,
    find,
    load,
    sources_digest,
    target_of,
    torch_folder,
)

CONSTANTS = {"MARKED": 1}

VERSION = """
from typing import Optional
__all__ = ['__version__', 'debug']
__version__ = '2.13.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'abc123'
hip: Optional[str] = None
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing that is loaded."""

    def loaded(path: Path) -> Any:
        raise AssertionError(f"{path} was loaded")

    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("RLTRACE_ENGINE_VARIANT", raising=False)
    monkeypatch.setattr(library, "_import", loaded)
    return tmp_path


def refused() -> str:
    """Why the library is not loaded."""
    found = load(torch_folder(), CONSTANTS)
    assert found.module is None
    return found.why_not


# --- what a library is for --------------------------------------------------------------------------------------------


def test_the_target_is_read_without_torch(tmp_path: Path) -> None:
    """Version, revision and CUDA are those of a file of torch; one that cannot be read is no target."""
    (tmp_path / "version.py").write_text(VERSION)
    found = target_of(tmp_path)
    assert (found.torch, found.torch_git, found.cuda) == ("2.13.0+cu130", "abc123", "13.0")
    assert found.python == f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "version.py").write_text(
        VERSION.replace("'13.0'", "None").replace("hip: Optional[str] = None", "hip = '6.4'")
    )
    assert target_of(tmp_path) == found._replace(cuda="rocm 6.4")
    (tmp_path / "version.py").write_text("version = 3")
    assert target_of(tmp_path) is None
    assert find(tmp_path).why_not == f"{tmp_path} has no version"
    assert find(None).why_not == "torch is not installed"


def test_the_target_is_that_of_the_loaded_torch() -> None:
    """What the file of this Python's torch says is what torch says."""
    import torch

    found = target_of(torch_folder())
    assert torch_folder() == Path(torch.__file__).parent
    assert (found.torch, found.torch_git) == (torch.__version__, torch.version.git_version)
    assert found.cuda == (torch.version.cuda or "")


@pytest.mark.parametrize(
    ("flags", "level", "expected"), [("", "final", "3.15"), ("t", "final", "3.15t"), ("d", "beta", "3.15.0b1d")]
)
def test_builds_of_one_python_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, level: str, expected: str
) -> None:
    """Free-threaded and debug builds have other structures, and those of a version may change until it is final."""
    monkeypatch.setattr(sys, "abiflags", flags)
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=3, minor=15, releaselevel=level))
    monkeypatch.setattr("platform.python_version", lambda: "3.15.0b1")
    (tmp_path / "version.py").write_text(VERSION)
    found = target_of(tmp_path)
    assert found.python == f"CPython {expected}"


def test_sources_by_name_and_content(tmp_path: Path) -> None:
    """A changed, renamed or further source is other sources; a file beside them is not."""
    (tmp_path / "a.h").write_text("one")
    (tmp_path / "b.cpp").write_text("two")
    before = sources_digest(tmp_path)
    (tmp_path / "b.cpp.orig").write_text("two")
    assert sources_digest(tmp_path) == before
    (tmp_path / "b.cpp").write_text("2")
    changed = sources_digest(tmp_path)
    (tmp_path / "b.cpp").rename(tmp_path / "c.cpp")
    assert len({before, changed, sources_digest(tmp_path)}) == 3


# --- found, or refused unloaded ---------------------------------------------------------------------------------------


def test_nothing_is_there(cache: Path) -> None:
    """The reason names what a library would be for."""
    target = fitting_record().target
    assert refused() == f"no native engine is built for {target.text}"
    assert str(target.torch) in target.text


def test_the_cached_one_is_found(cache: Path) -> None:
    """Where its record fits; the one that was built last."""
    first = write_library(cached(cache, 0), compiler="c++ 11")
    assert find(torch_folder()).path == first / "library.so"
    second = write_library(cached(cache, 1), compiler="c++ 12")
    os.utime(first / BUILD_RECORD, (1, 1))
    found = find(torch_folder())
    assert (found.path, found.why_not) == (second / "library.so", "")
    assert found.record.compiler == "c++ 12"


def test_for_another_target(cache: Path) -> None:
    """Another torch, revision of torch, Python or machine, or other sources, whose tables would not be the recorder's:
    refused unloaded, and the reason says what it is for."""
    record = fitting_record()
    for words, change in (
        ("is for torch 2.12.0", {"torch": "2.12.0"}),
        ("of revision 0123", {"torch_git": "0123"}),
        ("CPython 3.9", {"python": "CPython 3.9"}),
        ("riscv", {"machine": "riscv"}),
        ("is for torch", {"cuda": "1.0"}),
    ):
        folder = write_library(cached(cache), record._replace(target=record.target._replace(**change)))
        assert words in refused()
        assert str(folder) in refused()
    write_library(cached(cache), sources="0" * 32)
    assert "is built from other sources than those of this rltrace" in refused()


def test_another_variant(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Used only where it is required: loaded without its runtime, it would end the program."""
    folder = write_library(cached(cache), variant="address")
    assert "is the variant address" in refused()
    monkeypatch.setenv("RLTRACE_ENGINE_VARIANT", "address")
    assert find(torch_folder()).path == folder / "library.so"
    write_library(folder)
    assert "is the variant without checks" in refused()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"target": 3}', '{"target": {}}', "\udcff"])
def test_a_damaged_record(cache: Path, text: str) -> None:
    """Refused, as is a folder without one."""
    folder = write_library(cached(cache))
    (folder / BUILD_RECORD).write_text(text, errors="surrogateescape")
    assert f"{folder / BUILD_RECORD} cannot be read" in refused()
    (folder / BUILD_RECORD).unlink()
    assert refused().startswith("no native engine is built")


def test_a_damaged_library(cache: Path) -> None:
    """A file that is not the one that was built is not loaded: mapping half a library ends the process."""
    folder = write_library(cached(cache), content=CONTENT[:-1])
    assert refused().endswith(f"that in {folder} is damaged")
    (folder / "library.so").unlink()
    assert "cannot be read: No such file" in refused()


# --- loaded and refused -----------------------------------------------------------------------------------------------


def test_what_is_no_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamic loader's reason is passed on."""
    monkeypatch.undo()
    monkeypatch.setenv("RLTRACE_CACHE", str(cache))
    folder = write_library(cached(cache))
    assert f"library {folder / 'library.so'} cannot be loaded: ImportError" in refused()


def stub(monkeypatch: pytest.MonkeyPatch, **members: Any) -> SimpleNamespace:
    """A module in place of a loaded library, right but for ``members``."""
    module = SimpleNamespace(**{"constants": lambda: dict(CONSTANTS), "digest": digest_buffer, **members})
    monkeypatch.setattr(library, "_import", lambda path: module)
    return module


def test_a_library_with_other_digests_or_constants(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with another digest of any size, a number more, less or otherwise, or none at all, is refused; else used."""
    write_library(cached(cache))
    module = stub(monkeypatch)
    assert load(torch_folder(), CONSTANTS).module is module
    for wrong in library.TRIED_SIZES:
        stub(monkeypatch, digest=lambda content, seed, n=wrong: digest_buffer(content, seed) ^ (len(content) == n))
        assert refused().endswith(f"computes another digest of {wrong:,} bytes")
    for constants in ({"MARKED": 2}, {}, {"MARKED": 1, "RNG": 2}):
        stub(monkeypatch, constants=lambda constants=constants: constants)
        assert refused().endswith("assumes another trace format")
    stub(monkeypatch, constants=None)
    assert "cannot be loaded: TypeError" in refused()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every field of a record is read as it was written."""
    record = fitting_record()._replace(target=BuildTarget("2.13.0", "abc", "13.0", "CPython 3.13t", "arm64"))
    assert library.read_record(write_library(tmp_path, record)) == record
    assert record.digest == content_digest(CONTENT)
