"""``rltrace build-engine``: what it says, and what it makes."""

from pathlib import Path

import pytest
from engines import fitting_record

from rltrace.commands.main import main
from rltrace.extensions.jax import log_library
from rltrace.native import build
from rltrace.native.build import Compiler, EngineBuild
from rltrace.native.library import torch_folder


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An empty cache, and a compiler that writes a few bytes; the files that it wrote."""
    written: list[Path] = []

    def compile_into(self: EngineBuild, library: Path) -> None:
        written.append(library)
        library.write_bytes(b"a library")

    record, torch = fitting_record(), torch_folder()
    assert torch is not None
    plan = EngineBuild(record.target, Compiler(("/bin/c++",), "c++ 12"), "", record.sources, torch, tmp_path)
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(EngineBuild, "_compile_into", compile_into)
    monkeypatch.setattr(build, "plan_build", lambda: plan)
    monkeypatch.setattr(log_library, "jaxlib_folder", lambda: None)
    return written


def test_it_is_compiled_once(compiled: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says for what, with what and how long it takes; a second time there is nothing to do, unless with --force."""
    assert main(["build-engine"]) == 0
    shown = capsys.readouterr()
    begun, done = shown.err.splitlines()
    target = fitting_record().target.text
    assert begun == f"rltrace: compiling for {target} with /bin/c++ (c++ 12): about a minute …"
    assert done == "rltrace: done in 0 s"
    (folder,) = (tmp_path / "cache/engine").iterdir()
    assert shown.out == f"{folder}\n"
    assert main(["build-engine"]) == 0
    assert capsys.readouterr() == (f"{folder}\n", "")
    assert main(["build-engine", "--force", "--quiet"]) == 0
    assert capsys.readouterr() == (f"{folder}\n", "")
    assert len(compiled) == 2


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and what to do."""
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    assert main(["build-engine"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rltrace: error: ")
    assert not (tmp_path / "cache").exists()
