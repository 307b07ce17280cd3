"""What is known of a machine and a process is found without changing either."""

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from rltrace import fingerprint
from rltrace.fingerprint import host, libraries, sources

START = "from rltrace import fingerprint\nfound = fingerprint.start()\n"
PRINT = "import json; print('FACTS', json.dumps(found))\n"


def facts_of(code: str, folder: Path, **variables: str) -> tuple[dict[str, object], str]:
    """The facts that a program binds to ``found``, and what it wrote to standard error."""
    (folder / "program.py").write_text(code + PRINT)
    result = subprocess.run(
        [sys.executable, folder / "program.py"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in result.stdout.splitlines() if line.startswith("FACTS "))
    return json.loads(line[6:]), result.stderr


def test_facts_are_flat() -> None:
    """Every fact is a number, a string, a truth value or unknown, under a dotted name."""
    for name, value in fingerprint.facts().items():
        assert "." in name
        assert value is None or isinstance(value, (str, int, float, bool)), name


def test_without_torch_nothing_is_loaded(tmp_path: Path) -> None:
    """Facts are of what is loaded; nothing is loaded for them."""
    code = "import sys\nfrom rltrace import fingerprint\nfound = fingerprint.start() | fingerprint.facts()\n"
    found, _ = facts_of(code + "assert not {'torch', 'numpy'} & set(sys.modules)\n", tmp_path)
    assert found["python.version"] == ".".join(map(str, sys.version_info[:3]))
    assert "torch.version" not in found
    assert "numpy.version" not in found
    assert not [name for name in found if name.startswith("unreadable.")]


def test_start_leaves_the_programs_settings_open(tmp_path: Path) -> None:
    """A program that sets its instruction set after importing torch still gets it: start() has not asked for it."""
    code = """
import os
import torch
from rltrace import fingerprint
fingerprint.start()
os.environ["ATEN_CPU_CAPABILITY"] = "default"
torch.ones(3) + 1
found = fingerprint.facts()
"""
    found, _ = facts_of(code, tmp_path)
    assert found["cpu.capability"] == "DEFAULT"
    assert found["env.ATEN_CPU_CAPABILITY"] == "default"


def test_all_facts_of_torch(tmp_path: Path) -> None:
    """Builds, threads and switches, read under every mixture of old and new settings without one warning or draw."""
    code = """
import random, sys, warnings
warnings.simplefilter("error")
import numpy, torch
from rltrace import fingerprint
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.fp32_precision = "tf32"
torch.set_float32_matmul_precision("high")
torch.backends.cuda.matmul.fp32_precision = "ieee"
before = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
found = fingerprint.facts(fingerprint.start())
after = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
assert not torch.cuda.is_initialized()
"""
    found, said = facts_of(code, tmp_path)
    assert said == ""
    assert found["torch.threads"] == 1
    assert found["flag.deterministic_algorithms"] is True
    assert found["flag.cuda.matmul.precision"] == "ieee"
    assert found["flag.default_dtype"] == "float32"
    assert str(found["torch.version"]).startswith("2.")
    assert found["numpy.blas"]
    assert found["package.torch"] == str(found["torch.version"])
    assert not [name for name in found if name.startswith("unreadable.")]


@pytest.mark.usefixtures("new_processes")
def test_part_that_cannot_be_read(tmp_path: Path) -> None:
    """A torch that lacks something costs the facts about it, no more."""
    (tmp_path / "torch.py").write_text("__version__ = '0'\nclass version: git_version = cuda = None; debug = False\n")
    found, _ = facts_of("import torch\nfrom rltrace import fingerprint\nfound = fingerprint.facts()\n", tmp_path)
    assert found["torch.version"] == "0"
    assert found["unreadable.config"] == "AttributeError"
    assert found["python.version"]


# --- environment variables --------------------------------------------------------------------------------------------


def test_variables_by_allow_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What can change numerics is read; anything else, secrets and places are not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in {
        "OMP_NUM_THREADS": "3",
        "PYTHONHASHSEED": "7",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MY_PRIVATE_THING": "x",
        "TORCH_HUB_TOKEN": "abcdef",
        "TORCH_HOME": "/somewhere",
        "TORCH_LOGS": f"{tmp_path}/logs",
        "LD_PRELOAD": f"{tmp_path}/lib/libjemalloc.so.2:/usr/lib/libx.so",
    }.items():
        monkeypatch.setenv(name, value)
    found = host.environment()
    assert found["env.OMP_NUM_THREADS"] == "3"
    assert found["env.PYTHONHASHSEED"] == "7"
    assert found["env.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert found["env.LD_PRELOAD"] == "libjemalloc.so.2:libx.so"
    assert found["env.TORCH_HUB_TOKEN"] == "***"
    assert found["env.TORCH_LOGS"] == "~/logs"
    assert not {"env.MY_PRIVATE_THING", "env.TORCH_HOME", "env.HOME"} & set(found)


READING = """
import os, sys, types
from rltrace import fingerprint
sys.modules["_rltrace_bootstrap"] = types.SimpleNamespace(STARTED_WITH=dict(os.environ))
os.environ["SCALE"] = "7"
values = os.environ.get("SCALE", "1"), os.getenv("NOISE"), "FLAG" in os.environ, os.environ["DATA"], os.environ["RANK"]
os.environ.setdefault("WANDB_API_KEY", "x")
found = fingerprint.start() | fingerprint.facts()
"""


def test_variables_that_the_program_names(tmp_path: Path) -> None:
    """With the value that the process was started with; of a path and a secret no text, and nothing of one that is not
    set, that no source names, or that says where the program runs."""
    given = {"SCALE": "0.9", "FLAG": "", "DATA": "/data/x", "RANK": "0", "WANDB_API_KEY": "abc", "OTHER": "y"}
    found, _ = facts_of(READING, tmp_path, **given)
    own = {name: found.get(f"env.{name}") for name in (*given, "NOISE")}
    expected = {"SCALE": "0.9", "FLAG": "", "DATA": "***", "RANK": None, "WANDB_API_KEY": "***", "OTHER": None}
    assert own == {**expected, "NOISE": None}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b"os.environ['A_1']; environ.get( \"B\"); getenv('C', 2)", {"A_1", "B", "C"}),
        (b"'D' not in os.environ and os.environ.pop('E')", {"D", "E"}),
        (b"os.environ[name]; environment['F']; print('G')", set()),
    ],
)
def test_variables_in_a_source_file(line: bytes, names: set[str]) -> None:
    """Those that are read, set or looked for by a name that is written out."""
    assert sources.variables_in(line) == names


@pytest.mark.parametrize(("seed", "random"), [("0", False), ("7", False), ("random", True), ("", True)])
def test_hash_seed(tmp_path: Path, seed: str, random: bool) -> None:
    """Whether strings hash alike in every run of the program."""
    assert facts_of(START, tmp_path, PYTHONHASHSEED=seed)[0]["python.hash_randomization"] is random


def test_facts_of_the_launcher(tmp_path: Path) -> None:
    """What the launcher found out is among the facts; what is no fact is left out."""
    found, _ = facts_of(START, tmp_path, RLTRACE_FACTS='{"git.dirty": true, "git.more": [1]}')
    assert found["git.dirty"] is True
    assert "git.more" not in found


# --- source files -----------------------------------------------------------------------------------------------------

SOURCES = """
import sys
from rltrace import fingerprint
import envs.cart, helper, click
earlier = fingerprint.start()
if len(sys.argv) > 1:
    open(helper.__file__, "w").write("changed = 1\\n")
import later
found = {k: v for k, v in fingerprint.facts(earlier).items() if k.startswith("source.")}
"""


def project(folder: Path) -> Path:
    (folder / "envs").mkdir(parents=True)
    for name in ("envs/__init__.py", "envs/cart.py", "helper.py", "later.py"):
        (folder / name).write_text(f"# {name}\n")
    return folder


def test_source_files(tmp_path: Path) -> None:
    """The program's own modules, those loaded late too, by names that do not say where the project lies."""
    here, _ = facts_of(SOURCES, project(tmp_path / "here"))
    there, _ = facts_of(SOURCES, project(tmp_path / "else" / "where"))
    assert here == there
    assert set(here) == {
        f"source.{n}" for n in ("program.py", "helper.py", "later.py", "envs/__init__.py", "envs/cart.py")
    }
    assert all(isinstance(value, str) and len(value) == 16 for value in here.values())


def test_hash_is_of_what_ran(tmp_path: Path) -> None:
    """A file that was edited while the program ran keeps the hash it had when it was first seen."""
    folder = project(tmp_path / "p")
    before, _ = facts_of(SOURCES, folder)
    facts = "import sys; sys.argv.append('edit')\n" + SOURCES
    after, _ = facts_of(facts, folder)
    assert (folder / "helper.py").read_text() == "changed = 1\n"
    assert after["source.helper.py"] == before["source.helper.py"]
    assert after["source.program.py"] != before["source.program.py"]


def test_a_file_is_read_once_for_its_hash_and_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read for the digests of its lines has the hash that it has alone."""
    files = [file for _, file in sources.source_files((), time.time()) if file.text]
    alone, read, plain = sources.hashes({}), set[str](), sources._read
    monkeypatch.setattr(sources, "_read", lambda path: plain(path) if read.add(path) is None else None)
    assert sources.hashes({}, files) == alone and len(files) > 1
    assert not read & {file.path for file in files}


def test_files_are_read_while_another_thread_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection, in which other threads run, can come between two modules that are looked at."""
    names = (f"imported{number}" for number in range(2000))

    def import_another(*_: object) -> None:
        sys.modules[next(names, "all")] = ModuleType("imported")

    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    threshold, before = gc.get_threshold(), len(sys.modules)
    gc.callbacks.append(import_another)
    gc.set_threshold(1)
    try:
        sources.hashes({})
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(import_another)
    assert len(sys.modules) > before


def test_no_files_of_the_library_or_of_packages() -> None:
    """The standard library, installed packages and rltrace itself are not the program."""
    names = [name for name, _ in sources.program_files()]
    assert not [name for name in names if "site-packages" in name or name.startswith("rltrace/")]


def test_a_large_package_of_the_program_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of large packages are left out only where these are installed."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("jax", "jax/__init__.py"), ("jax.made", "jax/made.py")):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    found = dict(sources.program_files())
    assert {"jax/__init__.py", "jax/made.py"} <= found.keys()
    assert not any(name.startswith(("torch/", "numpy/")) for name in found)


def test_a_library_is_asked_only_where_it_is_loaded() -> None:
    """Its file is the one in memory; without it, or without such a function, nothing is said."""
    path = host.loaded("libc.so")
    assert path is not None and Path(path).is_absolute() and Path(path).exists()
    assert host.loaded("libcublas.so.none") is None
    assert host.library_version("libc.so", "cublasGetProperty") is None
    assert host.library_version("libcublas.so.none", "cublasGetProperty") is None


def test_reduced_precision_of_products_is_a_truth_value() -> None:
    """Whether split-k is allowed as well, which newer versions of torch report with it, is a fact of its own."""
    pytest.importorskip("torch")
    flags = libraries.torch_flags()
    for kind in ("fp16", "bf16"):
        assert flags[f"flag.cuda.matmul.{kind}_reduced"] is True
        assert flags.get(f"flag.cuda.matmul.{kind}_split_k", True) is True


def test_variables_that_choose_kernels_are_written_down_and_places_are_not() -> None:
    """Where a file lies stays private, though its name begins as theirs do."""
    choosing = "DISABLE_ADDMM_CUDA_LT", "TORCH_BLAS_PREFER_CUBLASLT", "CUBLAS_WORKSPACE_CONFIG"
    assert all(map(host.is_recorded, choosing))
    assert not any(map(host.is_recorded, ("PYTORCH_TUNABLEOP_FILENAME", "TORCHINDUCTOR_CACHE_DIR", "HOME")))


def test_a_container_with_a_part_of_the_drivers_files_has_the_facts_of_that_part(tmp_path: Path) -> None:
    """One missing file of ``/proc`` loses its own fact only."""
    assert host.driver_facts(tmp_path) == {}
    (tmp_path / "gpus" / "0000:3b:00.0").mkdir(parents=True)
    assert host.driver_facts(tmp_path) == {}
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\nGCC version:  gcc 13\n"
    )
    assert host.driver_facts(tmp_path) == {"cuda.driver": "NVIDIA UNIX x86_64 Kernel Module 580.65.06"}
    (tmp_path / "gpus" / "0000:3b:00.0" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ:   \t\t 64\n")
    assert host.driver_facts(tmp_path)["cuda.gpus"] == "NVIDIA H100"
