"""Building the native engine's library: where it goes, what it lacks, and several at once."""

import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from engines import fitting_record, native_library

from rltrace.errors import BuildError
from rltrace.extensions.jax import log_library
from rltrace.native import build as builds
from rltrace.native.build import EngineBuild, find_compiler, plan_build
from rltrace.native.library import BUILD_RECORD, cache_folder, find, read_record, torch_folder

COMPILER = """#!/bin/sh
case "$*" in
  *--version*) echo "fake c++ 99"; exit 0;;
  *-fsyntax-only*) exit 0;;
esac
while [ "$1" != -o ]; do shift; done
printf 'a library' > "$2"
"""
"""Knows C++20, and makes a library of any source."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RLTRACE_ENGINE_VARIANT", raising=False)
    return tmp_path / "cache"


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = COMPILER) -> Path:
    """A script in place of the compiler."""
    path = folder / "c++"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


@pytest.fixture
def build(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineBuild:
    """What would be built here by the script, headers or not."""
    compiler(tmp_path, monkeypatch)
    record = fitting_record()
    return EngineBuild(record.target, find_compiler(), "", record.sources, torch_folder(), tmp_path)


# --- the key ----------------------------------------------------------------------------------------------------------


def test_each_input_has_its_own_folder(build: EngineBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library depends on: torch, Python, machine, compiler, flags, sources."""
    targets = [build.target._replace(**{name: "other"}) for name in ("torch", "torch_git", "cuda", "python", "machine")]
    compilers = [replace(build.compiler, **change) for change in ({"command": ("/bin/other",)}, {"version": "100"})]
    others = [
        *(replace(build, target=target) for target in targets),
        *(replace(build, compiler=other) for other in compilers),
        replace(build, variant="address"),
        replace(build, sources="0" * 32),
    ]
    folders = {one.folder for one in (build, *others)}
    monkeypatch.setattr(builds, "FLAGS", ("-O3",))
    assert len({*folders, build.folder}) == len(others) + 2
    flags = replace(build, variant="undefined").flags
    assert {"-g", "-fsanitize=undefined"} < set(flags)
    assert all(folder.parent == cache_folder() for folder in folders)
    assert build.folder.name.startswith(f"torch{build.target.torch}-CPython")


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache is the folder that rltrace's variable names, else the user's."""
    monkeypatch.setenv("RLTRACE_CACHE", "/a")
    assert cache_folder() == Path("/a/engine")
    monkeypatch.delenv("RLTRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/rltrace/engine")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/rltrace/engine"


# --- what is missing --------------------------------------------------------------------------------------------------


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install; that of a wrong CXX names it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler is installed .* install g\+\+ 11"):
        find_compiler()
    monkeypatch.setenv("CXX", "nothing-here -m64")
    with pytest.raises(BuildError, match="the compiler nothing-here, which CXX names, does not exist"):
        find_compiler()


def test_an_old_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own words are in the error; a new one is taken with its arguments."""
    text = COMPILER.replace("*-fsyntax-only*) exit 0", "*-fsyntax-only*) echo 'error: no c++20 here' >&2; exit 1")
    path = compiler(tmp_path, monkeypatch)
    monkeypatch.setenv("CXX", f"{path} -m64")  # it may have arguments
    assert find_compiler().command == (str(path), "-m64")
    compiler(tmp_path, monkeypatch, text)
    with pytest.raises(BuildError, match=r"(?s)fake c\+\+ 99.* cannot compile C\+\+20: .*error: no c\+\+20 here"):
        find_compiler()


def test_no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of Python and those of torch, each with what to do."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(BuildError, match=r"Python\.h does not exist: install Python's headers \(Debian: python3"):
        plan_build()
    (tmp_path / "version.py").write_text("__version__ = '2.13.0'")
    monkeypatch.setattr(builds, "torch_folder", lambda: tmp_path)
    with pytest.raises(BuildError, match=r"lacks torch's C\+\+ headers"):
        plan_build()
    monkeypatch.setattr(builds, "torch_folder", lambda: None)
    with pytest.raises(BuildError, match="torch is not installed for"):
        plan_build()


def test_no_such_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that the tests of the engine use."""
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    monkeypatch.setenv("RLTRACE_ENGINE_VARIANT", "memory")
    with pytest.raises(BuildError, match="RLTRACE_ENGINE_VARIANT=memory is not one of address, undefined, debug"):
        plan_build()


def test_the_log_of_jax_programs(build: EngineBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once for each jaxlib, with its headers; where JAX is not installed there is nothing to do."""
    (tmp_path / "version.py").write_text("_version = '0.10.2'\n")
    monkeypatch.setattr(log_library, "jaxlib_folder", lambda: tmp_path)
    path = log_library.build()
    assert path.name.startswith("jaxlib0.10.2-")
    path.write_text("kept")
    assert log_library.build() == path
    assert path.read_text() == "kept"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    monkeypatch.setattr(log_library, "jaxlib_folder", lambda: None)
    assert log_library.build() is None


def test_sources_that_do_not_compile(build: EngineBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are shown, and nothing is left behind."""
    compiler(tmp_path, monkeypatch, "#!/bin/sh\necho 'note: 1' >&2; echo 'engine.cpp:3: error: 2' >&2; exit 1\n")
    with pytest.raises(BuildError, match=r"(?s)cannot be compiled by .*fake c\+\+ 99.*\n  engine.cpp:3: error: 2$"):
        build.compile()
    assert list(build.folder.iterdir()) == []
    assert not build.is_built


def test_a_cache_that_cannot_be_written(build: EngineBuild, cache: Path) -> None:
    """The error names the folder."""
    cache.write_text("a file")
    with pytest.raises(BuildError, match="cannot be written: Not a directory"):
        build.compile()


# --- building ---------------------------------------------------------------------------------------------------------


def test_what_is_built_is_found(build: EngineBuild) -> None:
    """The record says what it was built for and of what; a damaged library counts as not built."""
    assert not build.is_built
    folder = build.compile()
    record = read_record(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([BUILD_RECORD, record.file])
    assert record.target == build.target
    assert record.compiler == f"{build.compiler.command[0]} (fake c++ 99)"
    assert record.flags == build.flags
    assert "-std=c++20" in record.flags
    assert find(build.torch).path == folder / record.file
    assert build.is_built
    (folder / record.file).write_bytes(b"a librar")
    assert not build.is_built
    assert build.compile() == folder
    assert build.is_built


def test_several_at_once(build: EngineBuild) -> None:
    """None disturbs another: each leaves a whole library, which is found all the time from the first on."""
    build.compile()
    with ThreadPoolExecutor(4) as pool:
        building = [pool.submit(build.compile) for _ in range(8)]
        while not all(one.done() for one in building):
            assert find(build.torch).why_not == ""
    assert {one.result() for one in building} == {build.folder}
    assert [path.name for path in build.folder.iterdir() if path.is_dir()] == []
    assert build.is_built


def test_the_library_of_these_sources() -> None:
    """The sources compile, and the library passes its trial. Compiled only where ``make set-up`` has not."""
    try:
        build = plan_build()
    except BuildError as error:
        pytest.skip(str(error))
    if not build.is_built:
        build.compile()
    assert native_library().why_not == ""
