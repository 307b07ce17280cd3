"""The bootstrap calls the recorder once, when torch has been imported, and is not noticed by the program."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rltrace.distribution import own_requirement
from rltrace.launch.command import BOOTSTRAP, child_environment
from rltrace.launch.summary import remedy
from rltrace.recorder.base.options import RecordOptions
from tests.launch.conftest import Bench

CALLS = """
import os
from pathlib import Path
def calls():
    return len(list(Path(os.environ["RLTRACE_STARTS"]).glob("*.failed")))
"""


# --- when torch is imported ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import torch.part",
        "from torch import part",
        "__import__('importlib').import_module('torch.part')",
        "import threading\nt = threading.Thread(target=__import__, args=('torch',))\nt.start()\nt.join()",
    ],
)
def test_recorder_is_called_once(bench: Bench, code: str) -> None:
    """Whichever way torch comes in, the recorder is called once, in the process that left the start record."""
    assert bench.python(f"{code}\nimport torch\nimport torch.part\n").returncode == 0
    assert [call["token"] for call in bench.calls()] == [
        start_record["token"] for start_record in bench.start_records()
    ]
    assert len(bench.calls()) == 1


def test_import_has_finished_when_the_recorder_is_called(bench: Bench) -> None:
    """Not when torch first shows in sys.modules, but when its last line has run."""
    bench.module("calls.py", CALLS)
    bench.module("torch/__init__.py", "from calls import calls\nfrom torch import part\nprint('within', calls())\n")
    result = bench.python("from calls import calls\nimport torch\nprint('after', calls())\n")
    assert result.stdout == "within 0\nafter 1\n"


def test_torch_counts_as_imported_in_other_threads(bench: Bench) -> None:
    """A thread that the recorder starts may import torch while the program's import statement still waits."""
    code = """
import sys, threading
class Late:  # stands where the recorder's own thread would
    def find_spec(self, name, path=None, target=None):
        if name == "rltrace.recorder.session.session":
            def look():
                import torch
                print("ready", torch.ready, torch.__spec__._initializing)
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
sys.meta_path.insert(0, Late())
import torch
"""
    assert bench.python(code).stdout == "ready True False\n"


def test_failing_import_is_the_programs_own_affair(bench: Bench) -> None:
    """An import that fails fails with the same words; the next one that succeeds starts the recorder."""
    bench.module(
        "torch/__init__.py", "import os\nif 'BROKEN' in os.environ:\n    raise OSError('libtorch.so is missing')\n"
    )
    code = """
import os, traceback
try:
    import torch
except OSError:
    traceback.print_exc()
del os.environ["BROKEN"]
import torch
"""
    plain = bench.python(code, recorded=False, BROKEN="1")
    recorded = bench.python(code, BROKEN="1")
    assert "libtorch.so is missing" in plain.stderr
    assert recorded.stderr == plain.stderr
    assert len(bench.calls()) == 1


def test_reload_does_not_call_again(bench: Bench) -> None:
    """importlib.reload runs torch again, as it would; the recorder is there already."""
    bench.module("torch/__init__.py", "print('torch runs')\n")
    result = bench.python("import importlib, torch\nimportlib.reload(torch)\nimport torch\n")
    assert result.stdout == "torch runs\ntorch runs\n"
    assert len(bench.calls()) == 1


def test_asking_for_the_spec_is_not_importing(bench: Bench) -> None:
    """Libraries ask whether torch is there without importing it."""
    code = "import importlib.util, sys\nprint(importlib.util.find_spec('torch').name, 'torch' in sys.modules)\n"
    assert bench.python(code).stdout == "torch False\n"
    assert bench.calls() == []


def test_nothing_is_left_on_the_import_path(bench: Bench) -> None:
    """After torch and JAX no finder of ours remains, and torch's spec and loader are of their usual classes."""
    bench.module("jax/__init__.py", "")
    code = """
import sys, torch, jax
print([type(finder).__name__ for finder in sys.meta_path if type(finder).__module__ == "sitecustomize"])
print(type(torch.__spec__), type(torch.__loader__), torch.__spec__.loader is torch.__loader__)
"""
    lines = bench.python(code).stdout.splitlines()
    assert lines[0] == "[]"
    assert lines[1] == bench.python(code, recorded=False).stdout.splitlines()[1]


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_library_there_before_the_bootstrap(bench: Bench, library: str) -> None:
    """What site-packages' .pth files import comes before any sitecustomize; it counts."""
    bench.module("jax/__init__.py", "")
    code = f"import {library}, sitecustomize\n"
    bench.run([sys.executable, "-S", "-c", code])  # -S: no site, so that the order is ours to choose
    assert len(bench.calls()) == 1


# --- where torch never comes ------------------------------------------------------------------------------------------


def test_without_torch_only_a_start_record(bench: Bench) -> None:
    """A helper process leaves its start record, and loads three small modules that it would not have loaded."""
    code = "import sys\nprint(*sorted(sys.modules))\n"
    plain = set(bench.python(code, recorded=False).stdout.split())
    recorded = set(bench.python(code).stdout.split())
    assert recorded - plain - {"sitecustomize", "_rltrace_bootstrap"} <= {"zlib", "_json", "__future__"}
    assert bench.calls() == []
    assert len(bench.start_records()) == 1


def test_start_record_has_no_arguments(bench: Bench) -> None:
    """A start record says what was started; arguments, which may be secret, stay out of it."""
    bench.python("", "--token", "hunter2-hunter2")
    (start_record,) = bench.start_records()
    assert start_record["argv"] == [Path(sys.executable).name, "program.py"]
    assert "hunter2" not in "".join(path.read_text() for path in (bench.trace / "starts").iterdir())
    assert isinstance(start_record["pid"], int)
    assert isinstance(start_record["time"], float)


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["-u", "-c", "x = 1", "--secret"], ["-c"]),
        (["-um", "helper", "--secret"], ["-m", "helper"]),
        (["-c", "from multiprocessing.spawn import freeze_support", "--secret"], ["-c", "multiprocessing.spawn"]),
    ],
)
def test_start_record_of_a_module_or_a_string(bench: Bench, words: list[str], argv: list[str]) -> None:
    """``-m`` names its module, ``-c`` is not quoted, but for what multiprocessing starts."""
    bench.module("helper.py")
    bench.run([sys.executable, *words])
    assert bench.start_records()[0]["argv"][1:] == argv


def test_outside_a_recording_nothing_happens(bench: Bench) -> None:
    """The folder alone, without the variables, does nothing but run the user's sitecustomize."""
    bench.module("sitecustomize.py", "print('mine')\n")
    result = bench.python("import torch\nprint('done')\n", RLTRACE_RECORD="", recorded=False)
    again = bench.python(
        "import torch\nprint('done')\n", recorded=False, PYTHONPATH=f"{BOOTSTRAP}:{bench.folder}/modules"
    )
    assert result.stdout == again.stdout == "mine\ndone\n"
    assert bench.start_records() == []


def test_trace_that_is_gone(bench: Bench) -> None:
    """Where no start record can be written, the program runs as if nothing were there."""
    result = bench.python("import torch\nprint(torch.ready)\n", PYTHONDONTWRITEBYTECODE="1")
    (bench.trace / "starts").rename(bench.trace / "elsewhere")
    again = bench.python("import torch\nprint(torch.ready)\n")
    assert (again.returncode, again.stdout, again.stderr) == (result.returncode, result.stdout, result.stderr)


def test_failure_of_the_recorder_is_noted(bench: Bench) -> None:
    """A recorder that cannot start leaves the reason in the trace and not a trace in the program."""
    result = bench.python("import torch\nprint(torch.ready)\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")
    assert "Error" in bench.calls()[0]["why"]


def test_missing_rltrace_is_named(bench: Bench) -> None:
    """A Python that has torch but no rltrace is named in the note, and at once; the command says how it gets it."""
    bench.module("rltrace/__init__.py", "raise ModuleNotFoundError('No module', name='rltrace')\n")
    result = bench.python("import torch, sys\nprint('so far', file=sys.stderr)\n")
    why = bench.calls()[0]["why"]
    assert "rltrace is not installed for" in why
    assert result.stderr == f"rltrace: {why}: nothing of this process is recorded\nso far\n"
    assert remedy(why).endswith(f"{why.rpartition(' ')[2]} -m pip install {own_requirement()}")
    assert remedy("OSError: No space left on device") == ""


# --- the user's own sitecustomize ------------------------------------------------------------------------------------


def test_own_sitecustomize_runs(bench: Bench) -> None:
    """The hidden sitecustomize runs, can extend sys.path, and is the one that the program finds."""
    bench.module("sitecustomize.py", "import sys\nsys.path.append('/from/sitecustomize')\nprint('mine')\n")
    code = "import sys, sitecustomize\nprint(sitecustomize.__file__, '/from/sitecustomize' in sys.path)\n"
    plain, recorded = bench.python(code, recorded=False), bench.python(code)
    assert recorded.stdout == plain.stdout
    assert recorded.stdout.startswith("mine\n")
    assert recorded.stdout.endswith("True\n")


@pytest.mark.parametrize("error", ["ValueError('boom')", "ImportError('no such thing')"])
def test_own_sitecustomize_that_fails(bench: Bench, error: str) -> None:
    """Its error is reported by the interpreter in the same words, and recording goes on."""
    bench.module("sitecustomize.py", f"raise {error}\n")
    plain, recorded = bench.python("import torch", recorded=False), bench.python("import torch")
    assert plain.stderr != ""
    assert recorded.stderr == plain.stderr
    assert len(bench.calls()) == 1


def test_torch_imported_by_own_sitecustomize(bench: Bench) -> None:
    """A sitecustomize that imports torch counts."""
    bench.module("sitecustomize.py", "import torch\n")
    bench.python("import torch")
    assert len(bench.calls()) == 1


# --- descendants ------------------------------------------------------------------------------------------------------

SPAWN = """
import multiprocessing, sys
def work():
    import torch
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing(bench: Bench, method: str) -> None:
    """A worker that imports torch is recorded under a start record of its own, however it was started."""
    result = bench.python(SPAWN, method)
    assert result.returncode == 0, result.stderr
    (call,) = bench.calls()
    tokens = {start_record["token"]: start_record["pid"] for start_record in bench.start_records()}
    assert call["pid"] == tokens[call["token"]]
    assert len(tokens) > 1


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)",
        "subprocess.run(['sh', '-c', f'{sys.executable} -s -c \"import torch\"; true'], check=True)",
        "os.system(f'{sys.executable} -P -c \"import torch\"')",
        "os.execv(sys.executable, [sys.executable, '-c', 'import torch'])",
        "subprocess.run([sys.executable, '-c', 'import torch'], env={**keep, 'PYTHONPATH': ':'.join(sys.path)})",
    ],
)
def test_children_are_reached(bench: Bench, line: str) -> None:
    """A child process is reached through the environment, however it is started."""
    code = f"import os, subprocess, sys\nkeep = {{k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}}\n{line}\n"
    result = bench.python(code)
    assert result.returncode == 0, result.stderr
    assert len(bench.start_records()) == 2
    assert len(bench.calls()) == 1


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_what_cannot_be_reached_leaves_nothing(bench: Bench, flag: str) -> None:
    """An isolated interpreter leaves no start record: that is how the launcher knows."""
    bench.run([sys.executable, flag, "-c", ""])
    assert bench.start_records() == []


# --- the environment --------------------------------------------------------------------------------------------------


def test_pythonpath_and_other_variables_are_kept() -> None:
    """The bootstrap comes first, once, and what was there stays in its order. Nothing else of the environment changes,
    but that a recording within another begins anew: its first process is no child of the program that started it."""
    options = RecordOptions("/somewhere/t.zarr")
    above = {"RLTRACE_DEPTH": "2", "RLTRACE_PARENT_RANK": "0"}
    once = child_environment(options, {}, {"PYTHONPATH": "/a:/b", "A": "1", "PATH": "/bin", **above})
    assert once["PYTHONPATH"].split(":") == [str(BOOTSTRAP), "/a", "/b"]
    assert child_environment(options, {}, once)["PYTHONPATH"] == once["PYTHONPATH"]
    assert child_environment(options, {}, {})["PYTHONPATH"] == str(BOOTSTRAP)
    assert (once.pop("A"), once.pop("PATH")) == ("1", "/bin")
    assert set(once) == {"PYTHONPATH", "RLTRACE_RECORD", "RLTRACE_RECORDERS", "RLTRACE_STARTS", "RLTRACE_FACTS"}


# --- processes of torch's compiler ------------------------------------------------------------------------------------

PROBES = '\nfrom ctypes import cdll\ncdll.LoadLibrary("', '\nfrom ctypes import cdll\ntry:\n    cdll.LoadLibrary("'


def test_processes_of_the_compiler_are_no_part_of_the_program(bench: Bench) -> None:
    """Its probes of an instruction set and its workers leave no record, and start no recorder."""
    worker = bench.module("torch/_inductor/compile_worker/__main__.py", "import torch\n")
    bench.module("torch/_inductor/__init__.py")
    probes = [
        ["-c", f'import torch{probe}libc.so.6")\n' + "except OSError: 0\n" * ("try" in probe)] for probe in PROBES
    ]
    for command in (*probes, [worker]):
        assert bench.run([sys.executable, *command]).returncode == 0
    assert (bench.start_records(), bench.calls()) == ([], [])
    assert bench.run([sys.executable, "-c", "import torch\nfrom ctypes import cdll"]).returncode == 0
    assert len(bench.start_records()) == len(bench.calls()) == 1


def test_the_compiler_starts_its_processes_so() -> None:
    """The torch that is installed has what they are recognized by."""
    inductor = Path(find_spec("torch").origin).parent / "_inductor"
    source = (inductor / "cpu_vec_isa.py").read_text(encoding="utf-8")
    assert any(probe in source for probe in PROBES)
    assert (inductor / "compile_worker" / "__main__.py").is_file()


# --- processes that are left out --------------------------------------------------------------------------------------


def test_processes_that_no_pattern_matches_are_left_out(bench: Bench) -> None:
    """The recorder is not called there, the trace has their names, and their children are named as ever."""
    bench.module("torch/__init__.py")
    code = "import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n"
    environment = bench.environment()
    RecordOptions(str(bench.trace), processes=("*/child:*",)).to_environment(environment)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    left_out = bench.notes("left-out")
    assert [(note["name"], note["why"]) for note in left_out] == [("rank0/main", "not among --processes */child:*")]
    assert len(bench.calls()) == 1  # in its child
    assert bench.calls()[0]["token"] != left_out[0]["token"]
