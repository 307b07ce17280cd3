"""The kernels compiled, by a process of their own and without a GPU; what is said where that cannot be done."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import kernel_interpreter
import pytest

from rltrace.digest.gpu.compiler import SIGNATURES, UnavailableError, compiled

needs_triton = pytest.mark.skipif(not kernel_interpreter.HERE, reason="needs triton")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What another test was answered is forgotten."""
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@needs_triton
@pytest.mark.parametrize("architecture", [80, 90])
def test_it_takes_no_gpu(
    architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For Ampere and Hopper, silently, whatever the program has set for Triton; where its cache cannot be, without one.

    No kernel keeps anything in a thread's own memory: all that it works on stays in registers, of which there are
    enough for twelve pages at once on a multiprocessor (Triton 3.6 takes most, 168 a thread).
    """
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("NVPTX_ENABLE_DUMP", "1")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / ("file" if architecture == 80 else "cache")))
    loaded = set(sys.modules)
    made = compiled(architecture)
    assert capfd.readouterr() == ("", "")
    assert not {name for name in set(sys.modules) - loaded if name.partition(".")[0] == "triton"}
    assert re.fullmatch(r"Triton 3\.\d+\.\d+\S*", made.compiler)
    assert set(made.kernels) == set(SIGNATURES)
    for name, kernel in made.kernels.items():
        assert (kernel.name, kernel.shared, kernel.nulls) == (name, 0, 2)
        (tmp_path / name).write_bytes(kernel.code)
        assert _resources(tmp_path / name)["STACK"] == 0
        assert _resources(tmp_path / name)["REG"] <= 65_536 // 32 // 12


def _resources(cubin: Path) -> dict[str, int]:
    """What its only kernel takes, as NVIDIA's tool beside the assembler has it."""
    tool = Path(find_spec("triton").origin).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    return {name: int(count) for name, count in re.findall(r"(REG|STACK):(\d+)", usage.stdout + usage.stderr)}


@needs_triton
def test_a_gpu_that_the_compiler_does_not_know(capfd: pytest.CaptureFixture[str]) -> None:
    """It is said in a line, and nothing is printed: a compiler writes its complaint to standard output."""
    with pytest.raises(UnavailableError, match=r"^compiling for sm_13 failed: [^\n]{1,300}$"):
        compiled(13)
    assert capfd.readouterr() == ("", "")


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed, or a folder of the program that is called the same."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="triton is not installed"):
        compiled(90)


def test_a_folder_of_the_program_is_no_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name without anything to import is no Triton."""
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "triton").mkdir()
    with pytest.raises(UnavailableError, match="triton is not installed"):
        compiled(90)


@needs_triton
def test_the_triton_that_the_program_would_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Triton of the program is used, and not another one beside a package that is needed as well."""
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("raise ImportError('the first one found')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(UnavailableError, match="ImportError: the first one found"):
        compiled(90)


@needs_triton
@pytest.mark.parametrize("interpreter", ["/bin/false", "/nowhere/python", ""])
def test_an_interpreter_that_is_none(interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that holds one inside."""
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(UnavailableError):
        compiled(90)
